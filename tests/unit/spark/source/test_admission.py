"""What a trigger takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.source.message_sizes import SAMPLE_COUNT, sampled
from rocketmq_spark.source.options import stream_options
from rocketmq_spark.source.planning import Admission

Q0, Q1 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
BASE = {"namesrv": "h:1", "subscribe": "T"}
START, END = {Q0: 0, Q1: 0}, {Q0: 60, Q1: 40}


def admission(**options: object) -> Admission:
    return Admission(stream_options(BASE | {name: str(value) for name, value in options.items()}))


def heavy(ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, float]:
    assert all(map(len, ranges))
    return dict.fromkeys((wanted.queue for wanted in ranges), 100.0)


def test_without_limits_everything_is_taken() -> None:
    assert admission().admit(START, END, 0, heavy, may_wait=True) == END


def test_limits_are_applied_together() -> None:
    assert admission(maxOffsetsPerTrigger=10).admit(START, END, 0, heavy, True) == {Q0: 6, Q1: 4}
    assert admission(maxBytesPerTrigger=2_000).admit(START, END, 0, heavy, True) == {Q0: 12, Q1: 8}
    both = admission(maxBytesPerTrigger=2_000, maxOffsetsPerTrigger=10)
    assert both.admit(START, END, 0, heavy, True) == {Q0: 6, Q1: 4}


class Sizes:
    """Messages of one queue that are light before `border` and heavy behind it, looked at in samples."""

    def __init__(self, border: int, light: int, heavy: int) -> None:
        self._border, self._light, self._heavy = border, light, heavy

    def total(self, start: int, stop: int) -> int:
        lighter = max(0, min(stop, self._border) - start)
        return lighter * self._light + (stop - start - lighter) * self._heavy

    def weigh(self, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, float]:
        means = [self.total(at, at + SAMPLE_COUNT) / SAMPLE_COUNT for at in sampled(ranges[0])]
        return {ranges[0].queue: max(means)}


def test_heavy_messages_behind_light_ones_are_found() -> None:
    sizes = Sizes(border=SAMPLE_COUNT, light=200, heavy=1 << 20)
    limits = admission(maxBytesPerTrigger=1 << 30)
    end = limits.admit({Q0: 0}, {Q0: 5_000_000}, 0, sizes.weigh, may_wait=True)
    assert sizes.total(0, end[Q0]) <= 1 << 30
    assert end[Q0] > 900


def test_heavy_messages_far_behind_do_not_make_small_batches() -> None:
    sizes = Sizes(border=4_000_000, light=200, heavy=1 << 20)
    limits = admission(maxBytesPerTrigger=200 * 1_000_000)
    end = limits.admit({Q0: 0}, {Q0: 5_000_000}, 0, sizes.weigh, may_wait=True)
    assert end == {Q0: 1_000_000}


@given(st.integers(0, 3_000), st.integers(1, 1_000), st.integers(1_000, 2_000_000), st.integers(1, 1 << 31))
def test_a_batch_ends_and_has_a_message(border: int, light: int, heavy: int, bytes_max: int) -> None:
    sizes = Sizes(border, light, heavy)
    limits = admission(maxBytesPerTrigger=bytes_max)
    end = limits.admit({Q0: 0}, {Q0: 100_000}, 0, sizes.weigh, may_wait=True)[Q0]
    assert 1 <= end <= 100_000


def test_samples_are_of_the_beginning_the_middle_and_the_end() -> None:
    assert sampled(QueueRange(Q0, 5, 6)) == [5]
    assert sampled(QueueRange(Q0, 0, 1_032)) == [0, 500, 1_000]


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
