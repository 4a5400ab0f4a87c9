"""dledger.core.dispatcher: one leader's view of one peer, where the golden traces do not reach."""

import pytest

from dledger.core.events import PushRefused, PushStateChanged
from dledger.core.messages import (
    CompareRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    TruncateRequest,
    TruncateResponse,
)
from dledger.core.types import UNKNOWN_TERM, PushState, ResponseCode
from tests.unit.dledger.dispatcher_bench import ENTRY_BYTES, TERM, Bench, ranges


def test_new_leader_compares_its_last_entry() -> None:
    assert Bench(1, 4).pump() == [CompareRequest(TERM, -1, 1, 4)]


def test_empty_peer_gets_everything_from_the_begin() -> None:
    bench = Bench(1, 4)
    bench.start()
    assert ranges(bench.answer_compare("INCONSISTENT_STATE", 0, -1, 0)) == [(0, 0), (1, 1)]


def test_empty_peer_that_begins_inside_our_log_is_not_reset_again() -> None:
    bench = Bench(1, 4, 4, begin_index=5)
    bench.start()
    assert ranges(bench.answer_compare("INCONSISTENT_STATE", 6, 5, UNKNOWN_TERM)) == [(6, 7)]


def test_peer_that_ends_just_before_our_begin_is_reset_when_the_term_is_unknown() -> None:
    bench = Bench(4, 4, begin_index=5)
    bench.start()
    messages = bench.answer_compare("INCONSISTENT_STATE", 0, 4, 4)
    assert messages == [TruncateRequest(TERM, -1, 5, UNKNOWN_TERM, 50, True, 4, 4)]


def test_peer_that_ends_just_before_our_begin_continues_when_the_term_is_known() -> None:
    bench = Bench(4, 4, begin_index=5, prev_term=3)
    bench.start()
    assert ranges(bench.answer_compare("INCONSISTENT_STATE", 0, 4, 3)) == [(5, 6)]


def test_peer_that_begins_after_our_end_is_reset() -> None:
    bench = Bench(1, 4)
    bench.start()
    messages = bench.answer_compare("INCONSISTENT_STATE", 8, 9, 4, 7, UNKNOWN_TERM)
    assert messages == [TruncateRequest(TERM, -1, 0, 0, 0, True, 9, 4)]


def test_divergence_below_our_begin_is_a_reset() -> None:
    bench = Bench(4, 4, begin_index=5)
    bench.start()
    messages = bench.answer_compare("INCONSISTENT_STATE", 0, 7, 3, 6, 3)
    assert messages == [TruncateRequest(TERM, -1, 5, UNKNOWN_TERM, 50, True, 7, 3)]


def test_divergence_down_to_our_begin_compares_the_entry_before_it() -> None:
    bench = Bench(4, 4, begin_index=5, prev_term=2)
    bench.start()
    assert bench.answer_compare("INCONSISTENT_STATE", 0, 7, 3, 6, 3) == [CompareRequest(TERM, -1, 4, 2)]


def test_unknown_term_before_the_peers_begin_is_compared_there() -> None:
    """Everything the peer holds diverges; what it removed was committed and so is ours too."""
    bench = Bench(1, 1, 1, 4, 4, 4)
    bench.start()
    messages = bench.answer_compare("INCONSISTENT_STATE", 3, 5, 3, 2, UNKNOWN_TERM)
    assert messages == [CompareRequest(TERM, -1, 2, 1)]


def test_last_common_entry_named_by_the_answer_saves_a_round() -> None:
    bench = Bench(1, 1, 4, 4)
    bench.start()
    messages = bench.answer_compare("INCONSISTENT_STATE", 0, 5, 3, 1, 1)
    assert messages == [TruncateRequest(TERM, -1, 2, 1, 20, False, 5, 3)]


def test_answer_to_another_compare_is_ignored() -> None:
    bench = Bench(1, 4)
    bench.start()
    bench.compare_index = 0
    assert bench.answer_compare("SUCCESS", 0, 0, 1) == []
    assert bench.dispatcher.state is PushState.COMPARE


def test_compare_after_retention_begins_at_the_end_again() -> None:
    bench = Bench(1, 1, 4, 4, compare_timeout_ms=100)
    bench.start()
    bench.answer_compare("INCONSISTENT_STATE", 0, 5, 3, 3, 3)
    bench.log.truncate_before(3)
    assert bench.pump(100) == [CompareRequest(TERM, -1, 3, 4)]


def test_compare_of_an_entry_that_retention_leaves_goes_on() -> None:
    bench = Bench(1, 1, 4, 4)
    bench.start()
    bench.log.truncate_before(2)
    bench.dispatcher.log_begins_at(2)
    assert bench.pump() == [], "nothing is sent again"
    assert bench.dispatcher.state is PushState.COMPARE


def test_truncate_that_speaks_of_removed_entries_is_void() -> None:
    bench = Bench(1, 1, 4, 4)
    bench.start()
    bench.answer_compare("INCONSISTENT_STATE", 0, 5, 3, 1, 1)
    bench.log.truncate_before(3)
    bench.dispatcher.log_begins_at(3)
    assert bench.pump() == [CompareRequest(TERM, -1, 3, 4)]


def test_truncate_answered_inconsistent_compares_again() -> None:
    bench = Bench(1, 1, 4, 4)
    bench.start()
    bench.answer_compare("INCONSISTENT_STATE", 0, 5, 3, 1, 1)
    bench.dispatcher.on_truncate_response(TruncateResponse(TERM, ResponseCode.INCONSISTENT_STATE, 2, 5))
    assert bench.pump() == [CompareRequest(TERM, -1, 3, 4)]


def test_truncate_answer_for_another_index_is_ignored() -> None:
    bench = Bench(1, 1, 4, 4)
    bench.start()
    bench.answer_compare("INCONSISTENT_STATE", 0, 5, 3, 1, 1)
    bench.dispatcher.on_truncate_response(TruncateResponse(TERM, ResponseCode.SUCCESS, 1, 0))
    assert bench.dispatcher.state is PushState.TRUNCATE


def test_refused_truncate_is_not_repeated_before_its_timeout() -> None:
    """A peer that would lose committed entries refuses; the leader must not hammer it."""
    bench = Bench(1, 1, 4, 4)
    bench.start()
    bench.answer_compare("INCONSISTENT_STATE", 0, 5, 3, 1, 1)
    refusal = TruncateResponse(TERM, ResponseCode.ILLEGAL_MEMBER_STATE, 2, 5)
    bench.dispatcher.on_truncate_response(refusal)
    assert bench.outbox.events == [PushRefused("n1", 2, ResponseCode.ILLEGAL_MEMBER_STATE)]
    bench.dispatcher.on_heartbeat_response(HeartbeatResponse(TERM, 5), bench.now_ms + 1000)
    assert bench.pump(1000) == [HeartbeatRequest(TERM, -1)]
    assert [type(message) for message in bench.pump(2000)] == [TruncateRequest]


def test_acknowledgement_of_a_part_moves_the_first_pending_push() -> None:
    bench = Bench(4, 4, 4, 4)
    assert ranges(bench.match(0)) == [(1, 3)]
    bench.answer_append("SUCCESS", 1, 2)
    assert bench.dispatcher.match_index == 2
    assert ranges(bench.pump(1000)) == [(3, 3)]


def test_repeated_push_that_is_read_shorter_is_split() -> None:
    """Ranges are read anew, and the reader may cut them elsewhere; the rest goes as the next push."""
    bench = Bench(4, 4, 4, 4)
    assert ranges(bench.match(0)) == [(1, 3)]
    bench.reader.entries_max = 2
    assert ranges(bench.pump(1000)) == [(1, 2)]
    assert ranges(bench.answer_append("SUCCESS", 1, 2)) == [(3, 3)]


def test_pushes_a_full_peer_refuses_wait_for_an_acknowledgement() -> None:
    """New pushes beyond a hole would only be refused too, and each would leave the next hole."""
    bench = Bench(4, 4, 4, 4, 4, push_bytes_max=ENTRY_BYTES, pending_pushes_max=3)
    assert ranges(bench.match(0)) == [(1, 1), (2, 2), (3, 3)]
    assert bench.answer_append("PUSH_REQUEST_IS_FULL", 2, 2) == []
    assert bench.dispatcher.next_index == 2
    assert ranges(bench.pump(1000)) == [(1, 1)]
    assert ranges(bench.answer_append("SUCCESS", 1, 1)) == [(2, 2), (3, 3), (4, 4)]


def test_oldest_push_is_not_taken_back() -> None:
    """Its time-out is what brings a full peer on again."""
    bench = Bench(4, 4, 4)
    assert ranges(bench.match(1)) == [(2, 2)]
    assert bench.answer_append("PUSH_REQUEST_IS_FULL", 2, 2) == []
    assert ranges(bench.pump(1000)) == [(2, 2)]


def test_late_acknowledgements_change_nothing() -> None:
    bench = Bench(4, 4, 4)
    bench.match(0)
    bench.answer_append("SUCCESS", 1, 2)
    assert bench.answer_append("SUCCESS", 1, 1) == []
    assert bench.answer_append("INCONSISTENT_STATE", 2, 2) == []
    assert (bench.dispatcher.state, bench.dispatcher.match_index) == (PushState.APPEND, 2)


def test_acknowledgement_beyond_the_log_is_a_broken_invariant() -> None:
    bench = Bench(4, 4)
    bench.match(0)
    with pytest.raises(AssertionError, match="n1 acknowledges 7, the log ends at 1"):
        bench.answer_append("SUCCESS", 1, 7)


def test_inconsistent_push_compares_from_the_end_and_forgets_what_was_pending() -> None:
    bench = Bench(4, 4, 4)
    bench.match(0)
    assert bench.answer_append("INCONSISTENT_STATE", 1, 2) == [CompareRequest(TERM, -1, 2, 4)]
    assert bench.answer_append("SUCCESS", 1, 2) == []


def test_peer_whose_log_got_shorter_is_compared() -> None:
    bench = Bench(4, 4, 4)
    bench.match(2)
    bench.dispatcher.on_heartbeat_response(HeartbeatResponse(TERM, 1), bench.now_ms)
    assert bench.outbox.events == [
        PushStateChanged("n1", PushState.APPEND, PushState.COMPARE, 2, "its log ends at 1")
    ]


def test_deadline_is_when_the_next_word_is_due() -> None:
    bench = Bench(4, 4, heartbeat_interval_ms=100, push_timeout_ms=150, compare_timeout_ms=70)
    assert bench.dispatcher.deadline_ms() < 0
    bench.start()
    assert bench.dispatcher.deadline_ms() == 70
    bench.answer_compare("SUCCESS", 0, 0, 4)
    bench.dispatcher.answered(0)
    assert bench.dispatcher.deadline_ms() == 100
    bench.pump(100)
    assert bench.dispatcher.deadline_ms() == 150
    bench.answer_append("SUCCESS", 1, 1)
    assert bench.dispatcher.deadline_ms() == 200


def test_status_before_and_after_the_match() -> None:
    bench = Bench(4, 4, 4)
    status = bench.dispatcher.status(None)
    assert (status.push_state, status.match_index, status.next_index) == (PushState.COMPARE, None, None)
    assert (status.lag_entries, status.lag_bytes, status.last_contact_ms_ago) == (None, None, None)
    bench.match(0)
    status = bench.dispatcher.status(7)
    assert (status.match_index, status.next_index, status.lag_entries) == (0, 3, 2)
    assert (status.lag_bytes, status.last_contact_ms_ago) == (20, 7)


def test_entries_gather_while_small_pushes_are_under_way() -> None:
    bench = Bench(TERM, small_pushes_max=2, small_push_bytes=5 * ENTRY_BYTES)
    bench.match(0)

    def append(last_index: int) -> list[tuple[int, int]]:
        bench.log.extend(TERM, last_index)
        return ranges(bench.pump())

    assert append(1) == [(1, 1)]
    assert append(2) == [(2, 2)]
    assert append(3) == append(4) == append(6) == []
    assert ranges(bench.answer_append("SUCCESS", 1, 1)) == [(3, 6)]
    assert append(7) == append(10) == []
    assert append(11) == [(7, 11)], "what is no small push does not wait"
    assert append(12) == []
    assert ranges(bench.answer_append("SUCCESS", 2, 11)) == [(12, 12)]
    bench.dispatcher.restart("connected")
    assert ranges(bench.match(12)) == []
    assert append(13) == [(13, 13)], "nothing is under way after a new comparison"
