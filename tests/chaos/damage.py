"""Damage to the files of one node: a flipped bit, a cut, a missing file, of each kind that a node keeps."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos.cluster import ChaosNode
from tests.integration.log_files import data_files

KINDS: Final[dict[str, str]] = {
    "data": "store/dledger-*/data/*",
    "index": "store/dledger-*/index/*",
    "format": "store/dledger-*/format",
    "vote": "store/dledger-*/currterm",
    "epochs": "store/dledger-*/epochs",
    "checkpoint": "store/dledger-*/checkpoint",
    "sync mark": "store/dledger-*/synced",
    "consume queue": "store/consumequeue/*/*/*",
    "consume queue checkpoint": "store/consumequeue/.checkpoint",
    "key index": "store/keyindex/*",
    "state snapshot": "store/state/snapshot",
    "timer index": "store/timer/*",
}
"""What a node's files are called below its folder."""
UNREAD: Final = ("store/lock", "store/dledger-*/currterm.damaged")
"""What is there for others: nothing of it is ever read by the node."""


def used_bytes(path: Path) -> int:
    """Up to the last byte that means something: zeros and the ends of lines may follow."""
    return len(path.read_bytes().rstrip(b"\0\n"))


def flip(path: Path, rng: random.Random) -> str:
    """One bit of what was written: not of the zeros behind it."""
    return str(flip_bit(path, rng.randrange(used_bytes(path)), rng))


def cut(path: Path, rng: random.Random) -> str:
    """Somewhere in what was written."""
    at = rng.randrange(used_bytes(path))
    with path.open("r+b") as file:
        file.truncate(at)
    return f"{path.name} cut at byte {at}"


def delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return f"{path.name} deleted"


HARMS: Final[dict[str, Callable[[Path, random.Random], str]]] = {"flip": flip, "cut": cut, "delete": delete}


@dataclass(frozen=True, slots=True)
class Flip:
    """A bit that was flipped: where, and what the byte was before."""

    path: Path
    at: int
    was: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit:#04x} of byte {self.at} of {self.path.name} flipped"

    def is_undone(self) -> bool:
        """Whether the byte is again what it was."""
        with self.path.open("rb") as file:
            file.seek(self.at)
            return file.read(1) == bytes([self.was])


def flip_bit(path: Path, at: int, rng: random.Random) -> Flip:
    """Any one of that byte."""
    bit = 1 << rng.randrange(8)
    with path.open("r+b") as file:
        file.seek(at)
        was = file.read(1)[0]
        file.seek(at)
        file.write(bytes([was ^ bit]))
    return Flip(path, at, was, bit)


def flip_in_log(node: ChaosNode, end: int, rng: random.Random) -> Flip:
    """One bit of the node's log before position `end`."""
    at = rng.randrange(end)
    path = max((path for path in data_files(node.folder) if int(path.name) <= at), key=lambda path: path.name)
    return flip_bit(path, at - int(path.name), rng)


def files_of(node: ChaosNode, kind: str) -> list[Path]:
    """The node's files of this kind that hold anything, in the order of their names."""
    return sorted(path for path in node.folder.glob(KINDS[kind]) if path.is_file() and used_bytes(path))


def files_of_no_kind(node: ChaosNode) -> list[Path]:
    """The node's files that no test damages."""
    known = {path for pattern in (*KINDS.values(), *UNREAD) for path in node.folder.glob(pattern)}
    return sorted(path for path in node.store_root.rglob("*") if path.is_file() and path not in known)


def damage(node: ChaosNode, kind: str, harm: str, rng: random.Random) -> str:
    """Do it to one file of this kind; what was done, or that there is no such file yet."""
    files = files_of(node, kind)
    if not files:
        return f"{node.node_id} has no {kind}"
    return f"{node.node_id}, {kind}: {HARMS[harm](rng.choice(files), rng)}"


def wipe(node: ChaosNode) -> str:
    """The node gets a new, empty disk."""
    shutil.rmtree(node.store_root)
    return f"{node.node_id} has an empty disk"
