"""Long work on the event loop, cut into slices, so that it delays nothing else on the loop by more than one.

A handler whose work may be long is a generator: it yields after each step of less than a millisecond, and
returns the answer. Threads would not help: the work is Python's, which one thread at a time may do.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]

SLICE_S: Final = 0.005
"""Of one turn of the event loop, for all long work together."""
RUNNING_MAX: Final = 4
"""Pieces of work that have begun and so hold memory of their own."""


def finish(steps: Steps[T]) -> T:
    """Do all of it now, for work that is known to be short."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def one_step(work: Callable[[], T]) -> Steps[T]:
    """Short work that many callers may want in one turn, as when what all of them waited for is there."""
    yield from ()
    return work()


@dataclass(eq=False, slots=True)
class _Work:
    steps: Steps[Any]
    owner: str
    result: asyncio.Future[Any]


class SlicedWork:
    """Work in progress on one event loop. Owners take turns, and each owner's work is done in order: what one
    peer asks for delays other peers' work little, however much it is.
    """

    def __init__(self, slice_s: float = SLICE_S, running_max: int = RUNNING_MAX) -> None:
        self._slice_s = slice_s
        self._running_max = running_max
        self._running: deque[_Work] = deque()
        self._waiting: OrderedDict[str, deque[_Work]] = OrderedDict()
        self._is_scheduled = False
        self._used_s = 0.0
        """By work that was done at once, since `_turn` ran last."""

    def start(self, steps: Steps[T], owner: str) -> asyncio.Future[T]:
        """A future of its result or error. The first slice is done at once if nothing else is in progress,
        and what was done at once before, perhaps in this turn, was less than a slice.
        """
        loop = asyncio.get_running_loop()
        work = _Work(steps, owner, loop.create_future())
        if self._running or self._waiting or self._used_s > max(self._slice_s, 0.0):
            self._waiting.setdefault(owner, deque()).append(work)
        else:
            begun_s = loop.time()
            if not self._proceed(work, begun_s + self._slice_s):
                self._running.append(work)
            self._used_s += loop.time() - begun_s
        self._schedule()
        return work.result

    def _schedule(self) -> None:
        if not self._is_scheduled and (self._running or self._waiting):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._used_s = 0.0
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._slice_s
        self._admit()
        while self._running:
            work = self._running.popleft()
            if not self._proceed(work, end_s):
                self._running.append(work)
            self._admit()
            if loop.time() >= end_s:
                break
        self._schedule()

    def _admit(self) -> None:
        """Begin what waits: of each owner its first, one at a time for each."""
        busy = {work.owner for work in self._running}
        while len(self._running) < self._running_max:
            owner = next((owner for owner in self._waiting if owner not in busy), None)
            if owner is None:
                return
            works = self._waiting.pop(owner)
            self._running.append(works.popleft())
            busy.add(owner)
            if works:
                self._waiting[owner] = works  # behind the other owners

    def _proceed(self, work: _Work, end_s: float) -> bool:
        """Work until then, a step at least; whether it is over."""
        loop = asyncio.get_running_loop()
        try:
            while not work.result.done():
                next(work.steps)
                if loop.time() >= end_s:
                    return False
        except StopIteration as end:
            work.result.set_result(end.value)
        except Exception as error:  # noqa: BLE001  the future's owner handles it
            work.result.set_exception(error)
        work.steps.close()
        return True
