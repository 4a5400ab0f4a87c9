"""DLedger's log entry, its index unit and the blank that fills a data file's end.

    entry: magic=1 size index term pos channel chainCrc bodyCrc bodyLength | body
             4      4    8    8    8      4       4       4        4         n
    unit:  magic=1 pos size index term            blank: magic=-1 size
             4      8   4     8    8                        4      4

All integers are big-endian; `size` counts the whole entry. DLedger's reserved field `channel` is 1 in an
entry that names the members of the group, 0 in all others. Both CRCs are the CRC-32 of zip and zlib
(polynomial 0xEDB88320): chainCrc over the header's fields before it, bodyCrc over the body as stored, after
the append hook. Their 32 bits are written as they are, so Java reads them as a signed int. Java writes 0 in
both and never checks them: 0 is read as "no CRC", but beside a chainCrc every bodyCrc counts. Sources:
DLedger's DLedgerEntry, DLedgerEntryCoder, DLedgerMmapFileStore. Pure: bytes in, values out.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

from isal import isal_zlib

import native
from commitlog.record import PHYSICAL_OFFSET_AT
from dledger.core.types import CorruptRangeError, EntryRange

ENTRY_MAGIC: Final = 1
BLANK_MAGIC: Final = -1
HEADER_BYTES: Final = 48
UNIT_BYTES: Final = 32
BLANK_BYTES: Final = 8
"""Every entry leaves this much of its data file free, so that a blank fits behind it."""
CHANNEL_AT: Final = 32
HEADER_CRC_AT: Final = 36
CONFIGURATION_CHANNEL: Final = 1

HEADER: Final = struct.Struct(">iiqqqiIIi")
UNIT: Final = struct.Struct(">iqiqq")
BLANK: Final = struct.Struct(">ii")
_HEAD: Final = struct.Struct(">iiqqqi")
_WHOLE_HEADER: Final = struct.Struct(f">{HEADER_CRC_AT}sIIi")
_CRCS: Final = struct.Struct(">II")
_INT64: Final = struct.Struct(">q")
_INT32: Final = struct.Struct(">i")

_VERIFY_ENTRIES: Final = native.function("_log", "verify_entries")
_ENCODE_UNITS: Final = native.function("_log", "encode_units")
_FIND_CHANNEL: Final = native.function("_log", "find_channel")

Buffer = bytes | memoryview
AppendHook = Callable[[bytearray, int, int], None]
"""hook(buffer, entry_start, position) may change an entry's body in place while it is laid out: the entry
begins at buffer[entry_start] and will be at `position` in the log."""


def write_physical_offset(buffer: bytearray, entry_start: int, position: int) -> None:
    """The append hook of a log of message records: a record's PHYSICALOFFSET is where the record begins."""
    _INT64.pack_into(buffer, entry_start + HEADER_BYTES + PHYSICAL_OFFSET_AT, position + HEADER_BYTES)


def place_entry(end_position: int, entry_bytes: int, file_bytes: int) -> int:
    """The position of a new entry in a log that ends at `end_position`: there, or at the start of the next
    data file when it and a blank do not fit into what is left of this one.
    """
    room = file_bytes - end_position % file_bytes
    return end_position if entry_bytes + BLANK_BYTES <= room else end_position + room


def blank(size: int) -> bytes:
    """The head of a blank over `size` bytes; the rest of them is undefined."""
    return BLANK.pack(BLANK_MAGIC, size)


def encode_entries(
    bodies: Sequence[bytes], first_index: int, term: int, position: int, append_hook: AppendHook | None
) -> tuple[bytes, bytes, list[int]]:
    """Lay out entries back to back from `position` on: their bytes, their index units, their positions."""
    data = bytearray(sum(map(len, bodies)) + HEADER_BYTES * len(bodies))
    view = memoryview(data)
    encode_head = _HEAD.pack
    write_header = _WHOLE_HEADER.pack_into
    encode_unit = UNIT.pack
    crc32 = isal_zlib.crc32
    units = []
    positions = []
    start = 0
    for index, body in enumerate(bodies, first_index):
        size = HEADER_BYTES + len(body)
        end = start + size
        entry_position = position + start
        view[start + HEADER_BYTES : end] = body
        if append_hook is not None:
            append_hook(data, start, entry_position)
        head = encode_head(ENTRY_MAGIC, size, index, term, entry_position, 0)
        write_header(data, start, head, crc32(head), crc32(view[start + HEADER_BYTES : end]), len(body))
        units.append(encode_unit(ENTRY_MAGIC, entry_position, size, index, term))
        positions.append(entry_position)
        start = end
    return bytes(data), b"".join(units), positions


def encode_on_channel(
    body: bytes, index: int, term: int, position: int, append_hook: AppendHook | None
) -> tuple[bytes, bytes]:
    """One entry that names the members, and its index unit."""
    laid_out, units, _ = encode_entries([body], index, term, position, append_hook)
    head = laid_out[:CHANNEL_AT] + _INT32.pack(CONFIGURATION_CHANNEL)
    crc = struct.pack(">I", isal_zlib.crc32(head))
    return head + crc + laid_out[HEADER_CRC_AT + 4 :], units


def configuration_bodies(data: Buffer) -> list[tuple[int, int, memoryview]]:
    """Index, term and body of each verified entry that names the members."""
    found = []
    at = find_channel(data, 0)
    while at >= 0:
        _, size, index, term, _, _, _, _, _ = HEADER.unpack_from(data, at)
        found.append((index, term, memoryview(data)[at + HEADER_BYTES : at + size]))
        at = find_channel(data, at + size)
    return found


def find_channel(data: Buffer, start: int) -> int:
    """Where the next verified entry from `start` on begins whose channel is not 0; -1: there is none."""
    if _FIND_CHANNEL is not None:
        return int(_FIND_CHANNEL(data, start))
    return find_channel_of_each(data, start)


def find_channel_of_each(data: Buffer, start: int) -> int:
    """As `find_channel`, entry by entry."""
    size_at = _INT32.unpack_from
    while start + HEADER_BYTES <= len(data):
        if size_at(data, start + CHANNEL_AT)[0] != 0:
            return start
        start += max(size_at(data, start + 4)[0], HEADER_BYTES)
    return -1


def verify_entries(entries: EntryRange) -> None:
    """Check every header field and CRC of a range against each other and against the range's own claims.

    Raises CorruptRangeError. Whether the range fits a log is not checked.
    """
    data, first_index, last_index = entries.data, entries.first_index, entries.last_index
    if _VERIFY_ENTRIES is None or not _VERIFY_ENTRIES(data, first_index, last_index, entries.term):
        verify_each(entries)


def verify_each(entries: EntryRange) -> None:
    """As `verify_entries`, entry by entry: its error names what is wrong."""
    data = entries.data
    view = memoryview(data)
    end = len(data)
    read_header = HEADER.unpack_from
    crc32 = isal_zlib.crc32
    index = entries.first_index
    term = entries.term
    at = 0
    base = entry_position(data)
    while at < end:
        if end - at < HEADER_BYTES:
            raise CorruptRangeError(f"entry {index}: {end - at} bytes are no header")
        magic, size, own_index, own_term, position, _, header_crc, body_crc, body_bytes = read_header(
            data, at
        )
        if magic != ENTRY_MAGIC or own_index != index or own_term != term or position != base + at:
            raise CorruptRangeError(
                f"expected entry {index} of term {term} at position {base + at}, "
                f"found magic {magic}, entry {own_index} of term {own_term} at position {position}"
            )
        if body_bytes < 0 or size != HEADER_BYTES + body_bytes or at + size > end:
            raise CorruptRangeError(f"entry {index}: size {size}, body {body_bytes}, {end - at} bytes left")
        if header_crc and crc32(view[at : at + HEADER_CRC_AT]) != header_crc:
            raise CorruptRangeError(f"entry {index}: the header does not have the CRC {header_crc:#010x}")
        if (body_crc or header_crc) and crc32(view[at + HEADER_BYTES : at + size]) != body_crc:
            raise CorruptRangeError(f"entry {index}: the body does not have the CRC {body_crc:#010x}")
        at += size
        index += 1
    if index - 1 != entries.last_index:
        raise CorruptRangeError(f"range ends with entry {index - 1}, not {entries.last_index}")


def has_right_crcs(data: Buffer, at: int, size: int) -> bool:
    """Whether an entry's header and body have the CRCs that its header holds, as far as it holds any."""
    view = memoryview(data)
    header_crc, body_crc = _CRCS.unpack_from(data, at + HEADER_CRC_AT)
    if header_crc and isal_zlib.crc32(view[at : at + HEADER_CRC_AT]) != header_crc:
        return False
    if not (body_crc or header_crc):
        return True
    return bool(isal_zlib.crc32(view[at + HEADER_BYTES : at + size]) == body_crc)


def entry_position(data: Buffer) -> int:
    """The position in the header of the first entry of `data`. Raises CorruptRangeError."""
    if len(data) < HEADER_BYTES:
        raise CorruptRangeError(f"{len(data)} bytes are no entry")
    return int(HEADER.unpack_from(data)[4])


def encode_units(data: Buffer) -> bytes:
    """The index units of verified entries. Raises CorruptRangeError for a size that can be none."""
    units: bytes | None = None if _ENCODE_UNITS is None else _ENCODE_UNITS(data)
    return encode_each_unit(data) if units is None else units


def encode_each_unit(data: Buffer) -> bytes:
    """As `encode_units`, entry by entry."""
    encode_unit = UNIT.pack
    read_header = HEADER.unpack_from
    units = []
    at = 0
    end = len(data)
    while at < end:
        magic, size, index, term, position, _, _, _, _ = read_header(data, at)
        if size < HEADER_BYTES:
            raise CorruptRangeError(f"entry {index}: size {size}")
        units.append(encode_unit(magic, position, size, index, term))
        at += size
    return b"".join(units)


def entry_starts(data: Buffer) -> list[int]:
    """Where each verified entry begins in `data`."""
    sizes_at = _INT32.unpack_from
    starts = []
    at = 0
    end = len(data)
    while at < end:
        starts.append(at)
        at += sizes_at(data, at + 4)[0]
    return starts
