"""The small files beside an entry store: checkpoint, epochs, format and synced.

`checkpoint` is DLedger's own properties file. `epochs` holds the leader epochs and where the log begins; it
can be rebuilt from the log. `format` names the version and the file sizes, which every replica of a group
shares. `synced` holds up to which entry the data files are known to be on the disk:

    slot: sequence 8 | end index 8 | CRC-32 of both 4         two slots, 512 bytes apart, written in turn

It is written after every sync of the data but not synced itself, so that no write waits for it. It is exact
after the process was killed; after a power failure it is at worst the one of the last checkpoint, with which
it is synced. It never exceeds what was synced. Before entries are dropped it is lowered durably, in both
slots.
"""

import re
import struct
import zlib
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Final

import orjson

from commitlog.errors import CorruptLogError
from dledger.core.types import NO_INDEX, Epoch
from dledger.fs import Fs, read_file

EPOCHS_VERSION: Final = 1
FORMAT_VERSION: Final = 1
SMALL_FILE_BYTES_MAX: Final = 16 * 1024 * 1024

_NUMBER: Final = re.compile(rb"^(endIndex|committedIndex)=(-?\d{1,19})\s*$", re.MULTILINE)
_CRC_LINE: Final = b"#crc32="


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Entries up to `end_index` are synced; those up to `committed_index` are committed."""

    end_index: int = -1
    committed_index: int = -1

    def encode(self) -> bytes:
        """As DLedger writes it, with a CRC-32 in the place of the date comment of java.util.Properties."""
        numbers = b"endIndex=%d\ncommittedIndex=%d\n" % (self.end_index, self.committed_index)
        return numbers + b"%s%08x\n" % (_CRC_LINE, zlib.crc32(numbers))


def decode_checkpoint(content: bytes | None) -> Checkpoint:
    """The checkpoint; an empty one when the file is missing, lacks a number, or has a wrong CRC. A file
    without a CRC is accepted, since Java writes none.
    """
    content = content or b""
    numbers = {name: int(value) for name, value in _NUMBER.findall(content)}
    lines, found, crc = content.partition(_CRC_LINE)
    if found and crc.strip() != b"%08x" % zlib.crc32(lines):
        return Checkpoint()
    if len(numbers) < 2:
        return Checkpoint()
    return Checkpoint(numbers[b"endIndex"], numbers[b"committedIndex"])


@dataclass(frozen=True, slots=True)
class LogBegin:
    """Where the log begins and the epochs of its entries."""

    begin_index: int = 0
    begin_position: int = 0
    epochs: tuple[Epoch, ...] = ()

    def moved_to(self, index: int, position: int) -> "LogBegin":
        """The begin of the same log without the entries before `index`, which it has."""
        assert index >= self.begin_index, (index, self.begin_index)
        assert position >= self.begin_position, (position, self.begin_position)
        behind = tuple(epoch for epoch in self.epochs if epoch.first_index > index)
        first = Epoch(self.epochs[len(self.epochs) - len(behind) - 1].term, index)
        return LogBegin(index, position, (first, *behind))

    def encode(self) -> bytes:
        """The `epochs` file's content."""
        return seal(
            {
                "version": EPOCHS_VERSION,
                "beginIndex": self.begin_index,
                "beginPosition": self.begin_position,
                "epochs": [[epoch.term, epoch.first_index] for epoch in self.epochs],
            }
        )


def decode_log_begin(content: bytes | None) -> LogBegin | None:
    """None when the file is missing, damaged, or of a version that is not known."""
    fields = unseal(content)
    if fields is None or fields.get("version") != EPOCHS_VERSION:
        return None
    try:
        epochs = [Epoch(index(term), index(first_index)) for term, first_index in fields["epochs"]]
        return LogBegin(index(fields["beginIndex"]), index(fields["beginPosition"]), tuple(epochs))
    except (KeyError, TypeError, ValueError):
        return None


def seal(fields: dict[str, Any]) -> bytes:
    """One line of JSON and one with its CRC-32."""
    line = orjson.dumps(fields)
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def unseal(content: bytes | None) -> dict[str, Any] | None:
    """The fields of a sealed file; None when it is missing or damaged."""
    line, _, rest = (content or b"").partition(b"\n")
    if not line or rest.strip() != b"%08x" % zlib.crc32(line):
        return None
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return fields if isinstance(fields, dict) else None


def encode_format(kind: str, data_file_bytes: int, index_file_bytes: int) -> bytes:
    """The `format` file's content."""
    return seal(
        {
            "format": kind,
            "version": FORMAT_VERSION,
            "dataFileBytes": data_file_bytes,
            "indexFileBytes": index_file_bytes,
        }
    )


def check_format(path: Path, found: bytes, expected: bytes) -> bool:
    """Whether the `format` file at `path` is whole; a damaged one is ignored.

    Raises CorruptLogError when the store was made in another way than this one reads. A file of one line,
    without a CRC, is one of an earlier version.
    """
    if found == expected:
        return True
    fields = unseal(found)
    if fields is None:
        try:
            fields = orjson.loads(found)
        except orjson.JSONDecodeError:
            return False
    if fields != unseal(expected):
        raise CorruptLogError(f"{path}: the store is {found[:200]!r}, this node expects {expected[:200]!r}")
    return False


SLOT: Final = struct.Struct(">qqI")
SLOT_SPACING_BYTES: Final = 512
"""One sector: a torn write of one slot never damages the other."""
FILE_BYTES: Final = 2 * SLOT_SPACING_BYTES
_NUMBERS: Final = struct.Struct(">qq")


class SyncMark:
    """The file `synced` in a store's directory."""

    def __init__(self, fs: Fs, path: Path) -> None:
        self.end_index = NO_INDEX
        """Entries up to here were synced, as far as the mark knows."""
        self._fs = fs
        self._path = path
        self._fd: int | None = None
        self._sequence = 0
        self._is_name_synced = False
        self._is_synced = True

    def load(self) -> None:
        """Open and read the file, made if missing. Damaged slots are ignored."""
        self._is_name_synced = self._path.name in self._fs.list(self._path.parent)
        self._fd = self._fs.open(self._path)
        content = read_file(self._fs, self._path, FILE_BYTES) or b""
        slots = [decode_slot(content[at : at + SLOT.size]) for at in (0, SLOT_SPACING_BYTES)]
        self._sequence, self.end_index = max(slot or (0, NO_INDEX) for slot in slots)
        if self._fs.size(self._fd) != FILE_BYTES:
            self._fs.set_size(self._fd, FILE_BYTES)

    def raise_to(self, end_index: int) -> None:
        """Entries up to `end_index` have been synced. Left to the page cache."""
        if end_index > self.end_index:
            self.end_index = end_index
            self._write_next()

    def step_to(self, end_index: int) -> tuple[int, int, list[bytes]] | None:
        """As `raise_to`, but as (descriptor, place, bytes), for the caller to write; None when it need not be
        raised.
        """
        if end_index <= self.end_index or self._fd is None:
            return None
        self.end_index = end_index
        return self._fd, *self._next()

    def lower_to(self, end_index: int) -> None:
        """Entries behind `end_index` will be dropped: lower the mark durably first."""
        if end_index < self.end_index:
            self.end_index = end_index
            # Both slots: after a power failure the older one may be the only whole one, and it must not name
            # entries that are gone.
            self._write_next()
            self._write_next()
            self.sync()

    def sync(self) -> None:
        """Sync the file and, once, its name."""
        if self._fd is not None and not self._is_synced:
            self._fs.fdatasync(self._fd)
            self._is_synced = True
        if not self._is_name_synced:
            self._fs.fsync_directory(self._path.parent)
            self._is_name_synced = True

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            self._fs.close(self._fd)
            self._fd = None

    def _write_next(self) -> None:
        assert self._fd is not None, "load comes first"
        place, buffers = self._next()
        self._fs.pwrite(self._fd, buffers, place)

    def _next(self) -> tuple[int, list[bytes]]:
        self._sequence += 1
        self._is_synced = False
        slot = encode_slot(self._sequence, self.end_index)
        return self._sequence % 2 * SLOT_SPACING_BYTES, [slot]


def encode_slot(sequence: int, end_index: int) -> bytes:
    """A slot's bytes."""
    numbers = _NUMBERS.pack(sequence, end_index)
    return SLOT.pack(sequence, end_index, zlib.crc32(numbers))


def decode_slot(slot: bytes) -> tuple[int, int] | None:
    """(sequence, end index); None when the slot was never written or is damaged."""
    if len(slot) < SLOT.size:
        return None
    sequence, end_index, crc = SLOT.unpack(slot)
    if sequence <= 0 or zlib.crc32(slot[: _NUMBERS.size]) != crc:
        return None
    return sequence, end_index
