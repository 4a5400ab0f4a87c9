"""Where an archive without its checkpoint goes on, by what its manifest knows and what there is."""

from __future__ import annotations

import json

import pytest

from remoting.client.routes import MessageQueue
from rocketmq_spark.errors import DataLossError
from rocketmq_spark.jobs.archive.job import continued
from rocketmq_spark.jobs.archive.manifest import QueueName
from rocketmq_spark.options import ConnectionOptions
from tests.unit.spark.source.conftest import Clock, fake_clock
from tests.unit.spark.source.fake_topics import FakeCluster, Topics
from tests.unit.spark.source.planned import DEADLINE_S, A, B, filled

SOURCE = {"namesrv": "fake:1", "subscribePattern": "T|Other", "startingOffsets": "earliest"}
ENDS = {QueueName("T", "a", 0): 4, QueueName("T", "b", 0): 7, QueueName("Gone", "a", 0): 3}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return fake_clock(monkeypatch)


@pytest.fixture(autouse=True)
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    made = filled(A, B)
    monkeypatch.setattr(ConnectionOptions, "cluster", lambda _: FakeCluster(made, DEADLINE_S))
    return made


def starts(source: dict[str, str]) -> object:
    return json.loads(continued(source, ENDS)["startingOffsets"])


def test_each_queue_goes_on_where_the_archive_ends(clock: Clock) -> None:
    assert starts(SOURCE) == {"T": {"a:0": 4, "b:0": 7}}


def test_queues_that_are_away_are_waited_for(
    clock: Clock,
    topics: Topics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topics.unlisted.add("b")
    assert starts(SOURCE) == {"T": {"a:0": 4}}
    assert "not there: T/b:0" in caplog.text
    assert clock.now_ms - Clock().now_ms >= DEADLINE_S / 2 * 1000


def test_a_deleted_topic_is_loss(clock: Clock, topics: Topics) -> None:
    """Not a topic that is away: waited for in vain, it would be left out without a word."""
    lost = topics.queues.pop(B)
    topics.queues[MessageQueue("Other", "b", 0)] = lost
    with pytest.raises(DataLossError, match=r"topic T was deleted: .* T/b:0 up to offset 7"):
        starts(SOURCE)
    assert starts({**SOURCE, "failOnDataLoss": "false"}) == {"T": {"a:0": 4}, "Other": {"b:0": 0}}
    assert starts({**SOURCE, "subscribePattern": "Other"}) == {"Other": {"b:0": 0}}
