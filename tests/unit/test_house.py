"""The layout stays easy to take over: few files, no module that belongs into its only user, no circles.

The bounds are what was reached, so that growth is a decision and not an accident.
"""

import tomllib
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
)
FILES_MAX = 560
LINES_MAX = 116_000
"""Without comment lines: a comment that says why is not to be saved."""
PAGES_MAX = 36
SMALL_MAX_LINES = 60
GENERATED_PAGES = {"docs/scenarios.md", "docs/mutants.md"}
SMALL_MODULES: dict[str, str] = {}
"""Modules under 60 lines with one importer, each with the reason why it stands by itself."""


@cache
def imports() -> grimp.ImportGraph:
    """Imports between all modules of the product, those for type checking only among them."""
    return grimp.build_graph(*PACKAGES, exclude_type_checking_imports=False, cache_dir=None)


def python_files() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def small_modules() -> dict[str, str]:
    """Each small module with one importer, and that importer."""
    found = {}
    for path in python_files():
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name in ("__init__.py", "__main__.py"):
            continue
        importers = imports().find_modules_that_directly_import(module)
        if len(importers) == 1 and len(path.read_text().splitlines()) < SMALL_MAX_LINES:
            found[module] = importers.pop()
    return found


def test_a_small_module_with_one_importer_is_a_part_of_it() -> None:
    assert {m: i for m, i in small_modules().items() if m not in SMALL_MODULES} == {}


def test_the_list_of_small_modules_is_true() -> None:
    assert SMALL_MODULES.keys() - small_modules().keys() == set()


def test_no_import_circles() -> None:
    graph = imports()
    circles = [
        (module, imported)
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if module in graph.find_upstream_modules(imported)
    ]
    assert circles == []


def test_files_and_lines_stay_few() -> None:
    files = python_files()
    assert len(files) <= FILES_MAX
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert sum(not line.lstrip().startswith("#") for line in lines) <= LINES_MAX


def test_pages_stay_few() -> None:
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert len(pages - GENERATED_PAGES) <= PAGES_MAX
