"""Confirms with the group that this node's answer will miss nothing that was acknowledged so far: the read
index of the leader (dledger/core/reads.py), and how long ago it was this node's.

A leader asks its group for the index, in one round for all requests of a turn. A follower asks the leader for
it, with LEDGERMQ_READ_INDEX. Once a node has applied the entry of that index, it shows everything that was
acknowledged before the question was asked, so the time of the question is what the age of its answers counts
from. It does not depend on when messages of the leader were sent, which may have waited in a network or in a
suspended machine. A suspended machine's monotonic clock may stand still, and Unix time may be set back: the
age is the longer of what both clocks say.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.background import Spawn
from broker.leadership import Forwarder, Readiness
from commitlog.log import MessageLog
from dledger.core.types import ResponseCode as EngineCode
from dledger.server import DLedgerServer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError

APPLY_POLL_S: Final = 0.001
"""While an index that was confirmed is not applied yet: that is a matter of a few turns of the loop."""
CONFIRM_S_MAX: Final = 5.0
"""The engine answers sooner, unless the node stops."""
APPLY_S_MAX: Final = 2.0
"""An entry that cannot be applied so long is damaged on this node's disk and is being repaired."""
ASK_S_MAX: Final = 1.0
"""How long a follower waits for its leader's answer."""
FRESH_MS: Final = 1_000
"""An age up to this is good enough for a request that names no greatest age."""
NOT_APPLIED: Final = "[LINEARIZABLE]this node does not show yet what its group has committed"
INDEX_FIELD: Final = "index"
_DIGITS_MAX: Final = 19


class ReadIndex:
    """One for each node. `known_age_ms` never rests on a guess: None until the first confirmation."""

    def __init__(
        self,
        log: MessageLog,
        engine: DLedgerServer | None,
        readiness: Readiness,
        forwarder: Forwarder,
        now_ms: Callable[[], int],
        clock: Callable[[], int],
        spawn: Spawn,
    ) -> None:
        """`clock` is Unix time."""
        self._log = log
        self._engine = engine
        self._readiness = readiness
        self._forwarder = forwarder
        self._now_ms = now_ms
        self._clock = clock
        self._spawn = spawn
        self._as_of: tuple[int, int] | None = None
        """Everything acknowledged until then is applied here; by both clocks."""
        self._asking: asyncio.Task[None] | None = None
        self._applying: dict[int, asyncio.Task[bool]] = {}
        """One for each index that requests wait for."""

    async def confirm(self) -> None:
        """Returns when this node leads and shows everything acknowledged before the call. Raises RequestError
        when another node leads, or no majority says that this one does.
        """
        asked = self._times()
        if not await self._is_applied_soon(await self.index()):
            raise RequestError(ResponseCode.SYSTEM_BUSY, NOT_APPLIED)
        self._note(asked)

    async def index(self) -> int:
        """The index that must be applied to show everything acknowledged before the call; of the leader only.
        Raises RequestError.
        """
        engine = self._engine
        if engine is None:
            return self._log.applied_index
        if not await self._readiness.wait():
            raise self._readiness.refusal()
        done: asyncio.Future[tuple[EngineCode, int]] = asyncio.get_running_loop().create_future()

        def end(code: EngineCode, index: int) -> None:
            if not done.done():
                done.set_result((code, index))

        if engine.read_index(end) is not EngineCode.SUCCESS:
            raise self._readiness.refusal()
        try:
            async with asyncio.timeout(CONFIRM_S_MAX):
                code, index = await done
        except TimeoutError:
            code, index = EngineCode.WAIT_QUORUM_ACK_TIMEOUT, -1
        if code is not EngineCode.SUCCESS:
            remark = f"[LINEARIZABLE]no majority confirms that this node still leads ({code.name})"
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"{remark}: {self._readiness.leader_hint()}"
            )
        return index

    @property
    def known_age_ms(self) -> int | None:
        """This node shows everything that was acknowledged so long ago; None: not known."""
        if self._as_of is None:
            return None
        now, since = self._times(), self._as_of
        return max(0, now[0] - since[0], now[1] - since[1])

    def _times(self) -> tuple[int, int]:
        return self._now_ms(), self._clock()

    async def age_ms(self, wanted_ms: int | None) -> int | None:
        """The known age, after asking the leader if that is more than is wanted. Requests share a question:
        the age counts from the question, so it is right for those that joined later, too.
        """
        known_ms = self.known_age_ms
        if known_ms is None or known_ms > (FRESH_MS if wanted_ms is None else wanted_ms):
            if self._asking is None or self._asking.done():
                self._asking = self._spawn(self._ask())
            await asyncio.shield(self._asking)
        return self.known_age_ms

    async def ask_leader(self, fields: dict[str, str]) -> None:
        """One question to the leader, with these fields; without an answer nothing changes."""
        asked = self._times()
        request = RemotingCommand(RequestCode.LEDGERMQ_READ_INDEX, ext_fields=fields)
        if not self._forwarder.may_forward(request):
            return
        answer = await self._forwarder.ask_leader(request, ASK_S_MAX)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        text = answer.ext_fields.get(INDEX_FIELD, "")
        if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
            return
        if await self._is_applied_soon(int(text)):
            self._note(asked)

    async def _ask(self) -> None:
        if self._log.is_writable():
            try:
                await self.confirm()
            except RequestError:
                return
        else:
            await self.ask_leader({})

    def _note(self, asked: tuple[int, int]) -> None:
        if self._as_of is None or asked[0] > self._as_of[0]:
            self._as_of = asked

    async def _is_applied_soon(self, index: int) -> bool:
        """Whether this node's queues and tables have the entry, after waiting for it."""
        if self._is_applied(index):
            return True
        applying = self._applying.get(index)
        if applying is None:
            applying = self._applying[index] = self._spawn(self._poll(index))
            applying.add_done_callback(lambda _: self._applying.pop(index))
        return await asyncio.shield(applying)

    async def _poll(self, index: int) -> bool:
        end_ms = self._now_ms() + 1000 * APPLY_S_MAX
        while not self._is_applied(index) and self._now_ms() < end_ms:
            await asyncio.sleep(APPLY_POLL_S)
        return self._is_applied(index)

    def _is_applied(self, index: int) -> bool:
        """A plain log has no index to wait for."""
        if self._engine is None:
            return self._log.shows_all_committed()
        return self._log.applied_index >= index
