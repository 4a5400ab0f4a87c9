"""An entry store, the damage that can happen to its files, and how the next start must handle it."""

import copy
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from commitlog.errors import CorruptLogError
from dledger.core.types import DamagedEntryError
from tests.support.log_entries import DIRECTORY, Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs

COUNT = 60
PER_FILE = 10
ENTRY_BYTES = 100
FILE_BYTES = 1024
CHECKPOINT_INDEX = 24
SYNCED_INDEX = 49
"""The rest, all of the last file, was written but not synced."""


class Outcome(enum.Enum):
    """In the words of the table in docs/crash_safety.md."""

    WHOLE = "nothing is lost"
    CUT = "torn tail, cut there"
    DAMAGE = "refused; a member of a group cuts the log there and is healed"
    TOLD = "refused; a member of a group corrects it, loses nothing, and is healed"
    EMPTY = "refused; a member of a group starts empty and is healed"
    COLD = "found when it is read; a member of a group takes it from its peers"
    REBUILT = "written again"
    REFUSED = "always refused"
    UNSEEN = "not noticed: every message can be read, but a filter by tag may pass over this one"
    STOPS = "found when it is read: the node stops, and its next start builds all queues again"


TOLD = frozenset({Outcome.DAMAGE, Outcome.TOLD, Outcome.EMPTY})


@dataclass(frozen=True, slots=True)
class Case:
    """One way to do the damage."""

    name: str
    damage: Callable[[MemoryFs], None]
    kept: int = COUNT
    """How many entries the log has afterwards."""
    bad: frozenset[int] = frozenset()
    """Those of them that cannot be read."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    file: str
    damage: str
    outcome: Outcome
    cases: Callable[[], Iterator[Case]]


def body(index: int) -> bytes:
    return bytes([index + 1]) * (ENTRY_BYTES - 48)


def expected(count: int) -> list[Stored]:
    return [Stored(1 + index // 25, body(index)) for index in range(count)]


@cache
def _image() -> MemoryFs:
    fs = MemoryFs()
    store = open_small(fs)
    for first, end in ((0, CHECKPOINT_INDEX + 1), (CHECKPOINT_INDEX + 1, SYNCED_INDEX + 1)):
        for index in range(first, end):
            store.append_bodies(index, 1 + index // 25, [body(index)])
        write_all(store)
        if end == CHECKPOINT_INDEX + 1:
            store.save_checkpoint(CHECKPOINT_INDEX, 20)
    for index in range(SYNCED_INDEX + 1, COUNT):
        store.append_bodies(index, 1 + index // 25, [body(index)])
    write_all(store, sync=False)
    store.close()
    return fs


def image() -> MemoryFs:
    """60 entries of 100 bytes, ten a file, as a killed process leaves them."""
    return copy.deepcopy(_image())


def data_file(number: int) -> Path:
    return DIRECTORY / "data" / f"{number * FILE_BYTES:020d}"


def index_file(number: int) -> Path:
    return DIRECTORY / "index" / f"{number * 256:020d}"


def place(index: int) -> tuple[Path, int]:
    """The file of an entry, and where in it the entry begins."""
    return data_file(index // PER_FILE), index % PER_FILE * ENTRY_BYTES


def content_of(fs: MemoryFs, *names: str) -> dict[Path, bytes]:
    """The files in these folders or of these names."""
    paths = [path for path in fs.paths() if path.parent.name in names or path.name in names]
    return {path: fs.content(path) for path in paths}


def check(row: Row, case: Case) -> None:
    """Open the damaged store as a lone node does, then as a member of a group, and use it."""
    where = f"{row.file}: {row.damage}: {case.name}"
    _check_alone(row, case, where)
    fs = image()
    case.damage(fs)
    told: list[str] = []
    if row.outcome is Outcome.REFUSED:
        with pytest.raises(CorruptLogError):
            open_small(fs, on_damage=told.append)
        assert not told, where
        return
    store = open_small(fs, on_damage=told.append)
    assert bool(told) == (row.outcome in TOLD), (where, told)
    assert store.end_index + 1 == case.kept, (where, store.end_index)
    state = store.log_state()
    assert state.commit_index <= state.end_index, where
    if row.outcome is Outcome.REBUILT:
        names = ("index", "epochs", "format")
        assert content_of(fs, *names) == content_of(image(), *names), where
    bad, written = set(), expected(COUNT)
    for index in range(case.kept):
        try:
            found = store.read_range(index, index, 1)
        except DamagedEntryError:
            bad.add(index)
            continue
        assert Stored(found.term, bytes(found.data[48:])) == written[index], where
    assert bad == case.bad, where
    _check_goes_on(fs, case, where)


def _check_alone(row: Row, case: Case, where: str) -> None:
    fs = image()
    case.damage(fs)
    if row.outcome in TOLD or row.outcome is Outcome.REFUSED:
        before = content_of(fs, "data", "checkpoint", "synced", "epochs")
        with pytest.raises(CorruptLogError):
            open_small(fs)
        after = content_of(fs, "data", "checkpoint", "synced", "epochs")
        changed = [path for path, content in before.items() if after.get(path) != content]
        assert all(path.name in ("synced", data_file(5).name) for path in changed), (where, changed)
    else:
        assert open_small(fs).end_index + 1 == case.kept, where


def _check_goes_on(fs: MemoryFs, case: Case, where: str) -> None:
    """The log takes entries, and the next start finds nothing wrong any more."""
    store = open_small(fs)
    assert store.end_index + 1 == case.kept, where
    store.append_bodies(case.kept, 9, [b"new"])
    write_all(store)
    store.save_checkpoint(case.kept, case.kept)
    again = open_small(fs)
    assert again.end_index == case.kept, where
    if not case.bad:
        assert read_all(again) == [*expected(case.kept), Stored(9, b"new")], where
