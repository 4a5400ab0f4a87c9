"""New entries laid out behind a log's end, in as few buffers as its files and limits allow."""

from collections.abc import Sequence

from commitlog.entry import (
    BLANK_BYTES,
    HEADER_BYTES,
    AppendHook,
    encode_entries,
    place_entry,
    write_physical_offset,
)
from commitlog.entry_cache import Chunk
from commitlog.entry_files import EntryStoreConfig
from commitlog.packed import PackedBodies


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
                last_index = first_index + len(bodies) - 1
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
