"""gRPC over HTTP/2: a request's fields and body become a call of a method, its answers and errors the body
and the trailers. Deadlines and cancellations end the work of a caller who waits no more.
"""

import asyncio
import heapq
import logging
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, cast
from urllib.parse import quote

from google.protobuf.message import DecodeError, Message

from grpc_endpoint.call import Begun, Call
from grpc_endpoint.http2.connection import Stream
from grpc_endpoint.http2.hpack import Field, encoded
from grpc_endpoint.metrics import CANCELLED, REFUSED, CallFigures
from grpc_endpoint.status import StreamRefusedError
from grpc_endpoint.transport import ServerConnection
from remoting.command import RemotingCommand
from remoting.slices import SlicedWork, Steps

RECEIVE_S: Final = 60.0
"""A request that names no deadline is complete within this time, and its answer read."""
DEADLINE_STEP_S: Final = 0.05
_PREFIX_BYTES: Final = 5
"""Of a message: whether it is compressed, and its length."""
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])\Z")
_UNITS_S: Final = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_CONTENT: Final = (":status", "200"), ("content-type", "application/grpc")
_HEAD: Final = encoded(_CONTENT)
_MESSAGE_CHARS_MAX: Final = 1_000
MESSAGES_AT_ONCE: Final = 32
"""Of one stream of requests, whose window has room for 200,000 empty ones."""
ENCODINGS: Final = ("identity", "gzip")
"""Of requests; answers are not compressed."""
INFLATE_STEP_BYTES: Final = 64 * 1024
"""Of a message that gRPC has compressed: 0.1 ms."""
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GONE: int | str = CANCELLED

logger = logging.getLogger(__name__)


class GrpcStatus(IntEnum):
    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class RpcError(Exception):
    """The call ends with a status of gRPC itself, without an answer."""

    def __init__(self, status: GrpcStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Served:
    """A method.

    at_once: tried before `unary`; None, as it may also return: `unary` serves the call, in a task.
    refusal: the answer of a call that failed; None: such a call has no answer.
    code_of: an answer's code, for the figures.
    is_anonymous: callers need not say who they are.
    """

    name: str
    read: Callable[[bytes], Any]
    unary: Callable[[Call, Any], Awaitable[Message]] | None
    stream: Callable[[Call, Any], AsyncIterator[Message]] | None
    reads_stream: bool
    refusal: Callable[[BaseException], Message] | None
    code_of: Callable[[Any], int | str]
    figures: CallFigures
    is_anonymous: bool = False
    at_once: Callable[[Call, Any], Begun | None] | None = None


def trailers(status: GrpcStatus, message: str = "") -> tuple[Field, ...]:
    if not message:
        return (("grpc-status", str(int(status))),)
    text = quote(message[:_MESSAGE_CHARS_MAX], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return ("grpc-status", str(int(status))), ("grpc-message", text)


_OK: Final = encoded(trailers(GrpcStatus.OK))


def timeout_of(metadata: Mapping[str, str]) -> float | None:
    """How long the caller waits, s; None: for ever. Raises RpcError."""
    text = metadata.get("grpc-timeout")
    if text is None:
        return None
    found = _TIMEOUT.match(text)
    if found is None:
        raise RpcError(GrpcStatus.INTERNAL, f"grpc-timeout {text[:40]!r} cannot be read")
    return int(found[1]) * _UNITS_S[found[2]]


def inflated(data: bytes, bytes_max: int) -> Steps[bytes]:
    """What gzip made `data` from, at most so many bytes. Raises RpcError."""
    unzip = zlib.decompressobj(_GZIP_WINDOW)
    parts: list[bytes] = []
    size_bytes = 0
    try:
        for start in range(0, len(data), INFLATE_STEP_BYTES):
            rest = data[start : start + INFLATE_STEP_BYTES]
            while rest and not unzip.eof:
                parts.append(unzip.decompress(rest, INFLATE_STEP_BYTES))
                rest = unzip.unconsumed_tail
                size_bytes += len(parts[-1])
                if size_bytes > bytes_max:
                    raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, f"a message of more than {bytes_max} bytes")
                yield
            if unzip.unused_data or rest:
                raise RpcError(GrpcStatus.INTERNAL, "there is more than the compressed message")
    except zlib.error as error:
        raise RpcError(GrpcStatus.INTERNAL, "the message cannot be decompressed") from error
    if not unzip.eof:
        raise RpcError(GrpcStatus.INTERNAL, "the compressed message has no end")
    return b"".join(parts)


def refuse(stream: Stream, error: RpcError, *extra: Field) -> None:
    """Answer with a status alone."""
    stream.end(encoded((*_CONTENT, *extra, *trailers(error.status, error.message))))


class Deadlines:
    """Ends calls whose time is over, up to DEADLINE_STEP_S late. One timer serves all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[int, dict[RpcCall, None]] = {}
        self._steps: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: "RpcCall", when_s: float) -> int:
        """Returns what `remove` needs."""
        step = int(when_s / DEADLINE_STEP_S) + 1
        calls = self._due.get(step)
        if calls is None:
            calls = self._due[step] = {}
            heapq.heappush(self._steps, step)
            if self._steps[0] == step:
                self._arm()
        calls[call] = None
        return step

    def remove(self, call: "RpcCall", step: int) -> None:
        calls = self._due.get(step)
        if calls is not None:
            calls.pop(call, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._steps:
            self._timer = self._loop.call_at(self._steps[0] * DEADLINE_STEP_S, self._expire)

    def _expire(self) -> None:
        now = int(self._loop.time() / DEADLINE_STEP_S)
        while self._steps and self._steps[0] <= now:
            for call in self._due.pop(heapq.heappop(self._steps)):
                call.expire()
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Calls:
    """Serves the requests of all connections.

    call_of: of a request's metadata, the client's address, and how long it waits. Raises StatusError.
    request_bytes_max: of one message.
    """

    def __init__(
        self,
        served: Mapping[str, Served],
        call_of: Callable[[Mapping[str, str], str, float | None], Call],
        request_bytes_max: int,
    ) -> None:
        self.call_of = call_of
        self.request_bytes_max = request_bytes_max
        self.deadlines = Deadlines()
        self.under_way: dict[RpcCall, None] = {}
        self.inflating = SlicedWork()
        self._served = served

    def on_request(
        self, connection: ServerConnection, stream: Stream, fields: list[Field] | None, is_end: bool
    ) -> None:
        """Begin the call, or refuse it."""
        try:
            if fields is None:
                raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, "the metadata is too large")
            metadata = dict(fields)
            served = self._served.get(metadata[":path"])
            if metadata[":method"] != "POST":
                stream.end(encoded([(":status", "405"), ("allow", "POST")]))
                return
            if not metadata.get("content-type", "").startswith("application/grpc"):
                stream.end(encoded([(":status", "415")]))
                return
            if served is None:
                raise RpcError(GrpcStatus.UNIMPLEMENTED, f"there is no method {metadata[':path'][:200]}")
            encoding = metadata.get("grpc-encoding", "identity")
            if encoding not in ENCODINGS:
                error = RpcError(GrpcStatus.UNIMPLEMENTED, f"messages compressed by {encoding[:40]}")
                refuse(stream, error, ("grpc-accept-encoding", ",".join(ENCODINGS)))
                return
            timeout_s = timeout_of(metadata)
        except RpcError as error:
            refuse(stream, error)
            return
        call_type = StreamCall if served.reads_stream else RpcCall
        call = call_type(self, served, connection, stream, metadata, timeout_s)
        stream.receiver = call
        if is_end:
            call.data_received(b"", is_end=True)

    def end_all(self) -> None:
        """The endpoint stops."""
        for call in tuple(self.under_way):
            call.fail(RpcError(GrpcStatus.UNAVAILABLE, "the endpoint stops"))


class RpcCall:
    """A call with one request. It is the stream's receiver, from the request's head to the answer's end."""

    def __init__(
        self,
        calls: Calls,
        served: Served,
        connection: ServerConnection,
        stream: Stream,
        metadata: Mapping[str, str],
        timeout_s: float | None,
    ) -> None:
        self._calls = calls
        self._served = served
        self._connection = connection
        self._stream = stream
        self._metadata = metadata
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._begun_s = self._loop.time()
        self._buffer: bytearray | None = None
        self._task: asyncio.Task[None] | None = None
        self._begun: Begun | None = None
        self._counted_s: float | None = None
        """When it began to be served, until it is counted as ended."""
        self._drained: asyncio.Future[None] | None = None
        self._held_bytes = 0
        """Of a compressed message: a small one may become large."""
        limit_s = RECEIVE_S if timeout_s is None else timeout_s
        self._step = calls.deadlines.add(self, self._begun_s + limit_s)
        calls.under_way[self] = None

    # -- Receiver

    def data_received(self, data: bytes, *, is_end: bool) -> None:
        buffer = self._buffer
        if buffer is None:
            if is_end:
                self._complete(data)
                return
            buffer = self._buffer = bytearray()
        buffer += data
        self._connection.request_bytes += len(data)
        if is_end:
            self._release()
            self._complete(bytes(buffer))
        elif self._is_too_large(buffer):
            self.fail(RpcError(GrpcStatus.RESOURCE_EXHAUSTED, self._too_large()))
        else:
            self._stream.taken(len(data))

    def gone(self) -> None:
        self._finish()
        self._count(_GONE)
        if self._task is not None:
            self._task.cancel()
        if self._begun is not None and self._begun.sent is not None:
            self._begun.sent.drop()
            self._begun = None

    def drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._end_when_sent()

    # -- the request

    def _is_too_large(self, buffer: bytes | bytearray) -> bool:
        most = self._calls.request_bytes_max
        announced = int.from_bytes(buffer[1:_PREFIX_BYTES], "big") if len(buffer) >= _PREFIX_BYTES else 0
        return announced > most or len(buffer) > most + _PREFIX_BYTES

    def _too_large(self) -> str:
        return f"a message of more than {self._calls.request_bytes_max} bytes"

    def _release(self) -> None:
        if self._buffer is not None:
            self._connection.request_bytes -= len(self._buffer)
            self._buffer = None

    def _complete(self, data: bytes) -> None:
        """The whole body is there."""
        try:
            if self._is_too_large(data):
                raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, self._too_large())
            if len(data) < _PREFIX_BYTES or len(data) - _PREFIX_BYTES != int.from_bytes(data[1:5], "big"):
                raise RpcError(GrpcStatus.INTERNAL, "the body is not one message")
            if self._is_compressed(data[0]):
                self._task = self._loop.create_task(self._inflate_and_serve(data[_PREFIX_BYTES:]))
                return
            request = self._read(data[_PREFIX_BYTES:])
        except RpcError as error:
            self.fail(error)
            return
        self._start(request)

    def _is_compressed(self, flag: int) -> bool:
        """Raises RpcError."""
        if flag > 1 or (flag and self._metadata.get("grpc-encoding", "identity") == "identity"):
            raise RpcError(GrpcStatus.INTERNAL, "a compressed message, and no grpc-encoding")
        return bool(flag)

    def _read(self, data: bytes) -> Any:
        """The message. Raises RpcError."""
        try:
            return self._served.read(data)
        except DecodeError as error:
            raise RpcError(GrpcStatus.INTERNAL, "the message cannot be read") from error

    async def _inflate(self, data: bytes) -> bytes:
        """Each client's one after the other. Until the call ends, or its next message, the connection holds
        the larger bytes. Raises RpcError.
        """
        self._hold(len(data))
        steps = inflated(data, self._calls.request_bytes_max)
        found = await self._calls.inflating.start(steps, self._connection.host.rpartition(":")[0])
        self._hold(len(found))
        return found

    def _hold(self, size_bytes: int) -> None:
        self._connection.request_bytes += size_bytes - self._held_bytes
        self._held_bytes = size_bytes
        self._connection.report()

    async def _inflate_and_serve(self, data: bytes) -> None:
        try:
            request = self._read(await self._inflate(data))
        except RpcError as error:
            self._task = None  # which is this one, and at its end
            self.fail(error)
            return
        self._counted_s = self._served.figures.begin()
        await self._work(request)

    # -- the answer

    def _start(self, request: Any) -> None:
        served = self._served
        self._counted_s = served.figures.begin()
        if served.at_once is not None and self._is_begun(served.at_once, request):
            return
        self._task = self._loop.create_task(self._work(request))

    def _work(self, request: Any) -> Coroutine[Any, Any, None]:
        return self._serve(request) if self._served.unary is not None else self._serve_stream(request)

    def _is_begun(self, at_once: Callable[[Call, Any], Begun | None], request: Any) -> bool:
        """Whether it is under way, or has ended."""
        try:
            begun = at_once(self._call(), request)
        except Exception as error:  # noqa: BLE001  becomes the answer, and a line of the log
            self._answer_error(error)
            return True
        if begun is None:
            return False
        if begun.sent is None:
            self._task = self._loop.create_task(self._serve(None, begun))
        else:
            self._begun = begun
            begun.sent.answer.add_done_callback(self._answered)
        return True

    def _answered(self, answer: asyncio.Future[RemotingCommand]) -> None:
        """The broker's answer is there, or the request has failed."""
        failure, begun, self._begun = answer.exception(), self._begun, None
        if begun is None:
            return  # the caller has gone
        try:
            response = begun.response(answer.result()) if failure is None else None
        except Exception as error:  # noqa: BLE001  as above
            self._answer_error(error)
            return
        if response is not None:
            self._answer(response)
        else:
            self._task = self._loop.create_task(self._serve(None, begun))

    def _call(self) -> Call:
        """Raises StatusError."""
        if self._served.is_anonymous:
            return Call("", "", "", self._connection.host, self._begun_s)
        left_s = self._timeout_s
        if left_s is not None:
            left_s -= self._loop.time() - self._begun_s
        return self._calls.call_of(self._metadata, self._connection.host, left_s)

    def _entered(self) -> Call:
        """The call, for whose client the current task works from now on. Raises StatusError."""
        call = self._call()
        call.enter()
        return call

    def _count(self, code: int | str) -> None:
        """It has ended, if it has not before."""
        if self._counted_s is not None:
            self._served.figures.end(self._counted_s, code)
            self._counted_s = None

    async def _serve(self, request: Any, begun: Begun | None = None) -> None:
        """From the begin, or what was begun."""
        unary = self._served.unary
        assert unary is not None, f"{self._served.name} has one answer"
        try:
            call = self._entered()
            self._answer(await (unary(call, request) if begun is None else begun.result()))
        except Exception as error:  # noqa: BLE001  as above
            self._answer_error(error)
        finally:
            self._count(_GONE)

    def _answer(self, response: Message) -> None:
        self._count(self._served.code_of(response))
        data = response.SerializeToString()
        self._stream.answer(_HEAD, b"\0" + len(data).to_bytes(4, "big") + data, _OK)
        self._end_when_sent()

    def _answer_error(self, error: Exception) -> None:
        refusal = self._refusal(error, has_head=False)
        if refusal is None:
            self._count(REFUSED)
        else:
            self._answer(refusal)

    async def _serve_stream(self, request: Any) -> None:
        served = self._served
        assert served.stream is not None, f"{served.name} has a stream of answers"
        code, first = _GONE, None
        try:
            answers = cast("Any", served.stream(self._entered(), request))
            async with aclosing(answers):
                async for answer in answers:
                    if not self._is_sent(answer, is_first=first is None):
                        await self._drain()
                    first = first or answer
            code = 0 if first is None else served.code_of(first)
        except Exception as error:  # noqa: BLE001  # as above
            refusal = self._refusal(error, has_head=first is not None)
            if refusal is None:
                code = error.status.name if isinstance(error, RpcError) else REFUSED
                return
            code = served.code_of(refusal)
            if not self._is_sent(refusal, is_first=first is None):
                await self._drain()
            first = refusal
        finally:
            self._count(code)
        self._end(trailers(GrpcStatus.OK), has_head=first is not None)

    def _refusal(self, error: Exception, *, has_head: bool) -> Message | None:
        """The answer of a call that failed; None: the call has ended with a status of gRPC itself."""
        if isinstance(error, RpcError):
            self._end(trailers(error.status, error.message), has_head=has_head)
        elif isinstance(error, StreamRefusedError):
            self._end(trailers(GrpcStatus.INVALID_ARGUMENT, str(error)), has_head=has_head)
        elif self._served.refusal is not None:
            return self._served.refusal(error)
        else:
            logger.error("a call failed", exc_info=error)
            self._end(
                trailers(GrpcStatus.UNKNOWN, f"internal error ({type(error).__name__})"), has_head=has_head
            )
        return None

    def _is_sent(self, answer: Message, *, is_first: bool) -> bool:
        """Whether it was written: the peer's windows let it through."""
        stream = self._stream
        if is_first:
            stream.send_head(_HEAD)
        data = answer.SerializeToString()
        stream.send(b"\0" + len(data).to_bytes(4, "big") + data)
        return not stream.unsent_bytes

    async def _drain(self) -> None:
        """Returns when all was written."""
        self._drained = self._loop.create_future()
        await self._drained

    def _end(self, fields: tuple[Field, ...], *, has_head: bool) -> None:
        self._stream.end(encoded(fields if has_head else (*_CONTENT, *fields)))
        self._end_when_sent()

    def _end_when_sent(self) -> None:
        """The deadline stays for an answer that waits for the peer's windows."""
        if not self._stream.is_open:
            self._finish()

    # -- the end

    def fail(self, error: RpcError) -> None:
        """End it with a status, whatever it does."""
        self._stream.stop(_HEAD, encoded(trailers(error.status, error.message)))
        self.gone()

    def expire(self) -> None:
        """Its deadline is over."""
        is_served = self._begun is not None or (self._task is not None and not self._task.done())
        if self._timeout_s is None and is_served:
            self._step = self._calls.deadlines.add(self, self._loop.time() + RECEIVE_S)
            return  # it is served for as long as it takes
        self.fail(RpcError(GrpcStatus.DEADLINE_EXCEEDED, "the deadline is over"))

    def _finish(self) -> None:
        self._calls.under_way.pop(self, None)
        self._calls.deadlines.remove(self, self._step)
        self._release()
        if self._held_bytes:
            self._hold(0)


class StreamCall(RpcCall):
    """A call with any number of requests: it is served from its head on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._untaken = 0
        """Received bytes whose window is not given back."""
        self._is_complete = False
        self._arrived: asyncio.Future[None] | None = None
        self._buffer = bytearray()
        self._start(self._requests())

    def data_received(self, data: bytes, *, is_end: bool) -> None:
        self._is_complete = is_end
        if self._buffer is not None:
            self._buffer += data
            self._connection.request_bytes += len(data)
            self._untaken += len(data)
            if self._is_too_large(self._buffer[:_PREFIX_BYTES]):
                self.fail(RpcError(GrpcStatus.RESOURCE_EXHAUSTED, self._too_large()))
                return
            if len(self._buffer) < self._message_end(self._buffer):
                self._give_back()
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(None)

    def _message_end(self, buffer: bytearray) -> int:
        """Where the first message ends."""
        if len(buffer) < _PREFIX_BYTES:
            return _PREFIX_BYTES
        return _PREFIX_BYTES + int.from_bytes(buffer[1:_PREFIX_BYTES], "big")

    def _give_back(self) -> None:
        taken, self._untaken = self._untaken, 0
        self._stream.taken(taken)

    async def _requests(self) -> AsyncIterator[Any]:
        """The messages as they come. Raises RpcError."""
        handed = 0
        while (buffer := self._buffer) is not None:
            end = self._message_end(buffer)
            if len(buffer) >= end:
                if self._is_too_large(buffer[:_PREFIX_BYTES]):
                    raise RpcError(GrpcStatus.RESOURCE_EXHAUSTED, self._too_large())
                data = bytes(buffer[:end])
                del buffer[:end]
                self._connection.request_bytes -= end
                if len(buffer) < self._message_end(buffer):
                    self._give_back()
                message = data[_PREFIX_BYTES:]
                if self._is_compressed(data[0]):
                    message = await self._inflate(message)
                yield self._read(message)
                if self._held_bytes:
                    self._hold(0)
                handed += 1
                if handed % MESSAGES_AT_ONCE == 0:
                    await asyncio.sleep(0)  # who takes them need not wait for anything
            elif self._is_complete:
                if buffer:
                    raise RpcError(GrpcStatus.INTERNAL, "the body ends within a message")
                return
            else:
                self._arrived = self._loop.create_future()
                await self._arrived
