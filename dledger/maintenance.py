"""A node's background work: disk space, checkpoints, retention, and reading the log for damage."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from dledger.core.node import Node
from dledger.core.ports import LogStore
from dledger.core.types import DamagedEntryError
from dledger.writer import DiskWriter

_CHECKPOINT_INTERVAL_MS = 3_000
_INTERVAL_S = 1.0
_SCRUB_STEP_BYTES = 256 * 1024
"""Bytes read in one job of the writer thread: batches wait behind a job."""


@dataclass(frozen=True, slots=True)
class ScrubLimits:
    """How fast the log is read for damage (0: never), and the shortest pause between two rounds."""

    bytes_per_s: int = 4 * 1024 * 1024
    pause_ms: int = 60_000


class Maintenance:
    """One task on the event loop. `fail` is called with an error that must stop the node."""

    def __init__(
        self,
        node: Node,
        store: LogStore,
        writer: DiskWriter,
        now_ms: Callable[[], int],
        limits: ScrubLimits,
        on_damaged: Callable[[DamagedEntryError], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._node = node
        self._store = store
        self._writer = writer
        self._now_ms = now_ms
        self._limits = limits
        self._on_damaged = on_damaged
        self._fail = fail
        self._checkpointed_index = store.log_state().commit_index
        self._next_checkpoint_ms = now_ms() + _CHECKPOINT_INTERVAL_MS
        self._next_scrub_ms = now_ms()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await asyncio.sleep(_INTERVAL_S)
                self._node.set_disk_full(self._store.is_disk_full())
                if self._now_ms() >= self._next_checkpoint_ms:
                    self._next_checkpoint_ms = self._now_ms() + _CHECKPOINT_INTERVAL_MS
                    await self.save_checkpoint()
                if self._limits.bytes_per_s and self._now_ms() >= self._next_scrub_ms:
                    await self._scrub()
        except Exception as error:  # noqa: BLE001 (a top loop: an error here would otherwise go unnoticed)
            self._fail(error)

    async def remove_before(self, begin_index: int) -> int:
        """The log begins with this committed entry; files that hold only earlier ones are deleted.

        Returns how many files were deleted. Raises OSError; the node stops then.
        """
        # First in memory, so that no reader or push asks for an entry whose file is being deleted.
        self._store.begin_at(begin_index)
        self._node.log_begins_at(begin_index)
        try:
            return await self._writer.run(self._store.remove_files)
        except OSError as error:
            self._fail(error)
            raise

    async def save_checkpoint(self) -> None:
        """Stores end and commit index, so that the next start need not read the whole log.

        At most what this node's own disk has: the commit index may be ahead of it.
        """
        committed = min(self._node.commit_index, self._node.persisted_index)
        if committed == self._checkpointed_index:
            return
        self._checkpointed_index = committed
        end_index = self._node.end_index
        try:
            await self._writer.run(lambda: self._store.save_checkpoint(end_index, committed))
        except OSError as error:
            self._fail(error)

    async def _scrub(self) -> None:
        """Reads as many bytes as the limit allows in one second."""
        left_bytes = self._limits.bytes_per_s
        while left_bytes > 0:
            step_bytes = min(left_bytes, _SCRUB_STEP_BYTES)
            scrubbed = await self._writer.run(lambda: self._store.scrub(step_bytes))  # noqa: B023 (awaited)
            for error in scrubbed.damaged:
                self._on_damaged(error)
            left_bytes -= max(scrubbed.read_bytes, 1)
            if scrubbed.is_round_done:
                self._next_scrub_ms = self._now_ms() + self._limits.pause_ms
                return
