"""The server of the admin process over real connections, and clients that need not play their part."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from admin_api.app import create_app
from admin_api.http_server import Server, server_config
from admin_api.settings import Settings
from tests.support.polling import until
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster

LIMIT_S = 10.0
NEVER_MS = 3_600_000
LONG_BYTES = 32 * 1024 * 1024
"""More than the buffers of both sides' systems take."""
PATIENT = Settings(NAMESRV_ADDRESS, keep_alive_ms=NEVER_MS)
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Of the next answer, whose body is read, too."""
        async with asyncio.timeout(LIMIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = next(line for line in head.splitlines() if line.startswith("content-length:"))
            await self.reader.readexactly(int(length.split(":")[1]))
        return int(head.split()[1])

    async def ended(self) -> bool:
        """Waits for the end of the connection. What came before it is passed over."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while await self.reader.read(65_536):
                    pass
        except ConnectionResetError:
            return True
        return True


class Served:
    """A running server, and the connections to it."""

    def __init__(self, config: uvicorn.Config, server: Server, port: int) -> None:
        self.config = config
        self._server = server
        self.port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, receive_bytes: int = 65_536, tls: ssl.SSLContext | None = None) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=receive_bytes, ssl=tls)
        self._writers.append(writer)
        return Client(reader, writer)

    @property
    def open(self) -> int:
        return len(self._server.server_state.connections)

    async def until(self, is_so: Callable[[], bool]) -> None:
        await until(is_so)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def served(settings: Settings, **options: Any) -> AsyncIterator[Served]:
    """`options` are uvicorn's."""
    app = create_app(settings, FakeCluster())

    @app.get("/endless")
    async def endless() -> Response:
        async def lines() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65_536
                await asyncio.sleep(0)

        return StreamingResponse(lines())

    @app.get("/long")
    async def long() -> Response:
        return Response(b"x" * LONG_BYTES)

    @app.post("/refused")
    async def refused() -> Response:
        return PlainTextResponse("whatever it says", HTTPStatus.CONFLICT)

    @app.get("/waiting")
    async def waiting(request: Request) -> Response:
        while not await request.is_disconnected():
            await asyncio.sleep(0)
        return PlainTextResponse("nobody reads it")

    @app.post("/taken")
    async def taken(request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    config = server_config(app, settings, 16, host="127.0.0.1", port=0, lifespan="on", **options)
    listener = config.bind_socket()
    server = Server(config, app)
    running = asyncio.create_task(server.serve([listener]))
    there = Served(config, server, listener.getsockname()[1])
    try:
        await there.until(lambda: server.started)
        yield there
    finally:
        there.close()
        server.should_exit = True
        await running


def with_limits(**limits: Any) -> Settings:
    return replace(PATIENT, **limits)
