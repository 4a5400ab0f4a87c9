"""What a trigger takes."""

from __future__ import annotations

from collections.abc import Mapping

from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.source.admission import Admission
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.source_options import stream_options

Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
BASE = {"namesrv": "h:1", "subscribe": "T"}
START, END = {Q0: 0, Q1: 0}, {Q0: 60, Q1: 40}


def admission(**options: object) -> Admission:
    return Admission(stream_options(BASE | {name: str(value) for name, value in options.items()}))


def heavy(queues: list[MessageQueue], start: Offsets) -> Mapping[MessageQueue, float]:
    assert all(queue in start for queue in queues)
    return dict.fromkeys(queues, 100.0)


def test_without_limits_everything_is_taken() -> None:
    assert admission().admit(START, END, 0, heavy, may_wait=True) == END


def test_limits_are_applied_together() -> None:
    assert admission(maxOffsetsPerTrigger=10).admit(START, END, 0, heavy, True) == {Q0: 6, Q1: 4}
    assert admission(maxBytesPerTrigger=2_000).admit(START, END, 0, heavy, True) == {Q0: 12, Q1: 8}
    both = admission(maxBytesPerTrigger=2_000, maxOffsetsPerTrigger=10)
    assert both.admit(START, END, 0, heavy, True) == {Q0: 6, Q1: 4}


def test_too_little_waits_until_the_delay_is_over() -> None:
    limits = admission(minOffsetsPerTrigger=50, maxTriggerDelay="10s")
    assert limits.admit(START, {Q0: 1, Q1: 0}, 1_000, heavy, True) == {Q0: 1, Q1: 0}  # the first never waits
    start, little, enough = {Q0: 1, Q1: 0}, {Q0: 9, Q1: 0}, {Q0: 50, Q1: 1}
    assert limits.admit(start, little, 5_000, heavy, True) == start
    assert limits.admit(start, enough, 6_000, heavy, True) == enough
    assert limits.admit(enough, {Q0: 51, Q1: 1}, 15_999, heavy, True) == enough
    assert limits.admit(enough, {Q0: 51, Q1: 1}, 16_000, heavy, True) == {Q0: 51, Q1: 1}


def test_a_query_that_ends_by_itself_never_waits() -> None:
    limits = admission(minOffsetsPerTrigger=50)
    limits.admit(START, END, 0, heavy, may_wait=False)
    assert limits.admit(END, {Q0: 61, Q1: 40}, 1, heavy, may_wait=False) == {Q0: 61, Q1: 40}


def test_new_queues_enter_while_it_waits() -> None:
    limits = admission(minOffsetsPerTrigger=50)
    limits.admit({Q0: 0}, {Q0: 5}, 0, heavy, True)
    assert limits.admit({Q0: 5}, {Q0: 9, Q1: 3}, 1, heavy, True) == {Q0: 5, Q1: 3}
