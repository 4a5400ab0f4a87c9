"""The table of compiled functions in docs/decisions names every one of them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "decisions" / "dependencies_and_compiled_code.md"


def entry_points() -> set[str]:
    """Functions and classes that the stubs of the compiled modules declare."""
    return {
        node.name
        for stub in (ROOT / "native").glob("*.pyi")
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    } - {"_Buffer"}


def test_the_table_names_every_compiled_function() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == entry_points()
