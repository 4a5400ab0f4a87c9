"""Entries in memory, in chunks: laid out behind the log's end, then cached as they were appended.

The cache always holds every entry that is not yet in the files, and those before it up to a bound.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from commitlog.entry import (
    BLANK_BYTES,
    HEADER_BYTES,
    UNIT,
    UNIT_BYTES,
    AppendHook,
    Buffer,
    encode_entries,
    place_entry,
    write_physical_offset,
)
from commitlog.entry_files import EntryStoreConfig
from commitlog.record import PackedBodies
from dledger.core.types import EntryRange

UNDISPATCHED_FACTOR: Final = 4


@dataclass(slots=True)
class Chunk:
    """Contiguous entries of one term and one data file. Truncation shortens it in place."""

    first_index: int
    last_index: int
    term: int
    position: int
    data: Buffer
    units: Buffer
    is_written: bool = False

    @property
    def end_position(self) -> int:
        """First byte after its last entry."""
        return self.position + len(self.data)

    def position_of(self, index: int) -> int:
        """Start position of an entry of this chunk."""
        return int(UNIT.unpack_from(self.units, (index - self.first_index) * UNIT_BYTES)[1])

    def end_of(self, index: int) -> int:
        """First byte after an entry of this chunk."""
        _, position, size, _, _ = UNIT.unpack_from(self.units, (index - self.first_index) * UNIT_BYTES)
        return int(position + size)

    def cut_from(self, index: int) -> None:
        """Drop the entries from `index` on; the first stays."""
        assert self.first_index < index <= self.last_index, (self.first_index, index, self.last_index)
        self.data = memoryview(self.data)[: self.position_of(index) - self.position]
        self.units = memoryview(self.units)[: (index - self.first_index) * UNIT_BYTES]
        self.last_index = index - 1

    def part(self, first_index: int, last_index: int, bytes_max: int) -> EntryRange:
        """Entries from `first_index` on, at least one, not copied."""
        last_index = min(last_index, self.last_index)
        is_whole = (first_index, last_index) == (self.first_index, self.last_index)
        if is_whole and len(self.data) <= bytes_max:
            return EntryRange(first_index, last_index, self.term, self.data)
        start = self.position_of(first_index)
        if self.end_of(last_index) - start > bytes_max:
            low, high = first_index, last_index
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self.end_of(middle) - start <= bytes_max else (low, middle)
            last_index = low
        if first_index == self.first_index and last_index == self.last_index:
            return EntryRange(first_index, last_index, self.term, self.data)
        end = self.end_of(last_index)
        data = memoryview(self.data)[start - self.position : end - self.position]
        return EntryRange(first_index, last_index, self.term, data)


class EntryCache:
    """Chunks that follow each other, the last one ending where the log ends."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._dispatched_index: int | None = None
        self._bytes = 0
        self._chunks: list[Chunk] = []
        self._first_indexes: list[int] = []
        self._positions: list[int] = []

    @property
    def first_index(self) -> int | None:
        """The first entry that is here; those before it are in the files."""
        return self._first_indexes[0] if self._first_indexes else None

    @property
    def first_position(self) -> int | None:
        """The position of the first entry that is here."""
        return self._positions[0] if self._positions else None

    def append(self, chunk: Chunk) -> None:
        """Add the chunk that follows the last one."""
        assert not self._chunks or self._chunks[-1].last_index + 1 == chunk.first_index, chunk.first_index
        assert not self._chunks or self._chunks[-1].end_position <= chunk.position, chunk.position
        self._chunks.append(chunk)
        self._first_indexes.append(chunk.first_index)
        self._positions.append(chunk.position)
        self._bytes += len(chunk.data) + len(chunk.units)
        # Evicted only at a quarter over the bound: deleting from the head of a list costs its whole length.
        self._evict_if_large()

    def dispatched(self, index: int) -> None:
        """Entries up to here are in the consume queues. Where this was ever called, the others are kept up to
        UNDISPATCHED_FACTOR times the bound: a follower that catches up writes large batches past the page
        cache, and would have to read them back from the disk.
        """
        self._dispatched_index = index
        self._evict_if_large()

    def _evict_if_large(self) -> None:
        if self._bytes > self._bytes_max + self._bytes_max // 4:
            self.evict()

    def evict(self) -> None:
        """Drop the oldest chunks that are written, down to the bounds."""
        count = 0
        dispatched_index = self._dispatched_index
        for chunk in self._chunks:
            is_dispatched = dispatched_index is None or chunk.last_index <= dispatched_index
            bytes_max = self._bytes_max * (1 if is_dispatched else UNDISPATCHED_FACTOR)
            if self._bytes <= bytes_max or not chunk.is_written:
                break
            self._bytes -= len(chunk.data) + len(chunk.units)
            count += 1
        del self._chunks[:count], self._first_indexes[:count], self._positions[:count]

    def truncate_from(self, index: int) -> None:
        """Drop the entries from `index` on."""
        while self._chunks and self._chunks[-1].last_index >= index:
            chunk = self._chunks[-1]
            self._bytes -= len(chunk.data) + len(chunk.units)
            if chunk.first_index < index:
                chunk.cut_from(index)
                self._bytes += len(chunk.data) + len(chunk.units)
                return
            del self._chunks[-1], self._first_indexes[-1], self._positions[-1]

    def clear(self) -> None:
        """Drop everything."""
        self.truncate_from(-1)

    def chunk_of(self, index: int) -> Chunk | None:
        """The chunk that holds an entry."""
        at = bisect_right(self._first_indexes, index) - 1
        if at < 0 or index > self._chunks[at].last_index:
            return None
        return self._chunks[at]

    def chunk_at(self, position: int) -> Chunk | None:
        """The chunk that holds a byte of the log."""
        at = bisect_right(self._positions, position) - 1
        if at < 0 or position >= self._chunks[at].end_position:
            return None
        return self._chunks[at]

    def read_range(
        self, first_index: int, last_index: int, bytes_max: int, file_bytes: int
    ) -> EntryRange | None:
        """As LogReader.read_range, for entries that are here. The bytes are copied only to join chunks."""
        at = bisect_right(self._first_indexes, first_index) - 1
        if at < 0 or first_index > self._chunks[at].last_index:
            return None
        chunk = self._chunks[at]
        found = chunk.part(first_index, last_index, bytes_max)
        parts = [found.data]
        left = bytes_max - len(found.data)
        end_index = found.last_index
        while end_index == chunk.last_index < last_index and at + 1 < len(self._chunks):
            at += 1
            following = self._chunks[at]
            first_size = following.end_of(following.first_index) - following.position
            is_same_file = following.position % file_bytes and following.position == chunk.end_position
            if following.term != found.term or not is_same_file or first_size > left:
                break
            chunk = following
            part = chunk.part(chunk.first_index, last_index, left)
            parts.append(part.data)
            left -= len(part.data)
            end_index = part.last_index
        if len(parts) == 1:
            return found
        return EntryRange(first_index, end_index, found.term, b"".join(parts))


class EntryLayout:
    """The rules of one log."""

    def __init__(self, config: EntryStoreConfig, append_hook: AppendHook | None) -> None:
        self._config = config
        self._append_hook = append_hook

    def lay_out(
        self, first_index: int, term: int, end_position: int, bodies: Sequence[bytes]
    ) -> tuple[list[Chunk], list[int]]:
        """The chunks of a log that ends at `end_position`, and the position of each entry.

        Raises ValueError for a body that no data file can hold.
        """
        if isinstance(bodies, PackedBodies):
            if self._goes_into_one_chunk(bodies.entry_bytes, end_position):
                data, units, positions = bodies.lay_out(first_index, term, end_position)
                last_index = first_index + len(positions) - 1
                return [Chunk(first_index, last_index, term, end_position, data, units)], positions
            bodies = bodies.unpack()
        self._check_sizes(bodies)
        return self._lay_out_each(first_index, term, end_position, bodies)

    def _goes_into_one_chunk(self, entry_bytes: int, end_position: int) -> bool:
        """Whether packed bodies, which have the append hook of records, can follow the log as they are."""
        room = self._config.data_file_bytes - end_position % self._config.data_file_bytes - BLANK_BYTES
        is_small = entry_bytes <= min(room, self._config.chunk_bytes_max)
        return is_small and self._append_hook is write_physical_offset

    def _check_sizes(self, bodies: Sequence[bytes]) -> None:
        body_bytes_max = self._config.body_bytes_max
        largest = max(map(len, bodies), default=0)
        if largest > body_bytes_max:
            raise ValueError(f"a body of {largest} bytes, a data file holds at most {body_bytes_max}")

    def _lay_out_each(
        self, first_index: int, term: int, end_position: int, bodies: Sequence[bytes]
    ) -> tuple[list[Chunk], list[int]]:
        chunks = []
        positions: list[int] = []
        done = 0
        while done < len(bodies):
            position, count = self._next_part(bodies, done, end_position)
            part = bodies[done : done + count] if count < len(bodies) else bodies
            index = first_index + done
            data, units, part_positions = encode_entries(part, index, term, position, self._append_hook)
            chunks.append(Chunk(index, index + count - 1, term, position, data, units))
            positions += part_positions
            end_position = position + len(data)
            done += count
        return chunks, positions

    def _next_part(self, bodies: Sequence[bytes], done: int, end_position: int) -> tuple[int, int]:
        """Where the next entries go and how many of them go there in one buffer."""
        file_bytes = self._config.data_file_bytes
        position = place_entry(end_position, HEADER_BYTES + len(bodies[done]), file_bytes)
        limit = min(file_bytes - position % file_bytes - BLANK_BYTES, self._config.chunk_bytes_max)
        size_bytes = 0
        count = 0
        for body in bodies[done:]:
            size_bytes += HEADER_BYTES + len(body)
            if count > 0 and size_bytes > limit:
                break
            count += 1
        return position, count
