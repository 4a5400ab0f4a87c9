"""What a stream reads next when messages are gone, or a queue has become another one."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.errors import DataLossError
from rocketmq_spark.source.offsets import from_json
from tests.unit.spark.source.conftest import Clock
from tests.unit.spark.source.planned import ALL, DEADLINE_S, A, B, filled, offsets, ranges, reader, run

# What is lost


def test_all_that_retention_took_is_named_by_the_driver(clock: Clock) -> None:
    """Though a batch would be small, and its tasks smaller."""
    topics = filled(A, B, count=1_000)
    topics.queues[A].first, topics.queues[B].first = 900, 3
    made = reader(topics, maxOffsetsPerTrigger=10, minPartitions=8)
    wanted = "offsets 5 to 899 of T/a:0 and offsets 0 to 2 of T/b:0 are not in the cluster any more"
    with pytest.raises(DataLossError, match=wanted):
        made.latestOffset(offsets(a0=5, b0=0), ReadMaxRows(10))
    with pytest.raises(DataLossError, match="offsets 5 to 899 of T/a:0 are not"):
        made.partitions(offsets(a0=5, b0=3), offsets(a0=15, b0=3))


def test_what_retention_took_is_passed_over_at_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """Not trigger by trigger; and the other queues are read meanwhile."""
    topics = filled(A, B, count=1_000)
    topics.queues[A].first = 990
    made = reader(topics, maxOffsetsPerTrigger=10, failOnDataLoss=False)
    start = offsets(a0=5, b0=985)
    with caplog.at_level(logging.WARNING):
        steps = run(made, start, ReadMaxRows(10))
        assert [from_json(end) for end in steps] == [{A: 990, B: 995}, {A: 997, B: 998}, {A: 1_000, B: 1_000}]
        assert ranges(made, start, steps[0]) == [QueueRange(A, 990, 990), QueueRange(B, 985, 995)]
    assert caplog.text.count("offsets 5 to 989 of T/a:0 are lost") == 1


def test_parts_of_a_repeated_batch_stay_where_they_were(clock: Clock) -> None:
    """Retention comes further between two tries: no row changes its partition."""
    topics = filled(A, B, count=100)
    made = reader(topics, minPartitions=4, failOnDataLoss=False)
    start, end = offsets(a0=0, b0=0), offsets(a0=100, b0=100)
    first = ranges(made, start, end)
    topics.queues[A].first = 60
    again = ranges(made, start, end)
    assert [(one.queue, one.stop) for one in again] == [(one.queue, one.stop) for one in first]
    assert again == [
        QueueRange(A, 50, 50),
        QueueRange(A, 60, 100),
        QueueRange(B, 0, 50),
        QueueRange(B, 50, 100),
    ]


def test_available_now_ends_though_retention_passed_its_end(clock: Clock) -> None:
    topics = filled(A)
    made = reader(topics, failOnDataLoss=False)
    made.prepareForTriggerAvailableNow()
    topics.put(A, *[1_000] * 10)
    topics.queues[A].first = 15
    began_s = clock.now_s
    assert [from_json(end) for end in run(made, offsets(a0=0))] == [{A: 15}]
    assert clock.now_s == began_s


def test_a_topic_made_anew_is_read_from_its_beginning(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    topics = filled(A, count=50)
    made = reader(topics, failOnDataLoss=False)
    end = made.latestOffset(offsets(a0=50), ALL)
    del topics.queues[A]
    topics.put(A, *[clock.now_ms + 1] * 5)
    assert made.latestOffset(end, ALL) == end  # it may be an election
    clock.sleep(DEADLINE_S + 1)
    topics.put(A, *[clock.now_ms] * 5)
    with caplog.at_level(logging.WARNING):
        steps = run(made, end)
    assert [from_json(step) for step in steps] == [{A: 0}, {A: 10}]
    assert ranges(made, end, steps[0]) == []
    assert "T/a:0 ends at offset 10, but the query has read up to 50 of it" in caplog.text
    assert "continues in T/a:0 at offset 0" in caplog.text


def test_a_queue_that_was_cut_off_is_read_on_from_its_end(clock: Clock) -> None:
    """Its own old messages are still there: they are not read again, and no new one is passed over."""
    topics = filled(A, count=50)
    made = reader(topics, failOnDataLoss=False)
    made.latestOffset(offsets(a0=50), ALL)
    del topics.queues[A].stored_ms[40:]
    assert from_json(made.latestOffset(offsets(a0=50), ALL)) == {A: 50}
    topics.put(A, clock.now_ms, clock.now_ms)
    clock.sleep(DEADLINE_S + 1)
    assert [from_json(step) for step in run(made, offsets(a0=50))] == [{A: 40}, {A: 42}]


def test_a_queue_that_ends_too_early_ends_the_query(clock: Clock) -> None:
    topics = filled(A, B, count=50)
    made = reader(topics)
    assert from_json(made.latestOffset(offsets(a0=60, b0=70), ALL)) == {A: 60, B: 70}
    topics.put(B, *[1_000] * 20)
    clock.sleep(DEADLINE_S + 1)
    with pytest.raises(DataLossError, match=r"^T/a:0 ends at offset 50, .* read up to 60 of it: messages"):
        made.latestOffset(offsets(a0=60, b0=70), ALL)


def test_available_now_waits_once_for_all_queues_that_end_too_early(clock: Clock) -> None:
    queues = [MessageQueue("T", "a", number) for number in range(20)]
    topics = filled(*queues)
    made = reader(topics)
    made.prepareForTriggerAvailableNow()
    began_s = clock.now_s
    start = {"T": {f"a:{number}": 30 for number in range(20)}}
    with pytest.raises(DataLossError, match=r"T/a:0 ends at .*; T/a:19 ends at offset 10"):
        made.latestOffset(start, ALL)
    assert clock.now_s - began_s <= DEADLINE_S
    lenient = reader(topics, failOnDataLoss=False)
    lenient.prepareForTriggerAvailableNow()
    assert [set(from_json(end).values()) for end in run(lenient, start)] == [{0}, {10}]


def test_a_first_offset_behind_the_end_is_brought_to_it_if_loss_is_allowed(clock: Clock) -> None:
    topics = filled(A)
    given = '{"T": {"a:0": 30}}'
    assert from_json(reader(topics, startingOffsets=given, failOnDataLoss=False).initialOffset()) == {A: 10}
    assert from_json(reader(topics, startingOffsets=given).initialOffset()) == {A: 30}


def test_tasks_are_told_who_leads(clock: Clock) -> None:
    topics = filled(A)
    parts: list[Any] = reader(topics).partitions(offsets(a0=0), offsets(a0=5))
    assert [part.leader for part in parts] == ["a:1"]


def test_beginnings_are_asked_for_once_a_batch(clock: Clock) -> None:
    topics = filled(A, B)
    made = reader(topics)
    start = offsets(a0=0, b0=10)
    end = made.latestOffset(start, ALL)
    made.partitions(start, end)
    asked = [request for request in topics.asked if request.code == RequestCode.GET_MIN_OFFSET]
    assert [request.ext_fields["topic"] for request in asked] == ["T"]  # of the only queue with more to read
    made.partitions(offsets(a0=5, b0=10), end)  # another batch, as one that is repeated after a restart
    asked = [request for request in topics.asked if request.code == RequestCode.GET_MIN_OFFSET]
    assert len(asked) == 2
