"""What a peer may cost: unfinished frames, silent connections, memory, file descriptors."""

import asyncio
import gc

import pytest

from remoting.command import RemotingCommand, encode_command, success_response
from remoting.connection import Connection
from remoting.limits import RemotingLimits, room_within
from remoting.memory_limit import REPORT_STEP_BYTES, MemoryLimit
from remoting.router import Router
from remoting.server import RemotingServer
from tests.unit.remoting.fakes import FakeOwner, FakeTransport, connect, turn
from tests.unit.remoting.frames import JSON_FRAME

MIB = 1 << 20


def now_s() -> float:
    return asyncio.get_running_loop().time()


def large_frame(size_bytes: int, flag: int = 0) -> bytes:
    return encode_command(RemotingCommand(310, 1, flag=flag, body=bytes(size_bytes)))


async def test_frame_that_is_dribbled_is_aborted_when_its_time_is_over() -> None:
    connection, transport, _ = connect(RemotingLimits(frame_timeout_ms=60_000))
    began_s = now_s()
    for byte in JSON_FRAME[:20]:
        connection.data_received(bytes([byte]))
    connection.check(began_s + 59)
    assert not transport.is_aborted
    connection.check(began_s + 61)
    assert transport.is_aborted


async def test_each_frame_has_its_own_time() -> None:
    """A busy connection always ends with a part of the next frame."""
    connection, transport, _ = connect(RemotingLimits(frame_timeout_ms=60_000))
    connection.data_received(JSON_FRAME[:10])
    assert connection._frame_since_s is not None
    connection._frame_since_s -= 61
    connection.data_received(JSON_FRAME[10:] + JSON_FRAME[:10])
    connection.check(now_s() + 1)
    assert not transport.is_aborted
    connection.data_received(JSON_FRAME[10:])
    connection.check(now_s() + 119)
    assert not transport.is_aborted


async def test_time_of_a_frame_does_not_run_while_nothing_is_read() -> None:
    connection, transport, owner = connect(RemotingLimits(frame_timeout_ms=60_000, unanswered_max=2))
    connection.data_received(JSON_FRAME * 3 + JSON_FRAME[:10])
    assert transport.is_reading_paused
    assert connection._frame_since_s is not None
    connection._frame_since_s -= 61
    connection.check(now_s())
    for request in owner.requests:
        connection.send(success_response(request))
    assert not transport.is_reading_paused
    connection.check(now_s() + 59)
    assert not transport.is_aborted
    connection.check(now_s() + 61)
    assert transport.is_aborted


async def test_header_over_its_bound_closes_the_connection_before_it_is_there() -> None:
    connection, transport, _ = connect(RemotingLimits(header_bytes_max=1000))
    connection.data_received(b"\x00\x10\x00\x00" + (1001).to_bytes(4, "big"))
    assert transport.is_closed


async def test_reading_stops_while_large_requests_wait_and_goes_on_when_they_are_forgotten() -> None:
    connection, transport, owner = connect(RemotingLimits(unanswered_bytes_max=MIB))
    connection.data_received(large_frame(600_000))
    assert not transport.is_reading_paused
    connection.data_received(large_frame(600_000))
    assert transport.is_reading_paused
    connection.send(success_response(owner.requests.pop()))
    await turn()
    assert transport.is_reading_paused
    connection.send(success_response(owner.requests.pop()))
    await turn()
    assert not transport.is_reading_paused


async def test_oneways_alone_never_stop_the_reading() -> None:
    """Nothing would start it again; whoever keeps them has a bound of its own."""
    connection, transport, _ = connect(RemotingLimits(unanswered_bytes_max=MIB))
    connection.data_received(large_frame(2 * MIB, flag=2))
    assert not transport.is_reading_paused


def connect_within(limit: MemoryLimit) -> tuple[Connection, FakeTransport, FakeOwner]:
    owner, transport = FakeOwner(), FakeTransport()
    connection = Connection(owner, 1, memory_limit=limit)
    connection.connection_made(transport)
    return connection, transport, owner


async def test_connection_that_holds_the_most_is_aborted_when_all_hold_too_much() -> None:
    connections: list[Connection] = []
    limit = MemoryLimit(MIB, lambda: connections)
    made = [connect_within(limit) for _ in range(4)]
    connections += [connection for connection, _, _ in made]
    unread, unended, unanswered, modest = made
    unread[1].buffered = 300_000
    unread[0].send(RemotingCommand(1, flag=1))
    unended[0].data_received(large_frame(500_000)[:400_000])
    modest[0].data_received(large_frame(100_000))
    await turn()
    assert limit.sum_bytes > 700_000
    assert not any(transport.is_aborted for _, transport, _ in made)
    unanswered[0].data_received(large_frame(350_000))
    assert [transport.is_aborted for _, transport, _ in made] == [False, True, False, False]
    for connection, _, owner in made:
        owner.requests.clear()
        connection.connection_lost(None)
    assert limit.sum_bytes == 0


async def test_connections_are_measured_before_any_is_made_to_pay() -> None:
    """What was read meanwhile was not reported: nobody tells a connection that its peer reads."""
    connections: list[Connection] = []
    limit = MemoryLimit(MIB, lambda: connections)
    first, second = connect_within(limit), connect_within(limit)
    connections += [first[0], second[0]]
    first[1].buffered = 900_000
    first[0].send(RemotingCommand(1, flag=1))
    await turn()
    first[1].buffered = 0
    second[0].data_received(large_frame(500_000)[:400_000])
    assert not first[1].is_aborted
    assert not second[1].is_aborted
    assert limit.sum_bytes < MIB // 2


async def test_forgotten_requests_are_not_counted() -> None:
    limit = MemoryLimit(MIB, list)
    connection, _, owner = connect_within(limit)
    for _ in range(100):
        connection.data_received(large_frame(REPORT_STEP_BYTES))
        owner.requests.clear()
        gc.collect(0)
    assert limit.sum_bytes <= 2 * REPORT_STEP_BYTES


async def test_silent_connection_makes_room_for_a_new_one_and_no_other_does() -> None:
    server = RemotingServer(Router(), "127.0.0.1", 0, RemotingLimits(connections_max=2))
    await server.start()
    made = []
    for _ in range(2):
        connection, transport = server._make_connection(), FakeTransport()
        connection.connection_made(transport)
        made.append((connection, transport))
    (speaking, speaking_transport), (_, silent_transport) = made
    speaking.data_received(JSON_FRAME)
    third, third_transport = server._make_connection(), FakeTransport()
    third.connection_made(third_transport)
    assert silent_transport.is_aborted
    third.data_received(JSON_FRAME)
    fourth, fourth_transport = server._make_connection(), FakeTransport()
    fourth.connection_made(fourth_transport)
    assert fourth_transport.is_aborted
    assert not speaking_transport.is_aborted
    assert not third_transport.is_aborted
    assert set(server.connections) == {speaking, third}
    for connection in (speaking, third):
        connection.connection_lost(None)
    await server.stop()


async def test_connection_that_never_sends_a_request_is_aborted() -> None:
    server = RemotingServer(Router(), "127.0.0.1", 0, RemotingLimits(frame_timeout_ms=1_000))
    await server.start()
    made = [(server._make_connection(), FakeTransport()) for _ in range(2)]
    for connection, transport in made:
        connection.connection_made(transport)
    speaking, silent = made
    speaking[0].data_received(JSON_FRAME)
    for connection, _ in made:
        connection.opened_s -= 2
    server._check_connections()
    assert silent[1].is_aborted
    assert not speaking[1].is_aborted
    for connection, _ in made:
        connection.connection_lost(None)
    await server.stop()


@pytest.mark.parametrize(
    ("descriptors", "connections", "backlog"),
    [(64, 40, 8), (1024, 640, 128), (4096, 2816, 256), (20_000, 10_000, 256), (65_536, 10_000, 256)],
)
def test_connections_leave_descriptors_for_files(descriptors: int, connections: int, backlog: int) -> None:
    room = room_within(descriptors, 10_000)
    assert (room.connections_max, room.backlog) == (connections, backlog)
    assert room.connections_max + room.backlog < descriptors
