"""The unchanged rocketmq-client-go v2.1.2 against a real three-node cluster."""

from __future__ import annotations

import pytest

from tests.integration.checks import (
    assert_each_exactly_once,
    assert_found_where_stored,
    assert_places_unique,
)
from tests.integration.client_runs import Driver, Report, go_driver
from tests.integration.messages import samples

pytestmark = pytest.mark.integration
COUNTS = {"sync": 200, "oneway": 100, "batch": 100}
SENT = samples(**COUNTS)


class GoClient:
    """Shorthand for the driver's command line."""

    def __init__(self, driver: Driver, namesrv: str) -> None:
        self.driver = driver
        self.namesrv = namesrv

    def call(self, action: str, topic: str, group: str, **options: object) -> Report:
        out = self.driver.folder / f"{action}-{group}.jsonl"
        arguments = [action, "-namesrv", self.namesrv, "-topic", topic, "-group", group, "-out", str(out)]
        for name, value in options.items():
            arguments += ["-" + name.replace("_", "-"), str(value)]
        return self.driver.run(arguments, out)


@pytest.fixture(scope="module")
def client(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> GoClient:
    return GoClient(go_driver(tmp_path_factory.mktemp("go-client")), namesrv)


@pytest.fixture(scope="module")
def sent(client: GoClient, name: str) -> Report:
    """The report of the producer that filled the topic `Go<name>`."""
    return client.call("produce", f"Go{name}", f"GoProducer{name}", **COUNTS)


def test_every_kind_of_send_is_consumed_exactly_once_and_where_it_was_stored(
    client: GoClient, sent: Report, name: str
) -> None:
    assert len(sent) == len(SENT)
    assert {report.get("status", 0) for report in sent} == {0}
    received = client.call("consume", f"Go{name}", f"GoAll{name}", count=len(SENT))
    assert_each_exactly_once(received, SENT)
    assert_places_unique(received)
    assert_found_where_stored(sent, received)


@pytest.mark.usefixtures("sent")
def test_tag_filter_lets_only_its_tags_through_and_the_group_resumes(client: GoClient, name: str) -> None:
    wanted = [sample for sample in SENT if sample.tag != "TagB"]
    options = {"expression": "TagA || TagC"}
    received = client.call("consume", f"Go{name}", f"GoTags{name}", count=len(wanted), **options)
    assert_each_exactly_once(received, wanted)
    assert client.call("consume", f"Go{name}", f"GoTags{name}", count=0, quiet_ms=5000, **options) == []
