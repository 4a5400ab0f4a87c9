"""The unchanged rocketmq-client-python 2.0.0 against a real three-node cluster."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from remoting.codes import RequestCode
from tests.integration.checks import (
    assert_consumed_in_queue_order,
    assert_each_exactly_once,
    assert_places_unique,
    assert_shards_in_order,
)
from tests.integration.client_runs import Driver, Report, finish, python_driver
from tests.integration.messages import samples
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, broker_of

pytestmark = pytest.mark.integration
COUNTS = {"sync": 995, "oneway": 500, "ordered": 500, "large": 5}
SENT = samples(**COUNTS)
BALANCED_S = 3.0  # the consumers share the queues out by then; the library shows no sign of it


class PythonClient:
    """Shorthand for the driver's command line."""

    def __init__(self, driver: Driver, namesrv: str) -> None:
        self.driver = driver
        self.namesrv = namesrv

    def call(self, action: str, topic: str, group: str, **options: object) -> Report:
        return finish(*self.start(action, topic, group, f"{action}-{group}", **options))

    def start(
        self, action: str, topic: str, group: str, name: str, **options: object
    ) -> tuple[subprocess.Popen[bytes], Path]:
        out = self.driver.folder / f"{name}.jsonl"
        arguments = [action, "--namesrv", self.namesrv, "--topic", topic, "--group", group, "--out", str(out)]
        for name, value in options.items():
            flag = "--" + name.replace("_", "-")
            arguments += [flag] if value is True else [flag, str(value)]
        return self.driver.start(arguments, out), out


@pytest.fixture(scope="module")
def client(namesrv: str, tmp_path_factory: pytest.TempPathFactory) -> PythonClient:
    folder: Path = tmp_path_factory.mktemp("python-client")
    return PythonClient(python_driver(folder), namesrv)


@pytest.fixture(scope="module")
def topic(client: PythonClient, name: str) -> str:
    """A topic that holds the 2,000 messages."""
    sent = client.call("produce", f"Python{name}", f"PythonProducer{name}", **COUNTS)
    assert len(sent) == len(SENT)
    assert {report.get("status", 0) for report in sent} == {0}
    ids = {report["msg_id"] for report in sent if "msg_id" in report}
    assert len(ids) == len(SENT) - COUNTS["oneway"]
    return f"Python{name}"


def test_two_thousand_messages_of_each_kind_are_consumed_exactly_once(
    client: PythonClient, topic: str, name: str
) -> None:
    received = client.call("consume", topic, f"PythonAll{name}", count=len(SENT))
    assert_each_exactly_once(received, SENT)
    assert_places_unique(received)
    assert_shards_in_order(received)


def test_tag_filter_lets_only_its_tags_through(client: PythonClient, topic: str, name: str) -> None:
    wanted = [sample for sample in SENT if sample.tag != "TagB"]
    options = {"expression": "TagA || TagC", "count": len(wanted)}
    received = client.call("consume", topic, f"PythonTags{name}", **options)
    assert_each_exactly_once(received, wanted)


def test_orderly_consumer_gets_each_queue_in_order(client: PythonClient, topic: str, name: str) -> None:
    received = client.call("consume", topic, f"PythonOrderly{name}", count=len(SENT), orderly=True)
    assert_each_exactly_once(received, SENT)
    assert_consumed_in_queue_order(received)


def test_group_that_committed_its_offsets_gets_nothing_again(
    client: PythonClient, topic: str, name: str
) -> None:
    group = f"PythonResume{name}"
    first = client.call("consume", topic, group, count=len(SENT), commit=True, threads=1)
    assert_each_exactly_once(first, SENT)
    assert client.call("consume", topic, group, count=0, quiet_s=3) == []


def test_message_whose_consumer_fails_comes_back(client: PythonClient, name: str) -> None:
    """The first retry comes after delay level 3, from the group's retry topic."""
    topic, group = f"PythonRetry{name}", f"PythonRetryGroup{name}"
    client.call("produce", topic, f"PythonRetryProducer{name}", sync=3)
    received = client.call("consume", topic, group, count=6, fail_first=True)
    first = [message for message in received if message["reconsume_times"] == 0]
    again = [message for message in received if message["reconsume_times"] == 1]
    assert_each_exactly_once(first, samples(sync=3))
    assert_each_exactly_once(again, samples(sync=3))


def test_two_consumers_of_a_group_share_the_queues(client: PythonClient, namesrv: str, name: str) -> None:
    """The broker tells the first of the second: both balance at once, a message goes to one of them."""
    topic, group = f"PythonShared{name}", f"PythonSharedGroup{name}"
    # Without a message: one that is consumed before both are there may be consumed again.
    queues = {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG"}
    with Wire(broker_of(namesrv)) as wire:
        names = {"topic": topic, "defaultTopic": "TBW102", "order": "false"}
        assert wire.invoke(RequestCode.UPDATE_AND_CREATE_TOPIC, names | queues).code == 0
    options = {"count": 1, "quiet_s": 10, "limit_s": 40}
    consumers = [client.start("consume", topic, group, f"{group}-{number}", **options) for number in range(2)]
    ext = {"consumerGroup": group}

    def both_are_listed() -> bool:
        with Wire(broker_of(namesrv)) as wire:
            return wire.invoke(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext).body.count(b"@") >= 2

    wait_for("both consumers are listed", both_are_listed, 20.0)
    time.sleep(BALANCED_S)
    client.call("produce", topic, f"{group}Rest", ordered=400)
    shares = [finish(process, out) for process, out in consumers]
    assert_each_exactly_once([message for share in shares for message in share], samples(ordered=400))
    assert all(share for share in shares), [len(share) for share in shares]
