"""Our own requests on one connection that wait for the peer's answers."""

import asyncio
from typing import Final

from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError, RequestTimeoutError

_OPAQUE_MAX: Final = 0x7FFFFFFF
_EXPIRY_STEP_S: Final = 0.05


class OwnRequests:
    """By opaque. One timer serves all time-outs, and it is armed while any request waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.peer = ""
        """Whose answers these are, for messages."""
        self._loop = loop
        self._pending: dict[int, tuple[asyncio.Future[RemotingCommand], float]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._last_opaque = 0

    def __len__(self) -> int:
        return len(self._pending)

    def next_opaque(self) -> int:
        self._last_opaque = self._last_opaque % _OPAQUE_MAX + 1
        return self._last_opaque

    def wait_for(self, opaque: int, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """The answer to come, or RequestTimeoutError, or RemotingClosedError."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_s
        self._pending[opaque] = (future, deadline_s)
        self._expire_at(deadline_s)
        return future

    def forget(self, opaque: int) -> None:
        """Nobody waits for it any more."""
        self._pending.pop(opaque, None)

    def settle(self, answer: RemotingCommand) -> None:
        """An answer came; it may be one that nobody waits for."""
        waiting = self._pending.pop(answer.opaque, None)
        if waiting is not None and not waiting[0].done():
            waiting[0].set_result(answer)

    def close(self, reason: Exception | None) -> None:
        """The connection is gone, and no answer will come."""
        if self._expiry is not None:
            self._expiry.cancel()
        pending, self._pending = self._pending, {}
        for future, _ in pending.values():
            if not future.done():
                future.set_exception(RemotingClosedError(f"connection to {self.peer} closed: {reason}"))

    def _expire_at(self, when_s: float) -> None:
        if self._expiry is not None and self._expiry.when() > when_s:
            self._expiry.cancel()
            self._expiry = None
        if self._expiry is None:
            self._expiry = self._loop.call_at(when_s, self._expire)

    def _expire(self) -> None:
        """Fail every overdue request."""
        self._expiry = None
        now_s = self._loop.time()
        for opaque in [opaque for opaque, (_, due_s) in self._pending.items() if due_s <= now_s]:
            future, _ = self._pending.pop(opaque)
            if not future.done():
                future.set_exception(RequestTimeoutError(f"{self.peer} did not answer in time"))
        if self._pending:
            next_s = min(due_s for _, due_s in self._pending.values())
            self._expire_at(max(next_s, now_s + _EXPIRY_STEP_S))
