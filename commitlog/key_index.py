"""Where messages with a key stand in the log: what QUERY_MESSAGE asks. As RocketMQ's IndexService.

Derived from the log on every node and never a source of truth: a hit says no more than that the record at
this position may have the key. The newest stretch of the log is in memory, each of the others in a file
(`commitlog/key_files.py`); what none covers is read from the log again (`commitlog/key_upkeep.py`).
"""

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from commitlog.dispatch_batch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.key_files import DIRECTORY, DamagedKeyFileError, SealedSegment, load_segments
from commitlog.key_segment import OpenSegment
from commitlog.queue_checkpoint import Applied
from commitlog.record_keys import RecordStretch
from dledger.core.types import NO_INDEX
from dledger.fs import Fs

logger = logging.getLogger(__name__)

HITS_PER_STEP: Final = 64
"""So many are looked for at a time, in a thread."""
UNWRITTEN_MAX: Final = 2
"""Full segments that wait in memory for their file; beyond that the oldest is given up, and its part of the
log is read again later."""


@dataclass(frozen=True, slots=True)
class KeyIndexConfig:
    """Sizes of the key index."""

    units_max: int = 512 * 1024
    """Keys in a segment, 8 bytes each: in memory while it grows, and twice while it is written."""
    span_bytes_max: int = 1 << 30
    """How much of the log a segment covers: what a restart after a crash reads again at most. Less than the
    4 GiB that a unit's position can tell apart."""


class KeyedLog(Protocol):
    """What the key index asks of the log."""

    @property
    def min_position(self) -> int: ...

    @property
    def applied_index(self) -> int: ...

    def batch_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]: ...

    def end_of(self, index: int) -> int: ...


class KeyIndex:
    """The segments. All methods are for the loop's thread; whoever changes or reads files holds `files`."""

    def __init__(
        self,
        fs: Fs,
        store: Path,
        log: KeyedLog,
        config: KeyIndexConfig | None = None,
        end_position: int | None = None,
    ) -> None:
        """Takes over what the files hold of this log, which ends at `end_position`, if that is known.

        Raises OSError.
        """
        self.config = config or KeyIndexConfig()
        self.directory = store / DIRECTORY
        self.fs = fs
        self.log = log
        self.files = asyncio.Lock()
        self.on_work: Callable[[], None] = lambda: None
        """Called when there is something to write or to read again."""
        self.unwritten: list[OpenSegment] = []
        """Full, the oldest first."""
        self.live: OpenSegment | None = None
        fs.make_directory(self.directory, is_durable=False)
        self.sealed = load_segments(fs, self.directory)
        """By where they begin."""
        self._drop_strange(end_position)
        self._floor_index = 0

    def on_batch(self, batch: DispatchBatch) -> None:
        """Take what was dispatched; a DispatchListener."""
        stretch = batch.stretch
        if stretch is None:
            return
        live = self.live
        if live is None or stretch.begin_index != live.last_index + 1:
            live = self._live_for(stretch)
        if live is None:
            return
        if not self.fits(live, stretch):
            self.roll()
            live = self.live = OpenSegment(stretch.begin_index, stretch.position)
        live.add(stretch.last_index, stretch.end_position, stretch.key_units())

    def fits(self, segment: OpenSegment, stretch: RecordStretch) -> bool:
        """Whether a segment has room for a stretch. An empty one always has."""
        if segment.last_index < segment.begin_index:
            return True
        is_near = stretch.end_position - segment.begin_position <= self.config.span_bytes_max
        return is_near and segment.unit_count < self.config.units_max

    def roll(self) -> None:
        """Let the segment in memory grow no more."""
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
        """First and last index of what is dispatched and in no segment."""
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
        times: the newest first, some wrongly, some twice.
        """
        before_index = None
        while (segment := self._newest_before(before_index)) is not None:
            before_index = segment.extent.begin_index
            if not segment.extent.overlaps(begin_ms, end_ms):
                continue
            async with self.files:
                if self._newest_before(before_index + 1) is not segment:
                    before_index += 1  # it has become another one while others had the files
                    continue
                found = segment.newest(word, begin_ms, end_ms)
                positions = await self._begin(segment, found)
            while positions:
                for position in positions:
                    yield position
                positions = await asyncio.to_thread(_some, found)

    def take(self, segment: SealedSegment) -> None:
        """This segment is in its file now."""
        insort(self.sealed, segment, key=lambda each: each.extent.begin_index)

    def forget(self, segment: SealedSegment) -> None:
        """Look into a file no more, and delete it. Raises OSError."""
        if segment in self.sealed:
            self.sealed.remove(segment)
            if segment.path.name in self.fs.list(self.directory):
                self.fs.delete(segment.path)

    def drop_before(self, position: int) -> None:
        """Delete the files of what stands before a position of the log, as a whole. Raises OSError."""
        while self.sealed and self.sealed[0].extent.end_position <= position:
            self._floor_index = self.sealed[0].extent.last_index + 1
            self.forget(self.sealed[0])

    @property
    def last_update(self) -> tuple[int, int]:
        """When the last record that has a key was stored, and where what is in the index ends."""
        segments = [each.extent for each in self.sealed]
        segments += [each.extent for each in (*self.unwritten, self.live) if each is not None]
        return (
            max((each.latest_ms for each in segments if each.unit_count), default=0),
            max((each.end_position for each in segments), default=0),
        )

    def _live_for(self, stretch: RecordStretch) -> OpenSegment | None:
        """A new segment for a stretch that does not follow the one in memory; None when it has been taken, if
        only in part.
        """
        if stretch.begin_index <= max((last for _, last in self._covered()), default=NO_INDEX):
            return None
        self.roll()
        self.live = OpenSegment(stretch.begin_index, stretch.position)
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
        """The first of a segment's hits. What is read of a file is read now."""
        try:
            return await asyncio.to_thread(_some, found)
        except DamagedKeyFileError as error:
            logger.warning("%s; it will be built again from the log", error)
            assert isinstance(segment, SealedSegment), segment
            self.forget(segment)
            self.on_work()
            return ()

    def _drop_strange(self, end_position: int | None) -> None:
        """Delete files of what this log does not have."""
        for segment in list(self.sealed):
            if end_position is not None and segment.extent.end_position > end_position:
                self.forget(segment)
        if self.sealed and not self._is_of_log(self.sealed[-1]):
            logger.warning("%s: not of this log, building all of it again", self.directory)
            for segment in list(self.sealed):
                self.forget(segment)

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
