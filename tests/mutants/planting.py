"""A copy of the source tree with a mutant's edits in it, where the tests find it before the real one.

Only the edited files are copied; all others are links, so that a copy costs milliseconds. A directory with
an edited file has no `__pycache__` in the copy, lest the real one be given the mutant's byte code.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tests.mutants.mutant import Edit

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = {"__pycache__", "data"}


class EditError(ValueError):
    """The source is no longer what the mutant was made for."""


def edited_files(edits: Sequence[Edit]) -> dict[str, str]:
    """The new text of each edited file. Raises EditError unless each old text stands there exactly once."""
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.file) or _read(edit.file)
        found = text.count(edit.old)
        if found != 1:
            raise EditError(f"{edit.file}: {found} times {edit.old!r}, expected once")
        texts[edit.file] = text.replace(edit.old, edit.new)
    for file, text in texts.items():
        try:
            compile(text, file, "exec")
        except SyntaxError as error:
            raise EditError(f"{file}: the mutant does not compile: {error}") from error
    return texts


def _read(file: str) -> str:
    try:
        return (ROOT / file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise EditError(f"{file}: no such file") from error


@contextmanager
def planted(edits: Sequence[Edit]) -> Iterator[Path]:
    """The root of a tree with these edits, removed at the end. Raises EditError."""
    texts = edited_files(edits)
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        _copy(ROOT, Path(name), PurePosixPath(), texts)
        yield Path(name)


def _copy(source: Path, target: Path, place: PurePosixPath, texts: Mapping[str, str]) -> None:
    for entry in source.iterdir():
        path = place / entry.name
        if entry.name in LEFT_OUT or (not place.parts and entry.name.startswith(".")):
            continue
        if str(path) in texts:
            (target / entry.name).write_text(texts[str(path)], encoding="utf-8")
        elif any(path in PurePosixPath(file).parents for file in texts):
            (target / entry.name).mkdir()
            _copy(entry, target / entry.name, path, texts)
        else:
            (target / entry.name).symlink_to(entry)
