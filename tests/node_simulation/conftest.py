"""Fixtures of the simulations of whole nodes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _collect_between_runs() -> Iterator[None]:
    """A run makes millions of objects and hardly any cycles: collecting within it only costs time."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()
