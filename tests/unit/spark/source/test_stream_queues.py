"""What a stream reads next while queues, brokers and name servers come and go."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.errors import ClusterUnavailableError, TopicNotFoundError
from rocketmq_spark.source.offsets import from_json, start_time_ms
from rocketmq_spark.source.stream_reader import (
    COMMIT_DEADLINE_S,
    COMMIT_PAUSE_S,
    COMMIT_QUEUES,
    JOIN_MARGIN_MS,
)
from rocketmq_spark.source.subscription import LISTING_SHARE
from tests.unit.spark.source.conftest import Clock
from tests.unit.spark.source.fake_topics import Topics
from tests.unit.spark.source.planned import A1, ALL, DEADLINE_S, A, B, filled, offsets, ranges, reader, run

HOUR_MS = 3_600_000

# Queues that come later


def test_a_queue_that_was_away_at_the_start_is_read_from_the_start_only(clock: Clock) -> None:
    """Broker b was away when the stream began at the ends: its history is none of the stream's."""
    topics = filled(A)
    old_ms = clock.now_ms - HOUR_MS
    start = reader(topics, startingOffsets="latest").initialOffset()
    assert from_json(start) == {A: 10}
    topics.put(B, old_ms, old_ms, clock.now_ms + 5, clock.now_ms + 6)
    made = reader(topics, startingOffsets="latest")  # another run, which has nothing but the checkpoint
    clock.sleep(2 * 3600)
    assert [from_json(end) for end in run(made, start)] == [{A: 10, B: 2}, {A: 10, B: 4}]


def test_a_queue_made_after_the_start_is_read_whole(clock: Clock) -> None:
    topics = filled(A)
    made = reader(topics, startingOffsets="latest")
    start = made.initialOffset()
    topics.put(B, clock.now_ms - JOIN_MARGIN_MS // 2, clock.now_ms)  # by a broker whose clock is behind
    assert [from_json(end) for end in run(made, start)] == [{A: 10, B: 0}, {A: 10, B: 2}]


def test_a_stream_from_a_time_joins_queues_at_that_time(clock: Clock) -> None:
    topics = Topics()
    topics.put(A, 1_000, 2_000)
    made = reader(topics, startingTimestamp=1_500)
    start = made.initialOffset()
    assert (from_json(start), start_time_ms(start)) == ({A: 1}, 1_500)
    topics.put(B, 500, 1_400, 1_600)
    assert [from_json(end) for end in run(made, start)] == [{A: 2, B: 2}, {A: 2, B: 3}]


def test_a_stream_from_offsets_joins_queues_at_their_beginning(clock: Clock) -> None:
    topics = filled(A)
    made = reader(topics)
    start = made.initialOffset()
    assert start == offsets(a0=0)
    topics.put(B, 1_000)
    assert [from_json(end) for end in run(made, start)] == [{A: 10, B: 0}, {A: 10, B: 1}]


def test_available_now_with_a_limit_reads_a_new_queue_to_its_end(clock: Clock) -> None:
    topics = filled(A, A1)
    made = reader(topics)
    made.prepareForTriggerAvailableNow()
    topics.put(A1, 2_000)  # after the beginning: for the next run
    ends = run(made, offsets(a0=4), ReadMaxRows(4))
    made.stop()
    assert from_json(ends[-1]) == {A: 10, A1: 10}
    limited = reader(topics, maxOffsetsPerTrigger=4)
    limited.prepareForTriggerAvailableNow()
    steps = [from_json(end) for end in run(limited, offsets(a0=4), ReadMaxRows(4))]
    assert steps[0] == {A: 8, A1: 0}
    assert steps[-1] == {A: 10, A1: 11}
    taken = [sum(after.values()) - sum(before.values()) for before, after in pairwise(steps)]
    assert taken == [4, 4, 4, 1]


def test_a_stream_of_many_topics_does_not_ask_for_all_of_them_at_every_trigger(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that takes 10 ms for a topic. New topics come all the same, and messages at once."""
    queues = [MessageQueue(f"T{number}", "a", 0) for number in range(50)]
    topics = filled(*queues)
    made = reader(topics, subscribe="", subscribePattern="T.*")
    of_namesrv, routes = topics.of_namesrv, 0

    def slow(request: RemotingCommand) -> RemotingCommand:
        nonlocal routes
        routes += request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        clock.sleep(0.01)
        return of_namesrv(request)

    monkeypatch.setattr(topics, "of_namesrv", slow)
    end = made.latestOffset(made.initialOffset(), ALL)
    before, began_s = routes, clock.now_s
    topics.put(MessageQueue("Tnew", "a", 0), 1_000)
    for trigger in range(30):
        topics.put(queues[0], 1_000)
        clock.sleep(1.0)
        end = made.latestOffset(end, ALL)
        assert from_json(end)[queues[0]] == 11 + trigger
    assert "Tnew" in end
    assert 50 <= (routes - before) <= 52 * (clock.now_s - began_s) * LISTING_SHARE / 0.5
    topics.unlisted.add("a")
    topics.dead.add("a")
    began_s = clock.now_s
    assert made.latestOffset(end, ALL) == end  # asked anew at once: it keeps its places
    assert clock.now_s - began_s < DEADLINE_S


# What is away


def test_a_running_stream_goes_on_without_its_name_server(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topics = filled(A, B)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0, b0=0), ALL)
    topics.is_silent = True
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            topics.put(A, 1_000)
            start, end = end, made.latestOffset(end, ALL)
            assert from_json(end) == {A: 11 + number, B: 10}
            assert ranges(made, start, end) == [QueueRange(A, 10 + number, 11 + number)]
            clock.sleep(10.0)
    assert caplog.text.count("going on with the queues and leaders known before") == 1
    topics.is_silent = False
    topics.put(A1, 1_000)
    clock.sleep(10.0)
    assert from_json(made.latestOffset(end, ALL)) == {A: 14, A1: 0, B: 10}


def test_a_query_that_begins_needs_a_name_server(clock: Clock) -> None:
    topics = filled(A)
    topics.is_silent = True
    with pytest.raises(ClusterUnavailableError):
        reader(topics).latestOffset(offsets(a0=0), ALL)


def test_queues_that_a_name_server_does_not_list_yet_are_read_on(clock: Clock) -> None:
    """One that has just started; the topic is not known to it at all."""
    topics = filled(A)
    made = reader(topics)
    end = made.latestOffset(offsets(a0=0), ALL)
    topics.unlisted.add("a")
    topics.put(A, 1_000)
    assert from_json(made.latestOffset(end, ALL)) == {A: 11}
    with pytest.raises(TopicNotFoundError):
        reader(topics).latestOffset(offsets(a0=0), ALL)


def test_a_queue_whose_broker_is_away_keeps_its_place(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    topics = filled(A, B)
    made = reader(topics)
    made.latestOffset(offsets(a0=0, b0=0), ALL)
    topics.unlisted.add("b")
    topics.dead.add("b")
    topics.put(A, 1_000)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert from_json(made.latestOffset(offsets(a0=10, b0=7), ALL)) == {A: 11, B: 7}
            clock.sleep(DEADLINE_S)
    assert caplog.text.count("T/b:0: not available now") == 1
    topics.unlisted.clear()
    topics.dead.clear()
    assert from_json(made.latestOffset(offsets(a0=11, b0=7), ALL)) == {A: 11, B: 10}


def test_assigned_queues_that_are_away_keep_their_place(clock: Clock) -> None:
    topics = filled(A, B)
    made = reader(topics, subscribe="", assign='{"T": ["a:0", "b:0"]}')
    made.latestOffset(offsets(a0=0, b0=0), ALL)
    topics.unlisted.add("b")
    topics.dead.add("b")
    assert from_json(made.latestOffset(offsets(a0=0, b0=7), ALL)) == {A: 10, B: 7}


def test_a_query_that_ends_by_itself_waits_for_every_queue_it_knows(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topics = filled(A, B)
    topics.unlisted.add("b")
    made = reader(topics)
    made.prepareForTriggerAvailableNow()
    began_s = clock.now_s
    with pytest.raises(ClusterUnavailableError, match=r"no registered broker has T/b:0, .*read before"):
        made.latestOffset(offsets(a0=0, b0=7), ALL)
    assert clock.now_s - began_s <= DEADLINE_S
    lenient = reader(topics, failOnDataLoss=False)
    lenient.prepareForTriggerAvailableNow()
    with caplog.at_level(logging.WARNING):
        assert from_json(lenient.latestOffset(offsets(a0=0, b0=7), ALL)) == {A: 10, B: 7}
    assert "T/b:0" in caplog.text
    other = {**offsets(a0=0), "Other": {"b:0": 3}}  # of an earlier subscription
    made = reader(topics)
    made.prepareForTriggerAvailableNow()
    assert from_json(made.latestOffset(other, ALL))[A] == 10


def test_a_query_that_ends_by_itself_goes_on_with_a_queue_that_comes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = filled(A, B)
    topics.unlisted.add("b")
    made = reader(topics)
    made.prepareForTriggerAvailableNow()
    sleep = clock.sleep

    def come(seconds: float) -> None:
        sleep(seconds)
        topics.unlisted.clear()

    monkeypatch.setattr(clock, "sleep", come)
    monkeypatch.setattr("rocketmq_spark.client.cluster.time.sleep", come)
    assert from_json(made.latestOffset(offsets(a0=0, b0=7), ALL)) == {A: 10, B: 10}


def test_required_brokers_are_waited_for(clock: Clock) -> None:
    topics = filled(A, B)
    assert from_json(reader(topics, requireBrokers="b, a").initialOffset()) == {A: 0, B: 0}
    topics.unlisted.add("b")
    assert from_json(reader(topics).initialOffset()) == {A: 0}
    began_s = clock.now_s
    with pytest.raises(ClusterUnavailableError, match=r"requireBrokers: .* no leader of b is registered"):
        reader(topics, requireBrokers="b, a").initialOffset()
    assert DEADLINE_S / 2 < clock.now_s - began_s <= DEADLINE_S


def test_what_makes_a_part_missing_likely_is_told(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    topics = filled(A, MessageQueue("Other", "b", 0))
    topics.dead.add("b")
    with caplog.at_level(logging.WARNING):
        reader(topics).initialOffset()
        assert "broker b has no leader now" in caplog.text
        reader(topics, subscribe="", subscribePattern="Nothing.*").initialOffset()
        assert "no topic matches the pattern Nothing.*" in caplog.text


# The group that is told


def commits(topics: Topics) -> int:
    return sum(request.code == RequestCode.UPDATE_CONSUMER_OFFSET for request in topics.asked)


def test_every_queue_is_committed_once_and_then_what_has_changed(clock: Clock) -> None:
    """A queue in which nothing moves, too, as by stock consumers: else operators see no lag of it."""
    topics = filled(A, A1, B)
    made = reader(topics, groupId="G", startingOffsets='{"T": {"a:0": 0, "a:1": 10, "b:0": 0}}')
    start = made.initialOffset()
    assert topics.committed == {}
    made.latestOffset(start, ALL)
    assert topics.committed == {A: 0, A1: 10, B: 0}
    made.commit(offsets(a0=4, a1=10, b0=2))
    made.commit(offsets(a0=5, a1=10, b0=2))
    assert topics.committed == {A: 5, A1: 10, B: 2}
    assert commits(topics) == 3 + 3


def test_a_query_that_goes_on_tells_every_queue_again(clock: Clock) -> None:
    """Somebody may have reset or removed the group meanwhile."""
    topics = filled(A, A1)
    begins = offsets(a0=10, a1=7)
    made = reader(topics, groupId="G")
    for _ in range(3):
        made.latestOffset(begins, ALL)
    assert topics.committed == {A: 10, A1: 7}
    assert commits(topics) == 2


def test_a_queue_that_joins_is_told_where_it_begins(clock: Clock) -> None:
    topics = filled(A)
    made = reader(topics, groupId="G")
    end = made.latestOffset(made.initialOffset(), ALL)
    topics.put(A1)
    end = made.latestOffset(end, ALL)
    made.latestOffset(end, ALL)
    assert topics.committed == {A: 10, A1: 0}


def test_a_broker_that_is_away_holds_up_no_commit_of_others(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    topics = filled(A, B)
    made = reader(topics, groupId="G")
    made.initialOffset()
    topics.dead.add("a")
    with caplog.at_level(logging.WARNING):
        for offset in range(1, 4):
            made.commit(offsets(a0=offset, b0=offset))
            assert topics.committed == {B: offset}
    assert caplog.text.count("offsets of group G are not committed") == 1
    topics.dead.clear()
    clock.sleep(COMMIT_PAUSE_S)
    made.commit(offsets(a0=3, b0=3))
    assert topics.committed == {A: 3, B: 3}


def test_many_queues_hold_up_the_query_no_longer_and_all_are_told(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that takes 2 ms for each; those told longest ago come first."""
    queues = [MessageQueue("T", "a", number) for number in range(6_000)]
    topics = filled(*queues, count=0)
    made = reader(topics, groupId="G")
    of_leader = topics.of_leader

    def slow(broker_name: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            clock.sleep(0.002)
        return of_leader(broker_name, request)

    monkeypatch.setattr(topics, "of_leader", slow)
    for trigger in range(1, 4):
        begun_s = clock.now_s
        made.commit({"T": {f"a:{queue.queue_id}": trigger for queue in queues}})
        assert clock.now_s - begun_s <= COMMIT_DEADLINE_S + COMMIT_QUEUES * 0.002
        assert len(topics.committed) == min(6_000, trigger * -(-2_500 // COMMIT_QUEUES) * COMMIT_QUEUES)
    assert {topics.committed[queue] for queue in queues[-500:]} == {3}


def test_many_brokers_that_are_away_hold_up_the_query_no_longer_than_one(clock: Clock) -> None:
    away = [MessageQueue("T", f"a{number}", 0) for number in range(4)]
    topics = filled(*away, B)
    made = reader(topics, groupId="G")
    made.initialOffset()
    topics.dead |= {queue.broker_name for queue in away}
    begun_s = clock.now_s
    made.commit({"T": {"a0:0": 1, "a1:0": 1, "a2:0": 1, "a3:0": 1, "b:0": 1}})
    assert topics.committed == {B: 1}
    assert clock.now_s - begun_s <= COMMIT_DEADLINE_S
