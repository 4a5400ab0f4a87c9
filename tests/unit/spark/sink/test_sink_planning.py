"""What the driver settles: which topics there are, and whether exactly-once is possible."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import orjson
import pytest

from broker.monitoring import runtime_info
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from remoting.command import RESPONSE_FLAG, RemotingCommand
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.errors import DeliveryError, OptionError, RequestRefusedError, TopicNotFoundError
from rocketmq_spark.options import ConnectionOptions
from rocketmq_spark.sink import planning
from rocketmq_spark.sink.options import Delivery, SinkOptions
from rocketmq_spark.sink.planning import Placement, Placements, find_placement, is_sequenced, make_plan
from rocketmq_spark.sink.rows import Columns

HERE = ConnectionOptions("h:1")
STOCK = {"brokerVersionDesc": "V5_1_4"}
OURS = {"brokerVersionDesc": "LedgerMQ", planning.SEQUENCED_SENDS: "true"}


class FakeCluster(Cluster):
    """Brokers with their figures, and topics with their queues."""

    def __init__(self, infos: dict[str, dict[str, str]], topics: dict[str, int]) -> None:
        super().__init__("h:1", deadline_s=0.0)
        self.infos = infos
        self.topics_known = topics
        self.code = 0
        self.remark: str | None = None

    def cluster_info(self):  # type: ignore[no-untyped-def]
        return SimpleNamespace(brokers=dict.fromkeys(self.infos))

    def write_queues(self, topic: str) -> list[MessageQueue]:
        if topic not in self.topics_known:
            raise TopicNotFoundError(topic)
        return [MessageQueue(topic, name, n) for name in self.infos for n in range(self.topics_known[topic])]

    def invoke_leader(self, broker_name, make_command, deadline_s=None, timeout_s=None):  # type: ignore[no-untyped-def]
        command = make_command()
        if command.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.topics_known[command.ext_fields["topic"]] = int(command.ext_fields["writeQueueNums"])
            return RemotingCommand(0, flag=RESPONSE_FLAG)
        body = orjson.dumps({"table": self.infos[broker_name]})
        return RemotingCommand(self.code, flag=RESPONSE_FLAG, remark=self.remark, body=body)


def test_the_brokers_say_it_in_the_words_that_the_sink_reads() -> None:
    assert planning.SEQUENCED_SENDS == runtime_info.SEQUENCED_SENDS


@pytest.mark.parametrize(("infos", "expected"), [({"a": OURS}, True), ({"a": OURS, "b": STOCK}, False)])
def test_auto_is_exactly_once_where_every_broker_can(
    infos: dict[str, dict[str, str]], expected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster(infos, {})
    with caplog.at_level(logging.WARNING):
        assert is_sequenced(cluster, Delivery.AUTO, infos) is expected
    assert ("broker b (V5_1_4) does not keep" in caplog.text) is not expected
    assert not is_sequenced(cluster, Delivery.AT_LEAST_ONCE, infos)


def test_exactly_once_is_refused_where_a_broker_cannot() -> None:
    cluster = FakeCluster({"a": OURS, "b": STOCK}, {})
    with pytest.raises(DeliveryError, match=r"broker b \(V5_1_4\) does not keep .* delivery=auto"):
        is_sequenced(cluster, Delivery.EXACTLY_ONCE, ["a", "b"])
    assert is_sequenced(cluster, Delivery.EXACTLY_ONCE, ["a"])


def test_an_exception_of_java_is_no_ledgermq() -> None:
    """What RocketMQ 4.9.7 answers until it has counted for a while."""
    cluster = FakeCluster({"a": OURS}, {})
    cluster.code, cluster.remark = (
        1,
        "java.util.NoSuchElementException, java.base/java.util.LinkedList.getLast",
    )
    assert not is_sequenced(cluster, Delivery.AUTO, ["a"])
    with pytest.raises(DeliveryError, match="of an unknown version"):
        is_sequenced(cluster, Delivery.EXACTLY_ONCE, ["a"])


@pytest.mark.parametrize("delivery", [Delivery.AUTO, Delivery.EXACTLY_ONCE])
def test_an_odd_answer_is_no_answer(delivery: Delivery) -> None:
    cluster = FakeCluster({"a": OURS}, {})
    cluster.code = 1
    with pytest.raises(RequestRefusedError, match="figures of broker a was refused with code 1"):
        is_sequenced(cluster, delivery, ["a"])
    cluster.code, cluster.infos = 0, {"a": None}  # type: ignore[dict-item]
    with pytest.raises(RequestRefusedError, match=r"figures of broker a .* unreadable"):
        is_sequenced(cluster, delivery, ["a"])


def test_a_missing_topic_is_made_when_that_is_asked_for() -> None:
    cluster = FakeCluster({"a": OURS}, {})
    with pytest.raises(TopicNotFoundError, match="createTopicQueues"):
        find_placement(cluster, "T", 0)
    assert len(find_placement(cluster, "T", 3).queues) == 3


def test_topics_that_share_a_hash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    placements = Placements(FakeCluster({"a": OURS}, {"T": 1, "U": 1, "V": 1}), SinkOptions(HERE))
    assert len({placements.of(topic).suffix for topic in ("T", "U", "T")}) == 2
    monkeypatch.setattr(Placement, "suffix", placements.of("T").suffix)
    with pytest.raises(OptionError, match="topics T and V have one hash"):
        placements.of("V")


def test_a_topic_without_writable_queues_is_named() -> None:
    with pytest.raises(OptionError, match="topic T has no queue"):
        find_placement(FakeCluster({"a": OURS}, {"T": 0}), "T", 0)


def test_a_plan_asks_the_brokers_that_rows_go_to() -> None:
    cluster = FakeCluster({"a": OURS}, {"T": 2})
    options = SinkOptions(HERE, topic="T", delivery=Delivery.EXACTLY_ONCE)
    plan = make_plan(cluster, options, Columns("body", ("body",)))
    assert plan.is_sequenced
    assert plan.placement is not None
    open_plan = make_plan(cluster, SinkOptions(HERE), Columns("body", ("body", "topic")))
    assert (open_plan.placement, open_plan.is_sequenced) == (None, False)
