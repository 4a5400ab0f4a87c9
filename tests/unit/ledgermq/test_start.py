"""What a command imports before it answers: starting is nearly all of the time that it takes."""

import pytest

from admin_api.cluster.examples import CLUSTER_EXAMPLE
from tests.unit.ledgermq.fake_admin import Asked, as_json, serving
from tests.unit.ledgermq.running import HEAVY, loaded_by, printed_by

UNUSED = frozenset({"importlib.metadata", "email.message", "zipfile", "csv", "secrets", "difflib"})
"""What modules bring with them that are imported by libraries and used by no command that asks brokers."""


@pytest.mark.parametrize(
    ("command", "service"),
    [
        (["status"], "admin_api.cluster.reader"),
        (["topic", "list"], "admin_api.topics.service"),
        (["group", "list"], "admin_api.groups.service"),
        (["dlq", "list"], "admin_api.dead_letters.queues"),
        (["doctor"], "admin_api.health_checks.service"),
    ],
    ids=" ".join,
)
def test_a_command_imports_its_own_service(command: list[str], service: str) -> None:
    loaded = loaded_by(*command, "--namesrv", "127.0.0.1:1")
    assert service in loaded
    assert not loaded & (HEAVY | UNUSED)
    assert "http.client" not in loaded


@pytest.mark.parametrize(
    ("command", "needed", "others"),
    [
        (["group", "list"], "groups.overview", {"groups.details", "groups.progress", "groups.changes"}),
        (
            ["offset", "show", "g"],
            "groups.overview",
            {"groups.details", "groups.changes", "groups.offset_changes"},
        ),
        (
            ["doctor"],
            "health_checks.facts",
            {"groups.details", "groups.progress", "groups.changes", "messages.views"},
        ),
        (["topic", "list"], "topics.service", {"topics.traffic", "topics.changes"}),
        (["topic", "show", "t"], "topics.service", {"topics.traffic", "topics.changes"}),
        (
            ["message", "find", "t"],
            "messages.views",
            {"messages.tracks", "messages.sending", "groups.details"},
        ),
        (
            ["dlq", "list"],
            "dead_letters.queues",
            {"dead_letters.service", "messages.views", "groups.details"},
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_command_makes_no_model_of_what_it_does_not_show(
    command: list[str], needed: str, others: set[str]
) -> None:
    loaded = loaded_by(*command, "--namesrv", "127.0.0.1:1")
    modules = {name.removeprefix("admin_api.") for name in loaded if name.startswith("admin_api.")}
    assert needed in modules
    assert not modules & others
    assert not modules & {"changes", "routing"}


def test_version_imports_no_service() -> None:
    loaded = loaded_by("version")
    assert not loaded & HEAVY
    assert not any(name.startswith(("admin_api", "remoting.", "asyncio")) for name in loaded)


def test_the_end_of_python_looks_for_no_garbage() -> None:
    before = "import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count(), gc.get_count()[0]))"
    frozen, left = map(int, printed_by("version", before=before).split()[-2:])
    assert frozen > 10_000 > left


def test_a_table_from_an_admin_service_needs_no_client_of_the_protocol() -> None:
    def answer(asked: Asked) -> tuple[int, bytes]:
        return as_json(200, CLUSTER_EXAMPLE)

    with serving(answer) as admin:
        loaded = loaded_by("status", "--admin", admin.url)
        assert [asked.target for asked in admin.asked] == ["/api/v1/cluster"]
    assert not loaded & HEAVY
    assert not any(name.startswith(("admin_api", "remoting", "asyncio")) for name in loaded)
