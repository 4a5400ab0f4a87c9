"""What a node owns while it leads, and only then: dispatchers, pending appends, last contacts, a transfer.

It is made when an election is won and dropped when the leader steps down, so that nothing of an old term
(matchIndex, nextIndex: Raft Figure 2, "reinitialized after election") is left in a new one.

The commit index is QuorumAckChecker's. A watermark is the last index up to which one member's *disk* is known
to hold the leader's log of this term (Raft's matchIndex; DLedger's peerWaterMarksByTerm). Appends that wait
are accounted by range, never by entry: only the last entry of a batch decides (DLedger:
pendingAppendResponsesByTerm, waitAck).
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from dledger.core.config import Config
from dledger.core.dispatcher import EntryDispatcher, PushCache
from dledger.core.epochs import EpochCache
from dledger.core.events import AppendTimedOut, MessageIgnored, TransferEnded, TransferStarted
from dledger.core.flow_control import CatchUp
from dledger.core.membership import Configuration, ConfigurationLog, MemberRole
from dledger.core.messages import (
    AppendResponse,
    CompareResponse,
    HeartbeatResponse,
    PeerResponse,
    TakeLeadershipRequest,
    TruncateResponse,
)
from dledger.core.output import Completion, Outbox, Proposal
from dledger.core.ports import LogReader
from dledger.core.reads import ReadIndex, is_round
from dledger.core.status import PeerStatus
from dledger.core.types import LONG_AGO_MS, NEVER_DUE_MS, NO_INDEX, ResponseCode


def quorum_index(watermarks: Iterable[int], quorum: int) -> int:
    """The highest index that at least `quorum` members hold: the quorum-th highest watermark.

    >>> quorum_index([101, 100, 90], 2)
    100
    """
    falling = sorted(watermarks, reverse=True)
    assert 1 <= quorum <= len(falling), f"quorum {quorum} of {len(falling)}"
    return falling[quorum - 1]


def committable_index(
    watermarks: Iterable[int], quorum: int, term_start_index: int, commit_index: int
) -> int:
    """The commit index after these watermarks: never lower than it was.

    Raises nothing; the watermarks must be of the leader's term. term_start_index is the leader's first entry
    of its own term.
    """
    # Raft 5.4.2, Figure 8: an entry of an earlier term can be on a majority and still be replaced by a leader
    # with a higher last term. Only entries of the leader's own term are committed by counting; the earlier
    # ones are committed with them, by Log Matching.
    index = quorum_index(watermarks, quorum)
    return index if index > commit_index and index >= term_start_index else commit_index


@dataclass(frozen=True, slots=True)
class _Waiting:
    first_index: int
    last_index: int
    count: int
    deadline_ms: int


class PendingAppends:
    """The appends of one leadership that are not committed yet, oldest first.

    Each proposal added is returned as a Completion exactly once, by `ack`, `expire` or `fail_all`.
    """

    def __init__(self, entries_max: int, timeout_ms: int) -> None:
        self._entries_max = entries_max
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self.entries = 0

    def has_room(self, count: int) -> bool:
        """Whether `count` more entries may wait. If not, the leader answers LEADER_PENDING_FULL and appends
        nothing: this bounds the leader's memory while no majority answers.
        """
        return self.entries + count <= self._entries_max

    def add(self, proposal: Proposal, now_ms: int) -> None:
        first_index, count = proposal.first_index, proposal.count
        deadline_ms = now_ms + self._timeout_ms
        self._waiting.append(_Waiting(first_index, first_index + count - 1, count, deadline_ms))
        self.entries += count

    def ack(self, commit_index: int) -> list[Completion]:
        """Completes those whose last entry is committed. The commit index covers all before it (Raft 5.3), so
        the front of the queue is enough.
        """
        done = []
        while self._waiting and self._waiting[0].last_index <= commit_index:
            done.append(self._complete_oldest(ResponseCode.SUCCESS))
        return done

    def oldest_wait_ms(self, now_ms: int) -> int | None:
        """How long the oldest one has waited so far; None when there is none."""
        return now_ms - self._waiting[0].deadline_ms + self._timeout_ms if self._waiting else None

    def expire(self, now_ms: int) -> list[Completion]:
        """Completes those that waited too long. Their entries stay in the log and may still be committed, so
        the caller knows only that the outcome is unknown. All have the same time-out: the front is due first.
        """
        late = []
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            late.append(self._complete_oldest(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT))
        return late

    def fail_all(self, code: ResponseCode) -> list[Completion]:
        """Completes all: the leader stepped down, and a new one may commit or replace their entries."""
        return [self._complete_oldest(code) for _ in range(len(self._waiting))]

    def deadline_ms(self) -> int:
        return self._waiting[0].deadline_ms if self._waiting else NEVER_DUE_MS

    def _complete_oldest(self, code: ResponseCode) -> Completion:
        oldest = self._waiting.popleft()
        self.entries -= oldest.count
        return Completion(oldest.first_index, oldest.last_index, code)

    def check_invariants(self, commit_index: int) -> None:
        entries = sum(waiting.count for waiting in self._waiting)
        assert entries == self.entries <= self._entries_max, (entries, self.entries, self._entries_max)
        if self._waiting:
            last_index = self._waiting[0].last_index
            assert last_index > commit_index, f"{last_index} is committed ({commit_index}) but waits"


class Leadership:
    """One term as leader."""

    def __init__(
        self,
        term: int,
        config: Config,
        log: EpochCache,
        members: ConfigurationLog,
        reader: LogReader,
        outbox: Outbox,
        now_ms: int,
    ) -> None:
        self.term = term
        self.term_start_index = NO_INDEX
        self.is_ready = False
        """Its first entry is in the log. Before that it commits nothing (Raft 5.4.2) and takes no appends."""
        self.appends = PendingAppends(config.pending_appends_max, config.wait_ack_timeout_ms)
        self.reads = ReadIndex(term, config, outbox, self._is_quorum)
        self._catch_up = CatchUp(config.catch_up_bytes_per_s_min)
        self._push_cache = PushCache(term, config, log, reader)
        self.dispatchers: dict[str, EntryDispatcher] = {}
        self._voting: tuple[EntryDispatcher, ...] = ()
        """Those of the other voters."""
        self._departing: dict[str, int] = {}
        """Removed members, and until when they still get the log."""
        self._config = config
        self._members = members
        self._log = log
        self._reader = reader
        self._outbox = outbox
        self._contact_ms: dict[str, int] = {}
        self._steady_since_ms: dict[str, int] = {}
        """Since when each peer has answered without a pause."""
        self.reconfigure(now_ms)
        self._has_answered: set[str] = set()
        self._impaired: set[str] = set()
        self._repair_ids: dict[str, int] = {}
        self.transferee: str | None = None
        self._transfer_deadline_ms = 0
        self._is_take_sent = False
        # The shortest interval after which anything new can become due: for `deadline_min_ms`.
        self._interval_min_ms = min(
            *(config.heartbeat_interval_ms, config.push_timeout_ms, config.wait_ack_timeout_ms),
            *(config.election_timeout_max_ms, config.preferred_check_interval_ms),
        )
        self._next_preferred_check_ms = now_ms + config.preferred_check_interval_ms

    # -- members -------------------------------------------------------------------------------------------

    def reconfigure(self, now_ms: int) -> None:
        """The newest configuration of the log is another one: it decides from now on (thesis 4.1)."""
        others = self._members.others
        for peer in others:
            if peer in self._departing:
                self._forget(peer)  # it is added again, with an empty disk
            if peer not in self.dispatchers:
                self._add_peer(peer, now_ms)
        for peer in self.dispatchers:
            if peer not in others:
                self._departing.setdefault(peer, now_ms + self._config.departure_ms)
        self._voting = tuple(self.dispatchers[peer] for peer in self._members.other_voters)

    def _add_peer(self, peer: str, now_ms: int) -> None:
        dispatcher = EntryDispatcher(
            peer,
            self.term,
            self._config,
            self._log,
            self._members,
            self._reader,
            self._outbox,
            self._catch_up,
            self._push_cache,
        )
        self.dispatchers = dict(sorted({**self.dispatchers, peer: dispatcher}.items()))
        # As if it had answered now: check-quorum gives the peers one time-out to answer a new leader.
        self._contact_ms[peer] = now_ms

    def inform(self, predecessor: str, now_ms: int) -> None:
        """The leader that handed over may be no member any more. It gets the log for a while, as members that
        this leadership removes do: it has to know who leads, since producers still send to it.
        """
        if predecessor not in self.dispatchers:
            self._add_peer(predecessor, now_ms)
            self._departing[predecessor] = now_ms + self._config.departure_ms

    def _drop_departed(self, now_ms: int) -> None:
        for peer in [peer for peer, until_ms in self._departing.items() if until_ms <= now_ms]:
            self._forget(peer)

    def _forget(self, peer: str) -> None:
        del self._departing[peer], self.dispatchers[peer], self._contact_ms[peer]
        self._has_answered.discard(peer)
        self._steady_since_ms.pop(peer, None)
        self._impaired.discard(peer)
        self._repair_ids.pop(peer, None)

    def may_reconfigure(self, commit_index: int) -> bool:
        """Whether a new configuration may be appended: see `dledger.core.membership` for both rules."""
        newest_index = max(self.term_start_index, self._members.latest.index)
        return self.is_ready and newest_index <= commit_index and self.transferee is None

    def next_configuration(self, commit_index: int, now_ms: int) -> Configuration | None:
        """The next step of a change that the log's configuration asks for; None when nothing can be done now.

        A member that joins becomes a voter when it has nearly the whole log (thesis 4.2.1). Then the member
        that it replaces is removed: in this order, so that no entry is on fewer disks in between.
        """
        if not self.may_reconfigure(commit_index):
            return None
        configuration = self._members.configuration
        for member in configuration.members:
            step = None
            if member.role is MemberRole.JOINING and self._is_near_end(member.id, now_ms):
                step = configuration.with_member(replace(member, role=MemberRole.VOTER))
            elif member.is_voter and member.replaces is not None:
                step = configuration.without(member.replaces)
            if step is not None and self.live_voters(step, now_ms) >= step.quorum:
                return step
        return None

    def _is_near_end(self, peer: str, now_ms: int) -> bool:
        if peer == self._config.self_id:
            return True
        if not self._is_live(peer, now_ms):
            return False
        dispatcher = self.dispatchers[peer]
        lacks_bytes = dispatcher.lacks_bytes
        is_near = lacks_bytes is not None and lacks_bytes <= self._config.promotion_lag_bytes
        return is_near and dispatcher.keeps_up and peer not in self._impaired

    def live_voters(self, configuration: Configuration, now_ms: int) -> int:
        """How many voters of this configuration have answered lately, and are sound."""
        return sum(self._is_live(voter, now_ms) for voter in configuration.voters)

    def _is_live(self, peer: str, now_ms: int) -> bool:
        if peer == self._config.self_id:
            return True
        # A transfer to a node that is down would only refuse appends until it times out.
        is_heard = peer in self._has_answered and peer not in self._impaired
        return is_heard and self._is_within_timeout(peer, now_ms)

    def _is_within_timeout(self, peer: str, now_ms: int) -> bool:
        return now_ms - self._contact_ms[peer] < self._config.election_timeout_min_ms

    def hand_over(self, commit_index: int, now_ms: int) -> None:
        """A leader that is no voter any more leads until its removal is committed (thesis 4.2.2). Then the
        voter with the longest log takes over, without an election time-out.
        """
        if not self._members.is_voter and self.may_reconfigure(commit_index):
            self.transfer_to_nearest(now_ms)

    def transfer_to_nearest(self, now_ms: int) -> ResponseCode:
        """To the voter with the longest log of those that answer; UNKNOWN_MEMBER: none does, or may lead."""
        live = [each for each in self._voting if self._is_live(each.peer, now_ms)]
        code = ResponseCode.UNKNOWN_MEMBER
        for dispatcher in sorted(live, key=lambda each: each.watermark, reverse=True):
            code = self.transfer(dispatcher.peer, now_ms)
            if code in (ResponseCode.SUCCESS, ResponseCode.LEADER_TRANSFERRING):
                break
        return code

    def _is_quorum(self, peers: Collection[str]) -> bool:
        """Whether these peers and this node, as far as they vote, are a majority."""
        voters = sum(peer in self._members.other_voters for peer in peers)
        return voters + self._members.is_voter >= self._members.quorum

    # -- appends and commit --------------------------------------------------------------------------------

    def check_append(self, count: int, is_disk_full: bool, is_backlogged: bool) -> ResponseCode:
        """The checks of DLedgerServer.handleAppend, in their order."""
        if self.transferee is not None:
            return ResponseCode.LEADER_TRANSFERRING
        if not self.is_ready:
            return ResponseCode.LEADER_NOT_READY
        if count < 1:
            return ResponseCode.REQUEST_WITH_EMPTY_BODYS
        if not self.appends.has_room(count):
            return ResponseCode.LEADER_PENDING_FULL
        if is_disk_full:
            return ResponseCode.DISK_FULL
        return ResponseCode.LEADER_PENDING_FULL if is_backlogged else ResponseCode.SUCCESS

    def append(self, count: int) -> Proposal:
        """DLedgerStore.appendAsLeader: reserves the next `count` indexes for entries of this term."""
        first_index = self._log.end_index + 1
        self._log.extend(self.term, first_index + count - 1)
        return Proposal(first_index, count, self.term)

    def append_term_start(self) -> Proposal:
        """Reserves the index of the leader's own first entry; then it is ready."""
        proposal = self.append(1)
        self.term_start_index, self.is_ready = proposal.first_index, True
        return proposal

    def is_passed_by_others(self, persisted_index: int) -> bool:
        """Whether a commit may depend on the leader's own disk: only then must the end of its sync wake the
        event loop.
        """
        marks = [dispatcher.watermark for dispatcher in self._voting]
        return not marks or max(marks) > persisted_index

    def watermarks(self, persisted_index: int) -> dict[str, int]:
        """Member -> the index up to which its disk holds this log, learners included. The leader counts its
        own disk like any other, so a commit may precede its own sync (thesis 10.2.1).
        """
        marks = {peer: dispatcher.watermark for peer, dispatcher in self.dispatchers.items()}
        marks[self._config.self_id] = persisted_index
        return dict(sorted(marks.items()))

    def committable(self, persisted_index: int, commit_index: int) -> int:
        if not self.is_ready:
            return commit_index
        marks = [dispatcher.watermark for dispatcher in self._voting]
        # A leader that removed itself counts the others' disks only (thesis 4.2.2).
        if self._members.is_voter:
            marks.append(persisted_index)
        return committable_index(marks, self._members.quorum, self.term_start_index, commit_index)

    def acknowledge(self, commit_index: int, now_ms: int) -> list[Completion]:
        """Completes the appends that are committed now."""
        oldest_wait_ms = self.appends.oldest_wait_ms(now_ms) if self.dispatchers else None
        entries = self.appends.entries
        done = self.appends.ack(commit_index)
        if done and oldest_wait_ms is not None:
            self._catch_up.waited(oldest_wait_ms, entries - self.appends.entries)
        return done

    # -- answers -------------------------------------------------------------------------------------------

    def on_response(self, peer: str, response: PeerResponse, now_ms: int) -> None:
        """An answer in this term. Each answer counts as contact for check-quorum, whatever its code."""
        if peer not in self.dispatchers:
            self._outbox.report(MessageIgnored(peer, type(response).__name__, "not a peer"))
            return
        if peer not in self._has_answered or not self._is_within_timeout(peer, now_ms):
            self._steady_since_ms[peer] = now_ms
        self._contact_ms[peer] = now_ms
        self._has_answered.add(peer)
        dispatcher = self.dispatchers[peer]
        dispatcher.answered(now_ms)
        if not self._is_possible(response):
            self._outbox.report(MessageIgnored(peer, type(response).__name__, "impossible numbers"))
        elif isinstance(response, AppendResponse):
            dispatcher.on_append_response(response)
        elif isinstance(response, HeartbeatResponse):
            self._note_impairment(peer, response.is_impaired)
            dispatcher.on_heartbeat_response(response, now_ms)
        elif isinstance(response, CompareResponse):
            dispatcher.on_compare_response(response)
        elif isinstance(response, TruncateResponse) and is_round(response.truncate_index):
            self.reads.on_answer(peer, response.truncate_index)
        else:
            dispatcher.on_truncate_response(response)

    def _is_possible(self, response: PeerResponse) -> bool:
        """Whether the numbers are possible: a peer acknowledges no more than this log has. A faulty peer must
        not stop the leader.
        """
        if isinstance(response, AppendResponse):
            return response.last_index <= self._log.end_index
        if isinstance(response, CompareResponse):
            return response.end_index >= response.begin_index - 1
        return True

    @property
    def is_settled(self) -> bool:
        """Whether `pump` has nothing to do before something is due, appended or answered."""
        if not self.is_ready or self.transferee is not None or not self.reads.is_idle:
            return False
        for dispatcher in self.dispatchers.values():  # noqa: SIM110 (asked with every answer: a call less)
            if not dispatcher.is_settled:
                return False
        return True

    def deadline_min_ms(self, now_ms: int) -> int:
        """A lower bound for `deadline_ms`, cheaper to compute: while everything is pushed, deadlines only
        move later, and a new one is at least an interval away.
        """
        return now_ms + self._interval_min_ms if self.is_settled else LONG_AGO_MS

    # -- time ----------------------------------------------------------------------------------------------

    def pump(self, now_ms: int, commit_index: int) -> None:
        """Sends what is due to every peer; once in a turn, however many appends the turn brought."""
        self.reads.pump(now_ms, commit_index, self.term_start_index, self._members.other_voters)
        if not self.dispatchers:
            return  # a group of one has no peer to push to, or to hand leadership to
        self._catch_up.end_window(now_ms, self.appends.oldest_wait_ms(now_ms), self._reader.end_position)
        holders = int(self._members.is_voter)
        for dispatcher in self._voting:
            holders += dispatcher.keeps_up
        is_optional = holders >= self._members.quorum
        for dispatcher in self.dispatchers.values():
            dispatcher.pump(now_ms, commit_index, is_optional or dispatcher not in self._voting)
        self._push_cache.clear()
        if self.transferee is None or self._is_take_sent:
            return
        # Thesis 3.10: only when the transferee's log is complete. All must be committed too, so that every
        # caller gets its answer from this leader.
        if self.dispatchers[self.transferee].holds_everything and commit_index == self._log.end_index:
            self._is_take_sent = True
            self._outbox.send_now(self.transferee, TakeLeadershipRequest(self.term, commit_index))

    def tick(self, now_ms: int) -> None:
        late = self.appends.expire(now_ms)
        self._outbox.completions.extend(late)
        for completion in late:
            self._outbox.report(AppendTimedOut(completion.first_index, completion.last_index))
        self.reads.tick(now_ms)
        if self.transferee is not None and now_ms >= self._transfer_deadline_ms:
            self._end_transfer("timed out")
        self._drop_departed(now_ms)
        self._prefer(now_ms)

    def deadline_ms(self) -> int:
        if not self.dispatchers:
            return min(self.appends.deadline_ms(), self.reads.deadline_ms())
        due = [dispatcher.deadline_ms() for dispatcher in self.dispatchers.values()]
        due += (self.quorum_lost_at_ms(), self.appends.deadline_ms(), self.reads.deadline_ms())
        if self.transferee is not None:
            due.append(self._transfer_deadline_ms)
        if self._has_preference:
            due.append(self._next_preferred_check_ms)
        return min(due)

    def quorum_lost_at_ms(self) -> int:
        """When this leader must step down unless more peers answer: check-quorum (thesis 6.2).

        The (quorum - 1)-th latest contact counts, since the leader itself is one of the quorum; a leader that
        is no voter is not.
        """
        needed = self._members.quorum - self._members.is_voter
        if needed == 0:
            return NEVER_DUE_MS
        contacts = [self._contact_ms[voter] for voter in self._members.other_voters]
        return quorum_index(contacts, needed) + self._config.election_timeout_max_ms

    def has_lease(self, now_ms: int) -> bool:
        """Whether a majority grants this leader its lease, so that no other node can be leader yet (thesis
        6.4.1).

        A voter's lease begins when it gets the leader's message, and the leader sees only the answer, which
        arrives later. So the leader counts only half of the lease. There is no lease during a transfer, since
        the transferee's election ignores it.
        """
        lost_at_ms = self.quorum_lost_at_ms()
        answered_ms = lost_at_ms - self._config.election_timeout_max_ms
        is_held = (
            lost_at_ms == NEVER_DUE_MS or now_ms - answered_ms <= self._config.election_timeout_min_ms // 2
        )
        return is_held and self.transferee is None

    def end(self, code: ResponseCode, reason: str) -> None:
        """Stepping down: every append and every read that still waits fails."""
        self._outbox.completions.extend(self.appends.fail_all(code))
        self.reads.fail_all(code)
        if self.transferee is not None:
            self._end_transfer(reason)

    # -- transfer ------------------------------------------------------------------------------------------

    def transfer(self, transferee: str, now_ms: int) -> ResponseCode:
        """DLedgerServer.handleLeadershipTransfer, thesis 3.10. SUCCESS: begun; appends are refused until it
        ends.
        """
        if self.transferee is not None:
            return ResponseCode.LEADER_TRANSFERRING
        if transferee == self._config.self_id:
            return ResponseCode.UNEXPECTED_MEMBER
        if transferee not in self._members.other_voters:
            return ResponseCode.UNKNOWN_MEMBER
        if not self.is_ready:
            return ResponseCode.LEADER_NOT_READY
        if transferee in self._impaired:
            return ResponseCode.TAKE_LEADERSHIP_FAILED
        lag_entries = self.dispatchers[transferee].lag_entries
        if lag_entries is None or lag_entries > self._config.transfer_lag_max:
            return ResponseCode.FALL_BEHIND_TOO_MUCH
        self.transferee = transferee
        self._transfer_deadline_ms = now_ms + self._config.transfer_timeout_ms
        self._is_take_sent = False
        self._outbox.report(TransferStarted(transferee, lag_entries))
        return ResponseCode.SUCCESS

    def _end_transfer(self, reason: str) -> None:
        assert self.transferee is not None
        self._outbox.report(TransferEnded(self.transferee, reason))
        self.transferee = None

    @property
    def _has_preference(self) -> bool:
        return self._config.preferred_now() not in (None, self._config.self_id)

    def _prefer(self, now_ms: int) -> None:
        """Transfers leadership to the preferred leader once that one has answered for a while and is not far
        behind. A node that dies again and again would otherwise stop the group's sends each time it returns.
        """
        preferred = self._config.preferred_now()
        if preferred is None or not self._has_preference or now_ms < self._next_preferred_check_ms:
            return
        self._next_preferred_check_ms = now_ms + self._config.preferred_check_interval_ms
        if preferred not in self._members.other_voters or not self._is_live(preferred, now_ms):
            return
        if now_ms - self._steady_since_ms[preferred] >= self._config.preferred_steady_ms:
            self.transfer(preferred, now_ms)

    def restart(self, peer: str, reason: str) -> None:
        """The peer's connection closed or opened: messages under way to it may be lost."""
        if peer in self.dispatchers:
            self.dispatchers[peer].restart(reason)

    def on_repair_request(self, peer: str, repair_id: int) -> None:
        """The peer may have lost entries that it acknowledged: it does not count for a quorum until COMPARE
        shows what its disk has. Once for each impairment, since the peer repeats its request while it gets
        the entries again.
        """
        if peer in self.dispatchers and self._repair_ids.get(peer) != repair_id:
            self._repair_ids[peer] = repair_id
            self._note_impairment(peer, True)
            self.dispatchers[peer].invalidate_match()

    def _note_impairment(self, peer: str, is_impaired: bool) -> None:
        if is_impaired:
            self._impaired.add(peer)
        else:
            self._impaired.discard(peer)

    # -- views -----------------------------------------------------------------------------------

    def log_begins_at(self, begin_index: int) -> None:
        for dispatcher in self.dispatchers.values():
            dispatcher.log_begins_at(begin_index)

    def peer_statuses(self, now_ms: int) -> tuple[PeerStatus, ...]:
        return tuple(
            dispatcher.status(now_ms - self._contact_ms[peer] if peer in self._has_answered else None)
            for peer, dispatcher in self.dispatchers.items()
        )

    def check_invariants(self, commit_index: int) -> None:
        self.appends.check_invariants(commit_index)
        expected = sorted({*self._members.others, *self._departing})
        assert list(self.dispatchers) == expected, (list(self.dispatchers), expected)
        self.reads.check_invariants()
        for dispatcher in self.dispatchers.values():
            dispatcher.check_invariants()
