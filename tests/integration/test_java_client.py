"""The unchanged Java client against a real three-node cluster: 5.x in all, 4.9.x in all of a long run, and
in every run by what it sends and gets.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.compat.programs import versions
from tests.integration.checks import (
    assert_consumed_in_queue_order,
    assert_each_exactly_once,
    assert_found_where_stored,
    assert_places_unique,
    assert_shards_in_order,
)
from tests.integration.client_runs import Driver, Report, java_driver
from tests.integration.messages import samples
from tests.integration.streams import read_topic

pytestmark = pytest.mark.integration
VERSIONS = ("5.5.0", "4.9.8")
COUNTS = {"sync": 595, "async": 400, "oneway": 300, "batch": 300, "ordered": 400, "large": 5}
SENT = samples(**COUNTS)
in_each_version = pytest.mark.parametrize("client", VERSIONS, indirect=True, scope="module")
in_newest = pytest.mark.parametrize("client", versions(VERSIONS), indirect=True, scope="module")


class JavaClient:
    """Shorthand for the driver's command line."""

    def __init__(self, driver: Driver, namesrv: str, version: str) -> None:
        self.driver = driver
        self.namesrv = namesrv
        self.label = "Java" + version.replace(".", "")

    def call(self, action: str, topic: str, group: str, **options: object) -> Report:
        out = self.driver.folder / f"{action}-{group}.jsonl"
        arguments = [action, f"namesrv={self.namesrv}", f"topic={topic}", f"group={group}", f"out={out}"]
        for name, value in options.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments.append(f"{name}={text}")
        return self.driver.run(arguments, out)


@pytest.fixture(scope="module")
def client(
    request: pytest.FixtureRequest, namesrv: str, tmp_path_factory: pytest.TempPathFactory
) -> JavaClient:
    version: str = request.param
    return JavaClient(java_driver(version, tmp_path_factory.mktemp("java-client")), namesrv, version)


@pytest.fixture(scope="module")
def sent(client: JavaClient, name: str) -> Report:
    """The report of the producer that filled the topic `<label><name>`."""
    return client.call("produce", f"{client.label}{name}", f"{client.label}Producer{name}", **COUNTS)


@in_each_version
def test_every_kind_of_send_is_consumed_exactly_once_and_where_it_was_stored(
    client: JavaClient, sent: Report, name: str
) -> None:
    assert len(sent) == len(SENT)
    assert {report.get("status", "SEND_OK") for report in sent} == {"SEND_OK"}
    received = client.call("consume", f"{client.label}{name}", f"{client.label}All{name}", count=len(SENT))
    assert_each_exactly_once(received, SENT)
    assert_places_unique(received)
    assert_found_where_stored(sent, received)
    assert_shards_in_order(received)


@in_newest
@pytest.mark.usefixtures("sent")
def test_tag_filter_lets_only_its_tags_through(client: JavaClient, name: str) -> None:
    wanted = [sample for sample in SENT if sample.tag != "TagB"]
    options = {"expression": "TagA || TagC", "count": len(wanted)}
    received = client.call("consume", f"{client.label}{name}", f"{client.label}Tags{name}", **options)
    assert_each_exactly_once(received, wanted)


@in_newest
@pytest.mark.usefixtures("sent")
def test_orderly_consumer_gets_each_queue_in_order_and_resumes(client: JavaClient, name: str) -> None:
    topic, group = f"{client.label}{name}", f"{client.label}Orderly{name}"
    received = client.call("consume", topic, group, count=len(SENT), orderly=True)
    assert_each_exactly_once(received, SENT)
    assert_consumed_in_queue_order(received)
    assert client.call("consume", topic, group, count=0, quiet_ms=3000, orderly=True) == []


@in_newest
def test_message_whose_consumer_fails_comes_back(client: JavaClient, name: str) -> None:
    """The first retry comes after delay level 3, from the group's retry topic."""
    topic, group = f"{client.label}Retry{name}", f"{client.label}RetryGroup{name}"
    client.call("produce", topic, f"{client.label}RetryProducer{name}", sync=3)
    received = client.call("consume", topic, group, count=6, failures=1)
    first = [message for message in received if message["reconsume_times"] == 0]
    again = [message for message in received if message["reconsume_times"] == 1]
    assert_each_exactly_once(first, samples(sync=3))
    assert_each_exactly_once(again, samples(sync=3))


@in_newest
def test_message_that_fails_too_often_goes_to_the_dead_letter_topic(
    client: JavaClient, namesrv: str, name: str
) -> None:
    topic, group = f"{client.label}Dead{name}", f"{client.label}DeadGroup{name}"
    client.call("produce", topic, f"{client.label}DeadProducer{name}", sync=2)
    options = {"count": 4, "failures": 9, "max_reconsume_times": 1}
    received = client.call("consume", topic, group, **options)
    assert sorted(message["reconsume_times"] for message in received) == [0, 0, 1, 1]
    dead = asyncio.run(read_topic(namesrv, f"%DLQ%{group}"))
    bodies = sorted(record.body.decode() for records in dead.values() for record in records)
    assert bodies == sorted(sample.body for sample in samples(sync=2))
