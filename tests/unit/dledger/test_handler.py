"""dledger.core.handler: what a follower takes, refuses and promises."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.events import LogReset, LogTruncated, PushFellBehind, PushMisplaced, TruncationRefused
from dledger.core.handler import EntryHandler
from dledger.core.membership import Configuration, ConfigurationEntry, ConfigurationLog, first_configuration
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    PushRequest,
    TruncateRequest,
    TruncateResponse,
)
from dledger.core.output import Append, Outbox, Output, Reset, TruncateFrom
from dledger.core.types import UNKNOWN_TERM, EntryRange, Epoch, LogState, ResponseCode

TERM = 5


class EndlessRoom:
    """The host's log, as far as a handler looks at it: four entries of ten bytes each."""

    end_position = 40

    def position_of(self, index: int) -> int:
        return 10 * index

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        raise NotImplementedError

    def configurations_in(self, entries: EntryRange) -> Sequence[ConfigurationEntry]:
        return ()

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        return entries.data != b"elsewhere"


class Follower:
    """A handler with a log of the given terms, in term 5."""

    def __init__(self, *terms: int, begin_index: int = 0, commit_index: int = -1, **limits: Any) -> None:
        epochs = tuple(
            Epoch(term, begin_index + at) for at, term in enumerate(terms) if at == 0 or terms[at - 1] != term
        )
        self.log = EpochCache(LogState(begin_index, begin_index + len(terms) - 1, epochs, commit_index))
        self.commit_index = commit_index
        self._outbox = Outbox()
        config = Config("g", "n1", ("n0", "n1", "n2"), **limits)
        members = ConfigurationLog("n1", first_configuration(Configuration.of_voters(config.peers)))
        self.handler = EntryHandler(config, self.log, members, EndlessRoom(), self._outbox, commit_index)

    def push(self, request: PushRequest, now_ms: int = 0) -> Output:
        self.handler.on_push("n0", request, self.commit_index, now_ms)
        self.handler.check_invariants(self.commit_index)
        return self._outbox.take(self.commit_index)

    def check_abnormal(self, now_ms: int) -> Output:
        self.handler.check_abnormal(now_ms)
        self.handler.check_invariants(self.commit_index)
        return self._outbox.take(self.commit_index)


def append(first_index: int, last_index: int, term: int, prev_term: int, data: bytes = b"x") -> AppendRequest:
    return AppendRequest(TERM, -1, prev_term, EntryRange(first_index, last_index, term, data))


def codes(output: Output) -> list[ResponseCode]:
    """The codes answered, those that wait for the disk last."""
    messages = [envelope.message for envelope in (*output.send_now, *output.send_after_persist)]
    return [
        message.code
        for message in messages
        if isinstance(message, AppendResponse | CompareResponse | TruncateResponse)
    ]


def test_append_is_promised_only_after_the_disk() -> None:
    follower = Follower(1, 1)
    request = append(2, 3, 5, 1)
    output = follower.push(request)
    assert output.log_ops == (Append(request.entries),)
    assert output.send_now == ()
    assert output.send_after_persist[0].message == AppendResponse(TERM, ResponseCode.SUCCESS, 2, 3, 3)
    assert follower.log.epochs == (Epoch(1, 0), Epoch(5, 2))


@pytest.mark.parametrize(
    ("terms", "request_", "why"),
    [
        ((1, 1), append(2, 2, 5, 4), "the entry before is of another term"),
        ((1, 3), append(2, 2, 2, 3), "terms never fall"),
        ((1, 3), append(2, 2, 6, 3), "no entry is newer than its leader"),
        ((1, 3), append(2, 2, 5, UNKNOWN_TERM), "unknown is not equal"),
        ((), append(0, 0, 5, 3), "nothing stands before entry 0"),
        ((1, 3), append(1, 1, 4, 1), "it holds another entry 1"),
        ((1, 3), append(0, 2, 1, 0), "it holds another entry 1 inside the range"),
    ],
)
def test_push_that_does_not_continue_the_log(
    terms: tuple[int, ...], request_: AppendRequest, why: str
) -> None:
    output = Follower(*terms).push(request_)
    assert codes(output) == [ResponseCode.INCONSISTENT_STATE], why
    assert output.log_ops == ()
    assert output.send_after_persist == ()


@pytest.mark.parametrize("prev_term", [UNKNOWN_TERM, 4])
def test_empty_log_that_begins_later_takes_what_begins_there(prev_term: int) -> None:
    """What stood before it is committed, whether or not its term is still known."""
    follower = Follower(begin_index=7, commit_index=6)
    assert codes(follower.push(append(7, 8, 5, prev_term))) == [ResponseCode.SUCCESS]


def test_push_of_what_is_here_already_is_acknowledged_up_to_the_end() -> None:
    """A range that reaches beyond the end is acknowledged as far as it is here; the rest comes again."""
    output = Follower(1, 3, 3).push(append(1, 4, 3, 1))
    assert output.events == (PushFellBehind(1, 4, 2, True),)
    assert output.send_after_persist[0].message == AppendResponse(TERM, ResponseCode.SUCCESS, 1, 2, 2)


def test_push_of_what_retention_removed_is_acknowledged() -> None:
    follower = Follower(3, 3, begin_index=5, commit_index=6)
    assert codes(follower.push(append(2, 3, 1, 1))) == [ResponseCode.SUCCESS]
    assert codes(follower.push(append(4, 5, 3, 1))) == [ResponseCode.SUCCESS]


def test_waiting_pushes_are_bounded_in_bytes() -> None:
    follower = Follower(1, out_of_order_bytes_max=5)
    assert codes(follower.push(append(3, 3, 5, 5, b"123"))) == []
    assert codes(follower.push(append(5, 5, 5, 5, b"123"))) == [ResponseCode.PUSH_REQUEST_IS_FULL]
    assert codes(follower.push(append(4, 4, 5, 5, b"12"))) == []


def test_compare_and_truncate_make_waiting_pushes_void() -> None:
    for request in (CompareRequest(TERM, -1, 0, 1), TruncateRequest(TERM, -1, 0, 0, 0, False, 9, 9)):
        follower = Follower(1)
        follower.push(append(2, 2, 5, 5))
        follower.push(request)
        output = follower.push(append(1, 1, 5, 1))
        assert output.log_ops == (Append(EntryRange(1, 1, 5, b"x")),)


def test_abnormal_check_answers_only_the_first_that_waited_in_vain() -> None:
    follower = Follower(1, push_timeout_ms=500)
    for first_index in (7, 3, 5):
        follower.push(append(first_index, first_index, 5, 5), now_ms=0)
    assert follower.check_abnormal(999).send_now == ()
    answered = [envelope.message for envelope in follower.check_abnormal(1000).send_now]
    assert answered == [AppendResponse(TERM, ResponseCode.INCONSISTENT_STATE, 3, 3, 0)]
    assert follower.check_abnormal(1500).send_now == ()


def test_young_push_may_wait_on() -> None:
    follower = Follower(1)
    follower.push(append(3, 3, 5, 5), now_ms=0)
    follower.push(append(5, 5, 5, 5), now_ms=900)
    assert len(follower.check_abnormal(1000).send_now) == 1
    assert len(follower.check_abnormal(2000).send_now) == 1


def test_disk_full_refuses_what_would_grow_the_log() -> None:
    follower = Follower(1, 1)
    follower.handler.is_disk_full = True
    assert codes(follower.push(append(2, 2, 5, 1))) == [ResponseCode.DISK_FULL]
    assert codes(follower.push(append(7, 7, 5, 1))) == [ResponseCode.DISK_FULL]
    assert codes(follower.push(append(1, 1, 1, 1))) == [ResponseCode.SUCCESS]


@pytest.mark.parametrize(
    ("index", "term", "code", "conflict"),
    [
        (3, 3, "SUCCESS", (3, 3)),
        (1, 1, "SUCCESS", (1, 1)),
        (-1, 0, "SUCCESS", (-1, 0)),
        (3, 2, "INCONSISTENT_STATE", (1, 1)),
        (2, 4, "INCONSISTENT_STATE", (2, 3)),
        (9, 4, "INCONSISTENT_STATE", (3, 3)),
        (9, 2, "INCONSISTENT_STATE", (1, 1)),
        (0, UNKNOWN_TERM, "INCONSISTENT_STATE", (-1, 0)),
    ],
)
def test_compare(index: int, term: int, code: str, conflict: tuple[int, int]) -> None:
    output = Follower(1, 1, 3, 3).push(CompareRequest(TERM, -1, index, term))
    message = output.send_after_persist[0].message
    assert message == CompareResponse(TERM, ResponseCode[code], index, 0, 3, 3, *conflict)


def test_compare_below_the_begin_matches_what_was_committed() -> None:
    follower = Follower(3, 3, begin_index=5, commit_index=5)
    assert codes(follower.push(CompareRequest(TERM, -1, 2, 1))) == [ResponseCode.SUCCESS]


def test_commit_may_go_as_far_as_compare_matched() -> None:
    follower = Follower(1, 1, 3)
    follower.push(CompareRequest(TERM, -1, 1, 1))
    assert follower.handler.verified_index == 1
    follower.handler.follow(TERM + 1, -1)
    assert follower.handler.verified_index == -1


def test_what_was_verified_holds_while_the_term_lasts() -> None:
    follower = Follower(1, 1, 3)
    follower.handler.follow(TERM, -1)
    follower.push(CompareRequest(TERM, -1, 1, 1))
    follower.handler.follow(TERM, 0)
    assert follower.handler.verified_index == 1


def truncate(
    index: int, prev_term: int, is_reset: bool = False, end: tuple[int, int] = (3, 3)
) -> TruncateRequest:
    """A reset is of a leader that committed all that its retention removed."""
    commit_index = index - 1 if is_reset else -1
    return TruncateRequest(TERM, commit_index, index, prev_term, 999, is_reset, *end)


def compared(follower: "Follower") -> "Follower":
    """It has answered that its log does not have the leader's entry."""
    follower.push(CompareRequest(TERM, -1, 9, 4))
    return follower


def test_truncate() -> None:
    follower = Follower(1, 1, 3, 3)
    output = follower.push(truncate(2, 1))
    assert (output.log_ops, output.events) == ((TruncateFrom(2),), (LogTruncated(2, 3),))
    assert output.send_after_persist[0].message == TruncateResponse(TERM, ResponseCode.SUCCESS, 2, 1)
    assert follower.handler.verified_index == 1


def test_truncate_at_the_end_drops_nothing() -> None:
    output = Follower(1, 1, 3, 3).push(truncate(4, 3))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.SUCCESS])


def test_reset() -> None:
    follower = compared(Follower(1, 1, 3, 3))
    output = follower.push(truncate(9, 4, is_reset=True))
    assert (output.log_ops, output.events) == ((Reset(9, 999),), (LogReset(9, 0, 3),))
    assert (follower.log.begin_index, follower.log.end_index, follower.log.last_term) == (9, 8, 4)
    again = follower.push(truncate(9, 4, is_reset=True))
    assert (again.log_ops, codes(again)) == ((), [ResponseCode.SUCCESS])


@pytest.mark.parametrize("end", [(3, 4), (4, 3), (2, 3)])
def test_truncate_meant_for_another_log_is_not_obeyed(end: tuple[int, int]) -> None:
    output = Follower(1, 1, 3, 3).push(truncate(2, 1, end=end))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.INCONSISTENT_STATE])


def test_reset_to_an_entry_newer_than_its_leader_is_not_obeyed() -> None:
    output = compared(Follower(1, 1, 3, 3)).push(truncate(9, TERM + 1, is_reset=True))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.INCONSISTENT_STATE])


def test_truncate_beyond_the_end_is_not_obeyed() -> None:
    output = Follower(1, 1, 3, 3).push(truncate(6, 3))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.INCONSISTENT_STATE])


@pytest.mark.parametrize(("index", "is_reset"), [(2, False), (1, False), (0, True)])
def test_truncate_of_committed_entries_is_refused(index: int, is_reset: bool) -> None:
    output = compared(Follower(1, 1, 3, 3, commit_index=2)).push(truncate(index, 1, is_reset))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.ILLEGAL_MEMBER_STATE])
    assert output.events == (TruncationRefused("n0", index, 2),)


def test_reset_without_a_comparison_is_not_obeyed() -> None:
    output = Follower(1, 1, 3, 3).push(truncate(9, 4, is_reset=True))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.INCONSISTENT_STATE])


def test_a_comparison_of_an_earlier_term_allows_no_reset() -> None:
    follower = compared(Follower(1, 1, 3, 3))
    follower.handler.follow(TERM + 1, -1)
    output = follower.push(truncate(9, 4, is_reset=True))
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.INCONSISTENT_STATE])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"commit_index": 7}, id="its leader removed what it had not committed"),
        pytest.param({"prev_term": 2}, id="the term falls"),
        pytest.param({"position": 3}, id="before what is committed here"),
    ],
)
def test_reset_that_no_sound_leader_asks_for_is_refused(change: dict[str, int]) -> None:
    follower = compared(Follower(1, 1, 3, 3, commit_index=3))
    output = follower.push(replace(truncate(9, 4, is_reset=True), **change))  # type: ignore[arg-type]
    assert (output.log_ops, codes(output)) == ((), [ResponseCode.ILLEGAL_MEMBER_STATE])
    assert output.events == (TruncationRefused("n0", 9, 3),)


def test_push_whose_bytes_stand_elsewhere_is_refused() -> None:
    follower = Follower(1, 1)
    output = follower.push(append(2, 3, 1, prev_term=1, data=b"elsewhere"))
    assert not output.log_ops
    assert [envelope.message.code for envelope in output.send_now] == [ResponseCode.INCONSISTENT_STATE]  # type: ignore[union-attr]
    assert output.events == (PushMisplaced("n0", 2, 3),)
