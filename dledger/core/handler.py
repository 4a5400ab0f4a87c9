"""EntryHandler: the follower's side of replication.

A push is appended only where it continues this log: its first entry is the next one, and the entry before it
has the term that the push names (Raft 5.3, the consistency check of AppendEntries). Then the whole log is a
prefix of the leader's.

DLedger has two queues: COMPARE, TRUNCATE and COMMIT go first, APPENDs wait in a map by first index until
their turn comes. Here a message is handled when it is received, so the first queue is always empty. The map
remains, for pushes that arrive before an earlier one.

Invariants: commit index <= verified_index <= end_index. A waiting push begins after end_index + 1, or the
next abnormal check handles it. Both bounds of the configuration hold.
"""

from dataclasses import dataclass
from typing import assert_never

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.events import (
    LogReset,
    LogTruncated,
    PushFellBehind,
    PushMisplaced,
    PushWaitedInVain,
    TruncationRefused,
)
from dledger.core.membership import ConfigurationLog
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CompareRequest,
    CompareResponse,
    PushRequest,
    TruncateRequest,
    TruncateResponse,
)
from dledger.core.output import Append, Outbox, Reset, TruncateFrom
from dledger.core.ports import LogReader
from dledger.core.reads import is_round
from dledger.core.types import NEVER_DUE_MS, NO_TERM, UNKNOWN_TERM, EntryRange, ResponseCode


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A push that arrived before an earlier one."""

    leader: str
    request: AppendRequest
    arrived_ms: int


class EntryHandler:
    """Lives as long as its node; `follow` starts each term."""

    def __init__(
        self,
        config: Config,
        log: EpochCache,
        members: ConfigurationLog,
        reader: LogReader,
        outbox: Outbox,
        commit_index: int,
    ) -> None:
        self.is_disk_full = False
        self.verified_index = commit_index
        """Up to here this log is known to equal the leader's. What follows may be left over from an earlier
        leader, so the commit index must not pass it: Raft's "index of last new entry" (Figure 2,
        AppendEntries 5).
        """
        self._config = config
        self._log = log
        self._members = members
        self._reader = reader
        self._outbox = outbox
        self._term = NO_TERM
        self._has_refused_compare = False
        self._waiting: dict[int, _Waiting] = {}
        self._waiting_bytes = 0
        self._next_check_ms = 0

    def follow(self, term: int, commit_index: int) -> None:
        """The node follows a leader of this term, or none: pushes that wait are dropped.

        `verified_index` stays while the term does: only this term's leader can change the log, and a leader
        that was silent for a while does not compare again.
        """
        if term != self._term:
            self._term, self.verified_index = term, commit_index
            self._has_refused_compare = False
        self.verified_index = max(self.verified_index, commit_index)
        self._clear_waiting()

    def _clear_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def on_push(self, leader: str, request: PushRequest, commit_index: int, now_ms: int) -> None:
        """EntryHandler.handlePush."""
        match request:
            case AppendRequest():
                self._on_append(leader, request, now_ms)
            case CompareRequest():
                self._on_compare(leader, request)
            case TruncateRequest():
                self._on_truncate(leader, request, commit_index)
            case _:
                assert_never(request)

    # -- APPEND --------------------------------------------------------------------------------------------

    def _on_append(self, leader: str, request: AppendRequest, now_ms: int) -> None:
        entries = request.entries
        if self.is_disk_full and entries.last_index > self._log.end_index:
            self._answer_now(leader, request, ResponseCode.DISK_FULL)
            return
        if entries.first_index > self._log.end_index + 1:
            self._keep_waiting(leader, request, now_ms)
            return
        self._append_or_check(leader, request)
        # Pushes that arrived before this one may continue the log now.
        while self._waiting and (kept := self._waiting.pop(self._log.end_index + 1, None)) is not None:
            self._waiting_bytes -= len(kept.request.entries.data)
            self._append_or_check(kept.leader, kept.request)

    def _append_or_check(self, leader: str, request: AppendRequest) -> None:
        """A push that begins at the log's end, or before it."""
        log, entries = self._log, request.entries
        if entries.first_index <= log.end_index:
            self._check_overlap(leader, request)
        elif not self._continues(request) or not self._fits(leader, entries):
            self._answer_now(leader, request, ResponseCode.INCONSISTENT_STATE)
        else:
            self._outbox.log_ops.append(Append(entries))
            log.extend(entries.term, entries.last_index)
            # In force from now on, committed or not (thesis 4.1).
            for entry in self._reader.configurations_in(entries):
                self._members.append(entry)
            self._acknowledge(leader, request, entries.last_index)

    def _continues(self, request: AppendRequest) -> bool:
        """Raft 5.3: both logs have the same entry before the push. Only the terms are compared: the index is
        end_index, and an index and a term name one entry."""
        log = self._log
        # Terms never fall along a log, and no entry is of a later term than its leader: what breaks this is
        # no push of a sound leader.
        if not log.last_term <= request.entries.term <= request.term:
            return False
        if log.is_empty and UNKNOWN_TERM in (log.prev_term, request.prev_term):
            return True
        return request.prev_term == log.last_term

    def _fits(self, leader: str, entries: EntryRange) -> bool:
        """Whether the entries' headers name the position at which this log ends. If not, the store cannot
        append them: a leader with another file size, or a faulty one, must not stop this node.
        """
        operations = self._outbox.log_ops
        last = operations[-1] if operations else None
        if last is not None and not isinstance(last, Append):
            return True  # the host carries out a truncation before it hands in the next message
        fits = self._reader.continues(entries, None if last is None else last.entries)
        if not fits:
            self._outbox.report(PushMisplaced(leader, entries.first_index, entries.last_index))
        return fits

    def _check_overlap(self, leader: str, request: AppendRequest) -> None:
        """A push whose first entry this log has already: acknowledged if the entries are the same, since the
        first acknowledgement may be lost (Raft 5.3: repeated AppendEntries have no effect).

        If both ends of the overlap have the push's term, all of it is equal: terms never fall (Log Matching).
        """
        log, entries = self._log, request.entries
        last_index = min(entries.last_index, log.end_index)
        first_index = max(entries.first_index, log.begin_index)
        is_equal = last_index < first_index or self._is_equal(first_index, last_index, entries)
        self._outbox.report(PushFellBehind(entries.first_index, entries.last_index, log.end_index, is_equal))
        if is_equal:
            self._acknowledge(leader, request, last_index)
        else:
            self._answer_now(leader, request, ResponseCode.INCONSISTENT_STATE)

    def _is_equal(self, first_index: int, last_index: int, entries: EntryRange) -> bool:
        return self._log.term_at(first_index) == entries.term == self._log.term_at(last_index)

    def _acknowledge(self, leader: str, request: AppendRequest, last_index: int) -> None:
        """SUCCESS, sent after the disk has the log up to last_index: the leader counts it for the quorum."""
        self.verified_index = max(self.verified_index, last_index)
        self._outbox.send_after_persist(
            leader,
            AppendResponse(
                request.term,
                ResponseCode.SUCCESS,
                request.entries.first_index,
                last_index,
                self._log.end_index,
            ),
        )

    def _answer_now(self, leader: str, request: AppendRequest, code: ResponseCode) -> None:
        entries = request.entries
        self._outbox.send_now(
            leader,
            AppendResponse(request.term, code, entries.first_index, entries.last_index, self._log.end_index),
        )

    def _keep_waiting(self, leader: str, request: AppendRequest, now_ms: int) -> None:
        # Both bounds limit the memory that a leader can make this node use by pushes beyond the log's end.
        entries = request.entries
        if entries.first_index in self._waiting:
            self._answer_now(leader, request, ResponseCode.REPEATED_PUSH)
            return
        size_bytes = len(entries.data)
        has_room = (
            len(self._waiting) < self._config.out_of_order_pushes_max
            and self._waiting_bytes + size_bytes <= self._config.out_of_order_bytes_max
        )
        if not has_room:
            self._answer_now(leader, request, ResponseCode.PUSH_REQUEST_IS_FULL)
            return
        if not self._waiting:
            self._next_check_ms = now_ms + self._config.abnormal_check_interval_ms
        self._waiting[entries.first_index] = _Waiting(leader, request, now_ms)
        self._waiting_bytes += size_bytes

    # -- the abnormal check --------------------------------------------------------------------------------

    def deadline_ms(self) -> int:
        return self._next_check_ms if self._waiting else NEVER_DUE_MS

    def check_abnormal(self, now_ms: int) -> None:
        """EntryHandler.checkAbnormalFuture: pushes that the log has overtaken, and the first that waited too
        long.

        A push that could be appended never waits, so those that still wait are behind the end or beyond it.
        """
        if not self._waiting or now_ms < self._next_check_ms:
            return
        self._next_check_ms = now_ms + self._config.abnormal_check_interval_ms
        end_index = self._log.end_index
        for first_index in sorted(index for index in self._waiting if index <= end_index):
            behind = self._pop_waiting(first_index)
            self._check_overlap(behind.leader, behind.request)
        late_ms = now_ms - self._config.push_timeout_ms
        late = [index for index, waiting in self._waiting.items() if waiting.arrived_ms <= late_ms]
        if late:
            # INCONSISTENT_STATE makes the leader compare again, so one answer is enough for all late pushes.
            first_index = min(late)
            in_vain = self._pop_waiting(first_index)
            self._outbox.report(PushWaitedInVain(first_index, end_index))
            self._answer_now(in_vain.leader, in_vain.request, ResponseCode.INCONSISTENT_STATE)

    def _pop_waiting(self, first_index: int) -> _Waiting:
        waiting = self._waiting.pop(first_index)
        self._waiting_bytes -= len(waiting.request.entries.data)
        return waiting

    # -- COMPARE and TRUNCATE ------------------------------------------------------------------------------

    def _on_compare(self, leader: str, request: CompareRequest) -> None:
        """Answers whether this log has the leader's entry. The answer waits for the disk, since the leader
        counts a match as stored.
        """
        self._clear_waiting()
        log = self._log
        # An entry that retention removed can't be compared. Up to verified_index it was the leader's.
        is_here = request.compare_index <= log.end_index and (
            log.term_at(request.compare_index) == request.compare_term
            if request.compare_index >= log.begin_index
            else request.compare_index <= self.verified_index
        )
        if is_here:
            self.verified_index = max(self.verified_index, request.compare_index)
        self._has_refused_compare = not is_here
        conflict_index, conflict_term = log.last_not_above(request.compare_index, request.compare_term)
        self._outbox.send_after_persist(
            leader,
            CompareResponse(
                request.term,
                ResponseCode.SUCCESS if is_here else ResponseCode.INCONSISTENT_STATE,
                request.compare_index,
                log.begin_index,
                log.end_index,
                log.last_term,
                conflict_index,
                conflict_term,
            ),
        )

    def _on_truncate(self, leader: str, request: TruncateRequest, commit_index: int) -> None:
        """Drops entries, if the request names this very log, and never below the commit index.

        A committed entry is on a majority, so every leader has it (Raft 5.4.3, Leader Completeness). A leader
        without it belongs to a group that lost a disk with acknowledged entries; obeying it would delete
        another copy.
        """
        log = self._log
        if is_round(request.truncate_index):
            # No promise about the disk. Older releases get to the same code below, after their disk.
            code, index = ResponseCode.INCONSISTENT_STATE, request.truncate_index
            self._outbox.send_now(leader, TruncateResponse(request.term, code, index, log.end_index))
            return
        self._clear_waiting()
        code = ResponseCode.SUCCESS
        if not self._is_meant(request):
            code = code if self._is_done(request) else ResponseCode.INCONSISTENT_STATE
        elif request.truncate_index <= commit_index or not self._is_sound(request, commit_index):
            code = self._refuse(leader, request, commit_index)
        else:
            self._truncate(request)
        self._outbox.send_after_persist(
            leader, TruncateResponse(request.term, code, request.truncate_index, log.end_index)
        )

    def _refuse(self, leader: str, request: TruncateRequest, commit_index: int) -> ResponseCode:
        self._outbox.report(TruncationRefused(leader, request.truncate_index, commit_index))
        return ResponseCode.ILLEGAL_MEMBER_STATE

    def _is_sound(self, request: TruncateRequest, commit_index: int) -> bool:
        """Whether a leader can ask for this at all. A reset drops everything, so it has to fit what this
        node knows: retention removed only entries that were committed (Raft 7), those before the leader's
        first one come behind the ones committed here, and so neither their term nor their position is
        lower.
        """
        if not request.is_reset:
            return True
        if request.commit_index < request.truncate_index - 1:
            return False
        if request.prev_term != UNKNOWN_TERM and request.prev_term < self._log.term_at(commit_index):
            return False
        return request.position >= self._position_after(commit_index)

    def _position_after(self, index: int) -> int:
        reader = self._reader
        return reader.end_position if index == self._log.end_index else reader.position_of(index + 1)

    def _is_meant(self, request: TruncateRequest) -> bool:
        """Whether this log still ends as it did in its answer to COMPARE. Logs with the same last entry are
        the same (Log Matching), so a late or repeated request can't drop entries that were pushed meanwhile.
        A reset follows only on an answer that the leader's entry is not here.
        """
        log = self._log
        is_possible = (
            self._has_refused_compare and request.prev_term <= request.term and request.position >= 0
            if request.is_reset
            else request.truncate_index <= log.end_index + 1
        )
        return is_possible and (log.end_index, log.last_term) == (request.end_index, request.end_term)

    def _is_done(self, request: TruncateRequest) -> bool:
        """Whether the same request was carried out before, and only its answer was lost."""
        log = self._log
        if log.end_index != request.truncate_index - 1:
            return False
        return log.is_empty if request.is_reset else log.last_term == request.prev_term

    def _truncate(self, request: TruncateRequest) -> None:
        log, index = self._log, request.truncate_index
        if request.is_reset:
            self._outbox.report(LogReset(index, log.begin_index, log.end_index))
            self._outbox.log_ops.append(Reset(index, request.position))
            log.reset(index, request.prev_term)
            self._members.reset(request.base or self._members.at(index - 1))
        elif index <= log.end_index:
            self._outbox.report(LogTruncated(index, log.end_index))
            self._outbox.log_ops.append(TruncateFrom(index))
            log.truncate_from(index)
            self._members.truncate_from(index)
        # The leader's COMPARE found the entry before `index` equal, or the log begins there.
        self.verified_index = index - 1

    def check_invariants(self, commit_index: int) -> None:
        assert commit_index <= self.verified_index <= self._log.end_index, (
            commit_index,
            self.verified_index,
            self._log.end_index,
        )
        waiting_bytes = sum(len(waiting.request.entries.data) for waiting in self._waiting.values())
        assert waiting_bytes == self._waiting_bytes <= self._config.out_of_order_bytes_max, waiting_bytes
        assert len(self._waiting) <= self._config.out_of_order_pushes_max, len(self._waiting)
        for first_index in self._waiting:
            assert first_index != self._log.end_index + 1, f"{first_index} could be appended but waits"
