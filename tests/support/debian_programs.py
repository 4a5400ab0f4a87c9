"""Programs of Debian's package `prometheus`, from the system or where scripts/test puts them."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def find_program(name: str) -> str:
    """`prometheus` or `promtool`; skips the test without it, unless scripts/test promised it."""
    found = shutil.which(name) or shutil.which(name, path=ROOT / ".cache" / "promtool")
    if found is None:
        required = os.environ.get("LEDGERMQ_REQUIRE_CLIENTS", "").split(",")
        assert name not in required, f"{name} was found before the tests"
        pytest.skip(f"there is no {name} (Debian: in the package prometheus; scripts/test fetches it)")
    return found
