"""Deletes a log's oldest data files: lists them with the age of their messages, and removes them."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from commitlog.entry import HEADER_BYTES
from commitlog.entry_store import EntryStore
from commitlog.errors import DamagedRecordError
from commitlog.indexed_log import IndexedLog


@dataclass(frozen=True, slots=True)
class OldFile:
    """A data file that is not the last one."""

    end_position: int
    next_index: int
    """The first entry behind it."""
    newest_ms: int | None
    """When its last record was stored, or its first if that was later; None when the last is damaged."""


class LogRemoval:
    """The interface of `broker.store.retention` to a log whose files can be deleted."""

    def __init__(
        self,
        entries: EntryStore,
        log: IndexedLog,
        committed_index: Callable[[], int],
        remove_before: Callable[[int], Awaitable[int]],
    ) -> None:
        """`remove_before` has the log begin with an entry, and deletes the files of earlier ones only."""
        self._entries = entries
        self._log = log
        self._committed_index = committed_index
        self._remove_before = remove_before
        self._newest_ms: dict[int, int] = {}

    @property
    def begin_position(self) -> int:
        return self._entries.begin.begin_position

    @property
    def end_position(self) -> int:
        return self._entries.end_position

    @property
    def file_bytes(self) -> int:
        return self._entries.config.data_file_bytes

    def position_of(self, index: int) -> int:
        """The position of an entry; the log's begin for one before it, its end for one behind."""
        if index > self._entries.end_index:
            return self._entries.end_position
        return self._entries.position_of(max(index, self._entries.begin_index))

    def used_ratio(self) -> float:
        """How full the file system is, 0 to 1."""
        return self._entries.used_ratio()

    def dispatched_index(self) -> int:
        """Up to here the consume queues on the disk are complete, and this node knows since its start that
        all is committed.
        """
        return min(self._log.queues.flushed_index, self._committed_index())

    def old_files(self) -> Iterator[OldFile]:
        """The oldest first; up to one whose end is not known."""
        first_index = self._entries.begin_index
        for end_position, next_index in self._entries.old_files():
            if next_index is None:
                return
            if next_index <= self._entries.begin_index:
                continue  # it is being deleted
            yield OldFile(
                end_position, next_index, self._newest_of(end_position, first_index, next_index - 1)
            )
            first_index = next_index

    def _newest_of(self, end_position: int, first_index: int, last_index: int) -> int | None:
        """The later of its first and its last record's time: the leader that wrote the last may have had a
        clock that was behind.
        """
        known = self._newest_ms.get(end_position)
        if known is None:
            times = [self._stored_ms(index) for index in (first_index, last_index)]
            known = max((time for time in times if time is not None), default=None)
            if times[1] is None or known is None:
                return None
            self._newest_ms[end_position] = known
        return known

    def _stored_ms(self, index: int) -> int | None:
        try:
            return self._log.store_timestamp_at(self._entries.position_of(index) + HEADER_BYTES)
        except DamagedRecordError:
            return None

    async def remove_before(self, file: OldFile) -> int:
        """Delete this file and all before it; how many. Raises OSError."""
        for end_position in [end for end in self._newest_ms if end <= file.end_position]:
            del self._newest_ms[end_position]
        removed = await self._remove_before(file.next_index)
        self._entries.close_removed()
        return removed
