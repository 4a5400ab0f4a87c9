"""The seed of the tests of this folder."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def seed() -> int:
    """Of what the faults leave to chance; LEDGERMQ_CHAOS_SEED gives another."""
    return int(os.environ.get("LEDGERMQ_CHAOS_SEED", "1"))
