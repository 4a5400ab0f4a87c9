"""Damage to the files of one node: a flipped bit, a cut, a missing file, of each kind that a node keeps."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.chaos.cluster import ChaosNode

KINDS: Final[dict[str, str]] = {
    "data": "store/dledger-*/data/*",
    "index": "store/dledger-*/index/*",
    "vote": "store/dledger-*/currterm",
    "epochs": "store/dledger-*/epochs",
    "checkpoint": "store/dledger-*/checkpoint",
    "sync mark": "store/dledger-*/synced",
    "consume queue": "store/consumequeue/*/*/*",
    "consume queue checkpoint": "store/consumequeue/.checkpoint",
    "state snapshot": "store/state/snapshot",
}
"""What a node's files are called below its folder."""


def flip(path: Path, rng: random.Random) -> str:
    """One bit of what was written: not of the zeros behind it."""
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    if used == 0:
        return f"{path.name} holds nothing"
    at, bit = rng.randrange(used), 1 << rng.randrange(8)
    data[at] ^= bit
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data[at : at + 1])
    return f"bit {bit:#04x} of byte {at} of {path.name} flipped"


def cut(path: Path, rng: random.Random) -> str:
    """Somewhere in what was written."""
    used = len(path.read_bytes().rstrip(b"\0"))
    at = rng.randrange(used) if used else 0
    with path.open("r+b") as file:
        file.truncate(at)
    return f"{path.name} cut at byte {at}"


def delete(path: Path, rng: random.Random) -> str:
    path.unlink()
    return f"{path.name} deleted"


HARMS: Final[dict[str, Callable[[Path, random.Random], str]]] = {"flip": flip, "cut": cut, "delete": delete}


def damage(node: ChaosNode, kind: str, harm: str, rng: random.Random) -> str:
    """Do it to one file of this kind; what was done, or that there is no such file yet."""
    files = sorted(path for path in node.folder.glob(KINDS[kind]) if path.is_file())
    if not files:
        return f"{node.node_id} has no {kind}"
    return f"{node.node_id}, {kind}: {HARMS[harm](rng.choice(files), rng)}"


def wipe(node: ChaosNode) -> str:
    """The node gets a new, empty disk."""
    shutil.rmtree(node.store_root)
    return f"{node.node_id} has an empty disk"
