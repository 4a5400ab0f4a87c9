"""What all tests share: their order, and the marker `long`."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")  # how long an example takes says how busy the machine is


def pytest_configure() -> None:
    """A run that is asked to end stops what it has started, as one that is interrupted does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests go first. Those marked `long` are skipped unless `scripts/test --long` asked for them."""
    items.sort(key=lambda item: item.get_closest_marker("integration") is not None)
    if os.environ.get("LEDGERMQ_LONG") == "1":
        return
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker(pytest.mark.skip(reason="runs only with scripts/test --long"))
