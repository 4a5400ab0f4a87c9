"""The bound on a rate, by a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.jobs.replay.rate_limit import (
    BURST_S,
    TASK_BYTES,
    TASK_MESSAGES,
    Limiter,
    Rate,
    pieces,
    shares,
)

rates = st.builds(Rate, st.none() | st.floats(0.5, 100_000), st.none() | st.floats(10, 100_000_000)).filter(
    lambda rate: rate.is_bounded
)
SLACK = 1e-6


@given(rates, st.lists(st.tuples(st.integers(1, 500), st.integers(0, 100_000), st.floats(0, 3)), min_size=1))
def test_no_stretch_of_time_sees_more_than_the_rate_and_what_passes_at_once(
    rate: Rate, sends: list[tuple[int, int, float]]
) -> None:
    """Between any two sends, the last one left out, no more has passed than the rate times the time."""
    now_s = 100.0
    limiter = Limiter(rate, now_s)
    passed: list[tuple[float, int, int]] = []
    for messages, body_bytes, idle_s in sends:
        now_s += idle_s
        now_s += limiter.wait_s(messages, body_bytes, now_s)
        passed.append((now_s, messages, body_bytes))
    for first in range(len(passed)):
        messages = body_bytes = 0
        for at_s, more, more_bytes in passed[first:]:
            assert rate.seconds_for(messages, body_bytes) <= at_s - passed[first][0] + SLACK
            messages, body_bytes = messages + more, body_bytes + more_bytes


def test_time_in_which_nothing_was_sent_is_not_saved_up() -> None:
    limiter = Limiter(Rate(messages=10), now_s=0.0)
    assert limiter.wait_s(1, 0, now_s=60.0) == 0.0
    assert limiter.wait_s(1, 0, now_s=60.0) == pytest.approx(0.1)


def test_the_tighter_of_both_bounds_counts() -> None:
    rate = Rate(messages=100, body_bytes=1000)
    assert rate.seconds_for(10, 10) == pytest.approx(0.1)
    assert rate.seconds_for(10, 1000) == pytest.approx(1.0)


@given(rates, st.lists(st.integers(0, 10_000), min_size=1, max_size=20))
def test_shares_are_never_more_than_the_rate_and_end_together(rate: Rate, weights: list[int]) -> None:
    parts = shares(rate, weights)
    if not sum(weights):
        return
    for of_part, whole in (
        ([part.messages for part in parts], rate.messages),
        ([part.body_bytes for part in parts], rate.body_bytes),
    ):
        assert (whole is None) == all(one is None for one in of_part)
        if whole is not None:
            assert sum(one for one in of_part if one is not None) <= whole * (1 + SLACK)
    ends = [
        weight / part.messages
        for weight, part in zip(weights, parts, strict=True)
        if weight and part.messages
    ]
    assert all(end == pytest.approx(ends[0]) for end in ends)


@given(st.lists(st.integers(0, 5_000), max_size=60), rates)
def test_pieces_are_the_messages_and_each_is_a_burst_or_a_single_message(
    sizes: list[int], rate: Rate
) -> None:
    lengths = pieces(sizes, rate)
    assert sum(lengths) == len(sizes)
    start = 0
    for length in lengths:
        body_bytes = sum(sizes[start : start + length])
        assert length == 1 or rate.seconds_for(length, body_bytes) <= BURST_S * (1 + SLACK)
        start += length


def test_without_a_bound_there_is_one_piece() -> None:
    assert pieces([1, 2, 3], Rate()) == [3]
    assert pieces([], Rate()) == []


def test_how_many_messages_may_pass() -> None:
    assert Rate(messages=10).messages_in(0.5) == 5
    assert Rate(messages=0.1).messages_in(1.0) == 1
    assert Rate(body_bytes=10).messages_in(1.0) is None
    assert Rate(body_bytes=1_000).messages_in(2.0, message_bytes=500) == 4
    assert Rate(messages=3, body_bytes=1_000).messages_in(2.0, message_bytes=100) == 6
    assert Rate().messages_in(1.0, message_bytes=5) is None


def test_a_rate_that_one_task_can_send_has_one_task() -> None:
    assert Rate().tasks(8) == 8
    assert Rate(messages=TASK_MESSAGES).tasks(8) == 1
    assert Rate(messages=2.5 * TASK_MESSAGES).tasks(8) == 3
    assert Rate(messages=100 * TASK_MESSAGES).tasks(8) == 8
    assert Rate(body_bytes=0.001).tasks(8) == 1
    assert Rate(messages=1_000_000, body_bytes=1.5 * TASK_BYTES).tasks(8) == 2
