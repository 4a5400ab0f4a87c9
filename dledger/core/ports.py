"""The interfaces that the core needs (`LogReader`, `Rng`), and the driver's view of a log (`LogStore`)."""

from collections.abc import Sequence
from typing import Any, Protocol

from dledger.core.membership import ConfigurationEntry
from dledger.core.types import EntryRange, LogState, Scrubbed


class Rng(Protocol):
    """Random numbers."""

    def between(self, low: int, high: int) -> int:
        """A number from low to high, both included."""


class LogReader(Protocol):
    """The core reads entries only to push them, and only as ranges."""

    @property
    def end_position(self) -> int:
        """First byte after the last entry."""

    def position_of(self, index: int) -> int:
        """Start position of the entry."""

    def read_range(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        """At least the entry first_index, none after last_index; one term, one data file.

        Not more than bytes_max, unless the first entry alone is larger. Raises DamagedEntryError when the
        entry first_index can't be read whole; what is damaged behind it only ends the range earlier.
        """

    def continues(self, entries: EntryRange, after: EntryRange | None) -> bool:
        """Whether the log could append these verified entries by the places that their bytes name: behind
        `after`, which it could append and does not hold yet, or at its end.
        """

    def configurations_in(self, entries: EntryRange) -> Sequence[ConfigurationEntry]:
        """The configurations among these verified entries, in their order."""


class LogStore(LogReader, Protocol):
    """The log of one node, as the driver uses it."""

    @property
    def begin_index(self) -> int: ...

    @property
    def end_index(self) -> int:
        """Last entry, including what is appended but not yet written; begin_index - 1 when empty."""

    def log_state(self) -> LogState: ...

    def append_bodies(self, first_index: int, term: int, bodies: Sequence[bytes]) -> list[int]:
        """Lays out new entries (header, append hook, body CRC); returns each entry's start position."""

    def append_configuration(self, index: int, term: int, body: bytes) -> int:
        """Lays out a new entry that is a configuration; returns its position."""

    def find_configurations(self) -> Sequence[ConfigurationEntry]:
        """All configurations of the log, which is read as a whole; before the node starts."""

    def verify_range(self, entries: EntryRange) -> None:
        """Checks header fields, index order, term, sizes and CRC, and that configurations can be read.

        Raises CorruptRangeError.
        """

    def append_range(self, entries: EntryRange) -> None:
        """Appends bytes as they came. Raises CorruptRangeError if they do not continue this log."""

    def truncate_from(self, index: int) -> None:
        """Drops the entries >= index."""

    def reset(self, begin_index: int, begin_position: int) -> None:
        """Drops everything; the log begins there, empty."""

    def take_writes(self) -> Any:
        """Loop thread: all changes since the last call, in order, for `write`; None when there are none."""

    def write(self, writes: Any, sync: bool) -> None:
        """Writer thread: writes all, then fdatasync if sync. OSError means the node must stop."""

    def steps_of(self, writes: Any, sync: bool) -> list[Any] | None:
        """Loop thread, while the writer thread is idle: what `write` would do, as steps for a NativeWriter.

        None when `write` has to do it: it needs more than steps, or the files are not the operating system's.
        When the steps are done, `steps_done` is called.
        """

    def steps_done(self, writes: Any, sync: bool, error: OSError | None) -> None:
        """Loop thread: the steps are done, or with an error the node must stop."""

    def written(self, writes: Any) -> None:
        """Loop thread: these bytes are in the files now."""

    def save_checkpoint(self, end_index: int, committed_index: int) -> None:
        """Writer thread: stores both numbers for the next start."""

    def replace_range(self, entries: EntryRange) -> None:
        """Writer thread: puts entries over the same indexes, terms, positions and sizes, synced.

        Raises CorruptRangeError if they do not fit; nothing was written then. OSError: the node must stop.
        """

    def scrub(self, bytes_max: int) -> Scrubbed:
        """Writer thread: reads and checks the next bytes of committed entries; after the last, the first
        again.
        """

    def begin_at(self, begin_index: int) -> None:
        """Loop thread: the log begins with this entry; the earlier ones, all written, are no longer part of
        it.
        """

    def remove_files(self) -> int:
        """Writer thread: makes the log's begin durable, then deletes the files before it; returns how many.

        In this order: after a crash in between, a log whose begin is not stored would look damaged.
        """

    def is_disk_full(self) -> bool: ...

    def close(self) -> None: ...
