"""What a command imports before it answers: starting is nearly all of the time that it takes."""

import pytest

from admin_api.examples import CLUSTER_EXAMPLE
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import HEAVY, loaded_by


@pytest.mark.parametrize(
    ("command", "service"),
    [
        (["status"], "admin_api.reader"),
        (["topic", "list"], "admin_api.services.topics"),
        (["group", "list"], "admin_api.services.consumer_groups"),
        (["dlq", "list"], "admin_api.services.dlq_queues"),
        (["doctor"], "admin_api.services.doctor"),
    ],
    ids=" ".join,
)
def test_a_command_imports_its_own_service(command: list[str], service: str) -> None:
    loaded = loaded_by(*command, "--namesrv", "127.0.0.1:1")
    assert service in loaded
    assert not loaded & HEAVY
    assert "http.client" not in loaded


def test_version_imports_no_service() -> None:
    loaded = loaded_by("version")
    assert not loaded & HEAVY
    assert not any(name.startswith(("admin_api", "remoting.", "asyncio")) for name in loaded)


def test_a_table_from_an_admin_service_needs_no_client_of_the_protocol() -> None:
    def answer(asked: Asked) -> tuple[int, bytes]:
        return as_json(200, CLUSTER_EXAMPLE)

    with serving(answer) as admin:
        loaded = loaded_by("status", "--admin", admin.url)
        assert [asked.target for asked in admin.asked] == ["/api/v1/cluster"]
    assert not loaded & HEAVY
    assert not any(name.startswith(("admin_api", "remoting", "asyncio")) for name in loaded)
