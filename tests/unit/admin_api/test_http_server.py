"""admin_api.http_server: what a client that does not play its part loses, over real connections."""

import asyncio

import pytest

from admin_api.app import create_app
from admin_api.http_server import HEAD_BYTES_MAX, BoundedConfig, BoundedProtocol, fitted
from admin_api.settings import Settings
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.http_serving import GET, LIMIT_S, LONG_BYTES, PATIENT, SOON_MS, served, with_limits


async def test_its_parser_is_named_and_not_what_happens_to_be_installed() -> None:
    config = BoundedConfig(create_app(PATIENT, FakeCluster()), PATIENT, 16)
    config.load()
    assert config.http_protocol_class is BoundedProtocol
    assert config.ws_protocol_class is None
    assert config.h11_max_incomplete_event_size == HEAD_BYTES_MAX


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /healthz HTTP/1.1\r\nHost: local", b"\r\n", GET + b"GET /healthz HTTP/1.1\r\nHost: l"],
)
async def test_head_that_does_not_end_ends_the_connection(beginning: bytes) -> None:
    async with served(with_limits(head_timeout_ms=SOON_MS)) as there:
        client = await there.connect()
        client.send(beginning)
        if beginning.startswith(GET):
            # The second head began with the first one: it counts from the answer.
            assert await client.status() == 200
            client.send(b"ocal")
        assert await client.ended()


async def test_head_that_comes_byte_by_byte_has_no_more_time() -> None:
    async with served(with_limits(head_timeout_ms=3 * SOON_MS)) as there:
        client = await there.connect()

        async def trickle() -> None:
            client.send(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            while not client.writer.is_closing():
                client.send(b"X-A: b\r\n")
                await asyncio.sleep(0)

        trickling = asyncio.create_task(trickle())
        assert await client.ended()
        trickling.cancel()


async def test_body_that_does_not_end_ends_the_connection() -> None:
    async with served(with_limits(body_timeout_ms=SOON_MS)) as there:
        client = await there.connect()
        head = b"POST /taken HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.send(head + b"Content-Length: 10\r\n\r\n12345")
        assert await client.ended()


async def test_whole_requests_have_their_time() -> None:
    async with served(with_limits(head_timeout_ms=SOON_MS, body_timeout_ms=SOON_MS)) as there:
        client = await there.connect()
        client.send(b"GET /waiting HTTP/1.1\r\nHost: localhost\r\n\r\n")
        other = await there.connect()
        assert await other.ended()
        assert len(there.config.waiting) == 0
        assert not client.reader.at_eof()


async def test_idle_connection_is_closed_and_a_busy_one_serves_on() -> None:
    async with served(with_limits(keep_alive_ms=1_000, write_stall_ms=SOON_MS)) as there:
        client = await there.connect()
        for _ in range(3):
            client.send(GET)
            assert await client.status() == 200
        assert await client.ended()


async def test_client_that_does_not_read_is_dropped() -> None:
    async with served(with_limits(write_stall_ms=SOON_MS)) as there:
        client = await there.connect(receive_bytes=1)
        client.send(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await there.until(lambda: there.open == 1 and not there.config.waiting)
        await there.until(lambda: there.open == 0)


async def test_client_that_takes_a_long_answer_slowly_gets_all_of_it() -> None:
    """It is neither idle nor in the way of others while it reads, however long that takes."""
    limits = with_limits(keep_alive_ms=1, write_stall_ms=5 * SOON_MS, connections_max=1)
    async with served(limits) as there:
        client = await there.connect()
        client.send(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        await there.connect()  # would take the place of an idle one
        parts = 32
        async with asyncio.timeout(6 * LIMIT_S):
            for _ in range(parts):
                assert len(await client.reader.readexactly(LONG_BYTES // parts)) == LONG_BYTES // parts
                await asyncio.sleep(0.04)
        assert await client.ended()


async def test_rest_of_a_body_that_was_answered_early_begins_no_request() -> None:
    async with served(with_limits(head_timeout_ms=SOON_MS)) as there:
        client = await there.connect()
        head = b"POST /refused HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.send(head + b"Content-Length: 10\r\n\r\n12345")
        assert await client.status() == 409
        client.send(b"67890")
        other = await there.connect()
        assert await other.ended()
        client.send(GET)
        assert await client.status() == 200


async def test_where_all_are_taken_the_longest_idle_one_makes_room() -> None:
    async with served(with_limits(connections_max=3)) as there:
        first, second = await there.connect(), await there.connect()
        for client in (second, first):
            client.send(GET)
            assert await client.status() == 200
        slow = await there.connect()
        slow.send(b"GET /hea")
        newest = await there.connect()
        newest.send(GET)
        assert await newest.status() == 200
        assert await second.ended()
        for client in (first, newest):
            client.send(GET)
            assert await client.status() == 200


async def test_where_every_connection_has_a_request_a_further_one_is_refused() -> None:
    async with served(with_limits(connections_max=2)) as there:
        busy = [await there.connect() for _ in range(2)]
        for client in busy:
            client.send(b"GET /waiting HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await there.until(lambda: there.open == 2 and not there.config.waiting)
        late = await there.connect()
        late.send(GET)
        assert await late.status() == 503
        assert await late.ended()
        busy.pop().writer.close()
        await there.until(lambda: there.open == 1)
        again = await there.connect()
        again.send(GET)
        assert await again.status() == 200


async def test_a_head_may_not_be_longer_than_said() -> None:
    async with served(PATIENT) as there:
        client = await there.connect()
        client.send(b"GET /" + b"a" * HEAD_BYTES_MAX + b"b")
        async with asyncio.timeout(LIMIT_S):
            assert (await client.reader.readline()).startswith(b"HTTP/1.1 400 ")
        assert await client.ended()


def test_event_streams_leave_connections_to_the_rest() -> None:
    settings, backlog = fitted(Settings(NAMESRV_ADDRESS, connections_max=10, watchers_max=100))
    assert (settings.connections_max, settings.watchers_max) == (10, 2)
    assert 0 < backlog <= 128
