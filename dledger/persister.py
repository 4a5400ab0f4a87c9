"""The writer thread of one node: group commit of votes and log.

What gathers on the event loop while one batch is being made durable goes to disk together as the next
batch: one pwrite run and one fdatasync, however many messages it holds. Batches never overlap, so what a
batch promises (`after`) is sent only when everything before it is durable too.
"""

import asyncio
import enum
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dledger.core.output import Envelope, Output
from dledger.core.ports import LogStore
from dledger.core.types import HardState
from dledger.promises import Promises

Result = TypeVar("Result")


class Durability(enum.StrEnum):
    """What an acknowledgement means: on the disks of a majority, or in their page caches."""

    PERSISTED = "persisted"
    REPLICATED = "replicated"


@dataclass(slots=True)
class Batch:
    """What one trip to the disk makes durable, and what may be said afterwards."""

    hard_state: HardState | None = None
    after: list[Envelope] = field(default_factory=list)
    writes: Any = None
    last_index: int = -1
    last_term: int = 0
    commit_index: int = -1
    """Of the node when it was healed."""
    end_position: int = 0
    is_healed: bool = False
    """The mark of an impairment goes when the rest is durable."""


class Persister:
    """Owns the writer thread. All methods are called on the event loop."""

    def __init__(
        self,
        store: LogStore,
        promises: Promises,
        durability: Durability,
        on_persisted: Callable[[Batch], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._store = store
        self._promises = promises
        self._durability = durability
        self._on_persisted = on_persisted
        self._on_error = on_error
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-writer")
        self._gathering = Batch()
        self._busy: asyncio.Future[None] | None = None
        self._failed = False

    def gather(self, output: Output) -> None:
        """Adds to the next batch. The log's bytes are taken from the store when the batch leaves."""
        if output.hard_state is not None:
            self._gathering.hard_state = output.hard_state
        self._gathering.after.extend(output.send_after_persist)
        if output.is_healed:
            self._gathering.is_healed, self._gathering.commit_index = True, output.commit_index

    def kick(self, last_index: int, last_term: int) -> None:
        """Sends the next batch to the disk if the thread is free and there is something to write.

        last_index and last_term: where the node's log ends now, with every operation applied to the store.
        """
        if self._busy is not None or self._failed:
            return
        batch = self._gathering
        batch.writes = self._store.take_writes()
        if batch.writes is None and batch.hard_state is None and not batch.after:
            return
        batch.last_index, batch.last_term = last_index, last_term
        batch.end_position = self._store.end_position
        self._gathering = Batch()
        if batch.writes is None and batch.hard_state is None:
            self._on_persisted(batch)
            return
        loop = asyncio.get_running_loop()
        self._busy = loop.run_in_executor(self._thread, self._write, batch)
        self._busy.add_done_callback(lambda future: self._written(future, batch))

    def _write(self, batch: Batch) -> None:
        if batch.hard_state is not None:
            self._promises.save(batch.hard_state)
        if batch.writes is not None:
            self._store.write(batch.writes, sync=self._durability is Durability.PERSISTED)
        if batch.is_healed and self._durability is Durability.REPLICATED:
            # What it was given again was on the disks of others for long: the sync that brings it here.
            self._store.save_checkpoint(batch.last_index, batch.commit_index)
        if batch.is_healed:
            self._promises.heal()

    def _written(self, future: "asyncio.Future[None]", batch: Batch) -> None:
        self._busy = None
        if future.cancelled():
            return
        try:
            future.result()
            if batch.writes is not None:
                self._store.written(batch.writes)
            self._on_persisted(batch)
        except Exception as error:  # noqa: BLE001 (the loop would only log it, and the node go on half done)
            self._failed = True
            self._on_error(error)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs work on the writer thread, after the batch that is under way. Raises what work raises."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def stop(self) -> None:
        """Waits for the batch under way; nothing is accepted after it."""
        self._failed = True
        if self._busy is not None:
            await asyncio.gather(self._busy, return_exceptions=True)
        self._thread.shutdown(wait=True)
