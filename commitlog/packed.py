"""A put's records laid out by compiled code, in one buffer with room for the header of each one's entry."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, overload

import native
from commitlog.record import Message

_MESSAGE_LAYOUT: Final = native.function("_log", "message_layout")
_ENCODE_RECORDS: Final = native.function("_log", "encode_records")
_LAY_OUT: Final[Callable[..., tuple[bytes, bytes, list[int]]] | None] = native.function("_log", "lay_out")
_BODIES: Final[Callable[..., list[bytes]] | None] = native.function("_log", "bodies")
_LAYOUT: Final = None if _MESSAGE_LAYOUT is None else _MESSAGE_LAYOUT(Message)

OffsetKey = tuple[str, int]


class PackedBodies(Sequence[bytes]):
    """The bodies of a batch of entries. `lay_out` uses them up."""

    def __init__(self, packed: Any, count: int, entry_bytes: int) -> None:
        self._packed = packed
        self._count = count
        self.entry_bytes = entry_bytes
        """What the entries come to, headers included."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.unpack())

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        return self.unpack()[at]

    def unpack(self) -> list[bytes]:
        """The bodies one by one, with PHYSICALOFFSET 0."""
        assert _BODIES is not None
        return _BODIES(self._packed)

    def lay_out(self, first_index: int, term: int, position: int) -> tuple[bytes, bytes, list[int]]:
        """As `commitlog.entry.encode_entries` with `write_physical_offset`, once."""
        assert _LAY_OUT is not None
        return _LAY_OUT(self._packed, first_index, term, position)


def encode_ordinary(
    messages: Sequence[Message],
    known_offsets: dict[OffsetKey, int],
    store_timestamp_ms: int,
    body_bytes_max: int,
    record_bytes_max: int,
) -> tuple[PackedBodies, list[int], dict[OffsetKey, int]] | None:
    """Records, their queue offsets, and the offsets after them; None when there is no compiled code or a
    message is not ordinary: a field out of its bounds, a topic over 127 bytes, IPv6, no queue, or a queue
    that `known_offsets` lacks.
    """
    if _ENCODE_RECORDS is None:
        return None
    found = _ENCODE_RECORDS(
        _LAYOUT, messages, known_offsets, store_timestamp_ms, body_bytes_max, record_bytes_max
    )
    if found is None:
        return None
    packed, entry_bytes, offsets, taken = found
    return PackedBodies(packed, len(offsets), entry_bytes), offsets, taken
