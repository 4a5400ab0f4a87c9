"""Connections that a server reads together in compiled code, over real sockets."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from native import function
from remoting.command import RemotingCommand, encode_command, success_response
from remoting.connection import Connection
from remoting.epoll_io import READ_AT_ONCE
from remoting.limits import DEFAULT_LIMITS, RemotingLimits
from remoting.router import Batch, Router
from remoting.server import RemotingServer
from tests.support.polling import loop_turns, until
from tests.unit.remoting.frames import BINARY_FRAME, JSON_FRAME, RawPeer

LoopRunner = Callable[[Coroutine[Any, Any, None]], None]
ECHO = 105


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> LoopRunner:
    def run_on(main: Coroutine[Any, Any, None]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main)

    return run_on


async def start(router: Router | None = None, limits: RemotingLimits = DEFAULT_LIMITS) -> RemotingServer:
    if router is None:
        router = Router()
        router.register(ECHO, lambda request, _: success_response(request, dict(request.ext_fields)))
    server = RemotingServer(router, "127.0.0.1", 0, limits)
    await server.start()
    return server


async def connect(server: RemotingServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", server.port)


@pytest.mark.parametrize("seed", range(8))
def test_every_request_is_answered_in_order_wherever_reads_cut_the_stream(run: LoopRunner, seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        server = await start()
        commands = []
        for opaque in range(200):
            command = RemotingCommand(ECHO, opaque, ext_fields={"a": "é\n" * rng.randrange(3)})
            command.body = bytes(rng.choice([0, 10, 3000, 5000, 300_000] if opaque % 40 == 0 else [0, 10]))
            command.serialize_type = rng.randrange(2)
            commands.append(command)
        data = b"".join(map(encode_command, commands))
        async with RawPeer(server.port) as peer:
            at = 0
            while at < len(data):
                size = rng.choice([1, 3, 4, 7, 200, 5000, 200_000])
                peer.writer.write(data[at : at + size])
                at += size
                if rng.random() < 0.3:
                    await peer.writer.drain()
                    await loop_turns(3)
            for command in commands:
                answer = await peer.receive()
                assert (answer.opaque, answer.ext_fields) == (command.opaque, command.ext_fields)
        await server.stop()

    run(main())


def test_more_connections_than_are_read_at_once_are_all_served(run: LoopRunner) -> None:
    async def main() -> None:
        turns: list[int] = []
        router = Router()

        def handle(arrived: list[Batch]) -> None:
            turns.append(len(arrived))
            for connection, requests in arrived:
                for request in requests:
                    connection.send(success_response(request))

        router.register_batch((310,), handle)
        server = await start(router)
        frame = encode_command(RemotingCommand(310, 1))
        peers = [await connect(server) for _ in range(READ_AT_ONCE + 40)]
        await until(lambda: len(list(server.connections)) == len(peers))
        await asyncio.sleep(0)
        for _ in range(3):
            for _, writer in peers:
                writer.write(frame)
            for reader, _ in peers:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
                await reader.readexactly(size)
        assert sum(turns) == 3 * len(peers)
        for _, writer in peers:
            writer.close()
        await until(lambda: not list(server.connections))
        await server.stop()

    run(main())


def test_what_was_read_is_handed_over_in_several_turns(
    run: LoopRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remoting.epoll_io.TURN_S_MAX", -1)
    test_every_request_is_answered_in_order_wherever_reads_cut_the_stream(run, 1)
    test_more_connections_than_are_read_at_once_are_all_served(run)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_stream_that_ends_or_breaks_closes_its_connection(run: LoopRunner, is_reset: bool) -> None:
    async def main() -> None:
        server = await start()
        closed: list[int] = []
        server.on_connection_closed(lambda connection: closed.append(connection.connection_id))
        for cut in (0, 3, len(JSON_FRAME)):
            peer = socket.create_connection(("127.0.0.1", server.port))
            peer.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(peer, BINARY_FRAME + JSON_FRAME[:cut])
            await asyncio.get_running_loop().sock_recv(peer, 10)
            if is_reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.close()
            await until(lambda: not list(server.connections))
        assert closed == [1, 2, 3]
        await server.stop()

    run(main())


def test_a_descriptor_used_again_belongs_to_the_new_connection(run: LoopRunner) -> None:
    async def main() -> None:
        server = await start()
        for number in range(30):
            async with RawPeer(server.port) as peer:
                peer.writer.write(JSON_FRAME)
                assert (await peer.receive()).code == 0
                (connection,) = server.connections
                assert connection.connection_id == number + 1
                if number % 3 == 0:
                    connection.abort()
                    assert await peer.is_closed_by_peer()
                elif number % 3 == 1:
                    connection.close()
                    peer.writer.write(JSON_FRAME)
                    assert await peer.is_closed_by_peer()
            await until(lambda: not list(server.connections))
        await server.stop()

    run(main())


def test_a_peer_with_too_many_open_requests_is_not_read_until_half_are_answered(run: LoopRunner) -> None:
    async def main() -> None:
        waiting: list[tuple[RemotingCommand, Connection]] = []
        router = Router()
        router.register(ECHO, lambda request, connection: waiting.append((request, connection)))
        server = await start(router, RemotingLimits(unanswered_max=10))
        frame = encode_command(RemotingCommand(ECHO, 1))
        async with RawPeer(server.port) as peer:
            peer.writer.write(frame * 11)
            await until(lambda: len(waiting) == 11)
            peer.writer.write(frame * 5)
            await loop_turns()
            assert len(waiting) == 11
            for request, connection in waiting[:6]:
                connection.send(success_response(request))
            await until(lambda: len(waiting) == 16)
        await until(lambda: not list(server.connections))
        await server.stop()

    run(main())


def test_what_the_kernel_does_not_take_follows_in_order(run: LoopRunner) -> None:
    async def main() -> None:
        router = Router()
        bodies = [os.urandom(700_000) for _ in range(12)]
        router.register(ECHO, lambda request, _: success_response(request, body=bodies[request.opaque]))
        server = await start(router)
        async with RawPeer(server.port) as peer:
            for opaque in range(12):
                peer.writer.write(encode_command(RemotingCommand(ECHO, opaque)))
            await loop_turns()
            for body in bodies:
                assert (await peer.receive()).body == body
        await server.stop()

    run(main())


@pytest.mark.parametrize("size_bytes", [0, 300, 40_000, 70_000])
def test_many_answers_of_a_turn_follow_in_order(run: LoopRunner, size_bytes: int) -> None:
    async def main() -> None:
        router = Router()
        bodies = [os.urandom(size_bytes) for _ in range(90)]
        router.register(ECHO, lambda request, _: success_response(request, body=bodies[request.opaque]))
        server = await start(router)
        async with RawPeer(server.port) as peer:
            requests = [encode_command(RemotingCommand(ECHO, opaque)) for opaque in range(len(bodies))]
            peer.writer.write(b"".join(requests))
            for body in bodies:
                assert (await peer.receive()).body == body
        await server.stop()

    run(main())


_make = function("_remoting", "Poller")


@pytest.mark.skipif(_make is None, reason="not compiled")
def test_a_poller_takes_nothing_that_it_cannot_use(tmp_path: Any) -> None:
    from remoting.command import LANGUAGES
    from remoting.epoll_io import _make_reader
    from remoting.headers.send import SendMessageRequestHeader, SendRequest

    assert _make is not None
    assert _make_reader is not None
    for wrong in (("text", 1), (object(), 1)):
        with pytest.raises(TypeError):
            _make(*wrong)
    reader = _make_reader(
        RemotingCommand, SendRequest, SendMessageRequestHeader, LANGUAGES, "OTHER", 1 << 24, 1 << 20, 4096
    )
    for events in (0, -1, 1025):
        with pytest.raises(ValueError, match="connections in one call"):
            _make(reader, events)
    poller = _make(reader, 4)
    one, other = socket.socketpair()
    for fd in (-1, 1 << 20, 1 << 40):
        with pytest.raises(ValueError, match="no descriptor"):
            poller.add(fd, "one", False)
    with pytest.raises(OSError, match="Operation not permitted"), (tmp_path / "file").open("wb") as file:
        poller.add(file.fileno(), "one", False)
    poller.add(one.fileno(), "one", False)
    poller.remove(one.fileno(), "another")
    poller.expect(10_000, "one", True)
    other.sendall(JSON_FRAME)
    ((connection, commands, open_count, code),) = poller.collect()
    assert (connection, len(commands), open_count, code) == ("one", 1, 1, commands[0].code)
    assert poller.collect() == []
    other.sendall(JSON_FRAME[:5])
    assert poller.collect() == [("one", JSON_FRAME[:5], 0, -1)]
    other.sendall(JSON_FRAME)
    assert poller.collect() == [("one", JSON_FRAME, 0, -1)]
    assert poller.send(one.fileno(), "another", [b"x"]) == 0
    assert poller.send(one.fileno(), "one", []) == 0
    assert poller.send(one.fileno(), "one", [b"x", b"", b"yz"]) == 3
    assert poller.send(one.fileno(), "one", [b"1"] * 100) == 64
    for wrong_data in (b"x", ["text"], (b"x",)):
        with pytest.raises(TypeError):
            poller.send(one.fileno(), "one", wrong_data)
    other.close()
    assert poller.collect() == [("one", None, 0, -1)]
    assert poller.collect() == []
    poller.close()
    with pytest.raises(RuntimeError, match="closed"):
        poller.collect()
    poller.remove(one.fileno(), "one")
    one.close()
