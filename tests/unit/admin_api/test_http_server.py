"""admin_api.http_server: the limits that uvicorn is given, over real connections."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

from admin_api.app import create_app
from admin_api.http_server import HEAD_BYTES_MAX, fit_to_open_files, server_config
from admin_api.settings import Settings
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS, FakeCluster
from tests.unit.admin_api.http_serving import GET, LIMIT_S, LONG_BYTES, PATIENT, served, with_limits


async def test_its_parser_is_named_and_not_what_happens_to_be_installed() -> None:
    config = server_config(create_app(PATIENT, FakeCluster()), PATIENT, 16)
    config.load()
    assert config.http_protocol_class is H11Protocol
    assert config.ws_protocol_class is None
    assert config.h11_max_incomplete_event_size == HEAD_BYTES_MAX


async def test_idle_connection_is_closed_and_a_busy_one_serves_on() -> None:
    async with served(with_limits(keep_alive_ms=1_000)) as there:
        client = await there.connect()
        for _ in range(3):
            client.send(GET)
            assert await client.status() == 200
        assert await client.ended()


async def test_client_that_takes_a_long_answer_slowly_gets_all_of_it() -> None:
    """It is not idle while it reads, however long that takes."""
    limits = with_limits(keep_alive_ms=1, connections_max=1)
    async with served(limits) as there:
        client = await there.connect()
        client.send(b"GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await client.reader.readuntil(b"\r\n\r\n")
        parts = 32
        async with asyncio.timeout(6 * LIMIT_S):
            for _ in range(parts):
                assert len(await client.reader.readexactly(LONG_BYTES // parts)) == LONG_BYTES // parts
                await asyncio.sleep(0.04)
        assert await client.ended()


async def test_rest_of_a_body_that_was_answered_early_begins_no_request() -> None:
    async with served(PATIENT) as there:
        client = await there.connect()
        head = b"POST /refused HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.send(head + b"Content-Length: 10\r\n\r\n12345")
        assert await client.status() == 409
        client.send(b"67890")
        client.send(GET)
        assert await client.status() == 200


async def test_beyond_the_limit_of_connections_requests_are_refused() -> None:
    async with served(with_limits(connections_max=2)) as there:
        busy = [await there.connect() for _ in range(2)]
        for client in busy:
            client.send(b"GET /waiting HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await there.until(lambda: there.open == 2)
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
    settings, backlog = fit_to_open_files(Settings(NAMESRV_ADDRESS, connections_max=10, watchers_max=100))
    assert (settings.connections_max, settings.watchers_max) == (10, 2)
    assert 0 < backlog <= 128
