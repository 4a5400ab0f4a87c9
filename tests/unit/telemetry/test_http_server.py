"""One question is answered; everything else is refused within its bounds."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from telemetry import http_server
from telemetry.http_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, MetricsServer, Verdict


async def render() -> bytes:
    return b"ledgermq_term 3\n"


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    running = MetricsServer(render, "127.0.0.1", 0)
    await running.start()
    yield running
    await running.stop()


async def ask(server: MetricsServer, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(request)
        await writer.drain()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_the_metrics_are_told(server: MetricsServer) -> None:
    answer = await ask(server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
    assert b"\r\nContent-Length: 16\r\n" in head
    assert body == b"ledgermq_term 3\n"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", b"404"),
        (b"GET /metrics/.. HTTP/1.1", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"GET /metrics", b"400"),
        (b"\xff\xfe", b"400"),
    ],
)
async def test_anything_else_is_refused(server: MetricsServer, request_line: bytes, status: bytes) -> None:
    assert (await ask(server, request_line + b"\r\n\r\n")).split(b" ")[1] == status


async def test_a_head_without_end_is_cut(server: MetricsServer) -> None:
    assert await ask(server, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 4 * HEAD_BYTES_MAX) == b""


async def test_those_that_only_stay_open_make_room_the_oldest_first(server: MetricsServer) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(CONNECTIONS_MAX)]
    for _, writer in silent:
        writer.write(b"GET /metrics HTTP/1.1\r\n")
    for _ in range(3):
        assert (await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    oldest, _ = silent[0]
    assert await ended(oldest)
    youngest, writer = silent[-1]
    writer.write(b"\r\n")
    assert (await youngest.read()).startswith(b"HTTP/1.1 200 ")
    for _, writer in silent:
        writer.close()


async def test_so_many_are_answered_at_once_and_no_more() -> None:
    may_tell, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def tell_later() -> bytes:
        asked.release()
        await may_tell.wait()
        return b"ledgermq_term 3\n"

    running = MetricsServer(tell_later, "127.0.0.1", 0)
    await running.start()
    request = b"GET /metrics HTTP/1.1\r\n\r\n"
    try:
        asking = [asyncio.create_task(ask(running, request)) for _ in range(CONNECTIONS_MAX)]
        for _ in asking:
            await asked.acquire()
        assert await ask(running, request) == b""
        may_tell.set()
        assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in await asyncio.gather(*asking))
    finally:
        await running.stop()


async def test_a_head_that_does_not_come_is_waited_for_so_long(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_LIMIT_S", 0.01)
    assert await ask(server, b"GET /metrics HTTP/1.1\r\n") == b""


async def test_what_fails_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> bytes:
        raise ValueError("no figures")

    running = MetricsServer(fail, "127.0.0.1", 0)
    await running.start()
    try:
        assert b" 500 " in await ask(running, b"GET /metrics HTTP/1.1\r\n\r\n")
    finally:
        await running.stop()
    assert "/metrics cannot be answered" in caplog.text


@pytest.mark.parametrize(
    ("path", "head"),
    [(b"/good", b"HTTP/1.1 200 OK\r\n"), (b"/bad?verbose", b"HTTP/1.1 503 Service Unavailable\r\n")],
)
async def test_a_check_answers_with_its_sentence(path: bytes, head: bytes) -> None:
    async def good() -> Verdict:
        return Verdict(True, "it is well")

    async def bad() -> Verdict:
        return Verdict(False, "it is ill")

    running = MetricsServer(render, "127.0.0.1", 0, {"/good": good, "/bad": bad})
    await running.start()
    try:
        answer = await ask(running, b"GET " + path + b" HTTP/1.1\r\n\r\n")
        assert answer.startswith(head)
        assert answer.endswith(b"\r\n\r\nit is well\n" if path == b"/good" else b"\r\n\r\nit is ill\n")
        assert b"there is only /metrics, /good, /bad\n" in await ask(running, b"GET /x HTTP/1.1\r\n\r\n")
    finally:
        await running.stop()
