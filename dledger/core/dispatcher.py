"""EntryDispatcher: everything a leader knows about one peer, and the state machine of what it sends there.

    COMPARE  -> APPEND    the peer's log is a prefix of the leader's
             -> TRUNCATE  it has entries that the leader lacks, or none that could be continued (reset)
    TRUNCATE -> APPEND    done
             -> COMPARE   the peer's log changed meanwhile
    APPEND   -> COMPARE   INCONSISTENT_STATE, a closed connection, or entries it needs were removed

In etcd's raft this is Progress with its probe and replicate states. COMPARE and TRUNCATE are what
AppendEntries does in Raft when its consistency check fails (5.3, nextIndex goes back). COMMIT is not a state:
it is the form that an idle leader's heartbeat has once in commit_interval_ms.

Invariants in APPEND: the pending pushes are contiguous from match_index + 1 to next_index - 1.
"""

from collections import deque
from dataclasses import dataclass, replace

from dledger.core.config import Config
from dledger.core.epochs import EpochCache
from dledger.core.events import EntryDamaged, PushRefused, PushRepeated, PushStateChanged
from dledger.core.flow_control import TURN_BYTES_MAX, CatchUp, Pace, Progress, Push
from dledger.core.membership import CHANGING_MEMBERS_LEVEL, ConfigurationLog
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    CommitRequest,
    CompareRequest,
    CompareResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    TruncateRequest,
    TruncateResponse,
)
from dledger.core.output import Outbox
from dledger.core.ports import LogReader
from dledger.core.status import PeerStatus
from dledger.core.types import LONG_AGO_MS, NO_INDEX, UNKNOWN_TERM, DamagedEntryError, PushState, ResponseCode


@dataclass(frozen=True, slots=True)
class CompareAt:
    """Compare with this entry next."""

    index: int


@dataclass(frozen=True, slots=True)
class TruncateAt:
    """The peer must drop its entries from `index` on, or with is_reset everything, and begin there."""

    index: int
    is_reset: bool
    reason: str


def is_prefix(log: EpochCache, response: CompareResponse) -> bool:
    """Whether the leader's log has all that the peer has: it has the peer's last entry (Raft 5.3, Log
    Matching).
    """
    if response.code is ResponseCode.SUCCESS and response.end_index == response.compare_index:
        return True
    if response.end_index < response.begin_index:
        return log.begin_index <= response.begin_index <= log.end_index + 1
    term = log.term_at(response.end_index)
    return term != UNKNOWN_TERM and term == response.end_term


def next_step(log: EpochCache, response: CompareResponse) -> CompareAt | TruncateAt:
    """What to do when the peer's log is no prefix."""
    if response.code is ResponseCode.SUCCESS:
        return TruncateAt(response.compare_index + 1, False, "it holds what we don't")
    if response.end_index < log.begin_index or response.begin_index > log.end_index:
        return TruncateAt(log.begin_index, True, "the logs do not meet")
    return _step_down(log, response)


def _step_down(log: EpochCache, response: CompareResponse) -> CompareAt | TruncateAt:
    """Compare next with the last entry that can still match, by the epochs of both logs: each round skips a
    whole term. Raft 5.3 describes this optimization for nextIndex; the epochs are those of KIP-101.
    """
    index = response.conflict_index
    if response.conflict_term != UNKNOWN_TERM:
        if log.term_at(index) == response.conflict_term:
            return TruncateAt(index + 1, False, "its last common entry is known")
        index, _ = log.last_not_above(index, response.conflict_term)
    # Always below the last one asked about, so that the comparison ends (Raft 5.3: "decrements nextIndex").
    index = min(index, response.compare_index - 1)
    is_known = index >= log.begin_index or (index == log.begin_index - 1 and log.prev_term != UNKNOWN_TERM)
    if not is_known or index < response.begin_index - 1:
        return TruncateAt(log.begin_index, True, "what it would need was removed")
    return CompareAt(index)


class PushCache:
    """The last range pushed, in one leadership: a range that several peers get is read and checked once, and
    is one message, which is encoded once.

    One range is enough: peers that keep up get the same entries within the same pump, one after the other.
    """

    def __init__(self, term: int, config: Config, log: EpochCache, reader: LogReader) -> None:
        self._term = term
        self._bytes_max = config.push_bytes_max
        self._log = log
        self._reader = reader
        self._asked: tuple[int, int, int] | None = None
        self._request: AppendRequest | None = None

    def clear(self) -> None:
        """After each pump: appends may follow before the next, and the bytes must not be kept alive."""
        self._asked = self._request = None

    def request(self, first_index: int, last_index: int, commit_index: int) -> AppendRequest:
        """As many of these entries as fit into one push. Raises DamagedEntryError."""
        asked = first_index, last_index, commit_index
        if self._request is None or asked != self._asked:
            entries = self._reader.read_range(first_index, last_index, self._bytes_max)
            assert entries.first_index == first_index <= entries.last_index <= last_index, (
                f"asked for {first_index}..{last_index}, read {entries.first_index}..{entries.last_index}"
            )
            prev_term = self._log.term_at(first_index - 1)
            self._request = AppendRequest(self._term, commit_index, prev_term, entries)
            self._asked = asked
        return self._request


class EntryDispatcher:
    """One peer in one leadership. `pump` sends what is due; the `on_` methods handle the peer's answers."""

    def __init__(
        self,
        peer: str,
        term: int,
        config: Config,
        log: EpochCache,
        members: ConfigurationLog,
        reader: LogReader,
        outbox: Outbox,
        catch_up: CatchUp,
        push_cache: PushCache,
    ) -> None:
        self.peer = peer
        self.state = PushState.COMPARE
        self.match_index = NO_INDEX
        """Raft's matchIndex: the peer's disk has the leader's log up to here. Meaningful once `is_matched`.
        """
        self.is_matched = False
        self.next_index = log.end_index + 1
        self._term = term
        self._config = config
        self._log = log
        self._members = members
        self._reader = reader
        self._outbox = outbox
        self._push_cache = push_cache
        self._compare_index = log.end_index
        self._truncate: TruncateRequest | None = None
        self._request_sent_ms = LONG_AGO_MS
        self._is_refused = False
        self._is_peer_full = False
        self._pending: deque[Push] = deque()
        self._pending_bytes = self._pushed_bytes = 0
        self._pace = Pace(peer, config, catch_up, self._lag_bytes, outbox)
        self._progress = Progress()
        self._next_turn_ms: int | None = None
        self._damaged_until_ms: int | None = None
        self._last_sent_ms = self._last_heartbeat_ms = self._last_push_ms = self._last_answer_ms = LONG_AGO_MS

    # -- sending -------------------------------------------------------------------------------------------

    def pump(self, now_ms: int, commit_index: int, is_optional: bool = False) -> None:
        """Sends all that is due now. `is_optional`: enough other peers keep up for a quorum."""
        self._pace.is_optional = is_optional
        if self.is_settled and now_ms < self.deadline_ms():
            return
        if self.state is PushState.APPEND:
            self._push(now_ms, commit_index)
        if self.state is not PushState.APPEND:
            self._send_request(now_ms, commit_index)
        if self._heartbeat_due_ms() <= now_ms:
            self._send_heartbeat(now_ms, commit_index)

    def deadline_ms(self) -> int:
        """When `pump` has something to do again, unless an answer or an append comes first."""
        due_ms = self._heartbeat_due_ms()
        if self.state is not PushState.APPEND:
            return min(due_ms, self._request_sent_ms + self._config.compare_timeout_ms)
        if self._damaged_until_ms is not None:
            return min(due_ms, self._damaged_until_ms)
        if self._pending:
            due_ms = min(due_ms, self._pending[0].sent_ms + self._config.push_timeout_ms)
        return min(due_ms, self._pace.waits_until_ms or due_ms, self._next_turn_ms or due_ms)

    def _send(self, message: Message, now_ms: int) -> None:
        self._outbox.send_now(self.peer, message)
        self._last_sent_ms = now_ms

    def _heartbeat_due_ms(self) -> int:
        """One interval after the last message to the peer; or after the last heartbeat, if the peer is
        silent.

        Answers to pushes wait for the peer's disk, a heartbeat is answered at once: without heartbeats
        between pushes, check-quorum would take a peer with a slow disk for a dead one.
        """
        # The earlier of both: pushes to a silent peer do not replace its heartbeats.
        heard_or_sent_ms = max(self._last_answer_ms, self._last_heartbeat_ms)
        return min(self._last_sent_ms, heard_or_sent_ms) + self._config.heartbeat_interval_ms

    def _send_heartbeat(self, now_ms: int, commit_index: int) -> None:
        self._last_heartbeat_ms = now_ms
        is_idle = self.state is PushState.APPEND and not self._pending
        if is_idle and now_ms - self._last_push_ms >= self._config.commit_interval_ms:
            self._last_push_ms = now_ms
            self._send(CommitRequest(self._term, commit_index), now_ms)
        else:
            self._send(HeartbeatRequest(self._term, commit_index), now_ms)

    def _push(self, now_ms: int, commit_index: int) -> None:
        oldest_index = self._pending[0].first_index if self._pending else self.next_index
        # Raft 7: entries that log compaction removed can't be sent. COMPARE then leads to a reset.
        if oldest_index < self._log.begin_index:
            self._compare_again("the entries it needs were removed")
            return
        if self._damaged_until_ms is not None and now_ms < self._damaged_until_ms:
            return
        try:
            self._push_due(now_ms, commit_index)
        except DamagedEntryError as error:
            if error.first_index > commit_index:
                raise  # not committed: perhaps no other node has it, and this node must stop leading
            self._damaged_until_ms = now_ms + self._config.push_timeout_ms
            self._outbox.report(EntryDamaged(error.first_index, error.last_index, error.reason))

    def _push_due(self, now_ms: int, commit_index: int) -> None:
        self._damaged_until_ms = None
        self._push_again(now_ms, commit_index)
        self._pace.waits_until_ms = self._next_turn_ms = None
        turn_bytes = 0
        while self.next_index <= self._log.end_index and self._may_push(now_ms):
            if turn_bytes >= TURN_BYTES_MAX and self._pace.is_far_behind:
                self._next_turn_ms = now_ms + 1
                break
            size_bytes = self._push_range(self.next_index, self._log.end_index, now_ms, commit_index)
            self._pace.pushed(size_bytes, now_ms)
            turn_bytes += size_bytes
        self._pace.update_lag()
        if not self._pace.is_far_behind:
            self._progress.clear()
        elif self._progress.is_due(now_ms):
            self._progress.add(now_ms, self._held_bytes(), self._bytes_from(self.match_index + 1))

    def _may_push(self, now_ms: int) -> bool:
        """The bounds on unacknowledged pushes to this peer (etcd: Inflights). They limit the memory that a
        silent peer costs, and the bytes that are sent again when its connection breaks.
        """
        config, pushes = self._config, len(self._pending)
        if self._is_peer_full or pushes >= config.pending_pushes_max:
            return False
        if self._pending_bytes >= config.pending_push_bytes_max:
            return False
        if pushes >= config.small_pushes_max and self._lag_bytes() < config.small_push_bytes:
            return False
        return self._pace.may_push(now_ms, self._pending_bytes)

    def _push_range(self, first_index: int, last_index: int, now_ms: int, commit_index: int) -> int:
        """Sends the next new range. Returns its bytes."""
        push = self._send_entries(first_index, last_index, now_ms, commit_index)
        self._pending.append(push)
        self._pending_bytes += push.size_bytes
        self.next_index = push.last_index + 1
        return push.size_bytes

    def _send_entries(self, first_index: int, last_index: int, now_ms: int, commit_index: int) -> Push:
        request = self._push_cache.request(first_index, last_index, commit_index)
        self._send(request, now_ms)
        self._last_push_ms, entries = now_ms, request.entries
        self._pushed_bytes += len(entries.data)
        return Push(entries.first_index, entries.last_index, now_ms, len(entries.data))

    def _push_again(self, now_ms: int, commit_index: int) -> None:
        """EntryDispatcher.doCheckAppendResponse: repeats the first unacknowledged push, never a later one.

        If it was lost, the later ones wait in the follower's map, and one repetition is enough for all of
        them.
        """
        if not self._pending or now_ms - self._pending[0].sent_ms < self._config.push_timeout_ms:
            return
        late = self._pending[0]
        push = self._send_entries(late.first_index, late.last_index, now_ms, commit_index)
        self._pending.popleft()  # after the read, which may raise: then the old push must still be pending
        # What can be read may be shorter now, as before a damaged entry; the rest stays pending.
        rest_bytes = 0
        if push.last_index < late.last_index:
            rest_bytes = max(0, late.size_bytes - push.size_bytes)
            self._pending.appendleft(Push(push.last_index + 1, late.last_index, late.sent_ms, rest_bytes))
        self._pending.appendleft(push)
        self._pending_bytes += push.size_bytes + rest_bytes - late.size_bytes
        self._outbox.report(PushRepeated(self.peer, push.first_index, push.last_index))

    def _send_request(self, now_ms: int, commit_index: int) -> None:
        """Sends this state's COMPARE or TRUNCATE, again after a time-out. One is under way at a time."""
        if now_ms - self._request_sent_ms < self._config.compare_timeout_ms:
            return
        self._request_sent_ms = self._last_heartbeat_ms = now_ms
        self._is_refused = False
        if self._truncate is not None:
            # The commit index of now: the peer may commit by it as soon as it has truncated.
            self._send(replace(self._truncate, commit_index=commit_index), now_ms)
            return
        # Retention removed the entry, so its term is unknown: begin at the end of the log again.
        if self._compare_index < self._log.begin_index - 1:
            self._compare_index = self._log.end_index
        compare_term = self._log.term_at(self._compare_index)
        self._send(CompareRequest(self._term, commit_index, self._compare_index, compare_term), now_ms)

    # -- answers -------------------------------------------------------------------------------------------

    def answered(self, now_ms: int) -> None:
        """The peer answered something in this term."""
        self._last_answer_ms = now_ms

    def on_heartbeat_response(self, response: HeartbeatResponse, now_ms: int) -> None:
        """Detects a lost request before its time-out, and a peer that lost entries.

        A peer that answers heartbeats but not COMPARE or TRUNCATE may not have got it: it is sent again. A
        peer whose log ends before what it acknowledged lost entries: the logs are compared again.
        """
        if self.state is not PushState.APPEND:
            is_late = now_ms - self._request_sent_ms >= self._config.heartbeat_interval_ms
            if is_late and not self._is_refused:
                self._request_sent_ms = LONG_AGO_MS
        elif response.end_index < self.match_index:
            self._compare_again(f"its log ends at {response.end_index}")

    def on_append_response(self, response: AppendResponse) -> None:
        """SUCCESS is cumulative: the peer's disk has the leader's log up to last_index."""
        if response.code is ResponseCode.SUCCESS:
            self._acknowledged(response.last_index)
        elif response.code is not ResponseCode.INCONSISTENT_STATE:
            self._outbox.report(PushRefused(self.peer, response.first_index, response.code))
            if response.code is ResponseCode.PUSH_REQUEST_IS_FULL:
                self._retract(response.first_index)
        # At or below match_index it is the late answer to a push that succeeded later.
        elif self.state is PushState.APPEND and response.first_index > self.match_index:
            self._compare_again(f"INCONSISTENT_STATE at {response.first_index}")

    def _retract(self, first_index: int) -> None:
        """PUSH_REQUEST_IS_FULL: the peer had no room to keep these until the lost one before them arrives.

        They count as not sent, and no new push leaves until the peer acknowledges an earlier one. Otherwise
        new pushes would fill the peer's map again, and each time-out would bring only one push through.
        """
        while len(self._pending) > 1 and self._pending[-1].first_index >= first_index:
            push = self._pending.pop()
            self._pending_bytes -= push.size_bytes
            self.next_index = push.first_index
            self._is_peer_full = True

    def _acknowledged(self, last_index: int) -> None:
        # Before COMPARE has found a match, an acknowledgement may be of a log that the peer has lost since.
        if self.state is not PushState.APPEND or last_index <= self.match_index:
            return
        assert last_index <= self._log.end_index, (
            f"{self.peer} acknowledges {last_index}, the log ends at {self._log.end_index}"
        )
        self.match_index = last_index
        self._is_peer_full = False
        self.next_index = max(self.next_index, last_index + 1)
        while self._pending and self._pending[0].last_index <= last_index:
            self._pending_bytes -= self._pending.popleft().size_bytes
        # A push that was acknowledged in part is repeated, if need be, without that part.
        if self._pending and self._pending[0].first_index <= last_index:
            self._pending[0].first_index = last_index + 1

    def on_compare_response(self, response: CompareResponse) -> None:
        """EntryDispatcher.doCompare: finds the last entry that both logs have, and so the next state."""
        # The answer to an earlier round is about an entry that was compared already.
        if self.state is not PushState.COMPARE or response.compare_index != self._compare_index:
            return
        if is_prefix(self._log, response):
            self._append_from(response.end_index, "its log is a prefix of ours")
            return
        step = next_step(self._log, response)
        if isinstance(step, CompareAt):
            self._compare_index = step.index
            self._request_sent_ms = LONG_AGO_MS
        else:
            self._truncate_peer(step.index, step.is_reset, response, step.reason)

    def on_truncate_response(self, response: TruncateResponse) -> None:
        truncate = self._truncate
        if truncate is None or response.truncate_index != truncate.truncate_index:
            return
        if response.code is ResponseCode.SUCCESS:
            self._append_from(response.truncate_index - 1, "truncated")
        elif response.code is ResponseCode.INCONSISTENT_STATE:
            self._compare_again("its log changed before TRUNCATE")
        else:
            self._is_refused = True
            self._outbox.report(PushRefused(self.peer, response.truncate_index, response.code))

    # -- transitions ---------------------------------------------------------------------------------------

    def restart(self, reason: str) -> None:
        """The connection closed or opened: what was under way may be lost."""
        self._compare_again(reason)

    def invalidate_match(self) -> None:
        """The peer may have lost entries that it acknowledged: it does not count for a quorum until COMPARE
        shows what its disk has. This is the only case in which matchIndex goes back within a term.
        """
        self.match_index, self.is_matched = NO_INDEX, False
        self._compare_again("it lost entries or its vote")

    def log_begins_at(self, begin_index: int) -> None:
        """Retention removed entries: a COMPARE or TRUNCATE under way that names them starts over."""
        if self.state is PushState.APPEND:
            return
        asked_index = self._compare_index if self._truncate is None else self._truncate.truncate_index - 1
        if asked_index < begin_index - 1:
            self._compare_again("the entries it needs were removed")

    def _compare_again(self, reason: str) -> None:
        self._compare_index = self._log.end_index
        self._request_sent_ms = LONG_AGO_MS
        self._truncate = None
        self._is_peer_full = False
        self._pending.clear()
        self._pending_bytes = 0
        self._progress.clear()
        self._change_state(PushState.COMPARE, self._compare_index, reason)

    def _truncate_peer(
        self, truncate_index: int, is_reset: bool, answer: CompareResponse, reason: str
    ) -> None:
        """TRUNCATE, bound to the log that the peer reported by end_index and end_term of its answer."""
        is_inside = truncate_index <= self._log.end_index
        self._truncate = TruncateRequest(
            self._term,
            NO_INDEX,
            truncate_index,
            self._log.term_at(truncate_index - 1),
            self._reader.position_of(truncate_index) if is_inside else self._reader.end_position,
            is_reset,
            answer.end_index,
            answer.end_term,
            self._members.at(truncate_index - 1) if is_reset and self._has_configurations else None,
        )
        self._request_sent_ms = LONG_AGO_MS
        self._change_state(PushState.TRUNCATE, truncate_index, reason)

    def _append_from(self, match_index: int, reason: str) -> None:
        self._truncate = None
        self.match_index = match_index
        self.is_matched = True
        self.next_index = match_index + 1
        self._pace.update_lag()
        self._change_state(PushState.APPEND, match_index, reason)

    def _change_state(self, new: PushState, index: int, reason: str) -> None:
        if new is self.state:
            return
        self._outbox.report(PushStateChanged(self.peer, self.state, new, index, reason))
        self.state = new

    # -- views -----------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """For the quorum: the index up to which the peer's disk is known to have this log, in this term."""
        return self.match_index if self.is_matched else NO_INDEX

    @property
    def keeps_up(self) -> bool:
        """Whether new entries are pushed to it at once, so that commits can rely on it."""
        return self.state is PushState.APPEND and not self._pace.is_far_behind

    @property
    def is_settled(self) -> bool:
        """Whether all of the log was pushed to it, and the unacknowledged part can still be pushed again."""
        log, pending = self._log, self._pending
        if self.state is not PushState.APPEND or self.next_index <= log.end_index:
            return False
        return not pending or pending[0].first_index >= log.begin_index

    @property
    def holds_everything(self) -> bool:
        return self.state is PushState.APPEND and self.match_index == self._log.end_index

    @property
    def _has_configurations(self) -> bool:
        """Whether every member understands them."""
        return self._members.configuration.format_level >= CHANGING_MEMBERS_LEVEL

    @property
    def lacks_bytes(self) -> int | None:
        """Bytes of the log that the peer is not known to hold; None before it was compared."""
        return self._bytes_from(self.match_index + 1) if self.is_matched else None

    @property
    def lag_entries(self) -> int | None:
        return self._log.end_index - self.match_index if self.is_matched else None

    def _lag_bytes(self) -> int:
        return self._bytes_from(self.next_index)

    def _bytes_from(self, index: int) -> int:
        first, reader = max(index, self._log.begin_index), self._reader
        return reader.end_position - reader.position_of(first) if first <= self._log.end_index else 0

    def _held_bytes(self) -> int:
        return self._bytes_from(self._log.begin_index) - self._bytes_from(self.match_index + 1)

    def status(self, last_contact_ms_ago: int | None) -> PeerStatus:
        return PeerStatus(
            self.peer,
            self.state,
            self.match_index if self.is_matched else None,
            self.next_index if self.is_matched else None,
            self.lag_entries,
            self.lacks_bytes,
            last_contact_ms_ago,
            self.state is PushState.APPEND and self._pace.is_throttled,
            self._held_bytes() if self.is_matched else None,
            self._progress.bytes_per_s,
            self._progress.caught_up_in_ms,
            self._pushed_bytes,
        )

    def check_invariants(self) -> None:
        end_index = self._log.end_index
        assert self.match_index <= end_index, (self.peer, self.match_index, end_index)
        assert self._pending_bytes == sum(push.size_bytes for push in self._pending), self._pending_bytes
        assert (self.state is PushState.TRUNCATE) == (self._truncate is not None), self.state
        if self.state is not PushState.APPEND:
            assert not self._pending, (self.peer, self.state, self._pending)
            return
        expected = self.match_index + 1
        for push in self._pending:
            assert push.first_index == expected, (self.peer, push, expected)
            expected = push.last_index + 1
        assert self.next_index == expected, (self.peer, self.next_index, expected)
