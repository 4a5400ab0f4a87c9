"""The server over real sockets: turns handed over together, bad peers, bounds, stopping."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop

from remoting.command import RemotingCommand, decode_command, encode_command, success_response
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.router import Batch, Router
from remoting.server import Connection, RemotingServer
from tests.support.polling import until
from tests.unit.remoting.frames import BINARY_FRAME, JSON_FRAME, RawPeer

LoopRunner = Callable[[Coroutine[Any, Any, None]], None]


def _echo(request: RemotingCommand, _: Connection) -> RemotingCommand:
    return success_response(request, dict(request.ext_fields), request.body)


@asynccontextmanager
async def _serving(
    router: Router | None = None, limits: RemotingLimits = DEFAULT_LIMITS
) -> AsyncIterator[RemotingServer]:
    if router is None:
        router = Router()
        router.register(105, _echo)
    server = RemotingServer(router, "127.0.0.1", 0, limits)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> LoopRunner:
    """Runs a coroutine on either loop."""

    def run_on(main: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run_on


def test_request_is_answered_in_its_own_serialize_type(run: LoopRunner) -> None:
    async def main() -> None:
        async with _serving() as server, RawPeer(server.port) as peer:
            peer.writer.write(JSON_FRAME + BINARY_FRAME)
            answers = [await peer.receive(), await peer.receive()]
            assert [answer.serialize_type for answer in answers] == [0, 1]
            assert [answer.ext_fields for answer in answers] == [{"topic": "T"}] * 2

    run(main())


def test_requests_readable_together_are_handed_over_together(run: LoopRunner) -> None:
    async def main() -> None:
        batches: list[list[int]] = []

        def batch_handler(arrived: list[Batch]) -> None:
            sends = [(connection, request) for connection, requests in arrived for request in requests]
            batches.append(sorted(connection.connection_id for connection, _ in sends))
            for connection, request in sends:
                connection.send(success_response(request))

        router = Router()
        router.register_batch((310,), batch_handler)
        async with _serving(router) as server, RawPeer(server.port) as one, RawPeer(server.port) as two:
            await until(lambda: len(list(server.connections)) == 2)
            frame = encode_command(RemotingCommand(310, 1))
            # Both sockets are filled before the loop looks at either.
            one.writer.write(frame * 2)
            two.writer.write(frame)
            await one.receive()
            await two.receive()
            assert batches == [[1, 1, 2]]

    run(main())


def test_large_body_comes_back_whole(run: LoopRunner) -> None:
    async def main() -> None:
        body = bytes(range(256)) * 16 * 1024
        async with _serving() as server, RawPeer(server.port) as peer:
            peer.send(RemotingCommand(105, 1, body=body))
            assert (await peer.receive()).body == body

    run(main())


def test_frame_too_long_closes_that_connection_only(run: LoopRunner) -> None:
    async def main() -> None:
        async with _serving() as server, RawPeer(server.port) as bad, RawPeer(server.port) as good:
            bad.writer.write(b"\x01\x00\x00\x05\x00\x00\x00\x00")
            assert await bad.is_closed_by_peer()
            good.writer.write(JSON_FRAME)
            assert (await good.receive()).code == 0

    run(main())


def test_connections_beyond_the_bound_are_refused(run: LoopRunner) -> None:
    async def main() -> None:
        limits = RemotingLimits(connections_max=1)
        async with _serving(limits=limits) as server, RawPeer(server.port) as first:
            first.writer.write(JSON_FRAME)
            await first.receive()
            async with RawPeer(server.port) as second:
                assert await second.is_closed_by_peer()
            first.writer.write(JSON_FRAME)
            assert (await first.receive()).code == 0

    run(main())


def test_listeners_hear_of_each_closed_connection_once(run: LoopRunner) -> None:
    async def main() -> None:
        closed: list[int] = []
        async with _serving() as server:
            server.on_connection_closed(lambda connection: closed.append(connection.connection_id))
            async with RawPeer(server.port) as peer:
                peer.writer.write(JSON_FRAME)
                await peer.receive()
            await until(lambda: closed == [1])
            assert list(server.connections) == []

    run(main())


def test_peer_that_never_reads_is_aborted(run: LoopRunner) -> None:
    async def main() -> None:
        limits = RemotingLimits(write_buffer_high_bytes=1024, stall_ms=20, check_interval_ms=10)
        router = Router()
        router.register(11, lambda request, _: success_response(request, body=bytes(8 * 1024 * 1024)))
        async with _serving(router, limits) as server, RawPeer(server.port) as peer:
            cast("asyncio.Transport", peer.writer.transport).pause_reading()
            peer.send(RemotingCommand(11, 1), RemotingCommand(11, 2))
            await until(lambda: list(server.connections) != [])
            await until(lambda: list(server.connections) == [])

    run(main())


def test_idle_connection_is_closed_by_the_timer(run: LoopRunner) -> None:
    async def main() -> None:
        limits = RemotingLimits(idle_ms=20, check_interval_ms=10)
        async with _serving(limits=limits) as server, RawPeer(server.port) as peer:
            assert await peer.is_closed_by_peer()

    run(main())


def test_server_asks_its_client_over_the_same_connection(run: LoopRunner) -> None:
    async def main() -> None:
        async with _serving() as server, RawPeer(server.port) as peer:
            peer.writer.write(JSON_FRAME)
            await peer.receive()
            (connection,) = server.connections
            asking = asyncio.create_task(connection.request(RemotingCommand(307), 5))
            asked = await peer.receive()
            assert (asked.code, asked.is_response) == (307, False)
            peer.send(success_response(asked, body=b"info"))
            assert (await asking).body == b"info"

    run(main())


def test_stop_writes_what_is_gathered_and_closes_all(run: LoopRunner) -> None:
    async def main() -> None:
        async with _serving() as server, RawPeer(server.port) as peer:
            peer.writer.write(JSON_FRAME)
            await peer.receive()
            (connection,) = server.connections
            connection.send(RemotingCommand(40, flag=2))
            await server.stop()
            assert (await peer.receive()).code == 40
            assert await peer.is_closed_by_peer()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", server.port)
            await server.stop()

    run(main())


def test_port_in_use_is_an_error_of_start(run: LoopRunner) -> None:
    async def main() -> None:
        async with _serving() as server:
            with pytest.raises(OSError, match=f"port {server.port} is in use"):
                await RemotingServer(Router(), "127.0.0.1", server.port).start()

    run(main())


def test_answers_of_a_turn_come_joined(run: LoopRunner) -> None:
    async def main() -> None:
        async with _serving() as server, RawPeer(server.port) as peer:
            peer.writer.write(JSON_FRAME * 100)
            answers = [await peer.receive() for _ in range(100)]
            assert {answer.code for answer in answers} == {0}
            assert decode_command(encode_command(answers[0])[4:]).opaque == 7

    run(main())
