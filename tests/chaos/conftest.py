"""The seed of the tests of this folder, and what they need of the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest


@pytest.fixture
def seed() -> int:
    """Of what the faults leave to chance; LEDGERMQ_CHAOS_SEED gives another."""
    return int(os.environ.get("LEDGERMQ_CHAOS_SEED", "1"))


@pytest.fixture(autouse=True)
def able_machine(tmp_path: Path) -> None:
    """Unnamed files, and a loopback network whose addresses are all there: Linux."""
    if sys.platform != "linux":
        pytest.skip("chaos on real processes needs Linux")
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_RDWR))
    except OSError as error:
        pytest.skip(f"the file system of {tmp_path} has no unnamed files: {error}")
