"""DLedgerServer: one member of a replica group, the asyncio driver around `dledger.core.node.Node`.

One turn of the event loop: everything that arrived since the last turn goes into the node, the entries that
it accepts go into the store, its messages leave, and the writer thread makes the rest durable while the next
turn collects. There is no lock and no polling: the node has one deadline (`deadline_ms`), and an idle node
sleeps until then.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Protocol

from dledger.codec import (
    NUMBER_MAX,
    PROTOCOL_VERSION,
    TERM_STEP_MAX,
    Hello,
    Introduction,
    refuse_impossible,
)
from dledger.core.config import Config
from dledger.core.events import (
    AppendTimedOut,
    ConfigurationChanged,
    EntryDamaged,
    Impaired,
    LogReset,
    PushMisplaced,
    TruncationRefused,
)
from dledger.core.membership import (
    FIXED_MEMBERS_LEVEL,
    FORMAT_LEVEL,
    Configuration,
    ConfigurationEntry,
    Member,
    MemberRole,
    encode_configuration,
)
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    FetchMessage,
    Message,
)
from dledger.core.node import Node
from dledger.core.output import (
    Append,
    Completion,
    Event,
    LogOp,
    Output,
    ReadDone,
    Rejection,
    Reset,
    RoleChanged,
    TruncateFrom,
)
from dledger.core.ports import LogStore
from dledger.core.status import NodeStatus
from dledger.core.types import LONG_AGO_MS, NO_INDEX, CorruptRangeError, DamagedEntryError, ResponseCode, Role
from dledger.credentials import MemberCredentials
from dledger.durable_state import DurableState
from dledger.environment import Environment
from dledger.maintenance import Maintenance, Repairer, ScrubLimits
from dledger.transport import Address, OlderNode, Transport
from dledger.writer import Batch, DiskWriter, Durability

logger = logging.getLogger(__name__)

LATE_MS: Final = 20
"""Where a turn comes so much after the deadline, a callback held the event loop."""
POLL_S: Final = 0.001
RESIGN_POLL_S: Final = 0.01
"""Not 0: the loop then reads its sockets before the timer fires."""


class DeadlineTimer:
    """The one timer of a node: calls `wake` when the node's deadline has come.

    The deadline moves later with every message. The timer is moved only to wake earlier: woken too early, it
    sets itself again. So a busy node does not cancel and create an asyncio timer in each turn.

    After a callback that held the loop, uvloop runs what is due before it reads the sockets. The leader's
    heartbeats, or a majority's answers to them, may wait there, and a node that acted on its deadline first
    would depose a leader that lives. So where the deadline passed long ago, the loop reads once more.
    """

    def __init__(
        self, now_ms: Callable[[], int], deadline_ms: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        self._now_ms = now_ms
        self._deadline_ms = deadline_ms
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._is_reading = False
        self._has_read = True
        self.due_ms = LONG_AGO_MS
        """The time at which the timer fires, never later than the deadline; before it nothing is due."""

    def may_act(self, now_ms: int) -> bool:
        """Whether a turn at or after `due_ms` may act on the deadline; if not, `wake` is called again."""
        if now_ms - self.due_ms <= LATE_MS or self._has_read:
            return True
        if not self._is_reading:
            self._is_reading = True
            self.stop()
            self._timer = asyncio.get_running_loop().call_later(POLL_S, self._fire)
        return False

    def set(self, now_ms: int, at_least_ms: int) -> None:
        """Wakes at the deadline or before. `at_least_ms` is a lower bound for the deadline: a timer that
        fires then or earlier stays as it is, and the deadline itself need not be computed.
        """
        if self._timer is not None:
            if self._is_reading or self.due_ms <= at_least_ms or self.due_ms <= self._deadline_ms():
                return
            self._timer.cancel()
        self._has_read = False
        self.due_ms = self._deadline_ms()
        delay_s = max(0, self.due_ms - now_ms) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        if self._is_reading:
            self._is_reading, self._has_read = False, True
        now_ms = self._now_ms()
        if now_ms < (deadline_ms := self._deadline_ms()):
            self.set(now_ms, deadline_ms)
        else:
            self._wake()


class CommitNotifier:
    """Reports what became readable, after the answers of the same turn have left.

    The answers of one turn are written to their connections at the end of the loop's next turn. The work that
    follows a commit (dispatching to consume queues, held pulls) takes longer, so it starts two turns later.
    """

    def __init__(self, node: Node, notify: Callable[[int], None]) -> None:
        """`notify` gets the node's readable_index when it has risen."""
        self._node = node
        self._notify = notify
        self._notified_index = NO_INDEX
        self._next: asyncio.Handle | None = None

    def schedule(self) -> None:
        """Notifies two turns later, if there is anything new."""
        if self._next is None and self._node.readable_index > self._notified_index:
            loop = asyncio.get_running_loop()
            self._next = loop.call_soon(self._wait, loop)

    def stop(self) -> None:
        """Notifies no more."""
        if self._next is not None:
            self._next.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_soon(self._notify_now)

    def _notify_now(self) -> None:
        self._next = None
        readable = self._node.readable_index
        if readable > self._notified_index:
            self._notified_index = readable
            self._notify(readable)


_WARNINGS = (AppendTimedOut, EntryDamaged, Impaired, LogReset, PushMisplaced, TruncationRefused)
"""An operator may have to act, or a client got an error."""


class EventLog:
    """Writes what one node's core reports to the log: a line for each event, with its kind and fields."""

    def __init__(self, self_id: str) -> None:
        self._self_id = self_id
        self._last: Event | None = None

    def report(self, event: Event) -> None:
        """An event equal to the one before it is logged at DEBUG: a node without a majority repeats its
        pre-votes every second.
        """
        level = logging.INFO
        if event == self._last:
            level = logging.DEBUG
        elif isinstance(event, _WARNINGS):
            level = logging.WARNING
        self._last = event
        if logger.isEnabledFor(level):
            own = {each.name: _plain(getattr(event, each.name)) for each in fields(event)}
            extra = {"event": type(event).__name__, "fields": own}
            logger.log(level, "[%s] %s", self._self_id, event, extra=extra)


def _plain(value: object) -> object:
    return value.name if isinstance(value, enum.Enum) else value


class Observer(Protocol):
    """The host of a member: notified by the engine, on the event loop."""

    def on_readable(self, last_index: int) -> None:
        """Entries up to last_index are committed and in this node's files; never goes back."""

    def on_role_change(self, role: Role, term: int, leader_id: str | None) -> None: ...

    def on_fatal(self, error: BaseException) -> None:
        """Log or vote could not be written: this node takes no further part and must be stopped."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The synchronous half of an append: the entries' places in the log, or why there are none.

    `first_index` is NO_INDEX and `positions` is empty unless `code` is SUCCESS. `term` is the node's.
    """

    code: ResponseCode
    first_index: int
    term: int
    positions: list[int]


def first_members(self_id: str, peers: Mapping[str, Address], *, is_joining: bool) -> Configuration:
    """The members before the log names others. A node that joins has no vote."""
    return Configuration(
        tuple(
            Member(
                each, *peers[each], MemberRole.LEARNER if is_joining and each == self_id else MemberRole.VOTER
            )
            for each in peers
        ),
        FIXED_MEMBERS_LEVEL,
    )


class MemberConnections:
    """Keeps the transport connected to the members of the newest configuration, and for a while to those that
    it removed: their leader still sends them the log.
    """

    def __init__(
        self, transport: Transport, config: Config, node: Node, on_generation: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._departure_s = config.departure_ms / 1000 + 1
        self._members = members = node.members
        self._node = node
        self._on_generation = on_generation
        transport.on_newer_generation = self._take_generation
        transport.on_outdated = self._notify
        self._known = members.configuration
        self._departing: dict[str, Address] = {}
        self.listeners: list[Callable[[], None]] = []
        self._apply()

    def follow(self) -> None:
        """The newest configuration has changed."""
        gone = [each for each in self._known.members if self._members.configuration.member(each.id) is None]
        self._known = self._members.configuration
        self._departing.update({each.id: (each.host, each.port) for each in gone})
        for each in gone:
            asyncio.get_running_loop().call_later(self._departure_s, self._departed, each.id)
        self._apply()
        self._notify()

    def _take_generation(self, generation: int) -> bool:
        """Only a node that lost term and vote takes one: it may have lost the entry that says so, and it
        neither leads nor votes against anyone.
        """
        if self._node.is_vote_lost:
            self._node.take_generation(generation)
            self._on_generation()
        return self._node.is_vote_lost

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()

    def _departed(self, member_id: str) -> None:
        self._departing.pop(member_id, None)
        self._apply()

    def _apply(self) -> None:
        configuration = self._members.configuration
        current = {each.id: (each.host, each.port) for each in configuration.members}
        peers = {**self._departing, **current}
        self._transport.set_peers(peers, configuration.format_level, self._node.generation)


def running_older_nodes(transport: Transport) -> list[OlderNode]:
    """Nodes of earlier generations that try to connect, by their own word."""
    since_s = asyncio.get_running_loop().time() - transport.limits.older_node_ms / 1000
    return [each for each in transport.older_nodes.values() if each.heard_s >= since_s]


def recovered_node(
    config: Config,
    store: LogStore,
    durable_state: DurableState,
    environment: Environment,
    first: Configuration,
) -> Node:
    """The node of what is on the disk. Raises CorruptHardStateError, OSError."""
    log = store.log_state()
    hard_state, impairment = durable_state.load(log, store.find_configurations)
    now_ms = environment.monotonic_ms()
    return Node(config, hard_state, log, store, environment, now_ms, impairment, first)


def _warn_of_recovery(self_id: str, entry: ConfigurationEntry) -> None:
    generation = entry.configuration.generation
    if generation > 0:
        logger.warning(
            "[%s] an operator has decided without a majority who the members of this group are "
            "(ledgermq recover), generation %d: nodes of an earlier one are refused, and must be "
            "emptied before they start",
            self_id,
            generation,
        )


class DLedgerServer:
    """A member of a group. Everything runs on the event loop that called `start`."""

    def __init__(
        self,
        config: Config,
        *,
        listen: Address,
        peers: Mapping[str, Address],
        store: LogStore,
        state_dir: Path,
        term_start_body: Callable[[int], bytes],
        durability: Durability,
        client_address: str,
        unwritten_bytes_max: int = 128 * 1024 * 1024,
        environment: Environment | None = None,
        scrub: ScrubLimits | None = None,
        credentials: MemberCredentials | None = None,
        is_joining: bool = False,
        members_body: Callable[[bytes], bytes] = bytes,
        release: str = "",
    ) -> None:
        """Reads the durable vote, and marks the node impaired if it is lost. Raises CorruptHardStateError in
        a group of one; OSError.

        `unwritten_bytes_max`: a leader refuses appends while more bytes than this wait for its own disk.
        `peers`: all members before the log names others, this node included. `is_joining`: this node is not
        yet one of them, and waits for their leader to add it. `members_body`: the body of an entry that holds
        an encoded configuration. `credentials`, `release`: see `Transport`.
        """
        self.config = config
        self.durability = durability
        self._store = store
        self._term_start_body, self._members_body = term_start_body, members_body
        environment = environment or Environment()
        self._now_ms = environment.monotonic_ms
        self._wall_clock_ms = environment.wall_clock_ms
        first = first_members(config.self_id, peers, is_joining=is_joining)
        durable_state = DurableState(config, state_dir, environment, first)
        self._node = recovered_node(config, store, durable_state, environment, first)
        hello = Hello(config.group, config.self_id, PROTOCOL_VERSION, client_address)
        self._transport = Transport(hello, listen, peers, self, None, credentials, release)
        self._connections = MemberConnections(self._transport, config, self._node, self._begin_generation)
        self._was_empty = self._node.end_index < 0
        self._writer = DiskWriter(
            store,
            durable_state,
            durability,
            last_entry=self._node.last_entry,
            on_persisted=self._on_persisted,
            on_error=self._fail,
            direct_ack=self._transport.direct_ack,
        )
        self._observer: Observer | None = None
        self._inbox: list[tuple[str, Message]] = []
        self._done: dict[int, Callable[[ResponseCode], None]] = {}
        self._reads: dict[int, list[Callable[[ResponseCode, int], None]]] = {}
        self._turn_handle: asyncio.Handle | None = None
        self._is_in_turn = False
        self._deadline_timer = DeadlineTimer(self._now_ms, self._node.deadline_ms, self._schedule_turn)
        self._unwritten_bytes_max = unwritten_bytes_max
        self._written_position = store.end_position
        self._commit_notifier = CommitNotifier(self._node, self._notify_readable)
        self._repairer = Repairer(
            config, self._node, store, send=self._send_now, run_on_writer=self._writer.run, fail=self._fail
        )
        watch = (self._now_ms, scrub or ScrubLimits(), self.on_damaged, self._fail)
        self._maintenance = Maintenance(self._node, store, self._writer, *watch)
        self.remove_before = self._maintenance.remove_before
        self.write_metrics = self._writer.metrics
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._event_log = EventLog(config.self_id)
        self._is_running = self._has_failed = False

    def set_observer(self, observer: Observer) -> None:
        """Must be called before `start`."""
        self._observer = observer

    def on_members_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called when `members` or `newer_generation` has changed, before the loop's next turn;
        also when a change of the members was not committed and is taken back. It must not raise.
        """
        self._connections.listeners.append(listener)

    @property
    def newer_generation(self) -> int | None:
        """The one in which an operator has gone on without this node (`ledgermq recover`), once it has heard
        of that. It still leads or follows among its old members.
        """
        newest = self._transport.newest_generation
        return newest if newest > self._transport.generation else None

    def older_nodes(self) -> list[OlderNode]:
        """Nodes of earlier generations that run, and are refused."""
        return running_older_nodes(self._transport)

    def _begin_generation(self) -> None:
        """What came from members of the one before counts no longer."""
        self._inbox.clear()
        self._schedule_turn()

    async def start(self) -> None:
        """Joins the group. Raises OSError when the replication address can't be bound."""
        assert self._observer is not None, "set_observer comes before start"
        self._is_running = True
        _warn_of_recovery(self.config.self_id, self.members)
        await self._transport.start()
        self._tasks = (
            asyncio.create_task(self._maintenance.run(), name="dledger maintenance"),
            asyncio.create_task(self._repairer.run(), name="dledger repairer"),
        )
        self._schedule_turn()

    async def stop(self) -> None:
        """Leaves the group; the current batch is finished first. Pending appends are never answered."""
        self._is_running = False
        for handle in (self._turn_handle, *self._tasks):
            if handle is not None:
                handle.cancel()
        self._deadline_timer.stop()
        self._commit_notifier.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._transport.stop()
        # After a failed write the content of the disk is unknown, so there is nothing to record about it.
        if not self._has_failed:
            await self._maintenance.save_checkpoint()
        await self._writer.stop()
        self._store.close()

    # -- for the host --------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._node.role

    @property
    def term(self) -> int:
        return self._node.term

    @property
    def leader_id(self) -> str | None:
        return self._node.leader_id

    @property
    def commit_index(self) -> int:
        return self._node.commit_index

    @property
    def persisted_index(self) -> int:
        """The last index that this node's own disk is known to have. An idle node's disk may be one batch
        ahead: the end of a write wakes the loop only if something waits for it.
        """
        return self._node.persisted_index

    @property
    def term_start_index(self) -> int:
        return self._node.term_start_index

    @property
    def members(self) -> ConfigurationEntry:
        """The newest configuration of the group in this node's log."""
        return self._node.members.latest

    @property
    def client_addresses(self) -> Mapping[str, str]:
        """Member -> the address at which it serves clients, as it said when it connected."""
        return self._transport.client_addresses

    def has_lease(self) -> bool:
        """Whether this node leads and no other node can have been elected meanwhile."""
        return self._node.has_lease(self._now_ms())

    def is_connected(self, peer: str) -> bool:
        return self._transport.is_connected(peer)

    def status(self) -> NodeStatus:
        """The node's status, with the times of elections as Unix time in ms."""
        now_ms = self._now_ms()
        status = self._node.status(now_ms)
        unix_offset_ms = self._wall_clock_ms() - now_ms
        elections = tuple(replace(one, at_ms=one.at_ms + unix_offset_ms) for one in status.elections)
        return replace(status, elections=elections)

    def handle_append(self, bodies: Sequence[bytes], on_done: Callable[[ResponseCode], None]) -> AppendResult:
        """Appends as leader (DLedgerServer.handleAppend with BatchAppendEntryRequest).

        Synchronous: on SUCCESS the entries are in this node's log and on_done is called once, later, when the
        last of them is committed or the append failed; an exception that it raises is logged and has no other
        effect. Otherwise nothing was appended and on_done is never called.
        """
        proposal = self._node.propose(len(bodies), self._now_ms(), self._is_backlogged)
        if isinstance(proposal, Rejection):
            return AppendResult(proposal.code, NO_INDEX, self._node.term, [])
        try:
            positions = self._store.append_bodies(proposal.first_index, proposal.term, bodies)
        except Exception as error:
            self._fail(error)  # the node counts entries that the log does not have
            raise
        self._done[proposal.first_index] = on_done
        if not self._is_batch_under_way(proposal.first_index):
            self._schedule_turn()
        return AppendResult(ResponseCode.SUCCESS, proposal.first_index, proposal.term, positions)

    @property
    def _is_backlogged(self) -> bool:
        """More bytes than allowed wait for this node's disk. Commits do not wait for it while the followers'
        disks make a quorum, so no other bound limits the memory that a stalled disk costs."""
        return self._store.end_position - self._written_position > self._unwritten_bytes_max

    def _is_batch_under_way(self, first_index: int) -> bool:
        """Whether entries before it are being written and are not committed yet. Then no turn is needed now:
        the answer of a follower or the end of the write brings one, and the entries until then form one
        batch. A single entry never waits.
        """
        return self._writer.is_busy and self._node.commit_index < first_index - 1

    def propose_configuration(
        self, configuration: Configuration, on_done: Callable[[ResponseCode], None]
    ) -> ResponseCode:
        """Appends another configuration of the group as leader; it is in force at once. `on_done` as in
        `handle_append`. Steps that it asks for, such as a joining member's vote, follow by themselves.

        ILLEGAL_CONFIGURATION also when it raises the format level and a member does not speak the newest
        protocol. Other codes: see `Node.propose_configuration`.
        """
        is_raised = configuration.format_level > self._node.members.configuration.format_level
        if is_raised and not self.speaks_newest_protocol(configuration):
            return ResponseCode.ILLEGAL_CONFIGURATION
        proposal = self._node.propose_configuration(configuration, self._now_ms())
        if isinstance(proposal, Rejection):
            return proposal.code
        body = self._members_body(encode_configuration(configuration))
        try:
            self._store.append_configuration(proposal.first_index, proposal.term, body)
        except Exception as error:
            self._fail(error)  # the node counts an entry that the log does not have
            raise
        self._done[proposal.first_index] = on_done
        self._schedule_turn()
        return ResponseCode.SUCCESS

    def _continue_configuration(self) -> None:
        """The next step of a change that is under way, and the first configuration of a new group."""
        step = self._node.next_configuration(self._now_ms())
        current = self._node.members.configuration
        if step is None and self._is_beginning and self.speaks_newest_protocol(current):
            step = replace(current, format_level=FORMAT_LEVEL)
        if step is not None:
            self.propose_configuration(step, lambda code: None)

    @property
    def _is_beginning(self) -> bool:
        """Whether this node leads a new group, which has no configuration yet. A group that begins with
        members of this release needs no way back to an older one.
        """
        node = self._node
        is_new = self._was_empty and node.term_start_index == 0
        return is_new and node.members.configuration.format_level < FORMAT_LEVEL

    def speaks_newest_protocol(self, configuration: Configuration) -> bool:
        """Whether all other members are connected, speak the newest protocol, and have answered this leader
        of late: only then can the group's format level rise. The connections with a machine that lost power
        look open for a while, and an older release may be what it starts with.
        """
        silence_max_ms = self.config.election_timeout_min_ms
        silences_ms = {each.id: each.last_contact_ms_ago for each in self.status().peers}
        return all(
            self._transport.speaks_newest(each)
            and (silence_ms := silences_ms.get(each)) is not None
            and silence_ms < silence_max_ms
            for each in configuration.ids
            if each != self.config.self_id
        )

    def read_index(self, on_done: Callable[[ResponseCode, int], None]) -> ResponseCode:
        """Begins a linearizable read (thesis 6.4). SUCCESS: on_done is called once, later, with a code and an
        index. With SUCCESS the host may answer when it has applied the entry of that index: nothing that any
        leader acknowledged before this call is behind it. Otherwise on_done is never called.
        """
        read_id = self._node.read_index(self._now_ms())
        if isinstance(read_id, Rejection):
            return read_id.code
        self._reads.setdefault(read_id, []).append(on_done)
        self._schedule_turn()
        return ResponseCode.SUCCESS

    def transfer_leadership(self, transferee: str) -> ResponseCode:
        """Begins to hand leadership over; SUCCESS means begun. The outcome is a role change."""
        code = self._node.transfer_leadership(transferee, self._now_ms())
        self._schedule_turn()
        return code

    async def resign(self) -> None:
        """Before a stop: a leader hands leadership over to the nearest member, so that appends under way are
        still acknowledged and no election time-out passes. Returns when another member leads, or when none
        takes over within transfer_timeout_ms.
        """
        if self._has_failed or self.role is not Role.LEADER:
            return
        self._node.transfer_leadership(None, self._now_ms())
        self._schedule_turn()
        while (transferee := self._node.transferee) is not None and self._transport.is_connected(transferee):
            await asyncio.sleep(RESIGN_POLL_S)
        end_ms = self._now_ms() + self.config.election_timeout_min_ms
        # Its vote may be the one that the transferee needs: it stays until it knows who leads.
        while self.role is not Role.LEADER and self.leader_id is None and self._now_ms() < end_ms:
            await asyncio.sleep(RESIGN_POLL_S)

    # -- repair --------------------------------------------------------------------------------------------

    def on_damaged(self, error: DamagedEntryError) -> None:
        """Entries of this node's log can't be read: they are fetched from the peers."""
        self._repairer.found(error)

    def _send_now(self, peer: str, message: Message) -> None:
        self._transport.send(peer, message)
        self._transport.flush()

    # -- MessageSink ---------------------------------------------------------------------------------------

    def on_messages(self, sender: str, messages: list[Message]) -> None:
        term_max = min(self._node.term + TERM_STEP_MAX, NUMBER_MAX)
        for message in messages:
            refuse_impossible(message, term_max)
        # Only collected: one turn handles all messages that arrived, with one write and one sync.
        if self._is_running:
            self._inbox += [(sender, message) for message in messages]
            self._schedule_turn()

    def on_peer_connected(self, peer: str) -> None:
        self._notify_node(self._node.peer_connected, peer)

    def on_peer_disconnected(self, peer: str) -> None:
        self._notify_node(self._node.peer_disconnected, peer)

    def on_peer_introduced(self, peer: str, introduction: Introduction) -> None:
        """What needs protocol 3 can be sent to it."""
        self._schedule_turn()

    def _notify_node(self, change: Callable[[str, int], None], peer: str) -> None:
        if not self._is_running:
            return
        try:
            change(peer, self._now_ms())
        except Exception as error:  # noqa: BLE001 (a broken invariant stops the node, wherever it shows)
            self._fail(error)
        self._schedule_turn()

    # -- one turn ------------------------------------------------------------------------------------------

    def _schedule_turn(self) -> None:
        """At most one turn is scheduled. The part of a turn that collects input schedules none: that same
        turn handles what comes in there.
        """
        if self._turn_handle is None and self._is_running and not self._is_in_turn:
            self._turn_handle = asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_handle = None
        now_ms = self._now_ms()
        node, writer = self._node, self._writer
        timer = self._deadline_timer
        is_due = now_ms >= timer.due_ms and timer.may_act(now_ms)
        try:
            self._is_in_turn = True
            writer.poll()  # first, so that the node answers with what the disk has by now
            if not self._is_running:
                return
            if self._inbox:
                self._receive_all(now_ms)
            if is_due:
                node.tick(now_ms)
            output = None
            if (
                is_due or node.has_output or self._is_beginning
            ):  # as a leader without the entry of its term always has
                self._append_term_start()
                self._continue_configuration()
                output = node.take_output(now_ms)
            self._is_in_turn = False
            if output is None:
                writer.start_next()
            else:
                self._carry_out(output)
            self._commit_notifier.schedule()
            # If nothing waits for the write, the next turn sees its end, whatever starts that turn.
            if writer.is_busy and node.waits_for_disk:
                writer.await_end()
        except Exception as error:  # noqa: BLE001 (the one top loop: a broken invariant stops the node)
            self._fail(error)
            return
        if output is not None:
            self._deadline_timer.set(now_ms, node.deadline_min_ms(now_ms))

    def _receive_all(self, now_ms: int) -> None:
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            if isinstance(message, AppendRequest):
                # Before the core sees it: what the core accepts is in the log, and the leader counts it.
                try:
                    self._store.verify_range(message.entries)
                except CorruptRangeError as error:
                    logger.warning("dropping a damaged push of %s: %s", sender, error)
                    continue
            elif not isinstance(message, AppendResponse) and isinstance(message, FetchMessage):
                self._repairer.on_message(sender, message)
                continue
            self._node.receive(sender, message, now_ms)
            # Applied before the next message: the store compares its entries' position with the log's end.
            for operation in self._node.take_log_ops():
                self._apply(operation)
            self._append_term_start()

    def _append_term_start(self) -> None:
        proposal = self._node.take_term_start()
        if proposal is not None:
            body = self._term_start_body(proposal.term)
            self._store.append_bodies(proposal.first_index, proposal.term, [body])

    def _carry_out(self, output: Output) -> None:
        """In the order that `dledger.core.output` demands. The pushes leave before the writer starts: the
        followers' disks work at the same time as this node's (thesis 10.2.1).
        """
        for operation in output.log_ops:
            self._apply(operation)
        if output.send_now:
            self._transport.send_all(output.send_now)
        self._writer.gather(output)
        self._writer.start_next()
        for event in output.events:
            self._report(event)
        for completion in output.completions:
            self._complete(completion)
        for read in output.reads:
            self._end_read(read)

    def _complete(self, completion: Completion) -> None:
        on_done = self._done.pop(completion.first_index)
        try:
            on_done(completion.code)
        except Exception:
            self_id, first_index = self.config.self_id, completion.first_index
            logger.exception("[%s] the callback of append %d failed", self_id, first_index)

    def _end_read(self, read: ReadDone) -> None:
        for on_done in self._reads.pop(read.read_id):
            try:
                on_done(read.code, read.index)
            except Exception:
                logger.exception("[%s] the callback of a read failed", self.config.self_id)

    def _apply(self, operation: LogOp) -> None:
        match operation:
            case Append(entries):
                self._store.append_range(entries)
            case TruncateFrom(index):
                self._store.truncate_from(index)
            case Reset(begin_index, begin_position):
                self._store.reset(begin_index, begin_position)

    def _report(self, event: Event) -> None:
        if isinstance(event, EntryDamaged):
            self.on_damaged(DamagedEntryError(event.first_index, event.last_index, event.reason))
        self._event_log.report(event)
        if isinstance(event, ConfigurationChanged):
            self._connections.follow()
        if isinstance(event, RoleChanged) and self._observer is not None:
            self._observer.on_role_change(event.role, event.term, event.leader_id)

    def _on_persisted(self, batch: Batch) -> None:
        if not self._is_running:
            return
        # The batch is durable now, so the messages that depend on it may leave (Raft Figure 2).
        if batch.after:
            self._transport.send_all(batch.after)
        if batch.writes is not None:
            self._written_position = batch.end_position
            self._node.persisted(batch.last_index, batch.last_term, self._now_ms())
        if batch.is_healed:
            self._node.healed()
        self._schedule_turn()

    def _notify_readable(self, last_index: int) -> None:
        if self._observer is not None and self._is_running:
            self._observer.on_readable(last_index)

    def _fail(self, error: BaseException) -> None:
        """Fail-stop: after a failed write or a broken invariant this node sends nothing more. A retry after a
        failed fsync would report success for pages that the kernel has dropped.
        """
        if self._has_failed:
            return
        self._has_failed = True
        logger.critical("[%s] stops: %s", self.config.self_id, error, exc_info=error)
        self._is_running = False
        if self._observer is not None:
            self._observer.on_fatal(error)
