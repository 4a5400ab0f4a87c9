"""An end for simulated runs that have none: a loop that never lets simulated time go on is a finding, too."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SEED_LIMIT_S = 600.0
"""Real time of one seed: a hundred times what a slow one takes."""
AGAIN_S = 1.0


class SeedLimitError(Exception):
    """A run was not over when its time was."""


class _OverError(KeyboardInterrupt):
    """Of this kind since asyncio lets it pass: any other error is kept by the task that was running."""


@contextmanager
def seed_limit(seconds: float = SEED_LIMIT_S) -> Iterator[None]:
    """End what is run within after so many seconds, wherever it is. On the main thread only.

    Raises: SeedLimitError, which says where it was.
    """

    def over(_number: int, frame: FrameType | None) -> None:
        raise _OverError("nowhere" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)  # again, if code under test caught the first one
    try:
        yield
    except _OverError as error:
        raise SeedLimitError(f"not over after {seconds:g} s, at {error}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
