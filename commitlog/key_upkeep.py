"""What the key index does beside its listening: full segments go to their files, entries in no segment are
read from the log again, small neighbouring files become one, and old ones are deleted.

One task, at rest but for a look every few seconds. It reads the log a stretch at a time and pauses in
between, so that building a whole index again takes a small part of the node.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Final, ParamSpec, TypeVar

from commitlog.errors import DamagedRecordError
from commitlog.key_files import DamagedKeyFileError, SealedSegment, write_segment
from commitlog.key_index import KeyIndex
from commitlog.key_segment import OpenSegment

logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

LOOK_S: Final = 10.0
REST_PER_WORK: Final = 4.0
"""A pause is so many times as long as the reading before it: a fifth of the loop's time at most."""
REST_MIN_S: Final = 0.001
MERGED_UNITS_SHARE: Final = 2
"""Files are made one when the keys of one of them are at most this fraction of a full one's."""


class KeyUpkeep:
    """A Service: started with the broker, stopped before its log."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        index.on_work = self._wanted.set

    async def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run(), name="key index upkeep")

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
            except Exception:  # a top loop: what can be built again takes no node from its group
                logger.exception("the key index cannot be kept up, it will be tried again")
                await asyncio.sleep(LOOK_S)
            try:
                async with asyncio.timeout(LOOK_S):
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
                break  # nothing to gain: the log goes on, and the listener with it

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
            index.take(await _finished(write_segment, index.fs, index.directory, segment))

    async def _fill(self, begin_index: int, last_index: int) -> None:
        """Read entries that are in no segment."""
        index, loop = self._index, asyncio.get_running_loop()
        segment: OpenSegment | None = None
        while begin_index <= last_index:
            began_s = loop.time()
            batch, applied = index.log.batch_from(begin_index, last_index)
            stretch = batch.stretch
            if segment is not None and stretch is not None and not index.fits(segment, stretch):
                await self._write(segment)
                segment = None
            position = applied.position if stretch is None else stretch.position
            if segment is None:
                segment = OpenSegment(begin_index, position)
            elif not segment.unit_count:
                segment = OpenSegment(segment.begin_index, position)
            if stretch is None:
                segment.skip(applied.index, applied.position)
            else:
                segment.add(applied.index, applied.position, stretch.key_units())
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
                    index.forget(each)
                return False
            index.sealed.remove(pair[0])
            index.take(merged)
            index.forget(pair[1])
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
    """Where two segments together begin; one without a key has no say."""
    return (one if one.extent.unit_count else next_one).extent.begin_position


def _merged(index: KeyIndex, one: SealedSegment, next_one: SealedSegment) -> SealedSegment:
    segment = OpenSegment(one.extent.begin_index, _base(one, next_one))
    for each in (one, next_one):
        segment.absorb(each.extent, *each.read_all())
    return write_segment(index.fs, index.directory, segment)


async def _finished(work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Have work done in a thread, to its end: who comes next must not meet it in the files."""
    job = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        await asyncio.wait([job])
        if not job.cancelled():
            job.exception()  # seen: whoever is cancelled has no use for it, and asyncio would report it
        raise
