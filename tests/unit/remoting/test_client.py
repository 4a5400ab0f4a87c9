"""The client: sharing and renewing connections, time-outs, requests from the other side, closing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from remoting.client.aio import RemotingClient
from remoting.command import RemotingCommand, success_response
from remoting.errors import ConnectFailedError, RemotingClosedError, RequestTimeoutError
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.router import Router
from remoting.server import Connection, RemotingServer
from tests.support.polling import until
from tests.support.self_dialled import SelfDialler, assert_can_be_listened_on


def _router() -> Router:
    router = Router()
    router.register(105, lambda request, _: success_response(request, dict(request.ext_fields)))
    router.register(11, lambda _, __: None)
    return router


@asynccontextmanager
async def _server_and_client(port: int = 0) -> AsyncIterator[tuple[RemotingServer, RemotingClient, str]]:
    server = RemotingServer(_router(), "127.0.0.1", port)
    await server.start()
    client = RemotingClient()
    try:
        yield server, client, f"127.0.0.1:{server.port}"
    finally:
        await client.close()
        await server.stop()


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


async def test_invokes_share_one_connection() -> None:
    async with _server_and_client() as (server, client, address):
        requests = [RemotingCommand(105, ext_fields={"n": str(number)}) for number in range(50)]
        answers = await asyncio.gather(*(client.invoke(address, request) for request in requests))
        assert [answer.ext_fields["n"] for answer in answers] == [str(number) for number in range(50)]
        assert len(list(server.connections)) == 1


async def test_error_answer_is_an_answer() -> None:
    async with _server_and_client() as (_, client, address):
        assert (await client.invoke(address, RemotingCommand(9999))).code == 3


async def test_refused_connection_raises_and_the_next_invoke_tries_again() -> None:
    client = RemotingClient()
    port = _free_port()
    address = f"127.0.0.1:{port}"
    with pytest.raises(ConnectFailedError, match=str(port)):
        await client.invoke(address, RemotingCommand(105))
    async with _server_and_client(port):
        assert (await client.invoke(address, RemotingCommand(105))).code == 0
    await client.close()


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", ":9876", "127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:-1"]
)
async def test_address_that_is_none_raises(address: str) -> None:
    client = RemotingClient()
    with pytest.raises(ConnectFailedError):
        await client.invoke(address, RemotingCommand(105))
    await client.close()


async def test_connection_closed_by_the_server_is_made_again() -> None:
    async with _server_and_client() as (server, client, address):
        first = await client.connect(address)
        for connection in server.connections:
            connection.abort()
        await until(lambda: not first.is_open)
        assert (await client.invoke(address, RemotingCommand(105))).code == 0
        assert await client.connect(address) is not first


async def test_waiting_request_fails_when_the_connection_closes() -> None:
    async with _server_and_client() as (server, client, address):
        waiting = asyncio.create_task(client.invoke(address, RemotingCommand(11)))
        await until(lambda: any(connection.unanswered for connection in server.connections))
        for connection in server.connections:
            connection.abort()
        with pytest.raises(RemotingClosedError):
            await waiting


async def test_timeout_on_a_silent_connection_closes_it() -> None:
    async with _server_and_client() as (_, client, address):
        connection = await client.connect(address)
        with pytest.raises(RequestTimeoutError):
            await client.invoke(address, RemotingCommand(11), timeout_s=0.02)
        assert not connection.is_open


async def test_timeout_on_a_live_connection_keeps_it() -> None:
    async with _server_and_client() as (_, client, address):
        connection = await client.connect(address)
        waiting = asyncio.create_task(client.invoke(address, RemotingCommand(11), timeout_s=0.2))
        await until(lambda: connection.pending == 1)
        await client.invoke(address, RemotingCommand(105))
        with pytest.raises(RequestTimeoutError):
            await waiting
        assert connection.is_open
        assert connection.pending == 0


async def test_a_request_is_sent_at_once_over_an_open_connection_only() -> None:
    async with _server_and_client() as (_, client, address):
        assert client.send(address, RemotingCommand(105)) is None
        connection = await client.connect(address)
        sent = client.send(address, RemotingCommand(105, ext_fields={"n": "7"}))
        assert sent is not None
        assert connection.pending == 1
        assert (await sent.result()).ext_fields == {"n": "7"}
        connection.abort()
        assert client.send(address, RemotingCommand(105)) is None


async def test_a_request_that_waits_for_its_answer_alone_times_out_as_an_invoke() -> None:
    async with _server_and_client() as (_, client, address):
        connection = await client.connect(address)
        sent = client.send(address, RemotingCommand(11), timeout_s=0.02)
        assert sent is not None
        with pytest.raises(RequestTimeoutError):
            await sent.result()
        assert not connection.is_open


async def test_a_dropped_request_waits_no_more() -> None:
    async with _server_and_client() as (_, client, address):
        connection = await client.connect(address)
        sent = client.send(address, RemotingCommand(105))
        assert sent is not None
        sent.drop()
        assert connection.pending == 0
        await client.invoke(address, RemotingCommand(105))
        assert not sent.answer.done()


async def test_oneway_arrives_without_an_answer() -> None:
    got: list[RemotingCommand] = []
    router = Router()
    router.register(15, lambda request, _: got.append(request))
    server = RemotingServer(router, "127.0.0.1", 0)
    await server.start()
    client = RemotingClient()
    connection = await client.connect(f"127.0.0.1:{server.port}")
    connection.send_oneway(RemotingCommand(15))
    await until(lambda: len(got) == 1)
    assert got[0].is_oneway
    await client.close()
    await server.stop()


async def test_request_of_the_server_reaches_the_handler_and_is_answered() -> None:
    async with _server_and_client() as (server, client, address):

        async def handler(request: RemotingCommand, _: Connection) -> RemotingCommand:
            return success_response(request, body=b"running info")

        client.on_request(handler)
        await client.connect(address)
        await until(lambda: list(server.connections) != [])
        (connection,) = server.connections
        assert (await connection.request(RemotingCommand(307))).body == b"running info"


async def test_request_of_the_server_without_a_handler_is_answered_3() -> None:
    async with _server_and_client() as (server, client, address):
        await client.connect(address)
        await until(lambda: list(server.connections) != [])
        (connection,) = server.connections
        assert (await connection.request(RemotingCommand(307))).code == 3


async def test_close_fails_what_waits_and_refuses_what_comes() -> None:
    async with _server_and_client() as (server, client, address):
        waiting = asyncio.create_task(client.invoke(address, RemotingCommand(11)))
        await until(lambda: any(connection.unanswered for connection in server.connections))
        await client.close()
        with pytest.raises(RemotingClosedError):
            await waiting
        with pytest.raises(RemotingClosedError):
            await client.invoke(address, RemotingCommand(105))
        await until(lambda: list(server.connections) == [])


async def test_close_ends_an_attempt_to_connect() -> None:
    client = RemotingClient()
    attempt = asyncio.create_task(client.connect(f"127.0.0.1:{_free_port()}", timeout_s=30))
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises((RemotingClosedError, ConnectFailedError)):
        await attempt


async def test_idle_connection_of_the_client_is_closed() -> None:
    async with _server_and_client() as (_, __, address):
        client = RemotingClient(RemotingLimits(idle_ms=20, check_interval_ms=10))
        connection = await client.connect(address)
        await until(lambda: not connection.is_open)
        assert (await client.invoke(address, RemotingCommand(105))).code == 0
        await client.close()


async def test_an_idle_connection_is_closed_by_the_client_before_the_server_would() -> None:
    async with _server_and_client() as (_, client, address):
        connection = await client.connect(address)
        last_s = max(connection.last_received_s, asyncio.get_running_loop().time())
        connection.check(last_s + (DEFAULT_LIMITS.idle_ms - 2 * DEFAULT_LIMITS.check_interval_ms) / 1000)
        assert not connection.is_open


async def test_a_connection_to_itself_is_a_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    client, port = RemotingClient(), _free_port()
    address = f"127.0.0.1:{port}"
    with monkeypatch.context() as patch:
        SelfDialler(patch)
        with pytest.raises(ConnectFailedError, match=f"{address}: .*nothing listens there"):
            await client.invoke(address, RemotingCommand(105))
    await client.close()
    assert_can_be_listened_on(port)
    async with _server_and_client(port) as (_, again, _):
        assert (await again.invoke(address, RemotingCommand(105))).code == 0
