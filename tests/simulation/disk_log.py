"""The real entry store under the simulation, on a file system in memory that loses power.

Beside the store stands the model of `MemoryLog`: three lists of entries, taken from the store's own bytes as
they are appended. A power failure strikes between any two file operations of a batch, or of the recovery
itself; what the store then finds must be what the model allows.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commitlog.entry import HEADER_BYTES, entry_starts
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, Writes, open_entry_store
from dledger.core.types import EntryRange, LogState
from tests.simulation.invariants import require
from tests.support.memory_fs import MemoryFs, PowerLossError
from tests.support.memory_log import (
    AppendOp,
    LogImage,
    MemoryLog,
    MemoryWrites,
    ResetOp,
    StoredEntry,
    TruncateOp,
)

DIRECTORY = Path("/store/dledger")
STEPS_MAX = 24
"""A batch under way is cut off after this many file operations at most."""
CUTTING_STEPS_MAX = 9
"""And one that truncates or resets the log mostly so soon after that began."""


@dataclass(frozen=True, slots=True)
class DiskEntry(StoredEntry):
    """An entry in DLedger's layout."""

    @property
    def body(self) -> bytes:
        return self.data[HEADER_BYTES:]


@dataclass(frozen=True, slots=True)
class DiskWrites(MemoryWrites):
    """The model's operations and the store's own."""

    real: Writes


class DiskLog(MemoryLog):
    """A MemoryLog whose bytes are an EntryStore's. There is no retention in it."""

    def __init__(self, config: EntryStoreConfig) -> None:
        super().__init__(config.data_file_bytes)
        self.config = config
        self.power_losses = 0
        self.losses_while_cutting = 0
        """How many of them struck between the first and the last file operation of a truncation or reset."""
        self._interrupted: DiskWrites | None = None
        self._fs = MemoryFs()
        self._store = self._open()

    def _open(self) -> EntryStore:
        return open_entry_store(DIRECTORY, self.config, fs=self._fs, clock=lambda: 0.0)

    # ---- what the node reads

    @property
    def end_position(self) -> int:
        return self._store.end_position

    def log_state(self) -> LogState:
        state = self._store.log_state()
        ends = (state.begin_index, state.end_index, state.epochs)
        require(ends == (self.begin_index, self.end_index, self.epochs()), "the store says", ends)
        return state

    def position_of(self, index: int) -> int:
        return self._store.position_of(index)

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        return self._store.read_range(first_index, last_index, bytes_max)

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        return self._store.continues(entries, after)

    # ---- what the node writes

    def append_bodies(self, first_index: int, term: int, bodies: Sequence[bytes]) -> list[int]:
        positions = self._store.append_bodies(first_index, term, bodies)
        self._do(AppendOp(tuple(_entries_from(self._store, first_index))))
        return positions

    def verify_range(self, entries: EntryRange) -> None:
        self._store.verify_range(entries)

    def append_range(self, entries: EntryRange) -> None:
        self._store.append_range(entries)
        self._do(AppendOp(tuple(_entries_from(self._store, entries.first_index))))

    def truncate_from(self, index: int) -> None:
        self._store.truncate_from(index)
        super().truncate_from(index)

    def reset(self, begin_index: int, begin_position: int) -> None:
        self._store.reset(begin_index, begin_position)
        super().reset(begin_index, begin_position)

    # ---- the disk

    def take_writes(self) -> DiskWrites | None:
        real, model = self._store.take_writes(), super().take_writes()
        assert (real is None) == (model is None), (real, model)
        return None if real is None or model is None else DiskWrites(model.ops, real)

    def write(self, writes: MemoryWrites, sync: bool) -> None:
        """Without sync: the batch that is under way when the power fails."""
        assert isinstance(writes, DiskWrites)
        if sync:
            self._store.write(writes.real, sync=True)
            super().write(writes, sync=True)
        else:
            self._interrupted = writes

    def written(self, writes: MemoryWrites) -> None:
        assert isinstance(writes, DiskWrites)
        self._store.written(writes.real)

    def save_checkpoint(self, end_index: int, committed_index: int) -> None:
        self._store.save_checkpoint(end_index, committed_index)

    def crash(self, rng: random.Random | None = None) -> None:
        """Power fails, perhaps within a batch, and perhaps again while the store recovers.

        Sometimes only the process is killed: what recovery finds then must outlive the next power failure.
        """
        self.power_losses += 1
        rng = rng or random.Random(0)
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None:
            self._interrupt(interrupted, rng)
        if rng.random() < 0.7:
            self._fs = self._fs.crash(rng)
        while rng.random() < 0.3 and self._run_until_power_loss(self._open, rng):
            self.power_losses += 1
            self._fs = self._fs.crash(rng)
        self._reopen(interrupted)

    def kill(self) -> None:
        """The process ends, the machine goes on."""
        self._reopen(None)

    def wipe(self) -> None:
        self._fs = MemoryFs()
        self._store = self._open()
        super().wipe()

    def _interrupt(self, writes: DiskWrites, rng: random.Random) -> None:
        is_cutting = any(isinstance(op, TruncateOp | ResetOp) for op in writes.ops)
        if not is_cutting or rng.random() < 0.2:
            self._run_until_power_loss(lambda: self._store.write(writes.real, sync=True), rng)
            return
        has_begun = False
        steps = rng.randint(0, CUTTING_STEPS_MAX)

        def watch(operation: str, path: Path) -> None:
            nonlocal has_begun
            has_begun |= operation in ("set_size", "delete") or path.name.startswith(("synced", "checkpoint"))

        def count() -> None:
            nonlocal steps
            steps -= has_begun
            if steps < 0:
                raise PowerLossError

        self._fs.on_operation, self._fs.on_change = watch, count
        try:
            self._store.write(writes.real, sync=True)
        except PowerLossError:
            self.losses_while_cutting += 1
        finally:
            self._fs.on_operation, self._fs.on_change = lambda operation, path: None, lambda: None

    def _run_until_power_loss(self, work: Callable[[], object], rng: random.Random) -> bool:
        """Whether the power failed before `work` was done."""
        try:
            with self._fs.stopping_after(rng.randint(0, STEPS_MAX)):
                work()
        except PowerLossError:
            return True
        return False

    def _reopen(self, interrupted: DiskWrites | None) -> None:
        self._store = self._open()
        found = LogImage(
            self._store.begin_index,
            self._store.begin.begin_position,
            list(_entries_from(self._store, self._store.begin_index)),
        )
        states = [self.disk.copy()]
        for op in interrupted.ops if interrupted is not None else ():
            states.append(states[-1].copy())
            states[-1].apply(op)
        is_reset = interrupted is not None and any(isinstance(op, ResetOp) for op in interrupted.ops)
        require(
            _is_allowed(found, states) or (is_reset and not found.entries),
            "recovery finds", found.begin_index, "to", found.end_index, "of",
            [(state.begin_index, state.end_index) for state in states], interrupted and interrupted.ops,
        )  # fmt: skip
        self.disk = found
        self._restart()


def _is_allowed(found: LogImage, states: Sequence[LogImage]) -> bool:
    """Whether a log may be found when the power failed on the way through these states."""
    if len(states) == 1:
        return found == states[0]
    for before, after in itertools.pairwise(states):
        shorter, longer = sorted((before, after), key=lambda state: len(state.entries))
        if _is_prefix(shorter, found) and _is_prefix(found, longer):
            return True
    return False


def _is_prefix(one: LogImage, other: LogImage) -> bool:
    begins = (one.begin_index, one.begin_position) == (other.begin_index, other.begin_position)
    return begins and one.entries == other.entries[: len(one.entries)]


def _entries_from(store: EntryStore, index: int) -> Sequence[DiskEntry]:
    """Every entry from `index` on, read by ranges."""
    found: list[DiskEntry] = []
    while index <= store.end_index:
        entries = store.read_range(index, store.end_index, 1 << 16)
        store.verify_range(entries)
        data = bytes(entries.data)
        position = store.position_of(index)
        starts = entry_starts(data)
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            found.append(DiskEntry(index, entries.term, position + start, data[start:end]))
            index += 1
    return found
