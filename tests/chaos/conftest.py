"""Where the runs of these tests lie, and what a failed one leaves."""

from __future__ import annotations

import os

import pytest

from tests.chaos.cluster import Disk

DISK = Disk(is_volatile=True)
"""A killed node loses what it has not synced."""


@pytest.fixture
def seed() -> int:
    """Of what the faults leave to chance; LEDGERMQ_CHAOS_SEED gives another."""
    return int(os.environ.get("LEDGERMQ_CHAOS_SEED", "1"))
