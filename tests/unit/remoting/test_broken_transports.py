"""What a transport raises costs its connection only, and a dial given up leaves nothing behind.

uvloop closes the transport of a cancelled `create_connection` without `connection_lost`, and raises
RuntimeError for what is written to it later.
"""

import asyncio
import time
from typing import Any

import pytest
import uvloop

from remoting import connection as connection_module
from remoting.client.aio import RemotingClient
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection, born_host
from remoting.errors import ConnectFailedError, RemotingClosedError
from remoting.limits import RemotingLimits
from remoting.router import Router
from remoting.server import RemotingServer

ECHO = 105
WAIT_S = 5.0


async def start() -> RemotingServer:
    router = Router()
    router.register(ECHO, lambda request, _: success_response(request))
    server = RemotingServer(router, "127.0.0.1", 0)
    await server.start()
    return server


def test_a_loop_that_stands_still_during_a_dial_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stalls = [0.15]
    go_on = born_host

    def stalling(host: str, port: int) -> bytes:
        if stalls and "127.0.0.1" in host:
            time.sleep(stalls.pop())  # within connection_made
        return go_on(host, port)

    async def main() -> None:
        server = await start()
        client = RemotingClient(RemotingLimits(connect_timeout_ms=100))
        address = f"127.0.0.1:{server.port}"
        monkeypatch.setattr(connection_module, "born_host", stalling)
        with pytest.raises(ConnectFailedError):
            await client.connect(address)
        assert stalls == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not client._open
        answer = await client.invoke(address, RemotingCommand(ECHO))
        assert answer.code == 0
        await client.close()
        await server.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def test_a_dial_that_the_loop_fails_in_its_own_way_is_a_failed_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def failing(*_: Any) -> None:
        raise RuntimeError("closed Transport handle and unset waiter")

    client = RemotingClient()
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", failing)
    with pytest.raises(ConnectFailedError, match="unset waiter"):
        await client.connect("127.0.0.1:1")
    await client.close()


class Owner:
    """Counts what it hears."""

    def __init__(self) -> None:
        self.opened = self.closed = 0

    def connection_opened(self, connection: Connection) -> None:
        self.opened += 1

    def connection_closed(self, connection: Connection) -> None:
        self.closed += 1

    def requests_received(self, connection: Connection, requests: list[RemotingCommand], code: int) -> None:
        raise AssertionError(requests)


class BrokenTransport(asyncio.Transport):
    """Was closed without a call: it does not seem to be closing, says nothing when aborted, and raises."""

    def __init__(self) -> None:
        super().__init__()
        self.is_broken = False

    def is_closing(self) -> bool:
        return False

    def _use(self, *_: Any, **__: Any) -> None:
        if self.is_broken:
            raise RuntimeError("the handler is closed")

    writelines = _use
    set_write_buffer_limits = _use
    pause_reading = resume_reading = abort = close = _use

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def get_write_buffer_size(self) -> int:
        return 0


async def test_a_write_that_raises_ends_the_connection_once() -> None:
    owner, transport = Owner(), BrokenTransport()
    connection = Connection(owner)
    connection.connection_made(transport)
    waiting = connection.start_request(RemotingCommand(ECHO), 60.0)
    transport.is_broken = True
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(RemotingClosedError):
            await waiting
    assert not connection.is_open
    connection.connection_lost(None)
    connection.abort()
    await asyncio.sleep(0)
    assert (owner.opened, owner.closed) == (1, 1)


async def test_reading_that_cannot_be_paused_ends_the_connection() -> None:
    owner, transport = Owner(), BrokenTransport()
    connection = Connection(owner)
    connection.connection_made(transport)
    transport.is_broken = True
    connection.pause_writing()
    await asyncio.sleep(0)
    assert (connection.is_open, owner.closed) == (False, 1)


async def test_a_connection_aborted_before_it_was_made_is_not_taken_in() -> None:
    owner = Owner()
    connection = Connection(owner)
    connection.abort()
    await asyncio.sleep(0)
    connection.connection_made(BrokenTransport())
    assert (connection.is_open, owner.opened) == (False, 0)
