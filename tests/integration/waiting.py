"""Waiting on conditions, always with a limit."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
ANSWER_LIMIT_S = 10.0
POLL_INTERVAL_S = 0.02
PROBE_TIMES, PAUSE_MAX_S = 4.0, 0.5
"""What is waited for needs the processor, too: after a probe, a pause of so many times as long as it took."""


def pause_after(probe_s: float) -> float:
    """How long to wait after a probe that took so long, in seconds."""
    return max(POLL_INTERVAL_S, min(PROBE_TIMES * probe_s, PAUSE_MAX_S))


def wait_for(what: str, probe: Callable[[], T | None], limit_s: float) -> T:
    """Call `probe` till it returns something true, and return that.

    Raises AssertionError, naming `what` and the last value, when `limit_s` is over.
    """
    end_s = time.monotonic() + limit_s
    while True:
        asked_s = time.monotonic()
        value = probe()
        if value:
            return value
        now_s = time.monotonic()
        if now_s >= end_s:
            raise AssertionError(f"after {limit_s:g} s still not so: {what} (last seen: {value!r})")
        time.sleep(pause_after(now_s - asked_s))


def answers(url: str) -> bool:
    """Whether a GET is answered with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_LIMIT_S) as answer:
            return bool(answer.status == 200)
    except OSError:  # also another status
        return False
