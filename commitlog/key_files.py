"""The files of the key index: one for each stretch of the log, written once, under `<store>/keyindex`.

    header 76 | spans, 24 each | rows, 8 each | units, 8 each             (docs/formats/key_index.md)

A file is named by the 20-digit index it begins with. It is not synced: each part has a CRC, and a file that a
power failure has torn is dropped, and its stretch of the log read again.
"""

import errno
import logging
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from isal import isal_zlib

from commitlog.key_segment import (
    BUCKET_BITS_MAX,
    ROW_BYTES,
    Extent,
    OpenSegment,
    Span,
    bucket_bits,
    bucket_crc,
    bucket_of,
    newest,
    sort_units,
    window_of,
)
from commitlog.record_keys import UNIT_BYTES
from commitlog.segments import file_name
from dledger.fs import Buffer, Fs

logger = logging.getLogger(__name__)

DIRECTORY: Final = "keyindex"
MAGIC: Final = b"LMQ_KEYS"
VERSION: Final = 1
NAME_DIGITS: Final = 20
# magic version bits units spans | begin, last index | positions | times | CRC of the spans, CRC of this
_HEADER: Final = struct.Struct(">8sHHIIqqqqqqII")
_SPAN: Final = struct.Struct(">qqq")
_CRC_BYTES: Final = 4
_UINT32: Final = struct.Struct(">I")
_ROW: Final = struct.Struct(">II")


class DamagedKeyFileError(Exception):
    """A file of the key index does not hold what was written."""


class SealedSegment:
    """A segment in its file. It keeps no file open, and in memory only what the header says."""

    def __init__(
        self, fs: Fs, path: Path, extent: Extent, bits: int, span_count: int, spans_crc: int
    ) -> None:
        self.path = path
        self.extent = extent
        self._fs = fs
        self._bits = bits
        self._span_count = span_count
        self._spans_crc = spans_crc
        self._rows_at = _HEADER.size + span_count * _SPAN.size
        self._units_at = self._rows_at + (ROW_BYTES << bits)

    @property
    def size_bytes(self) -> int:
        """How long the file is."""
        return self._units_at + self.extent.unit_count * UNIT_BYTES

    def newest(self, word: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """As OpenSegment.newest. Reads the file with the first position.

        Raises DamagedKeyFileError, OSError.
        """
        fd = self._open()
        try:
            spans = () if self.extent.is_within(begin_ms, end_ms) else self._spans(fd)
            units = self._bucket(fd, bucket_of(word, self._bits))
        finally:
            self._fs.close(fd)
        window = window_of(self.extent, spans, begin_ms, end_ms)
        yield from newest(units, word, self.extent.begin_position, window)

    def read_all(self) -> tuple[Sequence[Span], bytes]:
        """Spans and units, checked. Raises DamagedKeyFileError, OSError."""
        fd = self._open()
        try:
            rows = self._read(fd, self._rows_at, ROW_BYTES << self._bits)
            units = self._read(fd, self._units_at, self.extent.unit_count * UNIT_BYTES)
            begin = 0
            for number, (end, crc) in enumerate(_ROW.iter_unpack(rows)):
                if bucket_crc(number, units[begin * UNIT_BYTES : end * UNIT_BYTES]) != crc or end < begin:
                    raise self._damage(f"bucket {number} does not have its CRC")
                begin = end
            return self._spans(fd), units
        finally:
            self._fs.close(fd)

    def _open(self) -> int:
        fd = self._fs.open(self.path)
        if self._fs.size(fd) != self.size_bytes:
            self._fs.close(fd)
            raise self._damage(f"it does not have {self.size_bytes} bytes")
        return fd

    def _spans(self, fd: int) -> list[Span]:
        data = self._read(fd, _HEADER.size, self._span_count * _SPAN.size)
        if isal_zlib.crc32(data) != self._spans_crc:
            raise self._damage("the spans do not have their CRC")
        return [Span(*each) for each in _SPAN.iter_unpack(data)]

    def _bucket(self, fd: int, bucket: int) -> bytes:
        # The row before says where the bucket begins. What stands before the first row means nothing here.
        data = self._read(fd, self._rows_at + bucket * ROW_BYTES - ROW_BYTES, 2 * ROW_BYTES)
        (before, _), (end, crc) = _ROW.iter_unpack(data)
        begin = before if bucket else 0
        if not begin <= end <= self.extent.unit_count:
            raise self._damage(f"bucket {bucket} goes from unit {begin} to {end}")
        units = self._read(fd, self._units_at + begin * UNIT_BYTES, (end - begin) * UNIT_BYTES)
        if bucket_crc(bucket, units) != crc:
            raise self._damage(f"bucket {bucket} does not have its CRC")
        return units

    def _read(self, fd: int, at: int, size_bytes: int) -> bytes:
        try:
            data = self._fs.pread(fd, size_bytes, at) if size_bytes else b""
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise self._damage(str(error.strerror)) from error
        if len(data) != size_bytes:
            raise self._damage("it ends too early")
        return data

    def _damage(self, reason: str) -> DamagedKeyFileError:
        return DamagedKeyFileError(f"{self.path}: {reason}")


def write_segment(fs: Fs, directory: Path, segment: OpenSegment) -> SealedSegment:
    """Put a segment into its file, in place of one that begins with the same entry. Raises OSError."""
    extent, spans = segment.extent, segment.spans
    bits = bucket_bits(extent.unit_count)
    rows, units = sort_units(segment.pieces, bits)
    packed_spans = b"".join(_SPAN.pack(*span) for span in spans)
    spans_crc = isal_zlib.crc32(packed_spans)
    header = _header(extent, bits, len(spans), spans_crc)
    path = directory / file_name(extent.begin_index)
    _write(fs, path, [header, packed_spans, rows, units])
    return SealedSegment(fs, path, extent, bits, len(spans), spans_crc)


def _header(extent: Extent, bits: int, span_count: int, spans_crc: int) -> bytes:
    numbers = (extent.begin_index, extent.last_index, extent.begin_position, extent.end_position)
    times = (extent.earliest_ms, extent.latest_ms)
    parts = (MAGIC, VERSION, bits, extent.unit_count, span_count, *numbers, *times, spans_crc)
    head = _HEADER.pack(*parts, 0)[:-_CRC_BYTES]
    return head + _UINT32.pack(isal_zlib.crc32(head))


def _write(fs: Fs, path: Path, buffers: Sequence[Buffer]) -> None:
    unfinished = path.with_name(path.name + ".tmp")
    fd = fs.open(unfinished)
    try:
        fs.set_size(fd, 0)
        fs.pwrite(fd, [buffer for buffer in buffers if buffer], 0)
    finally:
        fs.close(fd)
    fs.rename(unfinished, path)


def load_segments(fs: Fs, directory: Path) -> list[SealedSegment]:
    """The whole files of a directory, none of which covers an entry that another covers; the rest is deleted.

    Raises OSError.
    """
    found: list[SealedSegment] = []
    for name in fs.list(directory):
        path = directory / name
        segment = _load(fs, path) if len(name) == NAME_DIGITS and name.isdecimal() else None
        if segment is not None and (not found or found[-1].extent.last_index < segment.extent.begin_index):
            found.append(segment)
            continue
        logger.info("%s: not a whole file of the key index, deleted", path)
        fs.delete(path)
    return found


def _load(fs: Fs, path: Path) -> SealedSegment | None:
    fd = fs.open(path)
    try:
        head = fs.pread(fd, _HEADER.size, 0)
        size_bytes = fs.size(fd)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    finally:
        fs.close(fd)
    if len(head) < _HEADER.size:
        return None
    magic, version, bits, unit_count, span_count, *numbers, spans_crc, crc = _HEADER.unpack(head)
    if (magic, version) != (MAGIC, VERSION) or crc != isal_zlib.crc32(head[:-_CRC_BYTES]):
        return None
    begin_index, last_index, begin_position, end_position, earliest_ms, latest_ms = numbers
    is_sound = begin_index <= last_index and 0 <= begin_position <= end_position and bits <= BUCKET_BITS_MAX
    if not is_sound or path.name != file_name(begin_index):
        return None
    positions = (begin_position, end_position)
    extent = Extent(begin_index, last_index, *positions, earliest_ms, latest_ms, unit_count)
    segment = SealedSegment(fs, path, extent, bits, span_count, spans_crc)
    return segment if segment.size_bytes == size_bytes else None
