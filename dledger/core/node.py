"""One member of a group as a state machine without I/O: values in, `Output` out. See `dledger` for the
protocol.

The host hands in messages, proposals, what its disk has made durable, and the time; it carries out each
Output in the order that dledger.core.output gives. The node never reads a clock and never waits.

`Node` owns role, term, vote and commit index, and decides which part gets which message. What only a leader
needs is in `Leadership`, what only a candidate needs in `Ballot`, the follower's side in `EntryHandler`, the
shape of the log in `EpochCache`, what a node that lost its disk or a part of it needs in `Repair`.
"""

from collections import deque

from dledger.core.config import Config
from dledger.core.election import Ballot, ElectionTimer, Voter, can_grant_vote
from dledger.core.epochs import EpochCache
from dledger.core.events import (
    ConfigurationChanged,
    ElectionStarted,
    Healed,
    Impaired,
    MessageIgnored,
    Removed,
    RoleChanged,
    VoteAnswered,
)
from dledger.core.handler import EntryHandler
from dledger.core.leadership import Leadership
from dledger.core.membership import (
    CHANGING_MEMBERS_LEVEL,
    Configuration,
    ConfigurationEntry,
    ConfigurationLog,
    first_configuration,
    voters_changed,
)
from dledger.core.messages import (
    AppendResponse,
    CommitRequest,
    FetchMessage,
    HeartbeatRequest,
    HeartbeatResponse,
    LeaderRequest,
    MembershipNotice,
    Message,
    PeerResponse,
    RepairRequest,
    RepairResponse,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.output import LogOp, Outbox, Output, Proposal, Rejection
from dledger.core.ports import LogReader, Rng
from dledger.core.repair import Repair
from dledger.core.status import ElectionRecord, NodeStatus, unknown_peers
from dledger.core.types import (
    LONG_AGO_MS,
    NEVER_DUE_MS,
    NO_INDEX,
    NO_TERM,
    UNKNOWN_TERM,
    HardState,
    Impairment,
    LogState,
    ResponseCode,
    Role,
)

ELECTIONS_KEPT = 32


class RoleHistory:
    """Reports each change of role once, and keeps the last elections for the admin page."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._last: tuple[Role, int, str | None] | None = None
        self._elections: deque[ElectionRecord] = deque(maxlen=ELECTIONS_KEPT)
        self.elections_total = 0
        """Including those that are no longer kept."""

    @property
    def elections(self) -> tuple[ElectionRecord, ...]:
        return tuple(self._elections)

    def changed(self, role: Role, term: int, leader_id: str | None, reason: str, now_ms: int) -> None:
        if (role, term, leader_id) == self._last:
            return
        self._last = (role, term, leader_id)
        self._outbox.report(RoleChanged(role, term, leader_id, reason))
        if leader_id is not None:
            self.elections_total += 1
            self._elections.append(ElectionRecord(now_ms, term, leader_id, reason))


def recovered_configurations(
    hard_state: HardState, log: EpochCache, first: Configuration
) -> tuple[ConfigurationEntry, ...]:
    """The configurations of a log that was found on the disk. `first`: of a log that never had any."""
    history = hard_state.configurations
    found = () if history is None else history.recovered(log.begin_index, log.term_at)
    return found or first_configuration(first)


class Node:
    """After each input the host calls take_term_start, and at the end of the turn take_output.

    An assert states what can't happen while every member keeps the rules: if one fails, the node must stop.
    """

    def __init__(
        self,
        config: Config,
        hard_state: HardState,
        log: LogState,
        reader: LogReader,
        rng: Rng,
        now_ms: int,
        impairment: Impairment | None = None,
        first: Configuration | None = None,
    ) -> None:
        """`impairment`: what the host found durably marked; the node does not vote until it is healed.
        `first`: the members before the log names others; None: the configured peers, as voters.
        """
        self.config = config
        self.role = Role.FOLLOWER
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.leader_id: str | None = None
        # What retention removed was committed. The stored commit index may be ahead of a log that was cut.
        self.commit_index = max(min(log.commit_index, log.end_index), log.begin_index - 1)
        self.persisted_index = log.end_index  # the host has synced what it found
        self._log = EpochCache(log)
        self._reader = reader
        self._outbox = Outbox()
        self._members = ConfigurationLog(
            config.self_id,
            recovered_configurations(hard_state, self._log, first or Configuration.of_voters(config.peers)),
            self._configuration_changed,
        )
        self.generation = max(hard_state.generation, self._members.configuration.generation)
        """Never falls: a log that is filled up has the configurations from before the recovery."""
        self._removed: ConfigurationEntry | None = None
        """A leader's configuration without this node, whose log may lack it."""
        self._handler = EntryHandler(
            config, self._log, self._members, reader, self._outbox, self.commit_index
        )
        self._leadership: Leadership | None = None
        self._ballot: Ballot | None = None
        self._predecessor: str | None = None
        """Handed leadership over to this node, for the term of the last campaign."""
        self._timer = ElectionTimer(config, rng, now_ms, self._members.is_alone)
        self._history = RoleHistory(self._outbox)
        self._repair = Repair(config, self._members, impairment, self._outbox, now_ms) if impairment else None
        self._damage: str | None = None
        self._now_ms = now_ms
        if impairment is not None:
            self._outbox.report(Impaired(impairment.reason))
        self.check_invariants()

    # -- state ----------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        return self._log.begin_index

    @property
    def end_index(self) -> int:
        return self._log.end_index

    @property
    def end_term(self) -> int:
        """The term of the last entry."""
        return self._log.last_term

    def last_entry(self) -> tuple[int, int]:
        """Index and term of the last entry."""
        return self._log.end_index, self._log.last_term

    def term_at(self, index: int) -> int:
        """The term of an entry of the log; UNKNOWN_TERM for what is not in it."""
        return self._log.term_at(index) if self.begin_index <= index <= self.end_index else UNKNOWN_TERM

    @property
    def term_start_index(self) -> int:
        """A leader's first entry of its term; NO_INDEX before it is in the log, and on other nodes."""
        return self._leadership.term_start_index if self._leadership else NO_INDEX

    @property
    def is_impaired(self) -> bool:
        """It may have forgotten promises: it does not campaign, and votes only in a group of two."""
        return self._repair is not None

    @property
    def is_vote_lost(self) -> bool:
        """Whether it may have forgotten its term and vote, as with an empty disk, and is not healed."""
        repair = self._repair
        return repair is not None and repair.impairment.is_vote_lost and not repair.is_over

    @property
    def is_sound(self) -> bool:
        """Whether its log can be read and it remembers its promises."""
        return self._repair is None and self._damage is None

    @property
    def is_electable(self) -> bool:
        """Whether it may ask for votes and become leader by a transfer."""
        return self.is_sound and self._removed is None and self._members.may_lead(self.commit_index)

    @property
    def members(self) -> ConfigurationLog:
        """The configurations of this node's log; to be read only."""
        return self._members

    @property
    def is_configuration_committed(self) -> bool:
        return self._members.latest.index <= self.commit_index

    @property
    def has_output(self) -> bool:
        """Whether take_output has something to do before the next deadline."""
        leadership = self._leadership
        if leadership is None or self._members.has_steps:
            return True
        return not (self._outbox.is_empty and leadership.is_settled)

    @property
    def readable_index(self) -> int:
        """The last entry that is committed and in this node's own files. A leader may commit before its own
        disk has the entry; the host can read only what is there.
        """
        return min(self.commit_index, self.persisted_index)

    def deadline_min_ms(self, now_ms: int) -> int:
        """A lower bound for `deadline_ms`: a timer set for this time or earlier need not be moved."""
        return LONG_AGO_MS if self._leadership is None else self._leadership.deadline_min_ms(now_ms)

    @property
    def waits_for_disk(self) -> bool:
        """Whether anything depends on this node's disk having more of the log: a
        commit, or what may be read.
        """
        if self.commit_index > self.persisted_index or self._repair is not None:
            return True
        return self._leadership is not None and self._leadership.is_passed_by_others(self.persisted_index)

    def status(self, now_ms: int) -> NodeStatus:
        leadership = self._leadership
        return NodeStatus(
            self.role,
            self.term,
            self.leader_id,
            self.begin_index,
            self.end_index,
            self.commit_index,
            self.persisted_index,
            self.term_start_index,
            self._log.epochs,
            leadership.peer_statuses(now_ms) if leadership else unknown_peers(self._members.others),
            {self.term: leadership.watermarks(self.persisted_index)} if leadership else {},
            self._history.elections,
            self._repair.impairment.reason if self._repair else self._damage,
            self._history.elections_total,
            self._members.latest,
            self.is_configuration_committed,
        )

    # -- inputs of the host --------------------------------------------------------------------------------

    def check_append(self, count: int, is_backlogged: bool = False) -> ResponseCode:
        """What `propose` would answer now, without side effects."""
        if self._leadership is None:
            return ResponseCode.NOT_LEADER
        return self._leadership.check_append(count, self._handler.is_disk_full, is_backlogged)

    def propose(self, count: int, now_ms: int, is_backlogged: bool = False) -> Proposal | Rejection:
        """Accepts `count` new entries. The host lays them out in the log before the next take_output.

        Appends are judged only here. `is_backlogged`: the host has no room for more unwritten bytes.
        """
        self._now_ms = now_ms
        code = self.check_append(count, is_backlogged)
        if code is not ResponseCode.SUCCESS or self._leadership is None:
            return Rejection(code, self.leader_id)
        proposal = self._leadership.append(count)
        self._leadership.appends.add(proposal, now_ms)
        return proposal

    def propose_configuration(self, configuration: Configuration, now_ms: int) -> Proposal | Rejection:
        """Accepts another configuration of the group. The host lays it out like a proposal; it is in force
        from then on, and final when it is committed.

        CONFIGURATION_PENDING: not yet. ILLEGAL_CONFIGURATION: not in one step.
        """
        self._now_ms = now_ms
        leadership = self._leadership
        code = self._check_configuration(configuration)
        if code is not ResponseCode.SUCCESS or leadership is None:
            return Rejection(code, self.leader_id)
        proposal = leadership.append(1)
        leadership.appends.add(proposal, now_ms)
        self._members.append(ConfigurationEntry(proposal.first_index, proposal.term, configuration))
        self._count_watermarks()
        return proposal

    def _check_configuration(self, new: Configuration) -> ResponseCode:
        code = self.check_append(1)
        leadership, old = self._leadership, self._members.configuration
        if code is not ResponseCode.SUCCESS or leadership is None:
            return code
        if not leadership.may_reconfigure(self.commit_index):
            return ResponseCode.CONFIGURATION_PENDING
        is_backwards = new.format_level < old.format_level or new.generation != old.generation
        is_early = old.format_level < CHANGING_MEMBERS_LEVEL and new.members != old.members
        if is_backwards or is_early or len(voters_changed(old, new)) > 1:
            return ResponseCode.ILLEGAL_CONFIGURATION
        return ResponseCode.SUCCESS

    def next_configuration(self, now_ms: int) -> Configuration | None:
        """What a leader has to propose by itself now, so that a change of the members goes on."""
        leadership = self._leadership
        if leadership is None or not self._members.has_steps:
            return None
        self._now_ms = now_ms
        leadership.hand_over(self.commit_index, now_ms)
        return leadership.next_configuration(self.commit_index, now_ms)

    def read_index(self, now_ms: int) -> int | Rejection:
        """Begins a read that misses nothing acknowledged before (thesis 6.4). Returns the id of the ReadDone
        that ends it; reads of one turn share one.
        """
        self._now_ms = now_ms
        if self._leadership is None:
            return Rejection(ResponseCode.NOT_LEADER, self.leader_id)
        return self._leadership.reads.add(self.commit_index, now_ms)

    def take_term_start(self) -> Proposal | None:
        """The entry of its own term with which a new leader starts (Raft 8: "a blank no-op entry"); None when
        there is nothing to do. The host lays it out like a proposal.

        Without it a leader could not commit the entries of earlier terms (Raft 5.4.2) until a client writes.
        """
        # Log operations of this node's time as a follower come first: the entry's index counts on them.
        leadership = self._leadership
        if leadership is None or leadership.is_ready or self._outbox.log_ops:
            return None
        return leadership.append_term_start()

    def persisted(self, last_index: int, term: int, now_ms: int) -> None:
        """This node's disk has the log up to the entry (last_index, term)."""
        self._now_ms = now_ms
        # The term, because the entry may have been truncated and replaced while it was being written.
        log = self._log
        if not self.persisted_index < last_index <= log.end_index or log.term_at(last_index) != term:
            return
        self.persisted_index = last_index
        self._count_watermarks()

    def peer_connected(self, peer: str, now_ms: int) -> None:
        """The peer can be reached (again). A leader compares at once: what it had
        pushed before may be lost.
        """
        self._now_ms = now_ms
        self._timer.peer_connected(peer)
        if self._leadership is not None:
            self._leadership.restart(peer, "connected")
        if self._repair is not None:
            self._repair.ask_connected(peer, self.term, self.leader_id)

    def peer_disconnected(self, peer: str, now_ms: int) -> None:
        """The peer's connection closed. A follower whose leader it was asks for pre-votes soon."""
        self._now_ms = now_ms
        self._timer.peer_disconnected(peer)
        if self._leadership is not None:
            self._leadership.restart(peer, "disconnected")
        if self.role is Role.FOLLOWER and peer == self.leader_id:
            self._timer.leader_disconnected(now_ms)
        if self._ballot is not None:
            self._count_ballot(self._ballot)

    def transfer_leadership(self, transferee: str | None, now_ms: int) -> ResponseCode:
        """Begins to hand leadership over; None: to the nearest. SUCCESS means begun; the end is a role change
        or an event.
        """
        self._now_ms = now_ms
        if self._leadership is None:
            return ResponseCode.NOT_LEADER
        if transferee is None:
            return self._leadership.transfer_to_nearest(now_ms)
        return self._leadership.transfer(transferee, now_ms)

    @property
    def transferee(self) -> str | None:
        """To whom leadership is being handed over."""
        return None if self._leadership is None else self._leadership.transferee

    def has_lease(self, now_ms: int) -> bool:
        """Whether this node leads, and no other node can have been elected meanwhile."""
        return self._leadership is not None and self._leadership.has_lease(now_ms)

    def log_begins_at(self, begin_index: int) -> None:
        """Retention removed the entries below begin_index, all of them committed (as
        Raft 7, log compaction).
        """
        assert begin_index <= self.commit_index + 1, f"retention to {begin_index}, commit {self.commit_index}"
        self._log.truncate_before(begin_index)
        self._members.truncate_before(begin_index)
        if self._leadership is not None:
            self._leadership.log_begins_at(begin_index)

    def set_disk_full(self, is_full: bool) -> None:
        """While it is full, only a term's first entry is appended: without it a new leader could commit
        nothing.
        """
        self._handler.is_disk_full = is_full

    def set_damaged(self, reason: str | None) -> None:
        """While a part of its log can't be read the node does not campaign; it votes, and a leader goes on
        leading.
        """
        self._damage = reason

    def take_generation(self, generation: int) -> None:
        """This node's members are those of a newer generation. It is saved with term and vote: a node that
        had a term of it, and forgot the generation, could bring that term to the members of an earlier one.
        """
        if generation > self.generation and self._repair is not None:
            self._repair.forget_answers()
        self.generation = max(self.generation, generation)
        self._save_state()

    def healed(self) -> None:
        """The host has removed the impairment's mark, after an Output with is_healed: the node votes again.

        After a crash before that the node is impaired again, and asks again.
        """
        assert self._repair is not None, "healed, but not impaired"
        assert self._repair.is_over, f"not healed yet: {self._repair.impairment}"
        self._outbox.report(Healed(self._repair.impairment.reason))
        self._repair = None
        # A leader that pushes all the time sends no heartbeats, whose answers would say so.
        if self.leader_id is not None:
            self._outbox.send_now(self.leader_id, self._heartbeat_response())

    def tick(self, now_ms: int) -> None:
        """Does what is due by now."""
        self._now_ms = now_ms
        leadership = self._leadership
        if leadership is None:
            self._handler.check_abnormal(now_ms)
            if now_ms >= self._timer.deadline_ms:
                self._on_election_timeout()
        elif now_ms >= leadership.quorum_lost_at_ms():
            self._become_follower(self.term, None, "no answers of a majority")
        else:
            leadership.tick(now_ms)

    def deadline_ms(self) -> int:
        """When `tick` and take_output have something to do, unless something else is put in before."""
        if self._leadership is None:
            repair_ms = self._repair.deadline_ms(self.term, self.leader_id) if self._repair else NEVER_DUE_MS
            return min(self._timer.deadline_ms, self._handler.deadline_ms(), repair_ms)
        if not self._leadership.is_ready:
            return self._now_ms
        if not self._may_push(self._leadership):
            return self._leadership.appends.deadline_ms()
        return self._leadership.deadline_ms()

    def _may_push(self, leadership: Leadership) -> bool:
        """Other leaders asked for votes, after their own was durable. The only voter of a group did not: were
        its vote lost in a crash, it would use the term again, for other entries than those that learners got.
        """
        is_vote_durable = not self._members.is_alone or self.persisted_index >= leadership.term_start_index
        return leadership.is_ready and is_vote_durable

    def take_log_ops(self) -> list[LogOp]:
        """The changes of the log that the last message caused, for a host that applies them before it hands
        in the next message.
        """
        return self._outbox.take_log_ops()

    def take_output(self, now_ms: int) -> Output:
        """Everything that the host must do now (etcd-raft: Ready). A leader pushes here: once for all appends
        of the turn.
        """
        self._now_ms = now_ms
        if self._leadership is not None and self._may_push(self._leadership):
            self._leadership.pump(now_ms, self.commit_index)
        if self._repair is not None and not self._repair.is_over:
            self._continue_repair(self._repair)
        return self._outbox.take(self.commit_index)

    # -- messages ------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Message, now_ms: int) -> None:
        """Handles a message of a peer, which has been checked for types. A message that does not fit is
        answered with a code or ignored.
        """
        self._now_ms = now_ms
        # Also of nodes that are no members by this node's log: theirs may be newer (thesis 4.1), and a group
        # whose members know each other only after they have voted could get stuck.
        if sender == self.config.self_id:
            self._ignore(sender, message, "not a peer")
            return
        self._timer.peer_connected(sender)  # it can be reached, so its vote may still come
        if isinstance(message, AppendResponse) and message.term == self.term:
            self._on_response(sender, message)  # by far the most frequent one
        elif isinstance(message, FetchMessage):
            self._ignore(sender, message, "not for a node")
        elif isinstance(message, VoteRequest):
            self._on_vote_request(sender, message)  # which adopts a higher term only if no lease refuses it
        else:
            # Raft 5.1, rules for all servers: a higher term makes this node a follower.
            if message.term > self.term:
                self._become_follower(message.term, None, f"term {message.term} of {sender}")
            if isinstance(message, VoteResponse):
                self._on_vote_response(sender, message)
            elif isinstance(message, PeerResponse):
                self._on_response(sender, message)
            elif isinstance(message, RepairRequest):
                self._on_repair_request(sender, message)
            elif isinstance(message, MembershipNotice):
                self._on_notice(sender, message)
            elif not isinstance(message, RepairResponse):
                self._on_leader_request(sender, message)
            elif self._repair is not None:
                self._repair.on_response(sender, message, self.term)

    def _ignore(self, sender: str, message: Message, reason: str) -> None:
        self._outbox.report(MessageIgnored(sender, type(message).__name__, reason))

    def _on_response(self, sender: str, response: PeerResponse) -> None:
        """Answers of an older term are about another leadership's log: they must not be counted."""
        if self._leadership is not None and response.term == self.term:
            self._leadership.on_response(sender, response, self._now_ms)
            self._count_watermarks()

    def _on_leader_request(self, sender: str, request: LeaderRequest) -> None:
        # Raft 5.1: the answer carries this node's term, and the outdated leader steps down.
        if request.term < self.term:
            self._outbox.send_now(sender, self._heartbeat_response())
            return
        if self._repair is not None and not self._repair.may_follow(self.term):
            self._repair.hear_leader(sender)
            self._ignore(sender, request, "the vote is lost, and not every member has answered")
            return
        if self.leader_id != sender:
            # Raft 5.2, Election Safety: a term has one leader, so a second one is broken.
            if self.leader_id is not None:
                self._ignore(sender, request, f"{self.leader_id} leads term {self.term}")
                return
            self._become_follower(self.term, sender, f"{sender} leads")
        self._timer.leader_heard(self._now_ms)
        self._removed = None
        self._handle_leader_request(sender, request)
        self._follow_commit(request.commit_index)

    def _handle_leader_request(self, leader: str, request: LeaderRequest) -> None:
        match request:
            case HeartbeatRequest() | CommitRequest():
                self._outbox.send_now(leader, self._heartbeat_response())
            case TakeLeadershipRequest() if not self.is_electable:
                self._ignore(leader, request, "not to lead: it is impaired or no voter")
            case TakeLeadershipRequest():
                # Thesis 3.10: no pre-vote and no time-out, since the leader has stopped taking appends and
                # waits.
                self._campaign(f"{leader} hands over", predecessor=leader)
            case _:
                self._handler.on_push(leader, request, self.commit_index, self._now_ms)
                self._clamp_indexes()

    def _heartbeat_response(self) -> HeartbeatResponse:
        return HeartbeatResponse(self.term, self.end_index, not self.is_sound)

    def _clamp_indexes(self) -> None:
        """After a truncation or a reset. Dropped entries no longer count as persisted; a log that was reset
        begins where the leader's does, and the leader's retention removed only committed entries (Raft 7).
        """
        before_index = self.begin_index - 1
        self.persisted_index = max(min(self.persisted_index, self.end_index), before_index)
        self.commit_index = max(self.commit_index, before_index)

    def _follow_commit(self, leader_commit_index: int) -> None:
        """updateCommittedIndex at a follower: never back, and never past what is known to be the leader's.

        Raft Figure 2 (AppendEntries 5): min(leaderCommit, index of last new entry). The end of the log would
        be wrong: it may hold entries of an earlier leader that this one is about to replace.
        """
        self.commit_index = max(self.commit_index, min(leader_commit_index, self._handler.verified_index))

    def _count_watermarks(self) -> None:
        """updateCommittedIndex at the leader (Raft 5.3, 5.4.2), and the answers to appends that waited for
        it.
        """
        leadership = self._leadership
        if leadership is None:
            return
        commit_index = leadership.committable(self.persisted_index, self.commit_index)
        if commit_index > self.commit_index:
            self.commit_index = commit_index
            self._outbox.completions.extend(leadership.acknowledge(commit_index, self._now_ms))

    # -- repair --------------------------------------------------------------------------------------------

    def _on_repair_request(self, sender: str, request: RepairRequest) -> None:
        """Every member answers, impaired or not; the leader's answer says how much the
        peer must have again.
        """
        # The peer's watermark is dropped first: no commit after this answer may rely on what the peer lost.
        if self._leadership is not None:
            self._leadership.on_repair_request(sender, request.repair_id)
        is_leader = self._leadership is not None and self._may_push(self._leadership)
        latest = self._members.latest
        has_configurations = latest.configuration.format_level >= CHANGING_MEMBERS_LEVEL
        response = RepairResponse(
            self.term, request.repair_id, is_leader, self.end_index, latest if has_configurations else None
        )
        self._outbox.send_now(sender, response)

    def _continue_repair(self, repair: Repair) -> None:
        """Asks, and checks whether the node is healed."""
        repair.ask(self.term, self.leader_id, self._now_ms)
        held_index = min(self._handler.verified_index, self.persisted_index)
        if not repair.is_healed(self.term, self.end_index, held_index):
            return
        repair.is_over = self._outbox.is_healed = True
        # Retention may have removed the entry with which this node's log would say so itself.
        if self._members.latest.index < repair.newest.index <= self.end_index:
            self._members.append(repair.newest)
        # The node may have voted in this very term before it lost its vote (Raft 5.2: one vote a term). It
        # counts as having voted for itself, and votes for others from the next term on.
        if repair.impairment.is_vote_lost and self.voted_for is None and self.term > NO_TERM:
            self.voted_for = self.config.self_id
        self._save_state()

    # -- members -------------------------------------------------------------------------------------------

    def _configuration_changed(self) -> None:
        latest = self._members.latest
        self.take_generation(latest.configuration.generation)
        reason = "proposed" if self._leadership is not None else "of the leader"
        self._outbox.report(ConfigurationChanged(latest.index, latest.configuration, reason))
        if self._leadership is not None:
            self._leadership.reconfigure(self._now_ms)

    def _on_notice(self, sender: str, notice: MembershipNotice) -> None:
        """This node was removed, and its log may end before the entry that says so. Asking for no votes is
        always safe; it ends when a leader sends entries.
        """
        own, entry = self._members.latest, notice.configuration
        is_newer = (entry.term, entry.index) > (own.term, own.index)
        if is_newer and notice.term == self.term and entry.configuration.member(self.config.self_id) is None:
            self._removed = entry
            self._outbox.report(Removed(sender, entry.index))

    def _notify_stranger(self, candidate: str) -> None:
        """A leader answers a candidate that it removed: it would ask for votes for ever."""
        latest = self._members.latest
        is_stranger = latest.configuration.member(candidate) is None
        if self._leadership is not None and is_stranger and self.is_configuration_committed:
            self._outbox.send_now(candidate, MembershipNotice(self.term, latest))

    # -- elections -----------------------------------------------------------------------------------------

    def _has_live_leader(self) -> bool:
        return self._leadership is not None or self._timer.has_live_leader(self._now_ms)

    def _on_vote_request(self, candidate: str, request: VoteRequest) -> None:
        if request.ballot_term != request.term + request.is_pre_vote:
            self._ignore(candidate, request, f"ballot term {request.ballot_term} in term {request.term}")
            return
        # A request that the lease refuses does not raise the term either, or a node that was cut off would
        # depose a sound leader when it returns (thesis 4.2.3).
        is_refused_by_lease = self._has_live_leader() and not request.is_transfer
        if request.term > self.term and not is_refused_by_lease:
            self._become_follower(request.term, None, f"term {request.term} of {candidate}")
        result = can_grant_vote(request, candidate, self._voter())
        self._outbox.report(VoteAnswered(candidate, request.ballot_term, request.is_pre_vote, result))
        self._notify_stranger(candidate)
        response = VoteResponse(self.term, request.ballot_term, request.is_pre_vote, result)
        if request.is_pre_vote:  # nothing was promised: no need to wait for the disk
            self._outbox.send_now(candidate, response)
            return
        if result is VoteResult.ACCEPT:
            self._grant_vote(candidate)
        self._outbox.send_after_persist(candidate, response)

    def _voter(self) -> Voter:
        """An impaired node of a group of two ignores its own log: an entry that only this node has is not
        committed.
        """
        is_of_two = self._repair is not None and self._repair.may_vote(self.term)
        return Voter(
            self.term,
            self.voted_for,
            NO_INDEX if is_of_two else self.end_index,
            NO_TERM if is_of_two else self.end_term,
            self._has_live_leader(),
            self.is_impaired and not is_of_two,
        )

    def _grant_vote(self, candidate: str) -> None:
        """Ends this node's own ballot, and waits a whole election time-out for the candidate (Raft 5.2:
        granting a vote restarts the timer).
        """
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, None, f"votes for {candidate}")
        self._vote_for(candidate)
        self._timer.restart(self._now_ms)

    def _vote_for(self, candidate: str) -> None:
        if self.voted_for == candidate:
            return  # the vote is durable, or will be before the answer leaves
        assert self.voted_for is None, f"term {self.term}: voted for {self.voted_for}, not {candidate}"
        self.voted_for = candidate
        self._save_state()

    def _save_state(self) -> None:
        self._outbox.hard_state = HardState(self.term, self.voted_for, self._members.history, self.generation)

    def _on_vote_response(self, peer: str, response: VoteResponse) -> None:
        ballot = self._ballot
        if ballot is not None and ballot.is_answered_by(response):
            ballot.count(peer, response.result is VoteResult.ACCEPT)
            self._count_ballot(ballot)

    def _count_ballot(self, ballot: Ballot) -> None:
        if ballot.is_won:
            self._timer.round_won()
            if ballot.is_pre_vote:
                self._campaign("pre-votes of a majority")
            else:
                self._become_leader()
        elif self._timer.is_lost(ballot):
            self._ballot = None
            self._timer.round_lost(self._now_ms)

    def _on_election_timeout(self) -> None:
        if self.is_electable:
            self._start_election()
            return
        # A node that must not become leader only stops following the old one.
        if self.role is not Role.FOLLOWER or self.leader_id is not None:
            self._become_follower(self.term, None, f"lost {self.leader_id}")
        self._timer.restart(self._now_ms)

    def _start_election(self) -> None:
        """The election time-out. The pre-vote (thesis 9.6) asks, in this node's old term, whether an election
        could be won: a candidate that can't win does not raise the term of the others.
        """
        reason = f"lost {self.leader_id}" if self.leader_id else "no leader heard"
        ballot = self._ballot_of(self.term + 1, is_pre_vote=True, is_transfer=False)
        self._ask_for_votes(ballot, reason)

    def _campaign(self, reason: str, predecessor: str | None = None) -> None:
        """A new term with this node's own vote (Raft 5.2), durable before the first request for votes leaves:
        with the vote forgotten in a crash, this node could vote for another candidate in the same term.
        `predecessor`: the leader that hands leadership over.
        """
        self._predecessor = predecessor
        self.term += 1
        self.voted_for = None
        self._vote_for(self.config.self_id)
        ballot = self._ballot_of(self.term, is_pre_vote=False, is_transfer=predecessor is not None)
        self._ask_for_votes(ballot, reason)

    def _ballot_of(self, ballot_term: int, *, is_pre_vote: bool, is_transfer: bool) -> Ballot:
        return Ballot(self.config.self_id, self._members, ballot_term, is_pre_vote, is_transfer)

    def _ask_for_votes(self, ballot: Ballot, reason: str) -> None:
        self._ballot = ballot
        self._handler.follow(self.term, self.commit_index)
        self._timer.round_started(self._now_ms)
        self._outbox.report(ElectionStarted(ballot.ballot_term, ballot.is_pre_vote, reason))
        self._change_role(Role.CANDIDATE, None, reason)
        request = ballot.request(self.term, self.end_index, self.end_term)
        send = self._outbox.send_now if ballot.is_pre_vote else self._outbox.send_after_persist
        for peer in self._members.other_voters:
            send(peer, request)
        self._count_ballot(ballot)

    # -- role changes --------------------------------------------------------------------------------------

    def _become_leader(self) -> None:
        assert self.voted_for == self.config.self_id, f"term {self.term}: voted for {self.voted_for}"
        self._ballot = None
        self._leadership = Leadership(
            self.term, self.config, self._log, self._members, self._reader, self._outbox, self._now_ms
        )
        if self._predecessor is not None:
            self._leadership.inform(self._predecessor, self._now_ms)
        self._change_role(Role.LEADER, self.config.self_id, "votes of a majority")

    def _become_follower(self, term: int, leader_id: str | None, reason: str) -> None:
        """Of a newer term, of this term's leader, or of no known leader (Raft 5.1)."""
        assert term >= self.term, f"term goes back from {self.term} to {term}"
        if self._leadership is not None:
            self._leadership.end(ResponseCode.TERM_CHANGED, reason)
            self._leadership = None
            self._timer.restart(self._now_ms)
        if term > self.term:
            self.term, self.voted_for = term, None
            self._save_state()
        self._ballot = None
        # The lease belongs to the leader that was heard; the new one's begins with its first message.
        self._timer.end_lease()
        if leader_id is not None:
            self._timer.leader_changed()
        self._handler.follow(self.term, self.commit_index)
        self._change_role(Role.FOLLOWER, leader_id, reason)

    def _change_role(self, role: Role, leader_id: str | None, reason: str) -> None:
        self.role, self.leader_id = role, leader_id
        self._history.changed(role, self.term, leader_id, reason, self._now_ms)

    # -- invariants ----------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """What holds after every input."""
        self._log.check_invariants()
        self._members.check_invariants(self.end_index)
        numbers = (self.begin_index, self.commit_index, self.persisted_index, self.end_index)
        assert self.begin_index - 1 <= self.commit_index <= self.end_index, numbers
        assert self.persisted_index <= self.end_index, numbers
        assert self.end_term <= self.term, f"last entry of term {self.end_term}, own term {self.term}"
        assert (self.role is Role.LEADER) == (self._leadership is not None), self.role
        assert (self.leader_id == self.config.self_id) == (self.role is Role.LEADER), self.leader_id
        assert self._ballot is None or self.role is Role.CANDIDATE, self.role
        assert self._repair is None or self.role is Role.FOLLOWER, (self.role, self._repair.impairment)
        if self._leadership is None:
            self._handler.check_invariants(self.commit_index)
            return
        assert self._leadership.term == self.term, (self._leadership.term, self.term)
        assert self.voted_for == self.config.self_id, (self.voted_for, self.term)
        self._leadership.check_invariants(self.commit_index)
