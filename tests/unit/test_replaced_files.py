"""Files that are replaced whole - vote, mark of an impaired node, snapshot of the state - on a failing disk.

An error at any operation is told, and the old content or the new is found, never a mixture.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from broker.state.snapshot import Snapshot, read_snapshot, write_snapshot
from dledger.core.types import HardState
from dledger.durable_state import HardStateFile, ImpairmentFile
from dledger.environment import Environment
from tests.support.memory_fs import CHANGES, SYNCS, WRITES, MemoryFs

FOLDER = Path("/store")
CRASHES = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """How a file is written for the first and for the second time, and what reading it gives."""

    name: str
    first: Callable[[MemoryFs], object]
    second: Callable[[MemoryFs], object]
    read: Callable[[MemoryFs], object]


def save_vote(state: HardState, fs: MemoryFs) -> None:
    HardStateFile(FOLDER, fs).save(state)


def mark_of(fs: MemoryFs) -> ImpairmentFile:
    return ImpairmentFile(fs, FOLDER, Environment(fs=fs, rng=random.Random(1)))


def mark(reason: str, fs: MemoryFs) -> None:
    mark_of(fs).mark(reason, is_vote_lost=False)


def reason(fs: MemoryFs) -> str | None:
    found = mark_of(fs).load()
    return None if found is None else found.reason


def snapshot(index: int, fs: MemoryFs) -> None:
    write_snapshot(fs, FOLDER / "snapshot", Snapshot(index, {"topics": []}))


def snapshot_index(fs: MemoryFs) -> int | None:
    found = read_snapshot(fs, FOLDER / "snapshot")
    return None if found is None else found.applied_index


KINDS = (
    Kind(
        "vote",
        partial(save_vote, HardState(3, "n1")),
        partial(save_vote, HardState(4, "n2")),
        lambda fs: HardStateFile(FOLDER, fs).load(),
    ),
    Kind("mark", partial(mark, "first"), partial(mark, "second"), reason),
    Kind("removal of the mark", partial(mark, "first"), lambda fs: mark_of(fs).remove(), reason),
    Kind("snapshot", partial(snapshot, 1), partial(snapshot, 2), snapshot_index),
)


def content_after(kind: Kind, *writes: Callable[[MemoryFs], object]) -> object:
    fs = MemoryFs()
    fs.make_directory(FOLDER)
    for write in writes:
        write(fs)
    return kind.read(fs)


def is_told(kind: Kind, operations: frozenset[str], error: int, after: int) -> bool:
    """Whether the disk failed at all: not, once `after` is more than there are operations."""
    fs = MemoryFs()
    fs.make_directory(FOLDER)
    kind.first(fs)
    fault = fs.fail(operations, error, after)
    try:
        kind.second(fs)
    except OSError as caught:
        told = caught.errno
    else:
        assert not fault.strikes, "an error that nobody was told of"
        return False
    assert told == error
    fs.heal()
    allowed = [content_after(kind, kind.first), content_after(kind, kind.first, kind.second)]
    for seed in range(CRASHES):
        assert kind.read(fs.crash(random.Random(seed))) in allowed
    fs.end_process()
    assert kind.read(fs) in allowed
    kind.second(fs)
    assert kind.read(fs.crash(random.Random(0))) == allowed[1]
    return True


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_error_at_any_operation_is_told_and_leaves_a_whole_file(kind: Kind, error: int) -> None:
    struck = 0
    for operations in (WRITES, SYNCS, CHANGES - WRITES - SYNCS):
        after = 0
        while is_told(kind, operations, error, after):
            after += 1
        struck += after
    assert struck >= 2
