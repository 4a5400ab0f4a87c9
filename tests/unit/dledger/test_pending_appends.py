"""dledger.core.leadership: each proposal is completed once, by commit, time-out or loss of the term."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.core.leadership import PendingAppends
from dledger.core.output import Completion, Proposal
from dledger.core.types import NEVER_DUE_MS, ResponseCode


def pending(*counts: int, entries_max: int = 100, timeout_ms: int = 50) -> PendingAppends:
    """Batches of these sizes, added at 0, 10, 20 ... ms."""
    appends = PendingAppends(entries_max, timeout_ms)
    first_index = 0
    for place, count in enumerate(counts):
        appends.add(Proposal(first_index, count, 1), place * 10)
        first_index += count
    return appends


def test_ack_completes_whole_batches_only() -> None:
    appends = pending(3, 2, 1)
    assert appends.ack(1) == []
    assert appends.ack(4) == [
        Completion(0, 2, ResponseCode.SUCCESS),
        Completion(3, 4, ResponseCode.SUCCESS),
    ]
    assert appends.entries == 1
    appends.check_invariants(4)


def test_expire_in_order_of_time() -> None:
    appends = pending(3, 2)
    assert appends.expire(49) == []
    assert appends.expire(50) == [Completion(0, 2, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)]
    assert appends.deadline_ms() == 60
    assert appends.ack(2) == []


def test_fail_all() -> None:
    appends = pending(3, 2)
    failed = appends.fail_all(ResponseCode.TERM_CHANGED)
    assert failed == [
        Completion(0, 2, ResponseCode.TERM_CHANGED),
        Completion(3, 4, ResponseCode.TERM_CHANGED),
    ]
    assert (appends.entries, appends.deadline_ms(), appends.ack(9)) == (0, NEVER_DUE_MS, [])


def test_room_is_counted_in_entries() -> None:
    appends = pending(3, 2, entries_max=7)
    assert appends.has_room(2)
    assert not appends.has_room(3)
    appends.ack(2)
    assert appends.has_room(5)


def test_committed_but_waiting_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match=r"2 is committed \(5\) but waits"):
        pending(3).check_invariants(5)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["ack", "expire", "none"])), max_size=20))
def test_every_proposal_is_completed_once(steps: list[tuple[int, str]]) -> None:
    appends = PendingAppends(1000, 15)
    done: list[Completion] = []
    first_index = 0
    for place, (count, step) in enumerate(steps):
        appends.add(Proposal(first_index, count, 1), place * 10)
        first_index += count
        if step == "ack":
            done += appends.ack(first_index - 2)
        elif step == "expire":
            done += appends.expire(place * 10)
    done += appends.fail_all(ResponseCode.TERM_CHANGED)
    counts = [completion.last_index - completion.first_index + 1 for completion in done]
    assert counts == [count for count, _ in steps]
