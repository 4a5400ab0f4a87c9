"""What a stream does when a topic is deleted, or loses queues: not the same as one whose broker is away."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from rocketmq_spark.errors import DataLossError, TopicNotFoundError
from rocketmq_spark.source.data_loss import POLL_INTERVAL_S
from rocketmq_spark.source.offsets import from_json
from tests.unit.spark.source.conftest import Clock
from tests.unit.spark.source.planned import A1, ALL, DEADLINE_S, A, B, filled, offsets, reader, run

OTHER = MessageQueue("Other", "a", 0)
PATTERN = {"subscribe": "", "subscribePattern": ".*"}
GONE = (
    r"^topic T was deleted: .* T/a:0 up to offset 10 and T/b:0 up to offset 7; what came after that is lost"
)


def test_a_topic_that_is_deleted_ends_the_query(clock: Clock) -> None:
    """It says of what, how far it came, and how to go on, in no more time than a request has."""
    topics = filled(A, B)
    made = reader(topics)
    made.latestOffset(offsets(a0=0, b0=0), ALL)
    topics.queues.clear()
    topics.put(OTHER, 1_000)
    topics.put(MessageQueue("Other", "b", 0), 1_000)
    began_s = clock.now_s
    with pytest.raises(DataLossError, match=GONE + ".*failOnDataLoss=false"):
        made.latestOffset(offsets(a0=10, b0=7), ALL)
    assert clock.now_s - began_s <= DEADLINE_S


def test_a_topic_of_a_pattern_that_is_deleted_ends_the_query_though_all_was_read(clock: Clock) -> None:
    topics = filled(A, OTHER)
    made = reader(topics, **PATTERN)
    end = made.latestOffset({**offsets(a0=0), "Other": {"a:0": 0}}, ALL)
    del topics.queues[OTHER]
    with pytest.raises(DataLossError, match=r"topic Other was deleted: .* Other/a:0 up to offset 10"):
        made.latestOffset(end, ALL)


def test_a_topic_without_a_message_is_missed_as_well(clock: Clock) -> None:
    """Its brokers go on to answer for it, as for one that ends at 0."""
    topics = filled(A, count=0)
    topics.put(OTHER, 1_000)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0), ALL)
    del topics.queues[A]
    with pytest.raises(DataLossError, match=r"topic T was deleted: .* T/a:0 up to offset 0"):
        made.latestOffset(end, ALL)


def test_a_name_server_that_still_lists_a_deleted_topic_hides_nothing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ's keeps the route of a topic that only its broker was asked to delete."""
    topics = filled(A, OTHER)
    listed = filled(A, OTHER)
    monkeypatch.setattr(topics, "of_namesrv", listed.of_namesrv)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0), ALL)
    del topics.queues[A]
    with pytest.raises(DataLossError, match="topic T was deleted"):
        made.latestOffset(end, ALL)


def test_without_a_deleted_topic_the_query_goes_on_if_loss_is_allowed(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It is forgotten, so that one of its name is read from its first message, however many it has."""
    topics = filled(A, OTHER, count=50)
    made = reader(topics, **PATTERN, failOnDataLoss=False)
    end = made.latestOffset({**offsets(a0=20), "Other": {"a:0": 0}}, ALL)
    del topics.queues[A]
    topics.put(OTHER, 1_000)
    with caplog.at_level(logging.WARNING):
        end = run(made, end)[-1]
        assert from_json(end) == {OTHER: 51}
        for _ in range(3):
            clock.sleep(DEADLINE_S)
            assert made.latestOffset(end, ALL) == end
    assert caplog.text.count("topic T was deleted") == 1
    assert "not available now" not in caplog.text
    topics.put(A, *[2_000] * 70)
    assert [from_json(step) for step in run(made, end)] == [{A: 0, OTHER: 51}, {A: 70, OTHER: 51}]
    strict = reader(topics, **PATTERN)  # as the query was before: the checkpoint is clean
    assert strict.latestOffset({"Other": {"a:0": 51}}, ALL) == {"Other": {"a:0": 51}, **offsets(a0=0)}


@pytest.mark.parametrize(
    "subscription", [PATTERN, {"subscribe": "T,Other"}, {"subscribe": "", "assign": '{"T": ["a:0", "b:0"]}'}]
)
@pytest.mark.parametrize("ends", [False, True])
def test_a_topic_that_was_deleted_before_a_restart(
    clock: Clock, subscription: dict[str, str], ends: bool
) -> None:
    topics = filled(OTHER, MessageQueue("Other", "b", 0))
    start = {**offsets(a0=10, b0=7), "Other": {"a:0": 10, "b:0": 10}}
    made, lenient = reader(topics, **subscription), reader(topics, **subscription, failOnDataLoss=False)
    for one in (made, lenient) if ends else ():
        one.prepareForTriggerAvailableNow()
    with pytest.raises(DataLossError, match=GONE):
        made.latestOffset(start, ALL)
    began_s = clock.now_s
    rest = run(lenient, start)[-1]
    assert rest == {"Other": start["Other"]}
    assert clock.now_s - began_s <= DEADLINE_S


def test_a_topic_that_the_checkpoint_does_not_have_must_exist(clock: Clock) -> None:
    topics = filled(OTHER)
    for lenient in (False, True):
        made = reader(topics, subscribe="T,Other", failOnDataLoss=lenient)
        with pytest.raises(TopicNotFoundError, match="no topic T"):
            made.latestOffset({"Other": {"a:0": 10}}, ALL)


# What proves nothing


def test_a_broker_that_is_not_registered_has_deleted_nothing(clock: Clock) -> None:
    """Another process may answer at its address meanwhile."""
    topics = filled(A, B)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0, b0=0), ALL)
    topics.unlisted.add("b")
    del topics.queues[B]
    topics.put(MessageQueue("Other", "b", 0), 1_000)
    for _ in range(5):
        assert made.latestOffset(end, ALL) == end
        clock.sleep(DEADLINE_S)
    topics.unlisted.clear()
    with pytest.raises(DataLossError, match=r"topic T was deleted: .* T/b:0 up to offset 10;"):
        made.latestOffset(end, ALL)


def test_silent_name_servers_prove_nothing(clock: Clock) -> None:
    topics = filled(A, OTHER)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0), ALL)
    topics.is_silent = True
    topics.queues.pop(A)
    assert made.latestOffset(end, ALL) == end
    topics.is_silent = False
    clock.sleep(10.0)
    with pytest.raises(DataLossError, match="topic T was deleted"):
        made.latestOffset(end, ALL)


@pytest.mark.parametrize("lists", [False, True])
def test_a_leader_that_learns_of_a_topic_in_time_has_not_lost_it(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, lists: bool
) -> None:
    topics = filled(A, OTHER)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0), ALL)
    queue = topics.queues.pop(A)
    if lists:
        monkeypatch.setattr(topics, "of_namesrv", filled(A, OTHER).of_namesrv)
    sleep = clock.sleep

    def learn(seconds: float) -> None:
        sleep(seconds)
        topics.queues[A] = queue

    monkeypatch.setattr("rocketmq_spark.client.cluster.time.sleep", learn)
    assert made.latestOffset(end, ALL) == end
    topics.put(A, 1_000)
    assert from_json(made.latestOffset(end, ALL)) == {A: 11}


def test_brokers_are_not_asked_at_every_trigger(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a name server that has just started does not list what they have."""
    topics = filled(A, OTHER)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0), ALL)
    monkeypatch.setattr(topics, "of_namesrv", filled(OTHER).of_namesrv)
    topics.asked.clear()
    for _ in range(10):
        assert made.latestOffset(end, ALL) == end
        clock.sleep(POLL_INTERVAL_S / 10)
    assert sum(request.code == RequestCode.PULL_MESSAGE for request in topics.asked) <= 2


# Fewer queues


def test_a_queue_that_is_taken_from_its_topic_must_have_been_read(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topics = filled(A, A1)
    made, lenient = reader(topics), reader(topics, failOnDataLoss=False)
    for one in (made, lenient):
        one.latestOffset(offsets(a0=0, a1=0), ALL)
    topics.closed.add(A1)
    start = offsets(a0=10, a1=4)
    with pytest.raises(
        DataLossError, match=r"fewer queues .* T/a:1 up to offset 4 of 10, .*many queues again"
    ):
        made.latestOffset(start, ALL)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert lenient.latestOffset(start, ALL) == start
            clock.sleep(DEADLINE_S)
    assert caplog.text.count("was given fewer queues") == 1
    assert lenient.reportLatestOffset() == offsets(a0=10), "nothing waits that cannot be read"
    topics.is_silent = True
    assert lenient.latestOffset(start, ALL) == start
    topics.is_silent = False
    clock.sleep(DEADLINE_S + 1)
    topics.closed.clear()
    assert from_json(lenient.latestOffset(start, ALL)) == {A: 10, A1: 10}


@pytest.mark.parametrize("ends", [False, True])
def test_a_queue_that_was_read_to_its_end_may_be_taken_from_its_topic(clock: Clock, ends: bool) -> None:
    topics = filled(A, A1)
    topics.closed.add(A1)
    made: Any = reader(topics)
    if ends:
        made.prepareForTriggerAvailableNow()
    start = offsets(a0=4, a1=10)
    began_s = clock.now_s
    assert [from_json(end) for end in run(made, start)] == [{A: 10, A1: 10}]
    assert clock.now_s - began_s <= DEADLINE_S
