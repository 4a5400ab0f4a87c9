"""`synced`: up to which entry the data files are known to be on the disk, exact after a killed process.

    slot: sequence 8 | end index 8 | CRC-32 of both 4         two slots, 512 bytes apart, written in turn

Written after every sync of the data but not synced itself, so that it costs no wait: a killed process leaves
the newest word, a power failure at worst that of the last checkpoint, with which it is synced. It never says
more than what was synced. Before entries are dropped it is lowered durably, in both slots.
"""

import struct
import zlib
from pathlib import Path
from typing import Final

from dledger.core.types import NO_INDEX
from dledger.fs import Fs, read_file

SLOT: Final = struct.Struct(">qqI")
SLOT_SPACING_BYTES: Final = 512
"""A torn write of one sector never touches the other slot."""
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
        """Open and read the file, made if missing. Damaged slots say nothing."""
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
        """As `raise_to`, but as (descriptor, place, bytes) for somebody else to write; None when it need not
        be raised.
        """
        if end_index <= self.end_index or self._fd is None:
            return None
        self.end_index = end_index
        return self._fd, *self._next()

    def lower_to(self, end_index: int) -> None:
        """Promise no more than this, durably."""
        if end_index < self.end_index:
            self.end_index = end_index
            self._write_next()
            self._write_next()
            self.sync()

    def sync(self) -> None:
        """Put it on the disk."""
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
