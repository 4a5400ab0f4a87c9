"""Waiting on conditions, always with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
POLL_INTERVAL_S = 0.02


def wait_for(what: str, probe: Callable[[], T | None], limit_s: float) -> T:
    """Call `probe` till it returns something true, and return that.

    Raises AssertionError, naming `what` and the last value, when `limit_s` is over.
    """
    end_s = time.monotonic() + limit_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= end_s:
            raise AssertionError(f"after {limit_s:g} s still not so: {what} (last seen: {value!r})")
        time.sleep(POLL_INTERVAL_S)
