"""Committed entries → consume queues → listeners, in log order.

As RocketMQ's ReputMessageService, but driven by the commit instead of polling: the first stretch is done in
the call that tells of it, the rest a bounded stretch per turn of the loop, so that catching up with
millions of entries does not hold up anything else.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import Final, Protocol

from commitlog.consume_queues import ConsumeQueues
from commitlog.dispatch_batch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.log import DispatchListener
from commitlog.queue_checkpoint import Applied
from dledger.core.types import NO_INDEX
from telemetry.histogram import Histogram

logger = logging.getLogger(__name__)

STRETCH_ENTRIES_MAX: Final = 1024
STRETCH_BYTES_MAX: Final = 512 * 1024
DAMAGE_RETRY_S: Final = 0.5
"""When the log is damaged where dispatching stands, it waits so long for the repair and looks again."""


class DispatchSource(Protocol):
    """Where the committed records come from."""

    def requests_from(self, index: int, last_index: int) -> tuple[DispatchBatch, Applied]:
        """The records of a bounded stretch that begins with entry `index`, and where it ends.

        When the log begins behind `index`, the stretch begins there. Raises DamagedRecordError.
        """


class Reput:
    """Feeds the queues and the listeners up to the committed index."""

    def __init__(
        self,
        source: DispatchSource,
        queues: ConsumeQueues,
        applied: Applied,
        on_queued: Callable[[], None],
        on_applied: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.applied = applied
        """How far the queues and the listeners are. Goes back once, by `replay_from`."""
        self._source = source
        self._queues = queues
        self._queued = applied
        self._target_index = applied.index
        self._on_queued = on_queued
        self._on_applied = on_applied
        self._on_error = on_error
        self._listeners: dict[DispatchListener, frozenset[str] | None] = {}
        """With the topics that each wants; None: all."""
        self._next: asyncio.Handle | None = None
        self._is_stopped = False
        self._waits_for_index = NO_INDEX
        self.seconds = Histogram()
        """How long each stretch took, if nothing held it up."""
        self._untold: list[tuple[DispatchListener, DispatchBatch]] = []
        self._behind: tuple[DispatchListener, Applied] | None = None
        """A listener that goes over what the others have taken already, and how far it is."""

    def add_listener(self, listener: DispatchListener, topics: Collection[str] | None = None) -> None:
        """Call `listener` with every stretch from now on, or with those that hold one of these topics. It may
        read the records: when it raises DamagedRecordError it gets the stretch again after a while, and must
        pass over what it has applied.
        """
        self._listeners[listener] = None if topics is None else frozenset(topics)

    def remove_listener(self, listener: DispatchListener) -> None:
        """It gets at most the stretch that is being dispatched."""
        self._listeners.pop(listener, None)

    def replay_from(self, index: int, position: int) -> None:
        """Begin with this entry, which stands at `position`; the queues are not given what they have."""
        assert self._next is None, "replay_from comes before the first commit"
        if index <= self.applied.index:
            self.applied = Applied(index - 1, position)

    def give_again(self, listener: DispatchListener, index: int, position: int) -> None:
        """For a listener while it is told: it alone gets the entries from this one on again, before any other
        gets what is new.
        """
        self._behind = listener, Applied(index - 1, position)

    @property
    def queued(self) -> Applied:
        """How far the queues are, which is farther than `applied` during a replay."""
        return max(self._queued, self.applied, key=lambda applied: applied.index)

    @property
    def told_index(self) -> int:
        """Every entry up to here is in the queues; the listeners took it, or are being given it."""
        if self._behind is not None:
            return self._behind[1].index
        is_waiting = bool(self._untold) and self._untold[0][1][0].index == self._waits_for_index
        return self._waits_for_index - 1 if is_waiting else self.applied.index

    def advance_to(self, index: int) -> None:
        """Everything up to `index` is committed and can be read."""
        self._target_index = max(self._target_index, index)
        if self._next is None:
            self._step()

    def resume(self) -> None:
        """Go on after a flush made room in the queues."""
        self.advance_to(self._target_index)

    def stop(self) -> None:
        """Dispatch nothing more."""
        self._is_stopped = True
        if self._next is not None:
            self._next.cancel()

    def _step(self) -> None:
        self._next = None
        if self._is_stopped:
            return
        try:
            if self._untold:
                self._tell()
            elif self._behind is not None:
                self._go_over(*self._behind)
            elif self.applied.index < self._target_index and not self._queues.is_full:
                self._stretch()
            else:
                return
        except Exception as error:  # noqa: BLE001 (a top loop: what cannot be dispatched stops the node)
            self.stop()
            self._on_error(error)
            return
        if self._next is None and (self.applied.index < self._target_index or self._behind is not None):
            self._next = asyncio.get_running_loop().call_soon(self._step)

    def _stretch(self) -> None:
        begun_s = time.perf_counter()
        first_index = self.applied.index + 1
        # What the queues have they are not given again: a topic deleted since would come back, or lose more.
        is_replay = first_index <= self._queued.index
        last_index = min(self._target_index, self._queued.index) if is_replay else self._target_index
        try:
            batch, applied = self._source.requests_from(first_index, last_index)
        except DamagedRecordError as error:
            self._wait_for_repair(first_index, error)
            return
        assert applied.index >= first_index, (applied, first_index)
        if not is_replay:
            self._queues.put_all(batch)
        self.applied = applied
        self._on_queued()
        if batch:
            topics = batch.topics
            self._untold = [
                (listener, batch)
                for listener, wanted in self._listeners.items()
                if wanted is None or not wanted.isdisjoint(topics)
            ]
        self._tell()
        if not self._untold:
            self.seconds.observe(time.perf_counter() - begun_s)

    def _go_over(self, listener: DispatchListener, done: Applied) -> None:
        """One stretch more for a listener that is behind the others."""
        if done.index >= self.applied.index:
            self._behind = None
        else:
            try:
                batch, reached = self._source.requests_from(done.index + 1, self.applied.index)
                if batch:
                    listener(batch)
            except DamagedRecordError as error:
                self._wait_for_repair(done.index + 1, error)
                return
            self._behind = listener, reached
        self._on_applied()

    def _tell(self) -> None:
        """Give the stretch to the listeners that have not taken it yet."""
        while self._untold:
            listener, batch = self._untold[0]
            try:
                listener(batch)
            except DamagedRecordError as error:
                self._wait_for_repair(batch[0].index, error)
                return
            del self._untold[0]
        self._on_applied()

    def _wait_for_repair(self, index: int, error: DamagedRecordError) -> None:
        if self._waits_for_index != index:
            logger.warning("dispatching waits for the repair of the log: %s", error)
            self._waits_for_index = index
        self._next = asyncio.get_running_loop().call_later(DAMAGE_RETRY_S, self._step)
