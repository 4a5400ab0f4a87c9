"""Finds the end of a log's whole entries or records after a crash, and the reason why they end there.

A torn tail is cut: it is the rest of a write that was not synced before the crash. Damage before it raises
CorruptLogError: the node must not serve such a log, but get a good copy. Two facts distinguish them. The
checkpoint: everything up to it was synced. And the limit of what is ever written between two syncs: a whole
entry farther behind the damage than that limit was written after the damaged place had been synced. Pure:
bytes in, values out.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from isal import isal_zlib

from commitlog.entry import (
    BLANK,
    BLANK_BYTES,
    BLANK_MAGIC,
    ENTRY_MAGIC,
    HEADER,
    HEADER_BYTES,
    HEADER_CRC_AT,
    UNIT,
    Buffer,
    has_right_crcs,
)
from commitlog.errors import CorruptLogError
from commitlog.record import CorruptRecordError, decode_record
from remoting.record_layout import MAGIC_V1, MAGIC_V2

FILLER_MAGIC: Final = 0xCBD43194
"""The blank at the end of a plain commit log's file: int32 size, then this."""

_FILLER: Final = struct.Struct(">iI")
_ENTRY_MAGIC_BYTES: Final = ENTRY_MAGIC.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan of one window of a log's file."""

    units: bytes
    """The index units of the whole entries; empty for a plain log."""
    size_bytes: int
    """Bytes of the whole entries in the window."""
    next_index: int
    """The index of the entry behind them; in a plain log the number of records found."""
    last_term: int
    stop: str
    """Why the scan ended: MORE, BLANK, or what is wrong with the bytes behind the whole entries."""
    bytes_needed: int = 0
    """With MORE: how many bytes from the stop on the next window must hold at least."""


MORE: Final = "more"
BLANK_STOP: Final = "blank"


def scan_entries(data: Buffer, position: int, next_index: int, last_term: int, room: int) -> Scan:
    """Walk whole entries from data[0], which is at `position`, `room` bytes before its file's end.

    The first is to be entry `next_index`, of `last_term` or later. When `data` is shorter than `room` and
    ends within an entry, the scan stops with MORE.
    """
    view = memoryview(data)
    available = len(data)
    read_header = HEADER.unpack_from
    encode_unit = UNIT.pack
    crc32 = isal_zlib.crc32
    units = []
    at = 0
    stop = MORE
    needed = HEADER_BYTES
    while at + HEADER_BYTES <= available:
        magic, size, index, term, own_position, _, header_crc, body_crc, body_bytes = read_header(data, at)
        if magic != ENTRY_MAGIC or index != next_index or own_position != position + at or term < last_term:
            stop = _entry_fault(data, at, room - at, next_index, last_term, position)
            break
        if body_bytes < 0 or size != HEADER_BYTES + body_bytes or size + BLANK_BYTES > room - at:
            stop = f"entry {index} has size {size}, body length {body_bytes}, {room - at} bytes of file left"
            break
        if header_crc and crc32(view[at : at + HEADER_CRC_AT]) != header_crc:
            stop = f"the header of entry {index} does not have its CRC {header_crc:#010x}"
            break
        if at + size > available:
            needed = size
            break
        if (body_crc or header_crc) and crc32(view[at + HEADER_BYTES : at + size]) != body_crc:
            stop = f"the body of entry {index} does not have its CRC {body_crc:#010x}"
            break
        units.append(encode_unit(magic, own_position, size, index, term))
        at += size
        next_index += 1
        last_term = term
    if stop == MORE and available >= room:
        stop = _tail_fault(data, at, room - at, next_index)
    return Scan(b"".join(units), at, next_index, last_term, stop, needed)


def _tail_fault(data: Buffer, at: int, room: int, next_index: int) -> str:
    """Of the last bytes of a file, too few for an entry."""
    if room >= BLANK_BYTES and BLANK.unpack_from(data, at) == (BLANK_MAGIC, room):
        return BLANK_STOP
    return f"expected entry {next_index} or a blank of {room} bytes"


def _entry_fault(data: Buffer, at: int, room: int, next_index: int, last_term: int, position: int) -> str:
    magic, size, index, term, own_position = HEADER.unpack_from(data, at)[:5]
    if (magic, size) == (BLANK_MAGIC, room):
        return BLANK_STOP
    return (
        f"expected entry {next_index} of term {last_term} or later at position {position + at}, "
        f"found magic {magic}, entry {index} of term {term} at position {own_position}"
    )


def find_entry(data: Buffer, position: int, index_min: int) -> int | None:
    """The position of the first whole entry of index >= index_min in bytes that may begin anywhere in one.

    An entry is recognized by its own position in its header, its sizes and its CRC; one that reaches beyond
    the bytes counts as whole.
    """
    raw = bytes(data)
    at = raw.find(_ENTRY_MAGIC_BYTES)
    while 0 <= at <= len(raw) - HEADER_BYTES:
        head = entry_head(raw[at : at + HEADER_BYTES], position + at)
        if head is not None and head.index >= index_min:
            is_cut = at + head.size > len(raw)
            if is_cut or has_right_crcs(raw, at, head.size):
                return position + at
        at = raw.find(_ENTRY_MAGIC_BYTES, at + 1)
    return None


@dataclass(frozen=True, slots=True)
class EntryHead:
    """The fields of a whole header."""

    index: int
    term: int
    size: int
    has_crc: bool
    """Whether the header's own CRC was there, so that the other fields can be trusted."""


def entry_head(head: Buffer, position: int) -> EntryHead | None:
    """The header that `head` begins with, or None when it is none for this position."""
    if len(head) < HEADER_BYTES:
        return None
    magic, size, index, term, own_position, _, header_crc, _, body_bytes = HEADER.unpack_from(head, 0)
    if (
        magic != ENTRY_MAGIC
        or own_position != position
        or body_bytes < 0
        or size != HEADER_BYTES + body_bytes
    ):
        return None
    if header_crc and isal_zlib.crc32(head[:HEADER_CRC_AT]) != header_crc:
        return None
    return EntryHead(index, term, size, header_crc != 0)


def leading_blank(head: Buffer) -> int:
    """The size of the blank that `head` begins with, 0 for none.

    A log that was reset to a position inside a data file begins that file with a blank up to there.
    """
    magic, size = BLANK.unpack_from(head, 0)
    return size if magic == BLANK_MAGIC else 0


def find_epochs(first_index: int, last_index: int, term_of: Callable[[int], int]) -> list[tuple[int, int]]:
    """(term, first index) of each term in a log, by bisection: terms never decrease along it."""
    epochs: list[tuple[int, int]] = []
    index = first_index
    while index <= last_index:
        term = term_of(index)
        epochs.append((term, index))
        low, high = index, last_index + 1  # the term begins at low; at high, a later one or the end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if term_of(middle) == term else (low, middle)
        index = high
    return epochs


def check_torn_tail(where: str, reason: str, is_flushed: bool, later_valid: int | None) -> None:
    """Return when the bytes at the stop are a torn tail, to be cut; else raise CorruptLogError.

    `is_flushed`: the checkpoint counts what should be here as synced. `later_valid`: the position of a
    whole entry or record farther behind the stop than anything unsynced can be.
    """
    if is_flushed:
        raise CorruptLogError(f"{where}: {reason}; it was on the disk")
    if later_valid is not None:
        raise CorruptLogError(
            f"{where}: {reason}; what is whole at position {later_valid} shows that this was on the disk"
        )


def scan_records(data: Buffer, position: int, room: int, flushed_position: int) -> Scan:
    """As `scan_entries`, for the records of a plain commit log.

    A record's CRC covers its body only. The missing part of a torn write reads as zero, and the log accepts
    no properties with a zero byte. So a record behind `flushed_position` with such a byte is torn.
    """
    available = len(data)
    at = 0
    count = 0
    stop = MORE
    needed = BLANK_BYTES
    while at + _FILLER.size <= available:
        size, magic = _FILLER.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            is_blank = (size, magic) == (room - at, FILLER_MAGIC)
            stop = BLANK_STOP if is_blank else f"expected a record, found magic {magic:#010x}"
            break
        if size + BLANK_BYTES > room - at:
            stop = f"record of size {size}, {room - at} bytes of file left"
            break
        if at + size > available:
            needed = size
            break
        try:
            record = decode_record(data, at, check_crc=True)
        except CorruptRecordError as error:
            stop = str(error)
            break
        if record.physical_offset != position + at:
            stop = f"the record names position {record.physical_offset} as its own"
            break
        if position + at >= flushed_position and 0 in record.properties:
            stop = "the record's properties hold a zero byte"
            break
        at += size
        count += 1
    if stop == MORE and available >= room:
        stop = f"{room - at} bytes are neither a record nor a blank"
    return Scan(b"", at, count, 0, stop, needed)


def find_record(data: Buffer, position: int) -> int | None:
    """As `find_entry`, for records; one that reaches beyond the bytes is not seen."""
    raw = bytes(data)
    magic = MAGIC_V1.to_bytes(4, "big")
    at = raw.find(magic, 4)
    while at >= 4:
        try:
            record = decode_record(raw, at - 4, check_crc=True)
            if record.physical_offset == position + at - 4:
                return position + at - 4
        except CorruptRecordError:
            pass
        at = raw.find(magic, at + 1)
    return None


def filler(size: int) -> bytes:
    """The head of a plain commit log's blank over `size` bytes."""
    return _FILLER.pack(size, FILLER_MAGIC)
