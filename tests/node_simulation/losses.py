"""What a group with durability `replicated` may lose, and why it did.

Acknowledged means there: in the page caches of a majority. The kernel keeps those over the end of a process,
so that only a machine that loses power forgets, and only what it had not synced. A committed entry may be
replaced only when a majority lacks it, and a machine of these had it in its page cache when it lost power.
Whatever else is lost is a fault.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from commitlog.dledger_commit_log import store_directory
from commitlog.entry import HEADER_BYTES
from commitlog.record import Record, decode_record
from commitlog.segments import file_name
from tests.histories.operations import Drain, Operation, Outcome, Poll, Seek, Send
from tests.node_simulation.machine import Machine
from tests.simulation.invariants import require
from tests.support.memory_fs import MemoryFs

UNSYNCED_MS = 5_300
"""A node syncs what is older than 3 s, which it looks at once a second, by a clock that may be 5 % slow; the
jobs of its disk that are before that take a part of another second.
"""
DISK_STALLS = 4
"""Of a disk that stalls now and then: so many may come one after the other."""


@dataclass(frozen=True, slots=True)
class CommittedEntry:
    """An entry as its first committer had it."""

    term: int
    position: int
    data: bytes

    @property
    def record(self) -> Record:
        return decode_record(self.data, HEADER_BYTES)


@dataclass(slots=True)
class Disks:
    """The files of the members, and what a member can be asked to have kept."""

    machines: Mapping[str, Machine]
    root: Path
    data_file_bytes: int
    lost: dict[tuple[int, bytes], CommittedEntry] = field(default_factory=dict)
    """Every entry that was committed and lost, by index and bytes."""
    lost_bodies: set[bytes] = field(default_factory=set)

    def lose(self, first_index: int, entries: Iterable[CommittedEntry]) -> None:
        """These were committed, and no group has them any more."""
        for index, entry in enumerate(entries, first_index):
            self.lost[index, entry.data] = entry
            self.lost_bodies.add(entry.record.body)

    def is_lost(self, index: int, entry: CommittedEntry) -> bool:
        return (index, entry.data) in self.lost

    def was_lost(self, record: Record) -> bool:
        """Whether this was committed once, at its place in the log."""
        return any(
            entry.position + HEADER_BYTES == record.physical_offset and entry.record.body == record.body
            for entry in self.lost.values()
        )

    def holds(self, machine: Machine, entry: CommittedEntry) -> bool:
        """Whether the machine has what a node may promise to have."""
        return self.has(machine, entry.position, entry.data)

    def has(self, machine: Machine, position: int, data: bytes) -> bool:
        """Whether these bytes of one data file would survive a power failure of the machine now."""
        path, at = self._place(machine, position)
        return machine.fs.durable_slice(path, at, len(data)) == data

    def has_promised(self, machine: Machine, position: int, data: bytes) -> bool:
        """Whether a leader may count the machine for these bytes."""
        return self.has(machine, position, data)

    def has_written(self, machine: Machine, entry: CommittedEntry) -> bool:
        """Whether a process of the machine that starts now finds the entry."""
        return self._has(machine.fs, machine, entry.position, entry.data)

    def _has(self, fs: MemoryFs, machine: Machine, position: int, data: bytes) -> bool:
        path, at = self._place(machine, position)
        return fs.slice(path, at, len(data)) == data

    def _place(self, machine: Machine, position: int) -> tuple[Path, int]:
        start = position - position % self.data_file_bytes
        return store_directory(self.root, machine.name) / "data" / file_name(start), position - start


@dataclass(slots=True)
class PageCaches(Disks):
    """The same of durability `replicated`, and what power failures have taken."""

    losses: int = 0
    """How often a new leader lacked entries that were committed."""
    _before: dict[str, list[MemoryFs]] = field(default_factory=dict)
    """By machine, its files as they were when it lost power."""

    def loses_power(self, machine: Machine) -> None:
        """Called before it forgets what it has not synced."""
        if machine.name in self.machines:
            self._before.setdefault(machine.name, []).append(machine.fs)

    def check_age(self, machine: Machine) -> None:
        """Of a machine that is about to lose power: nothing stayed unsynced while its process ran."""
        if machine.name not in self.machines or not machine.is_running:
            return
        written_us = machine.fs.oldest_unsynced_us(store_directory(self.root, machine.name) / "data")
        if written_us is None:
            return
        disk, now_us = machine.surroundings.disk, machine.surroundings.clock.now_us
        stall_ms = DISK_STALLS * disk.stall_max_us // 1_000 if disk.stall_probability else 0
        age_ms = (now_us - max(written_us, machine.runs_since_us)) // 1_000
        require(age_ms <= UNSYNCED_MS + stall_ms, machine.name, "has not synced for", age_ms, "ms")

    def has(self, machine: Machine, position: int, data: bytes) -> bool:
        """Whether a process of the machine that starts now would find these bytes."""
        return self._has(machine.fs, machine, position, data)

    def has_promised(self, machine: Machine, position: int, data: bytes) -> bool:
        """Or would have found them before the machine lost power: its acknowledgement may still be on its
        way, and a leader does not take back what it has counted.
        """
        return self.has(machine, position, data) or self.has_lost(machine, position, data)

    def has_lost(self, machine: Machine, position: int, data: bytes) -> bool:
        """Whether a power failure has taken these bytes from the machine."""
        before = self._before.get(machine.name, ())
        return any(self._has(fs, machine, position, data) for fs in before) and not self.has(
            machine, position, data
        )

    def lose_at(self, leader: str, first_index: int, entries: list[CommittedEntry]) -> None:
        """A new leader has none of these, which were committed. InvariantError unless power failures explain
        it.
        """
        entry = entries[0]
        lacking = [machine for machine in self.machines.values() if not self.holds(machine, entry)]
        struck = [machine for machine in lacking if self.has_lost(machine, entry.position, entry.data)]
        names = [machine.name for machine in lacking]
        require(2 * len(lacking) > len(self.machines), leader, "leads without", first_index, "of", names)
        require(struck, leader, "leads without", first_index, "and no power failure took it from", names)
        self.losses += 1
        self.lose(first_index, entries)

    def is_stranded(self, machine: Machine, committed: list[CommittedEntry]) -> bool:
        """Whether the machine has an entry that its group has lost and replaced. If it knew it to be
        committed, it refuses to drop it.
        """
        return any(
            index < len(committed) and committed[index] != entry and self.holds(machine, entry)
            for (index, _), entry in self.lost.items()
        )


def without_lost(operations: Iterable[Operation], lost_bodies: set[bytes], reader: str) -> list[Operation]:
    """What producers and the last reader did, as if no answer had come for the messages that were lost since.

    Messages that came later may have the offsets of lost ones, so that a consumer that was behind these never
    sees the later ones: nothing is asked of consumers then.
    """
    lost = {body.partition(b".")[0] for body in lost_bodies}
    kept: list[Operation] = []
    for operation in operations:
        if isinstance(operation, Send):
            is_lost = any(value.encode() in lost for value in operation.values)
            unknown = replace(operation, outcome=Outcome.INFO, queue=None, offsets=(), tries=None)
            kept.append(unknown if is_lost else operation)
        elif isinstance(operation, Seek | Poll | Drain) and operation.process.startswith(reader):
            kept.append(operation)
    return kept
