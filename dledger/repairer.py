"""In-place repair: fetches damaged entries of this node's log from the peers.

Index and term identify an entry (Raft 5.3, Log Matching), so any peer that can read it has the same bytes,
leader or follower. The writer thread writes the checked bytes over the damaged ones and syncs them, while the
node continues to work.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from dledger.core.config import Config
from dledger.core.messages import FetchMessage, FetchRequest, FetchResponse, Message
from dledger.core.node import Node
from dledger.core.ports import LogStore
from dledger.core.types import UNKNOWN_TERM, CorruptRangeError, DamagedEntryError, EntryRange, ResponseCode

logger = logging.getLogger(__name__)

DAMAGES_MAX = 1024
"""Bounds the memory when a whole disk is damaged; the scrubber finds the other ranges again."""
_ANSWER_TIMEOUT_S = 2.0
_PAUSE_S = 1.0
"""Pause after a round in which no peer had the entries."""


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
        self._node.set_damaged(f"damaged {self._reason}" if self._damaged and self._config.others else None)

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
        """Repairs what is found until it is cancelled. A group of one has no peer to ask and only logs
        damage.
        """
        try:
            while self._config.others:
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
            for peer in self._config.others:
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
        # The log may have been truncated since the request: then these entries are another log's.
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
