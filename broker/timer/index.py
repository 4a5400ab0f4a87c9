"""Index of waiting timer messages by time: derived from the timer queue, and built again when it is lost.

The newest rows are in memory, at most ROWS_IN_MEMORY_MAX; then they become a run on the disk. Of what is on
the disk, memory holds a block of each run and one bit a row (PendingSet). Runs are joined when there are
many.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Generator, Iterator
from heapq import merge
from itertools import islice

from broker.timer.index_store import Checkpoint, PendingSet, Run, RunStore
from broker.timer.records import Row, first_at, offset_of, unpack

ROWS_IN_MEMORY_MAX = 8_192
UNSAVED_RECORDS_MAX = 20_000
"""Records of the queue that a node reads again after a crash."""
RUNS_MAX = 8
JOINED_RUNS = 6
JOIN_STEP_ROWS = 1_000
TRIM_ROWS = 20_000
"""Rows of ended messages that are removed from memory at once."""


class TimerIndex:
    """Rows of the timer queue below offset `end` that still wait. Methods that read or write runs raise
    DamagedRunError and OSError: then `clear` it.
    """

    def __init__(self, store: RunStore, rows_max: int = ROWS_IN_MEMORY_MAX) -> None:
        self._store = store
        self._rows_max = rows_max
        self.life = 0
        """Changes when the index is cleared."""
        self._begin()

    def _begin(self) -> None:
        self.end = 0
        self.position = -1
        """Of the record before `end`."""
        self.last_delivery = -1
        """Offset of the last record of deliveries below `end`."""
        self.pending = PendingSet()
        self._near: list[bytes] = []
        self._near_at = 0
        self._runs: list[Run] = []
        self._obsolete: list[Run] = []
        """Runs that the last checkpoint still names."""
        self._joined: list[Run] = []
        """Runs that are being joined."""
        self._unsaved = 0

    def restore(self) -> None:
        """Load the saved checkpoint and runs, if they are usable."""
        found = self._store.load()
        if found is not None:
            checkpoint, self._runs = found
            self.end, self.position = checkpoint.end, checkpoint.position
            self.last_delivery, self.pending = checkpoint.last_delivery, checkpoint.pending

    def clear(self) -> None:
        """Begin at the beginning of the queue."""
        self.close()
        self.life += 1
        self._begin()
        self._store.clear()

    def close(self) -> None:
        for run in self._runs + self._obsolete:
            run.close()

    def add(self, row: Row) -> None:
        """Add a message that waits from now on, or again."""
        self.pending.add(row.offset)
        insort(self._near, row.pack(), lo=self._near_at)

    def remove(self, offset: int) -> bool:
        """End a waiting message; whether it waited."""
        return self.pending.remove(offset)

    def move_to(self, end: int, position: int) -> None:
        """All of the queue below `end` is in here."""
        assert end >= self.end, f"the index goes back from {self.end} to {end}"
        self._unsaved += end - self.end
        self.end, self.position = end, position

    def due(self, until_ms: int, most: int, passed_over: Collection[int] = ()) -> list[Row]:
        """The first rows up to this time, in order."""
        found: dict[int, Row] = {}
        end = first_at(until_ms + 1)
        for data in self._waiting():
            if data >= end or len(found) >= most:
                break
            offset = offset_of(data)
            if offset in self.pending and offset not in passed_over:
                found.setdefault(offset, unpack(data))
        return list(found.values())

    def next_wake_ms(self) -> int | None:
        """The time of the first row."""
        first = next(self._waiting(), None)
        return None if first is None else unpack(first).wake_ms

    def find(self, key: bytes, from_ms: int, until_ms: int) -> list[Row]:
        """Messages with this key of the times from `from_ms` up to `until_ms`, which is not one of them."""
        begin, end = first_at(from_ms), first_at(until_ms)
        near = (data for data in self._near if begin <= data < end and data.endswith(key))
        rows = [unpack(data) for data in near]
        rows += [unpack(data) for run in self._runs for data in run.find(key, from_ms, until_ms)]
        by_offset = {row.offset: row for row in rows if row.is_message and row.offset in self.pending}
        return [by_offset[offset] for offset in sorted(by_offset)]

    def count_at(self, wake_ms: int) -> int:
        """How many rows have this time, those of ended messages among them."""
        first, end = first_at(wake_ms), first_at(wake_ms + 1)
        begin = self._near_at
        near = bisect_left(self._near, end, lo=begin) - bisect_left(self._near, first, lo=begin)
        return near + sum(run.lower_bound(wake_ms + 1) - run.lower_bound(wake_ms) for run in self._runs)

    @property
    def wants_save(self) -> bool:
        return len(self._near) - self._near_at >= self._rows_max or self._unsaved >= UNSAVED_RECORDS_MAX

    def save(self) -> None:
        """Write the rows in memory as a run, then the checkpoint that names all runs.

        The order counts: a crash before the checkpoint leaves a run that no checkpoint names, which the next
        start deletes. Joined runs are deleted last, when no checkpoint names them any more.
        """
        self.trim()
        rows = [row for row in self._near[self._near_at :] if offset_of(row) in self.pending]
        if rows:
            writer = self._store.new_run()
            try:
                writer.add(rows)
            except BaseException:
                writer.abandon()
                raise
            self._runs.append(writer.finish())
        self._near, self._near_at = [], 0
        extents = tuple(run.extent for run in self._runs)
        self._store.save(Checkpoint(self.end, self.position, self.last_delivery, extents, self.pending))
        self._unsaved = 0
        obsolete, self._obsolete = self._obsolete, []
        for run in obsolete:
            run.delete()

    def join_runs(self) -> Generator[None]:
        """Make one run of the smallest ones, a step at a time; nothing while there are few."""
        if len(self._runs) <= RUNS_MAX:
            return
        joined = self._joined = sorted(self._runs, key=lambda run: run.left)[:JOINED_RUNS]
        writer = self._store.new_run()
        try:
            rows = merge(*[run.from_row(run.at) for run in joined])
            for stretch in iter(lambda: list(islice(rows, JOIN_STEP_ROWS)), []):
                writer.add([row for row in stretch if offset_of(row) in self.pending])
                yield
        except BaseException:
            writer.abandon()
            raise
        finally:
            self._joined = []
        self._runs = [run for run in self._runs if run not in joined] + [writer.finish()]
        self._obsolete += joined
        self.save()

    def trim(self, most: int = 1 << 62) -> bool:
        """Skip the rows of ended messages at the front of each run; whether all were skipped."""
        while self._near_at < len(self._near) and offset_of(self._near[self._near_at]) not in self.pending:
            self._near_at += 1
        if self._near_at > TRIM_ROWS // 20:
            del self._near[: self._near_at]
            self._near_at = 0
        for run in self._runs:
            while run.left and offset_of(run.row(run.at)) not in self.pending:
                run.at += 1
                most -= 1
                if not most:
                    return False
        finished = [run for run in self._runs if not run.left and run not in self._joined]
        if finished:
            self._runs = [run for run in self._runs if run not in finished]
            self._obsolete += finished
        return True

    def _waiting(self) -> Iterator[bytes]:
        """All rows in order. The first is of a waiting message; the others may be of ended ones."""
        self.trim()
        near = islice(self._near, self._near_at, None)
        return merge(near, *[run.from_row(run.at) for run in self._runs])
