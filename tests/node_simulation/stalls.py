"""Loops that stand still, and sockets closed without a call: drawn apart from the other options, which
so stay as they are, and by a chance of its own.

A loop stands still between two of its callbacks, wherever that is: a long computation, a page that is read
from a busy disk, a machine without a free core. Timers come due meanwhile, and bytes and connections wait.
"""

import random
from dataclasses import dataclass

from tests.node_simulation.loop import SimLoop
from tests.node_simulation.tcp import Endpoint


@dataclass(frozen=True, slots=True)
class StallOptions:
    """`callbacks`: so many of one loop come between two stalls, on average; 0 = none. `dial_probability`: how
    often a loop stands still between a connection's first call and the end of its dial. `close_ms`: mean
    virtual milliseconds between two sockets that are closed without a call; 0 = never.
    """

    callbacks: int = 0
    dial_probability: float = 0.0
    stall_max_ms: int = 1_000
    close_ms: int = 0


def draw_stalls(seed: int) -> StallOptions:
    """The options of a seed; always the same ones."""
    rng = random.Random(f"{seed} stalls")
    return StallOptions(
        callbacks=rng.choice((0, 500, 5_000)),
        dial_probability=rng.choice((0.1, 0.5)),
        stall_max_ms=rng.choice((300, 1_500, 4_000)),
        close_ms=rng.choice((0, 200, 2_000)),
    )


class Stalls:
    """When the loops of a world stand still. None does after `stop`."""

    def __init__(self, seed: int, options: StallOptions) -> None:
        self.counts: dict[str, int] = {}
        self.rng = random.Random(f"{seed} stalling")
        self.is_on = False
        self._options = options
        self._callbacks_left = 0

    def start(self) -> None:
        self.is_on = True
        self._callbacks_left = self._draw_callbacks()

    def stop(self) -> None:
        self.is_on = False

    def after_callback(self) -> int:
        """How long a loop stands still after this callback, in microseconds; mostly 0."""
        if not self.is_on or not self._options.callbacks:
            return 0
        self._callbacks_left -= 1
        if self._callbacks_left > 0:
            return 0
        self._callbacks_left = self._draw_callbacks()
        return self._draw_us("stall")

    def after_connecting(self, loop: SimLoop) -> None:
        """`connection_made` was called, and create_connection has not returned yet."""
        if self.is_on and self.rng.random() < self._options.dial_probability:
            loop.stand_still(self._draw_us("stall in a dial"))

    def close_one(self, endpoints: list[Endpoint]) -> None:
        """The process is not called, and what it writes from now on raises."""
        if self.is_on and endpoints:
            self._count("closed without a call")
            self.rng.choice(endpoints).close_silently()

    def _draw_callbacks(self) -> int:
        return self.rng.randint(1, 2 * self._options.callbacks + 1)

    def _draw_us(self, kind: str) -> int:
        self._count(kind)
        return 1_000 * self.rng.randint(1, self._options.stall_max_ms)

    def _count(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
