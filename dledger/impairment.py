"""The durable mark of a node that may have forgotten what it promised: `impaired`, beside `currterm`.

It is on the disk before anything that was lost is overwritten, and leaves it when the node is healed. One
line of JSON and, like `currterm`, a last line with the checksum of the rest.
"""

import json
import zlib
from operator import index
from pathlib import Path

from dledger.core.ports import Rng
from dledger.core.types import Impairment
from dledger.fs import Fs, read_replaced_file, replace_file

FORMAT_VERSION = 1
FILE_NAME = "impaired"
REPAIR_ID_MAX = (1 << 62) - 1
_FILE_BYTES_MAX = 8192
_REASON_CHARACTERS_MAX = 1024


class ImpairmentFile:
    """Reads, writes and removes `<folder>/impaired`. One caller at a time."""

    def __init__(self, fs: Fs, folder: Path, rng: Rng) -> None:
        """`rng` makes the repair ids: one that is used again would let old answers count."""
        self._fs = fs
        self._folder = folder
        self._path = folder / FILE_NAME
        self._rng = rng

    def load(self) -> Impairment | None:
        """None when there is no mark. A damaged mark says that everything may be lost. Raises OSError."""
        content = read_replaced_file(self._fs, self._path, _FILE_BYTES_MAX)
        if content is None:
            return None
        return _parse(content) or Impairment(self._new_id(), True, f"{FILE_NAME} is damaged")

    def mark(self, reason: str, is_vote_lost: bool) -> Impairment:
        """Durable when it returns. What an earlier mark says is lost stays lost. Raises OSError."""
        earlier = self.load()
        is_vote_lost = is_vote_lost or (earlier is not None and earlier.is_vote_lost)
        impairment = Impairment(self._new_id(), is_vote_lost, reason[:_REASON_CHARACTERS_MAX])
        replace_file(self._fs, self._path, _format(impairment))
        return impairment

    def remove(self) -> None:
        """Durable when it returns. Raises OSError."""
        if FILE_NAME in self._fs.list(self._folder):
            self._fs.delete(self._path)
        self._fs.fsync_directory(self._folder)

    def _new_id(self) -> int:
        return self._rng.between(0, REPAIR_ID_MAX)


def _format(impairment: Impairment) -> bytes:
    fields = {
        "version": FORMAT_VERSION,
        "repairId": impairment.repair_id,
        "isVoteLost": impairment.is_vote_lost,
        "reason": impairment.reason,
    }
    body = json.dumps(fields).encode() + b"\n"
    return body + b"crc32=%d\n" % zlib.crc32(body)


def _parse(content: bytes) -> Impairment | None:
    """None for what this program did not write."""
    body, separator, checksum = content.rpartition(b"crc32=")
    if not separator or checksum != b"%d\n" % zlib.crc32(body):
        return None
    try:
        fields = json.loads(body)
        if fields["version"] != FORMAT_VERSION:
            return None
        return Impairment(index(fields["repairId"]), bool(fields["isVoteLost"]), str(fields["reason"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
