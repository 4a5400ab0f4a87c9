"""The small files beside an entry store, which are replaced as a whole: checkpoint, epochs and format.

`checkpoint` is DLedger's own properties file. `epochs` holds the leader epochs and where the log begins; it
can be rebuilt from the log. `format` names the version and the file sizes, which every replica of a group
shares.
"""

import re
import zlib
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any, Final

import orjson

from commitlog.errors import CorruptLogError
from dledger.core.types import Epoch

EPOCHS_VERSION: Final = 1
FORMAT_VERSION: Final = 1
MEMBERS_FORMAT_VERSION: Final = 2
"""Of a store whose log names the members of its group: releases that would misread that refuse the store."""
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


def encode_format(
    kind: str, data_file_bytes: int, index_file_bytes: int, version: int = FORMAT_VERSION
) -> bytes:
    """The `format` file's content."""
    return seal(
        {
            "format": kind,
            "version": version,
            "dataFileBytes": data_file_bytes,
            "indexFileBytes": index_file_bytes,
        }
    )


def check_format(path: Path, found: bytes, expected: bytes) -> int | None:
    """The version of the `format` file at `path`; None when it is not whole: a damaged one is ignored.

    Raises CorruptLogError when the store was made in another way than this one reads. A file of one line,
    without a CRC, is one of an earlier version.
    """
    fields = unseal(found)
    if fields is None:
        try:
            fields = orjson.loads(found)
        except orjson.JSONDecodeError:
            return None
    version = fields.get("version") if isinstance(fields, dict) else None
    is_known = version in (FORMAT_VERSION, MEMBERS_FORMAT_VERSION)
    if not is_known or {**fields, "version": FORMAT_VERSION} != unseal(expected):
        raise CorruptLogError(f"{path}: the store is {found[:200]!r}, this node expects {expected[:200]!r}")
    # Also a lost line feed is damage: the file is then written again.
    is_whole = found == seal({**(unseal(expected) or {}), "version": version})
    return version if is_whole else None
