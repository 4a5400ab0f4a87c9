"""Whatever happens to a file of an entry store: the rows of the table in docs/crash_safety.md."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest

from commitlog.checkpoint import Checkpoint, encode_format
from commitlog.entry_files import encode_slot
from tests.support.log_entries import DIRECTORY
from tests.support.memory_fs import MemoryFs
from tests.support.storage_damage import (
    CHECKPOINT_INDEX,
    COUNT,
    ENTRY_BYTES,
    FILE_BYTES,
    SYNCED_INDEX,
    Case,
    Outcome,
    Row,
    check,
    data_file,
    image,
    index_file,
    place,
)

Damage = Callable[[MemoryFs], None]


def flip(path: Path, position: int, bit: int) -> Damage:
    return lambda fs: fs.flip(path, position, bit)


def entry_flips(*indexes: int, kept: Callable[[int], int], is_bad: bool = False) -> Iterator[Case]:
    """A bit of every byte of the header, and some of the body."""
    for index in indexes:
        path, start = place(index)
        for at in [*range(48), 48, 70, ENTRY_BYTES - 1]:
            bad = frozenset({index}) if is_bad else frozenset()
            yield Case(f"entry {index} byte {at}", flip(path, start + at, at % 8), kept(index), bad)


def without_mark(case: Case) -> Case:
    def damage(fs: MemoryFs) -> None:
        case.damage(fs)
        fs.remove(DIRECTORY / "synced")

    return Case(case.name, damage, case.kept, case.bad)


def file_flips(path: Path, stride: int = 1, places: Iterable[int] | None = None) -> Iterator[Case]:
    for at in places or range(0, len(image().content(path)), stride):
        yield Case(f"byte {at}", flip(path, at, at % 8))


def cuts(path: Path, sizes: range, kept: Callable[[int], int]) -> Iterator[Case]:
    for size in sizes:
        yield Case(f"{size} bytes", lambda fs, size=size: fs.cut(path, size), kept(size))  # type: ignore[misc]


def removed(*paths: Path, kept: int = COUNT) -> Iterator[Case]:
    def damage(fs: MemoryFs) -> None:
        for path in paths:
            fs.remove(path)

    yield Case(", ".join(path.name for path in paths), damage, kept)


def planted(path: Path, content: bytes, kept: int = COUNT) -> Iterator[Case]:
    yield Case(f"{path.name}: {content[:20]!r}", lambda fs: fs.plant(path, content), kept)


def each(*parts: Iterator[Case]) -> Iterator[Case]:
    for part in parts:
        yield from part


def same(index: int) -> int:
    return index


def all_of(index: int) -> int:
    return COUNT


def blank_flips(*numbers: int) -> Iterator[Case]:
    for number in numbers:
        for at in range(8):
            yield Case(f"file {number} byte {at}", flip(data_file(number), 1000 + at, at), COUNT)


def synced_last(case: Case) -> Case:
    """All was synced before the damage."""

    def damage(fs: MemoryFs) -> None:
        slot = encode_slot(1000, COUNT - 1)
        fs.overwrite(DIRECTORY / "synced", 0, slot)
        case.damage(fs)

    return Case(case.name, damage, case.kept, case.bad)


def counted(case: Case) -> Case:
    """The checkpoint counts all entries, so that only those of the last 300 bytes are looked at again."""

    def damage(fs: MemoryFs) -> None:
        fs.plant(DIRECTORY / "checkpoint", Checkpoint(COUNT - 1, COUNT - 1).encode())
        case.damage(fs)

    return Case(case.name, damage, case.kept, case.bad)


ALL_DATA = tuple(data_file(number) for number in range(6))
ALL_INDEX = tuple(index_file(number) for number in range(8))
OTHER_SIZES = encode_format("dledger-entries", 2048, 256)

ROWS = (
    Row(
        "data",
        "a bit of an entry that was not synced",
        Outcome.CUT,
        lambda: entry_flips(50, 55, 59, kept=same),
    ),
    Row(
        "data",
        "a bit of a synced entry of the last three files, behind the checkpoint",
        Outcome.DAMAGE,
        lambda: each(
            entry_flips(40, 45, 49, kept=same), map(synced_last, entry_flips(50, 55, 59, kept=same))
        ),
    ),
    Row(
        "data",
        "a bit of an entry of an earlier file",
        Outcome.COLD,
        lambda: entry_flips(0, 9, 14, 29, kept=all_of, is_bad=True),
    ),
    Row(
        "data",
        "a bit of an entry that the checkpoint counts, among the last that are checked again",
        Outcome.DAMAGE,
        lambda: map(counted, entry_flips(56, 57, 59, kept=same)),
    ),
    Row(
        "data",
        "a bit of an entry that the checkpoint counts, before those",
        Outcome.COLD,
        lambda: map(counted, entry_flips(30, 40, 49, 55, kept=all_of, is_bad=True)),
    ),
    Row(
        "data",
        "a bit of an entry behind the checkpoint, `synced` lost as well",
        Outcome.CUT,
        lambda: map(without_mark, entry_flips(40, 45, 49, 59, kept=same)),
    ),
    Row(
        "data",
        "last file ends at any byte of its entries, not synced",
        Outcome.CUT,
        lambda: cuts(data_file(5), range(1000), lambda size: 50 + size // ENTRY_BYTES),
    ),
    Row(
        "data",
        "last file ends at any byte behind its entries",
        Outcome.WHOLE,
        lambda: cuts(data_file(5), range(1000, 1024), all_of),
    ),
    Row(
        "data",
        "last file ends at any byte, synced",
        Outcome.DAMAGE,
        lambda: map(
            synced_last, cuts(data_file(5), range(0, 1000, 7), lambda size: 50 + size // ENTRY_BYTES)
        ),
    ),
    Row(
        "data",
        "another file is too short",
        Outcome.DAMAGE,
        lambda: each(
            cuts(data_file(0), range(0, 1000, 37), lambda size: size // ENTRY_BYTES),
            cuts(data_file(2), range(0, 1000, 37), lambda size: 20 + size // ENTRY_BYTES),
            cuts(data_file(4), range(0, 1000, 37), lambda size: 40 + size // ENTRY_BYTES),
        ),
    ),
    Row(
        "data",
        "a file is too long",
        Outcome.TOLD,
        lambda: each(*(cuts(data_file(number), range(1025, 3000, 400), all_of) for number in (0, 2, 5))),
    ),
    Row("data", "first file missing", Outcome.EMPTY, lambda: removed(data_file(0), kept=0)),
    Row("data", "all files missing", Outcome.EMPTY, lambda: removed(*ALL_DATA, kept=0)),
    Row(
        "data",
        "a file in the middle missing",
        Outcome.DAMAGE,
        lambda: each(
            *(removed(data_file(number), kept=10 * number) for number in (1, 2, 4)),
            removed(data_file(2), data_file(3), kept=20),
        ),
    ),
    Row("data", "last file missing, not synced", Outcome.CUT, lambda: removed(data_file(5), kept=50)),
    Row(
        "data",
        "last file missing, synced",
        Outcome.DAMAGE,
        lambda: each(
            map(synced_last, removed(data_file(5), kept=50)), removed(data_file(4), data_file(5), kept=40)
        ),
    ),
    Row(
        "data",
        "a file out of sequence",
        Outcome.TOLD,
        lambda: each(
            planted(DIRECTORY / "data" / "7", b"x"),
            planted(DIRECTORY / "data" / f"{1000:020d}", bytes(FILE_BYTES)),
            planted(data_file(9), bytes(FILE_BYTES)),
        ),
    ),
    Row(
        "data",
        "one more file behind the last",
        Outcome.WHOLE,
        lambda: each(
            planted(data_file(6), bytes(FILE_BYTES)),
            planted(data_file(6), b"\x77" * FILE_BYTES),
            planted(data_file(6), b""),
            planted(data_file(6), image().content(data_file(3))),
        ),
    ),
    Row(
        "data",
        "a foreign file: its name is not a number",
        Outcome.WHOLE,
        lambda: each(
            planted(DIRECTORY / "data" / "note.txt", b"x"),
            planted(DIRECTORY / "data" / f"{0:020d}.bak", bytes(FILE_BYTES)),
            planted(DIRECTORY / "index" / "note.txt", b"x"),
            planted(DIRECTORY / "note", b"x"),
            planted(DIRECTORY / "checkpoint.tmp", b"endIndex=999\n"),
            planted(DIRECTORY / "epochs.tmp", b"x"),
        ),
    ),
    Row("data", "a bit of a blank", Outcome.WHOLE, lambda: blank_flips(0, 2, 3, 4)),
    Row(
        "index",
        "a bit of a unit of the last three files, behind the checkpoint",
        Outcome.REBUILT,
        lambda: each(*(file_flips(index_file(number), stride=5) for number in (4, 5, 7))),
    ),
    Row(
        "index",
        "a bit of a unit that the checkpoint counts, among the last that are checked again",
        Outcome.REBUILT,
        lambda: map(counted, file_flips(index_file(7), stride=3, places=range(64, 128))),
    ),
    Row(
        "index",
        "files missing",
        Outcome.REBUILT,
        lambda: each(
            removed(*ALL_INDEX),
            *(removed(path) for path in ALL_INDEX),
            *(map(counted, removed(path)) for path in ALL_INDEX),
            removed(*ALL_INDEX[2:4]),
            removed(*ALL_INDEX[6:]),
        ),
    ),
    Row(
        "index",
        "a file is too short or too long",
        Outcome.REBUILT,
        lambda: each(
            *(cuts(index_file(number), range(0, 256, 11), all_of) for number in (0, 3)),
            *(cuts(index_file(number), range(257, 300, 11), all_of) for number in (0, 3, 7)),
        ),
    ),
    Row(
        "index",
        "a file out of sequence",
        Outcome.REBUILT,
        lambda: each(
            planted(DIRECTORY / "index" / f"{100:020d}", b"x"), planted(index_file(20), b"\x77" * 256)
        ),
    ),
    Row(
        "index",
        "a rebuild was interrupted",
        Outcome.REBUILT,
        lambda: each(*map(_interrupted, range(8))),
    ),
    Row(
        "checkpoint",
        "missing, stale, or any bit or length wrong",
        Outcome.WHOLE,
        lambda: each(
            removed(DIRECTORY / "checkpoint"),
            planted(DIRECTORY / "checkpoint", Checkpoint(3, 3).encode()),
            file_flips(DIRECTORY / "checkpoint"),
            cuts(DIRECTORY / "checkpoint", range(70), all_of),
        ),
    ),
    Row(
        "checkpoint",
        "counts more entries than there are",
        Outcome.TOLD,
        lambda: planted(DIRECTORY / "checkpoint", Checkpoint(COUNT, COUNT).encode()),
    ),
    Row(
        "synced",
        "missing, or any bit or length wrong",
        Outcome.WHOLE,
        lambda: each(
            removed(DIRECTORY / "synced"),
            file_flips(DIRECTORY / "synced", places=[*range(24), *range(512, 536), 300, 1000]),
            cuts(DIRECTORY / "synced", range(0, 1100, 9), all_of),
        ),
    ),
    Row(
        "synced",
        "counts more entries than there are",
        Outcome.TOLD,
        lambda: planted(DIRECTORY / "synced", encode_slot(1000, COUNT).ljust(FILE_BYTES, b"\0")),
    ),
    Row(
        "epochs",
        "missing, or any bit or length wrong",
        Outcome.REBUILT,
        lambda: each(
            removed(DIRECTORY / "epochs"),
            file_flips(DIRECTORY / "epochs"),
            cuts(DIRECTORY / "epochs", range(86), all_of),
            cuts(DIRECTORY / "epochs", range(88, 100), all_of),
        ),
    ),
    Row(
        "format",
        "missing, or any bit or length wrong",
        Outcome.REBUILT,
        lambda: each(
            removed(DIRECTORY / "format"),
            file_flips(DIRECTORY / "format"),
            cuts(DIRECTORY / "format", range(110), all_of),
        ),
    ),
    Row(
        "format",
        "of other sizes, or damaged beside files of other sizes",
        Outcome.REFUSED,
        lambda: each(
            planted(DIRECTORY / "format", OTHER_SIZES),
            planted(DIRECTORY / "format", OTHER_SIZES.partition(b"\n")[0]),
            map(partial(_beside, OTHER_SIZES[:-12]), cuts(data_file(2), range(2048, 2049), all_of)),
        ),
    ),
)


def _interrupted(number: int) -> Iterator[Case]:
    def damage(fs: MemoryFs) -> None:
        fs.overwrite(index_file(number), 40, bytes(150))
        fs.plant(DIRECTORY / "index.rebuilding", b"")

    yield Case(f"a hole in file {number}", damage)


def _beside(format_content: bytes, case: Case) -> Case:
    def damage(fs: MemoryFs) -> None:
        fs.plant(DIRECTORY / "format", format_content)
        case.damage(fs)

    return Case(case.name, damage, case.kept)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.file}: {row.damage}")
def test_row_of_the_damage_table(row: Row) -> None:
    count = 0
    for case in row.cases():
        check(row, case)
        count += 1
    assert count > 0


def test_image_is_as_the_rows_say() -> None:
    fs = image()
    assert (CHECKPOINT_INDEX, SYNCED_INDEX) == (24, 49)
    assert fs.content(DIRECTORY / "checkpoint").startswith(b"endIndex=24\ncommittedIndex=20\n")
    assert fs.list(DIRECTORY / "data") == [path.name for path in ALL_DATA]
    assert fs.list(DIRECTORY / "index") == [path.name for path in ALL_INDEX]
