"""The key index: finds messages by key for QUERY_MESSAGE. As RocketMQ's IndexService.

Derived from the log on every node: a hit only says that the record at this position may have the key, and the
reader of the record decides. The keys of the newest range of the log are in memory, those of each older range
in a file (`commitlog/key_segment.py`).

Maintenance is one task. It writes full segments to their files, reads entries that are in no segment from the
log again, merges small neighbouring files and deletes old ones. It reads the log in bounded ranges and pauses
in between, so that building a whole index again uses a small part of the node's time.
"""

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from commitlog.dispatch import DispatchBatch, RecordRange
from commitlog.errors import DamagedRecordError
from commitlog.key_segment import (
    DIRECTORY,
    DamagedKeyFileError,
    OpenSegment,
    SealedSegment,
    key_units,
    load_segments,
    write_segment,
)
from commitlog.log import MessageLog
from dledger.core.types import NO_INDEX
from dledger.fs import Fs

logger = logging.getLogger(__name__)

HITS_PER_STEP: Final = 64
"""Hits that one step in a thread searches for."""
UNWRITTEN_MAX: Final = 2
"""Full segments that wait in memory for their file; beyond this the oldest is dropped, and its range of the
log is read again later."""


@dataclass(frozen=True, slots=True)
class KeyIndexConfig:
    """Sizes of the key index."""

    units_max: int = 512 * 1024
    """Keys in a segment, 8 bytes each: in memory while it grows, and twice while it is written."""
    span_bytes_max: int = 1 << 30
    """Bytes of the log that a segment covers: a restart after a crash reads at most so many again. Less than
    the 4 GiB that a unit's position can distinguish."""


class KeyIndex:
    """The segments. All methods are called on the event loop; code that changes or reads files holds the lock
    `files`.
    """

    def __init__(
        self,
        fs: Fs,
        store: Path,
        log: MessageLog,
        config: KeyIndexConfig | None = None,
        end_position: int | None = None,
    ) -> None:
        """Continues with the files of this log, which ends at `end_position`, if that is known.

        Raises OSError.
        """
        self.config = config or KeyIndexConfig()
        self.directory = store / DIRECTORY
        self.fs = fs
        self.log = log
        # One task at a time may change or read the files: a search opens a file between two steps of a merge,
        # which deletes the files that it has merged.
        self.files = asyncio.Lock()
        self.on_work: Callable[[], None] = lambda: None
        """Called when there is something to write, or to read from the log again."""
        self.unwritten: list[OpenSegment] = []
        """Full segments, the oldest first."""
        self.live: OpenSegment | None = None
        fs.make_directory(self.directory, is_durable=False)
        self.sealed = load_segments(fs, self.directory)
        """By where they begin."""
        self._drop_foreign(end_position)
        self._floor_index = 0

    def on_batch(self, batch: DispatchBatch) -> None:
        """Add what was dispatched; a DispatchListener."""
        records = batch.records
        if records is None:
            return
        live = self.live
        if live is None or records.begin_index != live.last_index + 1:
            live = self._live_for(records)
        if live is None:
            return
        end_position = records.end_position
        if not self.fits(live, end_position):
            self.roll()
            live = self.live = OpenSegment(records.begin_index, records.position)
        live.add(records.last_index, end_position, key_units(records))

    def fits(self, segment: OpenSegment, end_position: int) -> bool:
        """Whether a segment has room for records that end there. An empty one always has."""
        if segment.last_index < segment.begin_index:
            return True
        is_near = end_position - segment.begin_position <= self.config.span_bytes_max
        return is_near and segment.unit_count < self.config.units_max

    def roll(self) -> None:
        """Close the segment in memory, and have it written to a file."""
        if self.live is not None and self.live.last_index >= self.live.begin_index:
            self.unwritten.append(self.live)
            self.on_work()
        self.live = None
        while len(self.unwritten) > UNWRITTEN_MAX:
            given_up = self.unwritten.pop(0)
            logger.warning(
                "the key index is not written fast enough: it will read entries %d to %d again",
                given_up.begin_index,
                given_up.last_index,
            )

    def gaps(self) -> list[tuple[int, int]]:
        """First and last index of each range of entries that are dispatched but in no segment."""
        found = []
        index, applied_index = self._floor_index, self.log.applied_index
        for begin_index, last_index in sorted(self._covered()):
            if index < begin_index and index <= applied_index:
                found.append((index, min(begin_index - 1, applied_index)))
            index = max(index, last_index + 1)
        if index <= applied_index:
            found.append((index, applied_index))
        return found

    async def hits(self, word: bytes, begin_ms: int, end_ms: int) -> AsyncGenerator[int]:
        """Positions of records that may have the key of this hash and may have been stored between these
        times, the newest first. Some positions are wrong, and some come twice: the caller checks the records.
        """
        before_index = None
        while (segment := self._newest_before(before_index)) is not None:
            before_index = segment.extent.begin_index
            if not segment.extent.overlaps(begin_ms, end_ms):
                continue
            async with self.files:
                if self._newest_before(before_index + 1) is not segment:
                    before_index += 1  # replaced while the lock was held by another task
                    continue
                found = segment.newest(word, begin_ms, end_ms)
                positions = await self._begin(segment, found)
            while positions:
                for position in positions:
                    yield position
                positions = await asyncio.to_thread(_some, found)

    def add(self, segment: SealedSegment) -> None:
        """This segment is in its file now."""
        insort(self.sealed, segment, key=lambda each: each.extent.begin_index)

    def delete(self, segment: SealedSegment) -> None:
        """Drop a segment and delete its file. Raises OSError."""
        if segment in self.sealed:
            self.sealed.remove(segment)
            if segment.path.name in self.fs.list(self.directory):
                self.fs.delete(segment.path)

    def drop_before(self, position: int) -> None:
        """Delete the files that cover only records before a position of the log. Raises OSError."""
        while self.sealed and self.sealed[0].extent.end_position <= position:
            self._floor_index = self.sealed[0].extent.last_index + 1
            self.delete(self.sealed[0])

    @property
    def last_update(self) -> tuple[int, int]:
        """The store time of the last record with a key, and the position at which the index ends."""
        segments = [each.extent for each in self.sealed]
        segments += [each.extent for each in (*self.unwritten, self.live) if each is not None]
        return (
            max((each.latest_ms for each in segments if each.unit_count), default=0),
            max((each.end_position for each in segments), default=0),
        )

    def _live_for(self, records: RecordRange) -> OpenSegment | None:
        """A new segment for records that do not follow the one in memory; None when the index has some of
        them already.
        """
        if records.begin_index <= max((last for _, last in self._covered()), default=NO_INDEX):
            return None
        self.roll()
        self.live = OpenSegment(records.begin_index, records.position)
        self.on_work()
        return self.live

    def _covered(self) -> Iterator[tuple[int, int]]:
        for segment in self.sealed:
            yield segment.extent.begin_index, segment.extent.last_index
        for open_segment in (*self.unwritten, self.live):
            if open_segment is not None:
                yield open_segment.begin_index, open_segment.last_index

    def _newest_before(self, index: int | None) -> OpenSegment | SealedSegment | None:
        """The newest segment that begins before an index; of all, without one."""
        opened = [*self.unwritten, self.live]
        for segment in reversed(opened):
            if segment is not None and (index is None or segment.begin_index < index):
                return segment
        at = len(self.sealed)
        if index is not None:
            at = bisect_left(self.sealed, index, key=lambda each: each.extent.begin_index)
        return self.sealed[at - 1] if at else None

    async def _begin(self, segment: OpenSegment | SealedSegment, found: Iterator[int]) -> Sequence[int]:
        """The first of a segment's hits. Reads the file, while the caller holds the lock."""
        try:
            return await asyncio.to_thread(_some, found)
        except DamagedKeyFileError as error:
            logger.warning("%s; it will be built again from the log", error)
            assert isinstance(segment, SealedSegment), segment
            self.delete(segment)
            self.on_work()
            return ()

    def _drop_foreign(self, end_position: int | None) -> None:
        """Delete files of what this log does not have."""
        for segment in list(self.sealed):
            if end_position is not None and segment.extent.end_position > end_position:
                self.delete(segment)
        if self.sealed and not self._is_of_log(self.sealed[-1]):
            logger.warning("%s: not of this log, building all of it again", self.directory)
            for segment in list(self.sealed):
                self.delete(segment)

    def _is_of_log(self, segment: SealedSegment) -> bool:
        extent = segment.extent
        if extent.end_position <= self.log.min_position:
            return True
        try:
            return self.log.end_of(extent.last_index) == extent.end_position
        except DamagedRecordError:
            return True


def _some(found: Iterator[int]) -> list[int]:
    return list(islice(found, HITS_PER_STEP))


_P = ParamSpec("_P")
_T = TypeVar("_T")

CHECK_INTERVAL_S: Final = 10.0
REST_PER_WORK: Final = 4.0
"""A pause is so many times as long as the read before it, so that reading takes at most a fifth of the event
loop's time."""
REST_MIN_S: Final = 0.001
MERGED_UNITS_SHARE: Final = 2
"""Two files are merged when one of them has at most 1/this of the keys of a full one."""


class KeyMaintenance:
    """A Service: started with the broker, stopped before its log."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        index.on_work = self._wanted.set

    async def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="key index maintenance")

    async def stop(self) -> None:
        """Write what is in memory, so that the next start need not read it from the log again."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._index.roll()
        try:
            await self._write_full()
        except OSError as error:
            logger.warning("the key index could not be written, it will read the log again: %s", error)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            try:
                await self.work()
            except DamagedRecordError as error:
                logger.warning("the key index waits for the repair of the log: %s", error)
            except Exception:  # a top loop: a derived file is no reason to stop the node
                logger.exception("maintenance of the key index failed, it will be tried again")
                await asyncio.sleep(CHECK_INTERVAL_S)
            try:
                async with asyncio.timeout(CHECK_INTERVAL_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def work(self) -> None:
        """All that is to do now. Raises OSError, DamagedRecordError."""
        index = self._index
        async with index.files:
            index.drop_before(index.log.min_position)
        await self._write_full()
        await self._fill_gaps()
        while await self._merge():
            pass
        await self._fill_gaps()  # of files that were found damaged just now

    async def _fill_gaps(self) -> None:
        index = self._index
        while gaps := index.gaps():
            for begin_index, last_index in gaps:
                await self._fill(begin_index, last_index)
            if index.gaps() == gaps:
                break  # no progress: the log was cut there meanwhile, and the listener continues

    async def _write_full(self) -> None:
        index = self._index
        while index.unwritten:
            segment = index.unwritten[0]
            await self._write(segment)
            if segment in index.unwritten:
                index.unwritten.remove(segment)

    async def _write(self, segment: OpenSegment) -> None:
        index = self._index
        async with index.files:
            index.add(await _finished(write_segment, index.fs, index.directory, segment))

    async def _fill(self, begin_index: int, last_index: int) -> None:
        """Read entries that are in no segment."""
        index, loop = self._index, asyncio.get_running_loop()
        segment: OpenSegment | None = None
        while begin_index <= last_index:
            began_s = loop.time()
            batch, applied = index.log.batch_from(begin_index, last_index)
            records = batch.records
            if segment is not None and records is not None and not index.fits(segment, records.end_position):
                await self._write(segment)
                segment = None
            position = applied.position if records is None else records.position
            if segment is None:
                segment = OpenSegment(begin_index, position)
            elif not segment.unit_count:
                segment = OpenSegment(segment.begin_index, position)
            if records is None:
                segment.skip(applied.index, applied.position)
            else:
                segment.add(applied.index, applied.position, key_units(records))
            begin_index = applied.index + 1
            await asyncio.sleep(max(REST_MIN_S, (loop.time() - began_s) * REST_PER_WORK))
            if index.unwritten:
                await self._write_full()
        if segment is not None:
            await self._write(segment)

    async def _merge(self) -> bool:
        """Make one of two neighbouring files; whether there were any."""
        index = self._index
        async with index.files:
            pair = self._small_pair()
            if pair is None:
                return False
            try:
                merged = await _finished(_merged, index, *pair)
            except DamagedKeyFileError as error:
                logger.warning("%s; it will be built again from the log", error)
                for each in pair:
                    index.delete(each)
                return False
            # The merged file has the first one's name; only the second one's file is left to delete.
            index.sealed.remove(pair[0])
            index.add(merged)
            index.delete(pair[1])
            return True

    def _small_pair(self) -> tuple[SealedSegment, SealedSegment] | None:
        sealed, config = self._index.sealed, self._index.config
        for one, next_one in pairwise(sealed):
            a, b = one.extent, next_one.extent
            is_small = min(a.unit_count, b.unit_count) * MERGED_UNITS_SHARE <= config.units_max
            is_near = b.end_position - _base(one, next_one) <= config.span_bytes_max
            fits = a.unit_count + b.unit_count <= config.units_max and is_near
            if is_small and fits and a.last_index + 1 == b.begin_index:
                return one, next_one
        return None


def _base(one: SealedSegment, next_one: SealedSegment) -> int:
    """The position at which two merged segments begin; a segment without a key does not count."""
    return (one if one.extent.unit_count else next_one).extent.begin_position


def _merged(index: KeyIndex, one: SealedSegment, next_one: SealedSegment) -> SealedSegment:
    segment = OpenSegment(one.extent.begin_index, _base(one, next_one))
    for each in (one, next_one):
        segment.absorb(each.extent, *each.read_all())
    return write_segment(index.fs, index.directory, segment)


async def _finished(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Run `work` in a thread, to its end even when cancelled: the next user of the files must not overlap
    it.
    """
    job = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # retrieved, or asyncio would report it: the cancelled caller cannot use it
        raise
