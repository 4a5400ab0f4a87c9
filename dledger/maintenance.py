"""A node's background work: disk space, checkpoints, retention, reading the log for damage, and repairing it.

In-place repair: entries of this node's log that can't be read any more are fetched from the peers.
Index and term name an entry (Raft 5.3, Log Matching), so any peer that can read it has the same bytes,
whether it leads or not. The answer is checked, written over the old bytes and synced on the writer thread;
the node goes on meanwhile.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from dledger.core.config import Config
from dledger.core.messages import FetchMessage, FetchRequest, FetchResponse, Message
from dledger.core.node import Node
from dledger.core.ports import LogStore
from dledger.core.types import UNKNOWN_TERM, CorruptRangeError, DamagedEntryError, EntryRange, ResponseCode
from dledger.writer import DiskWriter

logger = logging.getLogger(__name__)

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
        state = store.log_state()
        self._checkpointed = (state.end_index, state.commit_index)
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
        end_index = self._node.end_index
        # Entries that are not known to be committed too: where acknowledgements do not wait for the disk,
        # this is what makes them durable, also at a node that has lost its leader.
        if (end_index, committed) == self._checkpointed:
            return
        self._checkpointed = (end_index, committed)
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


DAMAGES_MAX = 1024
"""Damaged ranges kept at most; the scrubber finds the others again."""
_ANSWER_TIMEOUT_S = 2.0
_PAUSE_S = 1.0
"""Between two rounds in which no peer could help."""


class Repairer:
    """The known damaged ranges, and one request at a time. Everything runs on the event loop."""

    def __init__(
        self,
        config: Config,
        node: Node,
        store: LogStore,
        *,
        send: Callable[[str, Message], None],
        run_on_writer: Callable[[Callable[[], None]], Awaitable[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        """`send` may lose messages; `run_on_writer` raises what the work raises."""
        self.repaired_entries = 0
        self._config = config
        self._node = node
        self._store = store
        self._send = send
        self._run_on_writer = run_on_writer
        self._fail = fail
        self._damaged: dict[int, int] = {}
        self._reason = ""
        self._is_damaged = asyncio.Event()
        self._asked: tuple[str, FetchRequest] | None = None
        self._answer: asyncio.Future[FetchResponse] | None = None

    # -- damage -----------------------------------------------------------------------------------

    def found(self, error: DamagedEntryError) -> None:
        """Entries can't be read. Has no effect for a range that is known already."""
        known = self._damaged.get(error.first_index, -1)
        if known >= error.last_index or (known < 0 and len(self._damaged) >= DAMAGES_MAX):
            return
        logger.warning("[%s] damaged: %s", self._config.self_id, error)
        self._damaged[error.first_index] = error.last_index
        self._reason = str(error)
        self._report_damage()
        self._is_damaged.set()

    def _report_damage(self) -> None:
        has_others = bool(self._node.members.others)
        self._node.set_damaged(f"damaged {self._reason}" if self._damaged and has_others else None)

    def _mark_repaired(self, first_index: int, through_index: int) -> None:
        """The range that begins there is readable up to through_index, or no longer in the log."""
        last_index = self._damaged.pop(first_index)
        if through_index < last_index:
            self._damaged[through_index + 1] = max(last_index, self._damaged.get(through_index + 1, -1))
        if not self._damaged:
            logger.info("[%s] all damaged entries are repaired", self._config.self_id)
        self._report_damage()

    # -- requests --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Repairs what is found until it is cancelled. In a group of one there is no peer to ask."""
        try:
            while True:
                if not self._damaged:
                    self._is_damaged.clear()
                    await self._is_damaged.wait()
                if not await self._repair_any():
                    await asyncio.sleep(_PAUSE_S)
        except Exception as error:  # noqa: BLE001 (a top loop: an error here would otherwise go unnoticed)
            self._fail(error)

    async def _repair_any(self) -> bool:
        """Tries each range with each peer. Returns whether a range was repaired or no longer needs it."""
        for first_index, last_index in sorted(self._damaged.items()):
            term = self._node.term_at(first_index)
            if term == UNKNOWN_TERM:  # removed by retention, or dropped
                self._mark_repaired(first_index, first_index)
                return True
            for peer in self._node.members.others:
                entries = await self._fetch(peer, FetchRequest(term, first_index, last_index))
                if entries is not None and await self._replace(entries):
                    self.repaired_entries += entries.last_index - first_index + 1
                    self._mark_repaired(first_index, entries.last_index)
                    return True
        return False

    async def _fetch(self, peer: str, request: FetchRequest) -> EntryRange | None:
        """One peer's entries, checked; None when it has none or does not answer in time."""
        self._asked = (peer, request)
        self._answer = asyncio.get_running_loop().create_future()
        self._send(peer, request)
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                response = await self._answer
        except TimeoutError:
            return None
        finally:
            self._asked = self._answer = None
        entries = response.entries
        if entries is None or not self._is_asked_for(entries, request):
            return None
        try:
            self._store.verify_range(entries)
        except CorruptRangeError as error:
            logger.warning("[%s] %s sent damaged entries: %s", self._config.self_id, peer, error)
            return None
        return entries

    def _is_asked_for(self, entries: EntryRange, request: FetchRequest) -> bool:
        return (
            entries.term == request.term
            and entries.first_index == request.first_index
            and entries.last_index <= request.last_index
            and self._node.term_at(entries.first_index) == entries.term
            and self._node.term_at(entries.last_index) == entries.term
        )

    async def _replace(self, entries: EntryRange) -> bool:
        try:
            await self._run_on_writer(lambda: self._store.replace_range(entries))
        except CorruptRangeError as error:
            logger.warning("[%s] fetched entries do not fit: %s", self._config.self_id, error)
            return False
        return True

    # -- messages ------------------------------------------------------------------------------------------

    def on_message(self, sender: str, message: FetchMessage) -> None:
        if isinstance(message, FetchRequest):
            self._send(sender, self._answer_to(message))
        elif self._answer is not None and not self._answer.done() and self._asked is not None:
            peer, request = self._asked
            is_expected = message.entries is None or message.entries.first_index == request.first_index
            if sender == peer and message.term == request.term and is_expected:
                self._answer.set_result(message)

    def _answer_to(self, request: FetchRequest) -> FetchResponse:
        """The entries asked for, if this node has them and can read them.

        Within a turn the node may be ahead of the store, so the bounds of both count, and the term that the
        store's bytes have.
        """
        node, store, first_index = self._node, self._store, request.first_index
        last_index = min(request.last_index, node.end_index, store.end_index)
        is_here = store.begin_index <= first_index <= last_index
        if not is_here or node.term_at(first_index) != request.term or request.term == UNKNOWN_TERM:
            return FetchResponse(request.term, ResponseCode.INDEX_OUT_OF_RANGE, None)
        try:
            entries = store.read_range(first_index, last_index, self._config.push_bytes_max)
        except DamagedEntryError as error:
            self.found(error)
            return FetchResponse(request.term, ResponseCode.DISK_ERROR, None)
        if entries.term != request.term:
            return FetchResponse(request.term, ResponseCode.INDEX_OUT_OF_RANGE, None)
        return FetchResponse(request.term, ResponseCode.SUCCESS, entries)
