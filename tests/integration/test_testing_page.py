"""The examples of docs/testing_your_code.md, as they stand there: pytest runs all of them together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.client_runs import ROOT

pytestmark = pytest.mark.integration
PAGE = ROOT / "docs/testing_your_code.md"
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLUGIN = ("-p", "no:ledgermq", "-p", "no:asyncio", "-p", "ledgermq.pytest_plugin")
"""Once, whether its entry point is installed or not; pytest-asyncio warns where it is not configured."""
TESTS = {"test_greeting.py", "test_without_fixtures.py", "test_order_service.py", "test_reminders.py"}
LIMIT_S = 120
ONCE = "insert or ignore into booked values (?, ?)"
TWICE = "insert into booked values (?, ?) on conflict (id) do update set cents = cents + excluded.cents"


def examples() -> dict[str, str]:
    """The files of the page."""
    text = PAGE.read_text(encoding="utf-8")
    found = dict(BLOCK.findall(text))
    assert len(found) == text.count("```python\n"), "each example begins with the name of its file"
    return found


def run(folder: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-q", "-W", "error", *tests],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_all_examples_pass(tmp_path: Path) -> None:
    for name, text in examples().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert {path.name for path in tmp_path.glob("test_*.py")} == TESTS
    result = run(tmp_path)
    assert result.returncode == 0, result.stdout[-4_000:]
    assert f"{len(TESTS)} passed" in result.stdout


def test_the_example_finds_a_service_that_books_twice(tmp_path: Path) -> None:
    for name, text in examples().items():
        (tmp_path / name).write_text(text.replace(ONCE, TWICE), encoding="utf-8")
    assert TWICE in (tmp_path / "order_service.py").read_text()
    result = run(tmp_path, "test_order_service.py")
    assert result.returncode == 1
    assert "1 failed" in result.stdout
