"""The durable vote: term and voted_for of one node, in DLedger's `currterm` properties file.

A vote that is forgotten can be given twice, so the file is replaced in four steps (write a temporary
file, fsync it, rename it over the old one, fsync the folder) before any answer that depends on it
leaves the node. Java's `MemberState` writes the same keys without any fsync; the two keys added here
(`formatVersion`, `crc32`) are ignored by its reader.
"""

import zlib
from pathlib import Path

from dledger.core.types import HardState
from dledger.fs import Fs, OsFs, read_replaced_file, replace_file

FORMAT_VERSION = 1
FILE_NAME = "currterm"
_FILE_BYTES_MAX = 4096


class CorruptHardStateError(ValueError):
    """The file does not hold what was written: the node must not vote as if it had not yet."""


class HardStateFile:
    """Reads and replaces `<folder>/currterm`. Not thread-safe: one caller, the node's writer thread."""

    def __init__(self, folder: Path, fs: Fs | None = None) -> None:
        self._fs = fs or OsFs()
        self._folder = folder
        self._path = folder / FILE_NAME

    def exists(self) -> bool:
        return FILE_NAME in self._fs.list(self._folder)

    def load(self) -> HardState:
        """What was last saved, durable by now, since a vote that is found is given again without another
        save; term 0 and no vote when the node is new.

        Raises CorruptHardStateError when the content is damaged or of an unknown version, OSError.
        """
        content = read_replaced_file(self._fs, self._path, _FILE_BYTES_MAX)
        if content is None:
            return HardState(term=0, voted_for=None)
        return _parse(content, self._path)

    def save(self, state: HardState) -> None:
        """Durable when it returns. Raises OSError; the node must stop then."""
        replace_file(self._fs, self._path, _format(state))


def _format(state: HardState) -> bytes:
    lines = f"currTerm={state.term}\nvoteLeader={state.voted_for or ''}\nformatVersion={FORMAT_VERSION}\n"
    body = lines.encode()
    return body + b"crc32=%d\n" % zlib.crc32(body)


def _parse(content: bytes, path: Path) -> HardState:
    body, separator, checksum = content.rpartition(b"crc32=")
    if not separator or checksum.strip() != b"%d" % zlib.crc32(body):
        raise CorruptHardStateError(f"{path}: the checksum does not match, so the last vote is unknown")
    values = dict(line.partition("=")[::2] for line in body.decode(errors="replace").splitlines())
    if values.get("formatVersion") != str(FORMAT_VERSION):
        raise CorruptHardStateError(f"{path}: format version {values.get('formatVersion')} is not known here")
    try:
        return HardState(term=int(values["currTerm"]), voted_for=values["voteLeader"] or None)
    except (KeyError, ValueError) as error:
        raise CorruptHardStateError(f"{path}: no term and vote: {error!r}") from None
