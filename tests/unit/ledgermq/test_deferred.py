"""What stands for a module until it is used."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ledgermq.cli import defer

NAMES = ("deferred_parent", "deferred_parent.child", "deferred_parent.child.grandchild")


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package whose child counts how often it is loaded, in the parent's `loads`."""
    child = tmp_path / "deferred_parent" / "child"
    child.mkdir(parents=True)
    (child.parent / "__init__.py").write_text("loads = 0\n")
    (child / "__init__.py").write_text(
        "import deferred_parent\ndeferred_parent.loads += 1\nVALUE = 7\ndef doubled(n): return 2 * n\n"
    )
    (child / "grandchild.py").write_text("VALUE = 8\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield NAMES[0]
    for name in NAMES:
        sys.modules.pop(name, None)


def test_an_import_is_no_use_and_a_value_is_one(parent: str) -> None:
    defer(NAMES[1])
    whole = importlib.import_module(parent)
    child = importlib.import_module(NAMES[1])
    assert (whole.child is child, whole.loads) == (True, 0)
    assert (child.VALUE, whole.loads) == (7, 1)
    assert sys.modules[NAMES[1]] is whole.child is not child, "the module itself took its place"
    assert (child.VALUE, whole.loads) == (7, 1)


@pytest.mark.parametrize("is_package", [True, False])
def test_a_function_that_is_taken_out_is_no_use_until_it_is_called(
    parent: str, tmp_path: Path, is_package: bool
) -> None:
    if not is_package:
        package = tmp_path / parent / "child"
        (package / "__init__.py").rename(tmp_path / parent / "child.py")
        shutil.rmtree(package)
        importlib.invalidate_caches()
    defer(NAMES[1], "doubled")
    taken: dict[str, object] = {}
    exec(f"from {NAMES[1]} import doubled", taken)
    whole = importlib.import_module(parent)
    assert whole.loads == 0
    doubled = taken["doubled"]
    assert callable(doubled)
    assert (doubled(4), doubled(5), whole.loads) == (8, 10, 1)


def test_a_module_of_it_is_found(parent: str) -> None:
    defer(NAMES[1])
    assert importlib.import_module(NAMES[2]).VALUE == 8


def test_what_is_not_there_is_said_to_be_missing(parent: str) -> None:
    defer(NAMES[1])
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module(NAMES[1]).nothing


def test_a_module_that_is_there_stays(parent: str) -> None:
    child = importlib.import_module(NAMES[1])
    defer(NAMES[1])
    assert sys.modules[NAMES[1]] is child
