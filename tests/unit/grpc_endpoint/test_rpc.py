"""gRPC over HTTP/2: statuses, deadlines and cancellations, on a real port with made-up methods."""

from __future__ import annotations

import asyncio
import gzip
import random
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from grpc_endpoint.call import Call
from grpc_endpoint.http2.connection import Http2Limits
from grpc_endpoint.http2.frames import PREFACE, frame, settings_frame
from grpc_endpoint.http2.hpack import Field, encoded
from grpc_endpoint.messaging_pb2 import QueryRouteRequest, Resource, Status
from grpc_endpoint.metrics import CANCELLED, CallFigures
from grpc_endpoint.rpc import (
    INFLATE_STEP_BYTES,
    MESSAGES_AT_ONCE,
    Calls,
    GrpcStatus,
    RpcError,
    Served,
    inflated,
    timeout_of,
    trailers,
)
from grpc_endpoint.transport import Listener
from remoting.slices import finish
from tests.support.polling import until

REQUEST_MAX = 100_000
ASKED = QueryRouteRequest(topic=Resource(name="orders"))
FIELDS: list[Field] = [
    *((":method", "POST"), (":scheme", "http"), (":path", "/test/Echo"), (":authority", "here")),
    ("content-type", "application/grpc"),
]


class Methods:
    """What is served, and what became of it."""

    def __init__(self) -> None:
        self.figures = CallFigures()
        self.begun = 0
        self.cancelled = 0
        self.is_free = asyncio.Event()
        self.turn = 0
        self.taken: Counter[int] = Counter()
        """Messages of `take` by turn of the loop."""

    async def echo(self, _: Call, request: QueryRouteRequest) -> Status:
        return Status(message=request.topic.name)

    async def hold(self, _: Call, request: QueryRouteRequest) -> Status:
        self.begun += 1
        try:
            await self.is_free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Status(message=request.topic.name)

    async def fail(self, _: Call, request: QueryRouteRequest) -> Status:
        raise RpcError(GrpcStatus.NOT_FOUND, f"{request.topic.name}: ä, 100 %\n")

    async def count(self, _: Call, request: QueryRouteRequest) -> AsyncIterator[Status]:
        self.begun += 1
        try:
            for _number in range(20):
                yield Status(message=request.topic.name * 20_000)
        finally:
            self.cancelled += 1

    async def each(self, _: Call, requests: AsyncIterator[QueryRouteRequest]) -> AsyncIterator[Status]:
        async for request in requests:
            yield Status(message=request.topic.name)

    async def take(self, _: Call, requests: AsyncIterator[QueryRouteRequest]) -> AsyncIterator[Status]:
        async for _request in requests:
            self.taken[self.turn] += 1
        yield Status()

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def served(self) -> Mapping[str, Served]:
        read = QueryRouteRequest.FromString
        unary: dict[str, Any] = {"Echo": self.echo, "Hold": self.hold, "Fail": self.fail}
        streams: dict[str, Any] = {"Count": self.count, "Each": self.each, "Take": self.take}
        return {
            f"/test/{name}": Served(
                name,
                read,
                unary.get(name),
                streams.get(name),
                name in ("Each", "Take"),
                None,
                lambda _: 0,
                self.figures,
                is_anonymous=True,
            )
            for name in (*unary, *streams)
        }


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Methods, Calls, Listener, int]]:
    methods = Methods()
    calls = Calls(methods.served(), lambda *_: Call("", "", "", "", 0.0), REQUEST_MAX)
    listener = Listener(calls.on_request, Http2Limits(), None)
    port = await listener.listen("127.0.0.1", 0)
    try:
        yield methods, calls, listener, port
    finally:
        listener.drain()
        calls.end_all()
        await listener.close()
        calls.deadlines.close()


def method(channel: aio.Channel, name: str, kind: str = "unary_unary") -> Any:
    write, read = QueryRouteRequest.SerializeToString, Status.FromString
    return getattr(channel, kind)(f"/test/{name}", write, read)


async def test_a_status_and_its_text_arrive() -> None:
    async with serving() as (_, _, _, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        assert (await method(channel, "Echo")(ASKED)).message == "orders"
        with pytest.raises(aio.AioRpcError) as failed:
            await method(channel, "Fail")(ASKED)
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        assert failed.value.details() == "orders: ä, 100 %\n"
        with pytest.raises(aio.AioRpcError) as unknown:
            await method(channel, "Nothing")(ASKED)
        assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_a_callers_deadline_ends_the_work() -> None:
    async with serving() as (methods, calls, _, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(aio.AioRpcError) as late:
            await method(channel, "Hold")(ASKED, timeout=0.1)
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: methods.cancelled == 1)
        await until(lambda: not calls.under_way)
        assert methods.figures.ended == {CANCELLED: 1}


async def test_many_small_messages_of_one_stream_are_taken_in_many_turns() -> None:
    async with serving() as (methods, _, _, port):
        counting = asyncio.create_task(methods.count_turns())
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        fields = [(name, "/test/Take" if name == ":path" else value) for name, value in FIELDS]
        writer.write(
            PREFACE + settings_frame({}) + frame(1, 4, 1, encoded(fields)) + frame(0, 1, 1, bytes(5_000))
        )
        await until(lambda: methods.taken.total() == 1_000)
        assert max(methods.taken.values()) <= 2 * MESSAGES_AT_ONCE
        counting.cancel()
        writer.close()


@pytest.mark.parametrize("name", ["Hold", "Count"])
async def test_a_caller_who_goes_ends_the_work(name: str) -> None:
    async with serving() as (methods, calls, _, port):
        channel = aio.insecure_channel(f"127.0.0.1:{port}")
        kind = "unary_unary" if name == "Hold" else "unary_stream"
        call = method(channel, name, kind)(ASKED)
        waiting = asyncio.ensure_future(call if name == "Hold" else anext(aiter(call)))
        await until(lambda: methods.begun == 1)
        call.cancel()
        await until(lambda: methods.cancelled == 1)
        await asyncio.gather(waiting, return_exceptions=True)
        again = asyncio.ensure_future(method(channel, "Hold")(ASKED))
        await until(lambda: methods.begun == 2)
        await channel.close()
        await until(lambda: not calls.under_way)
        await asyncio.gather(again, return_exceptions=True)


async def test_streams_both_ways_and_their_bounds() -> None:
    async with serving() as (_, _, listener, port), aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answers = [each.message async for each in method(channel, "Count", "unary_stream")(ASKED)]
        assert answers == ["orders" * 20_000] * 20
        stream = method(channel, "Each", "stream_stream")()
        for size in (1, 30_000, 0, 99_000):
            await stream.write(QueryRouteRequest(topic=Resource(name="x" * size)))
            assert len((await stream.read()).message) == size
        await stream.write(QueryRouteRequest(topic=Resource(name="x" * REQUEST_MAX)))
        assert await stream.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        ended = method(channel, "Each", "stream_stream")()
        await ended.done_writing()
        assert await ended.code() == grpc.StatusCode.OK
        assert [each.request_bytes for each in listener.connections] == [0]


async def test_messages_that_grpc_compresses_are_read() -> None:
    large = QueryRouteRequest(topic=Resource(name="x" * (REQUEST_MAX - 1_000)))
    async with (
        serving() as (methods, calls, listener, port),
        aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        answer = await method(channel, "Echo")(large, compression=grpc.Compression.Gzip)
        assert answer.message == large.topic.name
        stream = method(channel, "Each", "stream_stream")(compression=grpc.Compression.Gzip)
        for request in (ASKED, large, ASKED):
            await stream.write(request)
            assert (await stream.read()).message == request.topic.name
        await stream.done_writing()
        assert await stream.code() == grpc.StatusCode.OK
        bomb = QueryRouteRequest(topic=Resource(name="x" * 10_000_000))
        for call in (
            method(channel, "Echo")(bomb, compression=grpc.Compression.Gzip),
            method(channel, "Each", "stream_stream")(iter([bomb]), compression=grpc.Compression.Gzip),
        ):
            assert await call.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(aio.AioRpcError) as refused:
            await method(channel, "Echo")(large, compression=grpc.Compression.Deflate)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        (connection,) = listener.connections
        assert (connection.request_bytes, len(calls.under_way)) == (0, 0)
        held = asyncio.ensure_future(method(channel, "Hold")(large, compression=grpc.Compression.Gzip))
        await until(lambda: methods.begun == 1)
        assert connection.request_bytes == len(large.SerializeToString()), "while it is served"
        held.cancel()
        await until(lambda: connection.request_bytes == 0)
    got, _ = await exchange(call_of(b"\1\0\0\0\0", ("grpc-encoding", "snappy")))
    assert b"grpc-accept-encoding\x0didentity,gzip" in got


def packed(data: bytes) -> bytes:
    """The same at any time: the bytes are in the names of tests, which all workers have to agree on."""
    return gzip.compress(data, mtime=0)


def test_gzip_is_undone_in_steps() -> None:
    data = random.Random(5).randbytes(300_000) + bytes(700_000)
    compressed = packed(data)
    steps = list(inflated(compressed, len(data)))
    assert len(steps) >= len(data) // INFLATE_STEP_BYTES
    assert finish(inflated(compressed, len(data))) == data
    with pytest.raises(RpcError) as large:
        finish(inflated(compressed, len(data) - 1))
    assert large.value.status is GrpcStatus.RESOURCE_EXHAUSTED
    assert finish(inflated(packed(b""), 0)) == b""


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"x", packed(b"abc")[:-1], packed(b"abc") + b"x", zlib.compress(b"abc")),
        packed(b"abc") * 2,
        packed(random.Random(5).randbytes(INFLATE_STEP_BYTES - 23)) + bytes(INFLATE_STEP_BYTES),
        packed(b"abc")[:-8] + bytes(8),
    ],
)
def test_what_is_no_gzip_is_refused(data: bytes) -> None:
    with pytest.raises(RpcError) as refused:
        finish(inflated(data, 10**6))
    assert refused.value.status is GrpcStatus.INTERNAL


async def test_calls_under_way_end_with_the_server() -> None:
    async with serving() as (methods, calls, listener, port):
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            held = [asyncio.ensure_future(method(channel, "Hold")(ASKED)) for _ in range(2)]
            await until(lambda: methods.begun == 2)
            listener.drain()
            methods.is_free.set()
            assert [(await each).message for each in held] == ["orders"] * 2
            methods.is_free.clear()
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(aio.AioRpcError) as refused:
                await method(channel, "Hold")(ASKED)
            assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
        assert not calls.under_way


async def exchange(data: bytes) -> tuple[bytes, bool]:
    """What a server says to these bytes, and whether it closes the connection."""
    async with serving() as (_, _, listener, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE + settings_frame({}) + data + frame(6, 0, 0, b"the end!"))
        got = b""
        while b"the end!" not in got:
            part = await reader.read(65_536)
            got += part
            if not part:
                break
        is_closed = b"the end!" not in got
        writer.close()
        await until(lambda: len(listener) == 0)
        return got, is_closed


def call_of(body: bytes, *fields: Field, head: list[Field] = FIELDS) -> bytes:
    return frame(1, 4, 1, encoded([*head, *fields])) + frame(0, 1, 1, body)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (call_of(b""), "INTERNAL"),
        (call_of(b"\0\0\0\0\x05abc"), "INTERNAL"),
        (call_of(b"\0\0\0\0\x03\xff\xff\xff"), "INTERNAL"),
        (call_of(b"\x01\0\0\0\0"), "INTERNAL"),
        (call_of(b"\x02\0\0\0\0", ("grpc-encoding", "gzip")), "INTERNAL"),
        (call_of(b"\x01\0\0\0\0", ("grpc-encoding", "gzip")), "INTERNAL"),
        (call_of(b"\x01\0\0\0\0", ("grpc-encoding", "deflate")), "UNIMPLEMENTED"),
        (call_of(b"\0\xff\xff\xff\xff"), "RESOURCE_EXHAUSTED"),
        (frame(1, 4, 1, encoded(FIELDS)) + frame(0, 0, 1, b"\0\xff\xff\xff\xff"), "RESOURCE_EXHAUSTED"),
        (call_of(b"\0\0\0\0\0", ("grpc-timeout", "1 year")), "INTERNAL"),
        (call_of(b"\0\0\0\0\0", *[("x", "")] * 500), "RESOURCE_EXHAUSTED"),
    ],
)  # fmt: skip
async def test_requests_that_cannot_be_served(data: bytes, expected: str) -> None:
    got, is_closed = await exchange(data)
    assert b"grpc-status\x01" + str(int(GrpcStatus[expected])).encode() in got or (
        b"grpc-status\x02" + str(int(GrpcStatus[expected])).encode() in got
    )
    assert not is_closed, "the connection goes on"


async def test_what_is_no_grpc_gets_a_status_of_http() -> None:
    get = [(":method", "GET"), *FIELDS[1:]]
    assert encoded([(":status", "405")]) in (await exchange(call_of(b"", head=get)))[0]
    plain = [*FIELDS[:4], ("content-type", "text/plain")]
    assert encoded([(":status", "415")]) in (await exchange(call_of(b"", head=plain)))[0]


async def test_a_broken_connection_gets_the_reason_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    got, is_closed = await exchange(frame(0, 0, 0, b"x"))
    assert is_closed
    assert b"a frame for stream 0" in got
    assert sum("PROTOCOL_ERROR" in record.message for record in caplog.records) == 1


def test_timeouts_in_all_units() -> None:
    assert timeout_of({}) is None
    found = {text: timeout_of({"grpc-timeout": text}) for text in ("2H", "3M", "4S", "5m", "6u", "7n")}
    assert found == {
        "2H": 7_200,
        "3M": 180,
        "4S": 4,
        "5m": 0.005,
        "6u": pytest.approx(6e-6),
        "7n": pytest.approx(7e-9),
    }
    for wrong in ("", "5", "m", "123456789m", "-1S", "1s"):
        with pytest.raises(RpcError):
            timeout_of({"grpc-timeout": wrong})


def test_a_message_is_percent_encoded() -> None:
    assert dict(trailers(GrpcStatus.INTERNAL, "ä\n% a"))["grpc-message"] == "%C3%A4%0A%25 a"
