"""The first message at a time, whatever guess the search begins with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.cluster import QueueBounds
from rocketmq_spark.client.offset_lookup import first_late, offset_at, store_time_ms
from tests.unit.spark.client.fake_broker import QUEUE, FakeBroker, FakeCluster


@given(st.integers(0, 50), st.integers(0, 300), st.integers(-10, 400), st.data())
def test_any_guess_leads_to_the_first_late_one(low: int, size: int, guess: int, data: st.DataObject) -> None:
    high = low + size
    first = data.draw(st.integers(low, high))
    asked = []

    def is_late(offset: int) -> bool:
        assert low <= offset < high
        asked.append(offset)
        return offset >= first

    assert first_late(low, high, guess, is_late) == first
    assert len(asked) <= 2 * max(1, size).bit_length() + 2


def test_a_right_guess_costs_two_questions() -> None:
    asked = []

    def is_late(offset: int) -> bool:
        asked.append(offset)
        return offset >= 500

    assert first_late(0, 100_000, 500, is_late) == 500
    assert sorted(asked) == [499, 500]


class Searching(FakeBroker):
    """Answers the search by time with whatever `found` says."""

    found = 0

    def answer(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        if request.code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
            return RemotingCommand(0, request.opaque, 1, None, {"offset": str(self.found)})
        return super().answer(request, fault)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(0, 60), st.integers(990, 1_050))
def test_holes_and_bad_guesses_change_nothing(is_there: list[bool], found: int, time_ms: int) -> None:
    broker = Searching([b"x" if there else None for there in is_there])
    broker.found = found
    offset = offset_at(FakeCluster(broker), QUEUE, time_ms, QueueBounds(0, len(is_there)))
    late = [n for n, there in enumerate(is_there) if there and 1_000 + n >= time_ms]
    after = [n for n, there in enumerate(is_there) if there and n >= offset]
    assert after == late


def test_store_time_passes_over_holes() -> None:
    cluster = FakeCluster(FakeBroker([b"x", None, None, b"y", None]))
    assert [store_time_ms(cluster, QUEUE, offset) for offset in range(5)] == [
        1_000,
        1_003,
        1_003,
        1_003,
        None,
    ]


def test_an_empty_queue_is_not_searched() -> None:
    assert offset_at(FakeCluster(FakeBroker([])), QUEUE, 5, QueueBounds(7, 7)) == 7
