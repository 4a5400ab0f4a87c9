"""One connection: joined writes, back-pressure, its own requests, idle and stalled peers."""

import asyncio
import logging

import pytest

from remoting.command import RemotingCommand, encode_command, success_response
from remoting.errors import (
    CommandError,
    PendingRequestsFullError,
    RemotingClosedError,
    RequestTimeoutError,
)
from remoting.limits import RemotingLimits
from tests.unit.remoting.fakes import FakeTransport, connect, turn
from tests.unit.remoting.frames import JSON_FRAME


async def test_commands_of_one_turn_leave_in_one_write() -> None:
    connection, transport, _ = connect()
    connection.send(RemotingCommand(1, 1, flag=1, body=b"body"))
    connection.send(RemotingCommand(2, 2, flag=1))
    connection.send_bytes(encode_command(RemotingCommand(3, 3, flag=1)))
    assert transport.writes == []
    await turn()
    assert len(transport.writes) == 1
    assert [(c.code, c.body) for c in transport.sent()] == [(1, b"body"), (2, b""), (3, b"")]


async def test_more_than_the_high_water_mark_leaves_at_once() -> None:
    connection, transport, _ = connect(RemotingLimits(write_buffer_high_bytes=100))
    connection.send_bytes(bytes(60))
    assert transport.writes == []
    connection.send_bytes(bytes(60))
    assert [len(data) for data in transport.writes] == [120]
    await turn()
    assert len(transport.writes) == 1


async def test_requests_go_to_the_owner_however_they_are_cut() -> None:
    connection, _, owner = connect()
    connection.data_received(JSON_FRAME + JSON_FRAME[:10])
    connection.data_received(JSON_FRAME[10:])
    assert [request.code for request in owner.requests] == [105, 105]
    assert connection.unanswered == 2
    connection.send(success_response(owner.requests[0]))
    assert connection.unanswered == 1


async def test_oneway_requests_are_not_waited_for() -> None:
    connection, _, owner = connect()
    connection.data_received(encode_command(RemotingCommand(15, 1, flag=2)))
    assert (len(owner.requests), connection.unanswered) == (1, 0)


async def test_peer_is_known_by_address_and_born_host() -> None:
    connection, _, _ = connect()
    assert (connection.remote_host, connection.remote_port) == ("10.0.0.2", 50000)
    assert connection.remote_address == "10.0.0.2:50000"
    assert connection.born_host == bytes([10, 0, 0, 2, 0, 0, 0xC3, 0x50])


@pytest.mark.parametrize(
    ("host", "address"), [("::ffff:10.0.0.3", [10, 0, 0, 3]), ("fe80::1%eth0", [0, 0, 0, 0])]
)
async def test_peer_of_ipv6_has_a_born_host_of_eight_bytes(host: str, address: list[int]) -> None:
    connection, _, _ = connect(transport=FakeTransport((host, 1, 0, 0)))
    assert connection.born_host == bytes([*address, 0, 0, 0, 1])


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{x",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_unreadable_input_closes_the_connection_and_is_logged_once(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    connection, transport, owner = connect()
    with caplog.at_level(logging.WARNING):
        connection.data_received(data)
        connection.data_received(data)
    assert transport.is_closed
    assert owner.requests == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "10.0.0.2:50000" in caplog.text


async def test_warnings_of_a_connection_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    connection, _, _ = connect()
    for number in range(1000):
        connection.warn_once(f"kind {number}", "is wrong")
        connection.warn_once("kind 0", "is wrong")
    assert len(caplog.records) == 32


async def test_reading_stops_at_the_bound_of_open_requests_and_goes_on_at_half() -> None:
    connection, transport, owner = connect(RemotingLimits(unanswered_max=4))
    connection.data_received(JSON_FRAME * 4)
    assert not transport.is_reading_paused
    connection.data_received(JSON_FRAME)
    assert transport.is_reading_paused
    for request in owner.requests[:2]:
        connection.send(success_response(request))
    assert transport.is_reading_paused
    connection.send(success_response(owner.requests[2]))
    assert not transport.is_reading_paused


async def test_reading_stops_while_the_peer_does_not_read() -> None:
    connection, transport, _ = connect()
    connection.pause_writing()
    assert transport.is_reading_paused
    connection.resume_writing()
    assert not transport.is_reading_paused


async def test_peer_that_never_reads_is_aborted_after_the_stall_time() -> None:
    connection, transport, _ = connect(RemotingLimits(stall_ms=30_000))
    connection.pause_writing()
    now_s = asyncio.get_running_loop().time()
    connection.check(now_s + 29)
    assert not transport.is_aborted
    connection.check(now_s + 31)
    assert transport.is_aborted


async def test_peer_with_too_much_unread_is_aborted_at_once() -> None:
    connection, transport, _ = connect(RemotingLimits(write_buffer_bytes_max=1000))
    transport.buffered = 1001
    connection.send(RemotingCommand(1, flag=1))
    await turn()
    assert transport.is_aborted


async def test_close_writes_what_is_gathered_and_is_aborted_when_it_stalls() -> None:
    connection, transport, _ = connect(RemotingLimits(stall_ms=1000))
    connection.send(RemotingCommand(1, flag=1))
    connection.close()
    assert len(transport.writes) == 1
    assert transport.is_closed
    assert not connection.is_open
    connection.check(asyncio.get_running_loop().time() + 2)
    assert transport.is_aborted


async def test_idle_connection_is_closed_after_the_idle_time_of_both_directions() -> None:
    connection, transport, _ = connect(RemotingLimits(idle_ms=120_000))
    connection.last_received_s -= 200
    connection.check(asyncio.get_running_loop().time() + 119)
    assert not transport.is_closed
    connection.check(asyncio.get_running_loop().time() + 121)
    assert transport.is_closed


async def test_request_is_answered_by_its_opaque() -> None:
    connection, transport, _ = connect()
    first = connection.start_request(RemotingCommand(1, opaque=99, flag=1), 5)
    second = connection.start_request(RemotingCommand(2), 5)
    await turn()
    assert [(c.opaque, c.flag) for c in transport.sent()] == [(1, 0), (2, 0)]
    connection.data_received(encode_command(RemotingCommand(17, 2, flag=1, remark="x")))
    connection.data_received(encode_command(RemotingCommand(0, 77, flag=1)))
    assert (await second).code == 17
    assert not first.done()
    assert connection.pending == 1
    connection.connection_lost(None)
    with pytest.raises(RemotingClosedError):
        await first


async def test_request_times_out_and_a_late_answer_is_dropped() -> None:
    connection, _, _ = connect()
    with pytest.raises(RequestTimeoutError):
        await connection.request(RemotingCommand(1), timeout_s=0.001)
    assert connection.pending == 0
    connection.data_received(encode_command(RemotingCommand(0, 1, flag=1)))


async def test_requests_with_different_deadlines_each_time_out() -> None:
    connection, _, owner = connect()
    slow = connection.start_request(RemotingCommand(1), 60)
    futures = [connection.start_request(RemotingCommand(1), timeout_s) for timeout_s in (0.02, 0.001, 0.01)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [RequestTimeoutError] * 3
    assert connection.pending == 1
    connection.connection_lost(ConnectionResetError("reset"))
    assert isinstance(slow.exception(), RemotingClosedError)
    assert owner.closed == [connection]


async def test_request_cancelled_is_forgotten() -> None:
    connection, _, _ = connect()
    task = asyncio.create_task(connection.request(RemotingCommand(1), 60))
    await turn()
    assert connection.pending == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert connection.pending == 0
    connection.connection_lost(None)


async def test_requests_beyond_the_bound_are_refused_unsent() -> None:
    connection, transport, _ = connect(RemotingLimits(requests_pending_max=2))
    futures = [connection.start_request(RemotingCommand(1), 60) for _ in range(2)]
    with pytest.raises(PendingRequestsFullError):
        connection.start_request(RemotingCommand(1), 60)
    await turn()
    assert len(transport.sent()) == 2
    connection.connection_lost(None)
    assert all(future.exception() for future in futures)


async def test_request_that_cannot_be_encoded_leaves_nothing_behind() -> None:
    connection, transport, _ = connect()
    with pytest.raises(CommandError):
        connection.start_request(RemotingCommand(65001, serialize_type=1), 60)
    await turn()
    assert (connection.pending, transport.writes) == (0, [])


async def test_oneway_request_has_the_flag_and_no_pending_entry() -> None:
    connection, transport, _ = connect()
    connection.send_oneway(RemotingCommand(40))
    await turn()
    assert [c.flag for c in transport.sent()] == [2]
    assert connection.pending == 0


async def test_closed_connection_takes_sends_silently_and_refuses_requests() -> None:
    connection, transport, _ = connect()
    transport.is_closed = True
    connection.send(RemotingCommand(1, flag=1))
    await turn()
    assert transport.writes == []
    with pytest.raises(RemotingClosedError):
        connection.start_request(RemotingCommand(1), 1)
