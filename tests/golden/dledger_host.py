"""The hosts of a golden cluster: nodes with memory logs, doing what a driver does, printing what they do."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from dledger.core.config import Config
from dledger.core.membership import Configuration, encode_configuration
from dledger.core.messages import Message
from dledger.core.node import Node
from dledger.core.output import Append, Envelope, LogOp, Output, Rejection, Reset, TruncateFrom
from dledger.core.reads import FIRST_ROUND
from dledger.core.types import HardState, Impairment, Role
from tests.golden.words import (
    configuration_words,
    event_words,
    message_words,
    range_words,
    status_words,
)
from tests.support.memory_log import MemoryLog


class FixedRng:
    """No chance: the n-th member always draws the same place in the range, the first the lowest."""

    def __init__(self, rank: int, members: int) -> None:
        self._rank = rank
        self._members = members

    def between(self, low: int, high: int) -> int:
        return low + (high - low) * self._rank // self._members


@dataclass(slots=True)
class Member:
    """One node with its disk. `is_stalled`: the disk does not answer. `node` is None while it is down."""

    name: str
    config: Config
    rng: FixedRng
    store: MemoryLog
    hard_state: HardState = field(default_factory=lambda: HardState(0, None))
    node: Node | None = None
    now_ms: int = 0
    is_stalled: bool = False
    pending_state: HardState | None = None
    pending_sends: list[Envelope] = field(default_factory=list)
    impairment: Impairment | None = None
    is_healing: bool = False
    commit_index: int = -1
    first: Configuration | None = None
    """Of its configuration file, where that is not the peers of its config."""

    @property
    def live(self) -> Node:
        assert self.node is not None, f"{self.name} is down"
        return self.node


@dataclass(frozen=True, slots=True)
class InFlight:
    sender: str
    to: str
    message: Message

    @property
    def kind(self) -> str:
        return type(self.message).__name__


class Hosts:
    """Takes inputs to nodes through to the links, the logs and the disks of the members."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.links: list[InFlight] = []
        self.cut: set[frozenset[str]] = set()
        self.committed: dict[int, bytes] = {}
        self._lines: list[str] = []
        self._is_quiet = False

    def print(self, line: str) -> None:
        if not self._is_quiet:
            self._lines.append(line)

    def _start(self, member: Member) -> None:
        member.node = Node(
            member.config,
            member.hard_state,
            member.store.log_state(),
            member.store,
            member.rng,
            member.now_ms,
            member.impairment,
            member.first,
        )
        member.is_healing = False
        member.commit_index = member.node.commit_index

    def _is_cut(self, flight: InFlight) -> bool:
        return frozenset((flight.sender, flight.to)) in self.cut

    def _send(self, sender: str, envelope: Envelope) -> None:
        flight = InFlight(sender, envelope.to, envelope.message)
        is_lost = self._is_cut(flight)
        if not is_lost:
            self.links.append(flight)
        words = message_words(envelope.message)
        self.print(f"{sender} -> {envelope.to} {words}{' (lost)' if is_lost else ''}")

    def _persist(self, member: Member) -> bool:
        """One trip to the disk. Returns whether there was anything."""
        writes = member.store.take_writes()
        state, sends = member.pending_state, member.pending_sends
        member.pending_state, member.pending_sends = None, []
        if writes is None and state is None and not sends:
            return False
        if state is not None:
            member.hard_state = state
            self.print(f"{member.name} persists term={state.term} vote={state.voted_for}")
        if writes is not None:
            member.store.write(writes, sync=True)
            node = member.live
            self.print(f"{member.name} persists log up to {node.end_index}@{node.end_term}")
            node.persisted(node.end_index, node.end_term, member.now_ms)
        if member.is_healing:
            member.impairment, member.is_healing = None, False
            self.print(f"{member.name} removes its mark")
            member.live.healed()
        for envelope in sends:
            self._send(member.name, envelope)
        self._settle(member)
        return True

    def _up(self) -> Iterator[Member]:
        return iter([member for member in self.members.values() if member.node is not None])

    def _settle(self, member: Member) -> None:
        """What a host does after an input, but for the disk."""
        node = member.live
        self._lay_out_term_start(member, node)
        step = node.next_configuration(member.now_ms)
        if step is not None:
            self._propose_configuration(member, step)
        self._carry_out(member, node.take_output(member.now_ms))
        if node.role is Role.LEADER and node.term_start_index < 0:
            self._lay_out_term_start(member, node)
            self._carry_out(member, node.take_output(member.now_ms))
        node.check_invariants()
        self._check_commit(member, node)

    def _lay_out_term_start(self, member: Member, node: Node) -> None:
        start = node.take_term_start()
        if start is not None:
            member.store.append_bodies(start.first_index, start.term, [f"start {start.term}".encode()])
            self.print(f"{member.name} appends its term start {start.first_index}@{start.term}")

    def _propose_configuration(self, member: Member, configuration: Configuration) -> None:
        proposal = member.live.propose_configuration(configuration, member.now_ms)
        if isinstance(proposal, Rejection):
            self.print(f"{member.name} refuses {proposal.code.name} leader={proposal.leader_id}")
            return
        body = encode_configuration(configuration)
        member.store.append_configuration(proposal.first_index, proposal.term, body)
        words = configuration_words(configuration)
        self.print(f"{member.name} appends {words} {proposal.first_index}@{proposal.term}")

    def _carry_out(self, member: Member, output: Output) -> None:
        for event in output.events:
            self.print(f"{member.name} {event_words(event)}")
        for operation in output.log_ops:
            self._apply(member, operation)
        for envelope in output.send_now:
            self._send(member.name, envelope)
        if output.hard_state is not None:
            member.pending_state = output.hard_state
        member.pending_sends += output.send_after_persist
        member.is_healing |= output.is_healed
        if output.commit_index != member.commit_index:
            self.print(f"{member.name} commits up to {output.commit_index}")
            member.commit_index = output.commit_index
        for completion in output.completions:
            indexes = range_words(completion.first_index, completion.last_index)
            self.print(f"{member.name} answers append {indexes} {completion.code.name}")

        for read in output.reads:
            words = f"{read.code.name} index={read.index}"
            self.print(f"{member.name} answers read {read.read_id - FIRST_ROUND} {words}")

    def _apply(self, member: Member, operation: LogOp) -> None:
        match operation:
            case Append(entries):
                member.store.append_range(entries)
                indexes = range_words(entries.first_index, entries.last_index)
                self.print(f"{member.name} appends {indexes}@{entries.term}")
            case TruncateFrom(index):
                member.store.truncate_from(index)
                self.print(f"{member.name} drops entries from {index}")
            case Reset(begin_index, begin_position):
                member.store.reset(begin_index, begin_position)
                self.print(f"{member.name} drops its log and begins at {begin_index}")

    def _check_commit(self, member: Member, node: Node) -> None:
        """State machine safety (Raft 5.4.3): what is committed is the same everywhere, for ever."""
        for index in range(max(0, node.begin_index), node.commit_index + 1):
            entry = member.store.entry(index)
            assert entry is not None, (member.name, index)
            known = self.committed.setdefault(index, entry.data)
            assert known == entry.data, f"{member.name} commits another entry {index}"

    def _status(self, member: Member) -> str:
        return f"{member.name} {status_words(member.live.status(member.now_ms))}"
