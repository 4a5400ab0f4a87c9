"""An HTTP/1.1 server for GET /metrics and checks of health: one request to a connection, bounded in bytes,
time and number.

Idle connections cannot block new ones: at the bound the one that has been idle the longest is closed for a
new one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST

from sockets.listening import listening

HEAD_BYTES_MAX: Final = 8 * 1024
REQUEST_LIMIT_S: Final = 5.0
"""Limit for receiving the whole request, and again for sending its answer."""
CONNECTIONS_MAX: Final = 16
PATH: Final = "/metrics"
_TEXT: Final = "text/plain; charset=utf-8"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check has found: status 200 or 503, and a sentence."""

    is_good: bool
    sentence: str


Checks: TypeAlias = Mapping[str, Callable[[], Awaitable[Verdict]]]
"""By path."""


class MetricsServer:
    """Serves the text that `render` returns, and the verdicts of `checks`. Port 0 lets the system choose."""

    def __init__(
        self, render: Callable[[], Awaitable[bytes]], host: str, port: int, checks: Checks | None = None
    ) -> None:
        self._render = render
        self._checks = checks or {}
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        """Connections whose request has not arrived completely, the oldest first."""

    async def start(self) -> None:
        """Raises OSError when the address cannot be bound."""
        self._server = await listening(
            lambda: asyncio.start_server(
                self._serve, self._host, self.port, limit=HEAD_BYTES_MAX, backlog=CONNECTIONS_MAX
            ),
            self._host,
            self.port,
        )
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX and not self._make_room():
            writer.transport.abort()
            return
        self._open.add(task)
        self._silent[task] = writer
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            self._silent.pop(task, None)
            await self._answer(head, writer)
        except (OSError, RuntimeError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            # uvloop raises RuntimeError when the client disconnects before its answer is written.
            logger.debug("a request for metrics came to nothing: %r", error)
        finally:
            self._open.discard(task)
            self._silent.pop(task, None)
            writer.transport.abort()

    def _make_room(self) -> bool:
        """Whether a connection could be closed: not while all of them are being answered."""
        if not self._silent:
            return False
        task = next(iter(self._silent))
        self._silent.pop(task).transport.abort()
        self._open.discard(task)
        return True

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        status, kind, body = await self._respond(head)
        lines = (
            *(f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}"),
            *("Connection: close", "X-Content-Type-Options: nosniff", "", ""),
        )
        async with asyncio.timeout(REQUEST_LIMIT_S):
            writer.write("\r\n".join(lines).encode() + body)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _respond(self, head: bytes) -> tuple[str, str, bytes]:
        """Status, content type and body."""
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "400 Bad Request", _TEXT, b"this is no HTTP/1.1 request\n"
        path = words[1].partition("?")[0]
        if path != PATH and path not in self._checks:
            return "404 Not Found", _TEXT, f"there is only {', '.join((PATH, *self._checks))}\n".encode()
        if words[0] != "GET":
            return "405 Method Not Allowed", _TEXT, b"only GET is answered\n"
        try:
            return await (self._check(path) if path in self._checks else self._metrics())
        except Exception:
            logger.exception("%s cannot be answered", path)
            return "500 Internal Server Error", _TEXT, b"this cannot be answered; the log says why\n"

    async def _metrics(self) -> tuple[str, str, bytes]:
        return "200 OK", CONTENT_TYPE_LATEST, await self._render()

    async def _check(self, path: str) -> tuple[str, str, bytes]:
        verdict = await self._checks[path]()
        status = "200 OK" if verdict.is_good else "503 Service Unavailable"
        return status, _TEXT, f"{verdict.sentence}\n".encode()
