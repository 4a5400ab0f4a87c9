"""What must hold of whole nodes, looked at after every turn of every node that changed.

The checker keeps its own record of what was ever committed, byte for byte, so that a node can't be wrong and
agree with itself.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from broker.app import Broker
from commitlog.consume_queues import NOT_QUEUED
from commitlog.dispatch import STATE_TOPIC, topics_deleted_by
from commitlog.entry import HEADER_BYTES, entry_position, entry_starts
from commitlog.record import Record
from dledger.core.membership import FIXED_MEMBERS_LEVEL, Configuration, ConfigurationEntry
from dledger.core.node import Node
from dledger.core.types import NO_INDEX, DamagedEntryError, EntryRange, Role
from dledger.server import DLedgerServer
from tests.node_simulation.losses import CommittedEntry, Disks, PageCaches
from tests.node_simulation.machine import Machine
from tests.simulation.invariants import require
from tests.support.memory_fs import MemoryFs

READ_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class NodeRecord:
    """What the checker remembers of a node: of its present life, and of the terms it led in any life."""

    life: int = 0
    term: int = 0
    role: Role = Role.FOLLOWER
    commit_index: int = NO_INDEX
    led_term: int = 0


@dataclass(slots=True)
class Checker:
    """`machines`: the members of the group; `disks`: PageCaches when durability is `replicated`."""

    machines: dict[str, Machine]
    disks: Disks
    committed: list[CommittedEntry] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    elections: int = 0
    damaged: set[str] = field(default_factory=set)
    """Nodes whose disks were damaged, and may not be sound yet: they count as holding what they promised."""
    ever_damaged: set[str] = field(default_factory=set)
    """All of these ever: a bit of a consume queue may be found long after the log is sound again."""
    deletions: dict[str, list[int]] = field(default_factory=dict)
    """By topic, the entries that delete it: behind each its queues begin at offset 0."""
    are_members_changing: bool = False
    wiped: set[str] = field(default_factory=set)
    """Nodes whose disks were damaged and that are no members, or were not then."""
    joined: set[str] = field(default_factory=set)
    """Nodes that were no members at first."""
    configuration: ConfigurationEntry | None = None
    """The newest one that a node has called committed."""
    in_use: dict[str, ConfigurationEntry] = field(default_factory=dict)
    """By node, the newest configuration in its log when it last ran."""
    is_old: Callable[[Machine], bool] = lambda machine: False
    """Whether it runs the release before."""
    may_lose: bool = False
    """Whether an operator may give up what only gone machines have."""
    decision: ConfigurationEntry | None = None
    """The last one of an operator, with which another generation of the group began."""
    outdated: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of members of an earlier generation with their old files: index and term of their last entry."""
    _commit_terms: list[int] = field(default_factory=list)
    """By index, the term in which the entry was first known to be committed."""
    _nodes: dict[str, NodeRecord] = field(default_factory=dict)
    _index_of: dict[int, int] = field(default_factory=dict)
    _next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def commit_index(self) -> int:
        """The highest index any node ever called committed."""
        return len(self.committed) - 1

    def turned(self, machine: Machine) -> None:
        """After every turn of a node's loop."""
        process = machine.process
        if process is None or process.broker is None:
            return
        node = node_of(process.broker)
        record = self._nodes.setdefault(machine.name, NodeRecord())
        if record.life != machine.lives:
            # The only voter may use a term again of which nothing became durable, its own vote included.
            is_alone = node.members.is_alone and record.led_term not in self._commit_terms
            forgot = machine.name in self.damaged or machine.name in self.wiped
            knows = is_alone or forgot or node.term >= record.led_term
            require(knows, machine.name, "forgot that it led term", record.led_term)
            record.life, record.term, record.commit_index = machine.lives, node.term, NO_INDEX
            record.role = Role.FOLLOWER
        elif (record.term, record.role, record.commit_index) == (node.term, node.role, node.commit_index):
            if self.are_members_changing:
                self._note_membership(machine.name, node)
            return
        self._check(machine, record, node, engine_of(process.broker))

    def forget(self, name: str) -> None:
        """It is a member no more, and its files may be gone."""
        if name in self.damaged:
            self.damaged.remove(name)
            self.wiped.add(name)
        self.in_use.pop(name, None)

    def known_ids(self) -> set[str]:
        """Who is a member in the last committed configuration, or in one that may be committed yet: it is in
        the log of a voter. A learner that no other node knows leads no one.
        """
        last = self.configuration
        if last is None:
            return {each for entry in self.in_use.values() for each in entry.configuration.ids}
        later = [
            entry
            for name, entry in self.in_use.items()
            if (entry.term, entry.index) > (last.term, last.index)
            and name in {*last.configuration.voters, *entry.configuration.voters}
        ]
        return {each for entry in (last, *later) for each in entry.configuration.ids}

    @property
    def newest(self) -> ConfigurationEntry:
        """In any node's log: some are committed only when a machine has moved as they say."""
        return max(self.in_use.values(), key=lambda entry: (entry.term, entry.index))

    def _note_membership(self, name: str, node: Node) -> None:
        """A leader changes its group by steps between which each majority shares a member with each (thesis
        4.1), and begins one only when the step before it and an entry of its own term are committed.
        """
        members, old = node.members, self.in_use.get(name)
        if members.latest != old:
            if old is not None and node.role is Role.LEADER:
                steps = [old, *(entry for entry in _entries_of(node) if entry.index > old.index)]
                for one, other in pairwise(steps):
                    if other.term == node.term:
                        self._check_step(name, node, one, other)
            self.in_use[name] = members.latest
            self._check_level(name, members.configuration)
        committed = members.at(node.commit_index)
        is_of_group = committed.index != NO_INDEX or name not in self.joined
        if is_of_group and (self.configuration is None or committed.index > self.configuration.index):
            self.configuration = committed

    def _check_level(self, name: str, configuration: Configuration) -> None:
        """A node of the release before could not read what a higher format level has."""
        if configuration.format_level > FIXED_MEMBERS_LEVEL:
            old = [
                each
                for each in configuration.ids
                if each in self.machines and self.is_old(self.machines[each])
            ]
            require(not old, name, "raises the format level to", configuration.format_level, "with", old)

    def _check_step(self, name: str, node: Node, old: ConfigurationEntry, new: ConfigurationEntry) -> None:
        require(overlap(old.configuration, new.configuration), name, "steps from", old, "to", new)
        require(old.index <= node.commit_index, name, "goes on to", new, "and has not committed", old)
        is_own = node.term_at(new.index - 1) == node.term
        require(is_own, name, "changes members before an entry of its own term:", new)

    def _check_leader_knows_members(self, name: str, node: Node) -> None:
        """No majority that has elected it is without one of any majority that committed (thesis 4.1)."""
        known, entry = self.configuration, node.members.latest
        if known is None or known.index >= len(self._commit_terms):
            return
        if known.index == NO_INDEX or self._commit_terms[known.index] < node.term:
            require(entry.index >= known.index, name, "leads with", entry, "after", known, "was committed")
            require(overlap(entry.configuration, known.configuration), name, "leads with", entry, known)

    def removed_turned(self, machine: Machine) -> None:
        """Of a machine that is no member any more: it does not lead in a term in which another one does."""
        process = machine.process
        if process is None or process.broker is None:
            return
        node = node_of(process.broker)
        if node.role is Role.LEADER:
            first = self.leaders.setdefault(node.term, machine.name)
            require(first == machine.name, "two leaders in term", node.term, first, machine.name)
        if machine.name in self.outdated:
            self._check_outdated(machine.name, node)

    def _check_outdated(self, name: str, node: Node) -> None:
        """A minority of an earlier generation elects no leader, and takes nothing of a later one's."""
        require(node.role is not Role.LEADER, name, "of an earlier generation leads in term", node.term)
        assert self.decision is not None
        is_old = node.term < self.decision.term
        require(is_old, name, "of an earlier generation has term", node.term, "of a later one")
        last = node.last_entry()
        require(last == self.outdated[name], name, "of an earlier generation has", last, self.outdated[name])

    def recovered(self, machine: Machine, first_lost: int, decision: ConfigurationEntry) -> int:
        """An operator has made this machine the only voter. What was committed from this index on is lost,
        and nothing else ever. Returns how many entries that are.
        """
        name, term_max = machine.name, max(self.leaders, default=0)
        require(decision.term > term_max, name, "goes on in term", decision.term, "after", term_max)
        lost = self.committed[first_lost:]
        self.disks.lose(first_lost, lost)
        self._commit_again(self.committed[:first_lost], self._commit_terms[:first_lost])
        self.decision = self.configuration = decision
        return len(lost)

    def _is_majority(self, node: Node, index: int, holders: list[str]) -> bool:
        """By a configuration that was in force when the entry was appended, or later."""
        first = node.members.at(index).index
        voters = [set(entry.configuration.voters) for entry in _entries_of(node) if entry.index >= first]
        return any(2 * len(each.intersection(holders)) > len(each) for each in voters)

    def ends(self, machine: Machine, is_power_lost: bool) -> None:
        """Called before a process ends within a turn: it may have answered what it committed in this turn."""
        if is_power_lost and isinstance(self.disks, PageCaches):
            self.disks.check_age(machine)
        process = machine.process
        is_member = machine.name in self._nodes and machine.name in self.machines
        is_node = is_member and process is not None and process.broker is not None
        if not (is_node and (self.may_lose or isinstance(self.disks, PageCaches))):
            return
        assert process is not None
        assert process.broker is not None
        node, record = node_of(process.broker), self._nodes[machine.name]
        if record.life == machine.lives and node.commit_index > record.commit_index:
            self._advance(machine.name, record, node, engine_of(process.broker))

    def _check(self, machine: Machine, record: NodeRecord, node: Node, engine: DLedgerServer) -> None:
        node.check_invariants()
        name = machine.name
        require(node.term >= record.term, name, "term falls", record.term, node.term)
        record.term = node.term
        self._note_membership(name, node)
        require(node.commit_index <= node.end_index, name, "commit above end", node.commit_index)
        if node.role is Role.LEADER and (record.role is not Role.LEADER or record.led_term != node.term):
            first = self.leaders.setdefault(node.term, name)
            require(first == name, "two leaders in term", node.term, first, name)
            record.led_term = node.term
            self.elections += 1
            if isinstance(self.disks, PageCaches):
                self._forget_lost(name, node, self.disks)
            self.check_epochs(name, engine)
            self._check_leader_knows_members(name, node)
        record.role = node.role
        if node.commit_index != record.commit_index:
            require(node.commit_index > record.commit_index, name, "commit falls to", node.commit_index)
            self._advance(name, record, node, engine)

    def _forget_lost(self, name: str, node: Node, caches: PageCaches) -> None:
        """A new leader has everything that was committed in earlier terms (Raft 5.4.3), or power failures
        have taken it: then it counts as never committed.
        """

        def lacks(index: int) -> bool:
            return index >= node.begin_index and node.term_at(index) != self.committed[index].term

        end = bisect_left(self._commit_terms, node.term)
        first = bisect_left(range(end), True, key=lacks)  # logs are equal before it (5.3, Log Matching)
        if first < end:
            caches.lose_at(name, first, self.committed[first:])
            self._commit_again(self.committed[:first], self._commit_terms[:first])

    def _commit_again(self, committed: list[CommittedEntry], terms: list[int]) -> None:
        self.committed, self._commit_terms = [], []
        for known in (self._index_of, self._next_offsets, self.deletions):
            known.clear()
        for index, (entry, term) in enumerate(zip(committed, terms, strict=True)):
            self._append(index, entry, term)

    def _advance(self, name: str, record: NodeRecord, node: Node, engine: DLedgerServer) -> None:
        index = max(min(record.commit_index, self.commit_index) + 1, node.begin_index)
        while index <= node.commit_index:
            try:
                with unharmed(self.machines[name].fs):
                    found = engine._store.read_range(index, node.commit_index, READ_BYTES_MAX)
            except DamagedEntryError as error:
                require(name in self.damaged, name, "cannot read", error)
                index = error.last_index + 1
                continue
            self._take(name, node, found)
            index = found.last_index + 1
        record.commit_index = node.commit_index

    def _take(self, name: str, node: Node, found: EntryRange) -> None:
        """These entries are committed, says the node."""
        data = bytes(found.data)
        starts = entry_starts(data)
        position = entry_position(data)
        if found.last_index > self.commit_index:
            self._check_majority(node, found, data, position, starts)
        for index, start, end in zip(
            range(found.first_index, found.last_index + 1), starts, [*starts[1:], len(data)], strict=True
        ):
            entry = CommittedEntry(found.term, position + start, data[start:end])
            if self._is_only_left_over(index, entry, node):
                continue
            if index <= self.commit_index:
                require(
                    entry == self.committed[index],
                    name, "commits other bytes of term", entry.term, "at", index,
                )  # fmt: skip
            else:
                require(index == self.commit_index + 1, name, "commits", index, "with a gap")
                self._append(index, entry, node.term)

    def _is_only_left_over(self, index: int, entry: CommittedEntry, node: Node) -> bool:
        """Whether the group has lost this entry: the node still has it, and does not let it be taken away,
        but only a leader can bring it back.
        """
        is_known = index <= self.commit_index and self.committed[index] == entry
        is_lost = isinstance(self.disks, PageCaches) and self.disks.is_lost(index, entry)
        return is_lost and not is_known and node.role is not Role.LEADER

    def _append(self, index: int, entry: CommittedEntry, term: int) -> None:
        last = self.decision
        is_of_generation = last is None or index < last.index or entry.term >= last.term
        require(is_of_generation, "entry", index, "of term", entry.term, "is of an earlier generation")
        self.committed.append(entry)
        self._commit_terms.append(max([term, *self._commit_terms[-1:]]))
        self._index_of[entry.position + HEADER_BYTES] = index
        record = entry.record
        require(record.physical_offset == entry.position + HEADER_BYTES, "physical offset at", index)
        if record.sys_flag & NOT_QUEUED != NOT_QUEUED:
            key = (record.topic, record.queue_id)
            expected = self._next_offsets.get(key, 0)
            require(record.queue_offset == expected, key, "has offset", record.queue_offset, "for", expected)
            self._next_offsets[key] = expected + 1
        if record.topic == STATE_TOPIC:
            for topic in topics_deleted_by(record.properties):
                self.deletions.setdefault(topic, []).append(index)
                for key in [key for key in self._next_offsets if key[0] == topic]:
                    self._next_offsets[key] = 0

    def _check_majority(
        self, node: Node, found: EntryRange, data: bytes, position: int, starts: list[int]
    ) -> None:
        """What is committed for the first time is on the disks of a majority, synced."""
        start = starts[max(0, self.commit_index + 1 - found.first_index)]
        holders = [
            machine.name
            for machine in self.machines.values()
            if machine.name in self.damaged
            or self.disks.has_promised(machine, position + start, data[start:])
        ]
        require(
            self._is_majority(node, max(found.first_index, self.commit_index + 1), holders),
            node.config.self_id, "commits", found.first_index, "to", found.last_index,
            "that is on the disks of", holders,
        )  # fmt: skip

    # -- what clients are shown

    def shown(self, name: str, record: Record) -> None:
        """A pull answered with this record: it is committed, and no other stands there."""
        if self.disks.was_lost(record):
            return
        index = self._index_of.get(record.physical_offset)
        require(index is not None, name, "shows what is not committed, at", record.physical_offset)
        assert index is not None
        known = self.committed[index].record
        require(
            (known.topic, known.queue_id, known.queue_offset, known.body)
            == (record.topic, record.queue_id, record.queue_offset, record.body),
            name, "shows another record at", record.physical_offset,
        )  # fmt: skip

    # -- whole nodes

    def check_epochs(self, name: str, engine: DLedgerServer) -> None:
        """The epochs of what the node knows to be committed are those of the committed entries. A leader that
        was left behind may have entries of its own where others are committed.
        """
        status = engine.status()
        for epoch in status.epochs:
            if epoch.first_index <= min(status.commit_index, self.commit_index):
                entry = self.committed[epoch.first_index]
                require(entry.term == epoch.term, name, "epoch", epoch, "but the entry has", entry.term)
                is_first = epoch is status.epochs[0]  # the log may begin within it
                before = NO_INDEX if is_first else self.committed[epoch.first_index - 1].term
                require(before < epoch.term, name, "epoch", epoch, "begins late")

    def missing(self, machine: Machine) -> int:
        """The first committed entry from its log's begin on that the node's disk does not hold, -1 if it has
        all.
        """
        process = machine.process
        begin = (
            node_of(process.broker).begin_index if process is not None and process.broker is not None else 0
        )
        for index, entry in enumerate(self.committed[begin:], begin):
            if not self.disks.holds(machine, entry):
                return index
        return NO_INDEX

    def check_logs(self) -> None:
        """Every node's log holds everything committed, as durably as it promises. For the end of a run."""
        for machine in self.machines.values():
            index = self.missing(machine)
            require(index == NO_INDEX, machine.name, "does not hold", index, "of", self.commit_index)


@contextlib.contextmanager
def unharmed(fs: MemoryFs) -> Iterator[None]:
    """What the checker reads is read without the faults that are meant for the node."""
    faults, fs.faults = fs.faults, []
    try:
        yield
    finally:
        fs.faults = faults


def _entries_of(node: Node) -> Sequence[ConfigurationEntry]:
    """The configurations of its log, and the one before it."""
    history = node.members.history
    return (node.members.latest,) if history is None else history.entries


def overlap(one: Configuration, other: Configuration) -> bool:
    """Whether each majority of one has a member in common with each of the other."""
    first, second = set(one.voters), set(other.voters)
    needed = max(0, one.quorum - len(first - second)) + max(0, other.quorum - len(second - first))
    return needed > len(first & second)


def engine_of(broker: Broker) -> DLedgerServer:
    engine = broker.core.engine
    assert isinstance(engine, DLedgerServer), engine
    return engine


def node_of(broker: Broker) -> Node:
    return engine_of(broker)._node
