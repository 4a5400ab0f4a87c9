"""Requests sent on one asyncio connection that wait for the peer's answers."""

import asyncio
from typing import Final

from remoting.client.protocol import RequestTable
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError, RequestTimeoutError

_EXPIRY_STEP_S: Final = 0.05


class PendingRequests(RequestTable[asyncio.Future[RemotingCommand]]):
    """One timer serves all time-outs; it is armed while any request waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.peer = ""
        """The peer's address, for messages."""
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, opaque: int, timeout_s: float) -> asyncio.Future[RemotingCommand]:
        """A future of the answer, or of RequestTimeoutError or RemotingClosedError."""
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        deadline_s = self._loop.time() + timeout_s
        self.add(opaque, future, deadline_s)
        self._expire_at(deadline_s)
        return future

    def receive(self, answer: RemotingCommand) -> None:
        """Give an answer to its request; it is dropped when its request has timed out."""
        future = self.settle(answer.opaque)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self, reason: Exception | None) -> None:
        """Fail all requests: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
        for future in self.clear():
            if not future.done():
                future.set_exception(RemotingClosedError(f"connection to {self.peer} closed: {reason}"))

    def _expire_at(self, when_s: float) -> None:
        if self._timer is not None and self._timer.when() > when_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(when_s, self._fail_overdue)

    def _fail_overdue(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for future in self.expire(now_s):
            if not future.done():
                future.set_exception(RequestTimeoutError(f"{self.peer} did not answer in time"))
        next_s = self.next_deadline_s()
        if next_s is not None:
            self._expire_at(max(next_s, now_s + _EXPIRY_STEP_S))
