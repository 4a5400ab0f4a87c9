"""A server's side of one HTTP/2 connection (RFC 9113), without I/O: received bytes become requests, and what
is to be sent is collected. The owner reads and writes, and says what time it is.

Flow control: what a peer may send is bounded by windows that are given back when their bytes were taken. What
is sent waits at its stream while the peer's windows are used up, or while the owner cannot write.

What a peer can do without a request being served is bounded, too: frames that bring nothing forward, resets
of its own requests, header blocks, and the work of one turn.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from grpc_endpoint.http2 import frames
from grpc_endpoint.http2.frames import (
    FRAME_BYTES_DEFAULT,
    HEAD,
    HEAD_BYTES,
    PREFACE,
    STREAM_ID_MASK,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    Http2Error,
    Setting,
    unpadded,
)
from grpc_endpoint.http2.hpack import Decoder, Field, HpackError
from native import function

STREAM_WINDOW_BYTES: Final = 1024 * 1024
CONNECTION_WINDOW_BYTES: Final = 4 * 1024 * 1024
BLOCK_BYTES_MAX: Final = 32 * 1024
"""Of a header block as it is sent, with its continuations."""
CONTINUATIONS_MAX: Final = 16
TURN_COST: Final = 1_024
"""Of the frames that are taken at once, or other connections would wait: a call costs some 16, another frame
one.
"""
_CALL_COST: Final = 16
IDLE_FRAMES_BURST: Final = 20_000
IDLE_FRAMES_PER_S: Final = 20_000
"""Frames that bring no request forward. Clients measure the way by a PING for each burst of data, and give
windows back for each answer.
"""
SETTINGS_BURST: Final = 1_000
SETTINGS_PER_S: Final = 10
RESETS_BURST: Final = 10_000
RESETS_PER_S: Final = 200
"""Requests that the peer takes back. Those of a client whose calls time out come all at once."""
SENT_AT_ONCE_BYTES: Final = 64 * 1024
"""Of one stream, before the next one's turn."""
_is_plain_request: Final = function("_remoting", "is_plain_request")
_PSEUDO: Final = frozenset({":method", ":scheme", ":path", ":authority"})
_UNFIT: Final = frozenset({"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"})


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """`streams`: requests under way. `list_bytes`: of a request's header fields, as SETTINGS count them.
    `unsent_bytes`: answers that wait for the peer's windows, beyond which new requests are refused.
    """

    streams: int = 10_000
    list_bytes: int = 16 * 1024
    unsent_bytes: int = 16 * 1024 * 1024


class Receiver(Protocol):
    """What a request is for its owner."""

    def data_received(self, data: bytes, *, is_end: bool) -> None:
        """Bytes of the body; `Stream.taken` gives the window back."""

    def gone(self) -> None:
        """The peer has reset the stream, or the connection has ended; nothing can be sent."""

    def drained(self) -> None:
        """What was sent on the stream has left for the transport."""


class Bucket:
    """Lets `burst` through at once, and `per_s` in the long run."""

    __slots__ = ("_at_s", "_burst", "_left", "_per_s")

    def __init__(self, burst: int, per_s: float, now_s: float) -> None:
        self._burst, self._per_s, self._left, self._at_s = burst, per_s, float(burst), now_s

    def take(self, now_s: float) -> bool:
        """Whether one more is let through."""
        self._left -= 1
        if self._left < 0:
            self._left = min(self._burst, self._left + (now_s - self._at_s) * self._per_s)
            self._at_s = now_s
        return self._left >= 0


class Stream:
    """One request and its answer. `is_open`: something can be sent."""

    __slots__ = (
        *("_connection", "_has_head", "_out", "_room", "_taken", "_trailers", "has_ended", "id", "is_open"),
        *("receiver", "unsent_bytes", "window"),
    )

    def __init__(self, connection: "Http2Connection", stream_id: int, window: int) -> None:
        self.id = stream_id
        self.receiver: Receiver | None = None
        self.window = window
        """What the peer lets us send."""
        self.is_open = True
        self.has_ended = False
        """The peer sends no more."""
        self.unsent_bytes = 0
        self._connection = connection
        self._out: deque[bytes | memoryview] = deque()
        self._trailers: bytes | None = None
        self._has_head = False
        self._room = STREAM_WINDOW_BYTES
        self._taken = 0

    def taken(self, size: int) -> None:
        """So many received bytes need no room any more."""
        self._taken += size
        if self._taken >= STREAM_WINDOW_BYTES // 4 and not self.has_ended and self.is_open:
            self._connection.write(frames.window_update_frame(self.id, self._taken))
            self._room += self._taken
            self._taken = 0

    def received(self, size: int) -> bool:
        """Whether the peer kept to its window."""
        self._room -= size
        return self._room >= 0

    def send_head(self, block: bytes) -> None:
        if self.is_open:
            self._has_head = True
            self._connection.write_headers(self.id, block, ends_stream=False)

    def send(self, data: bytes) -> None:
        """Bytes of the answer's body."""
        if not self.is_open:
            return
        connection, size = self._connection, len(data)
        if not self._out and size <= self.window and connection.may_send(size):
            self.window -= size
            connection.write_frame(self.id, data)
            return
        self._out.append(data)
        self.unsent_bytes += size
        connection.queued(self, size)

    def answer(self, block: bytes, data: bytes, trailers: bytes) -> None:
        """A whole answer."""
        connection, size = self._connection, len(data)
        if self.is_open and self.has_ended and size <= self.window and connection.may_send(size):
            connection.write_answer(self.id, block, data, trailers)
            self.close()
            return
        self.send_head(block)
        self.send(data)
        self.end(trailers)

    def end(self, trailers: bytes) -> None:
        """The answer's end, behind what still has to be sent."""
        if not self.is_open or self._trailers is not None:
            return
        self._trailers = trailers
        if not self._out:
            self._send_trailers(trailers)

    def stop(self, head: bytes, trailers: bytes) -> None:
        """End it at once with a status; a message of which a part is sent is broken off."""
        if self._out:
            self.reset(ErrorCode.CANCEL)
        else:
            self.end(trailers if self._has_head else head + trailers)

    def reset(self, code: ErrorCode) -> None:
        """End it at once."""
        if self.is_open:
            self._connection.write(frames.rst_stream_frame(self.id, code))
            self.close()

    def close(self) -> Receiver | None:
        """Returns who still has to learn of it."""
        self.is_open = False
        self._out.clear()
        self._connection.closed(self)
        # The receiver knows the stream: without this both would wait for the garbage collector.
        receiver, self.receiver = self.receiver, None
        return receiver

    def pump(self) -> bool:
        """Send what the windows let through, up to SENT_AT_ONCE_BYTES; whether nothing is left."""
        connection, out, budget = self._connection, self._out, SENT_AT_ONCE_BYTES
        while out:
            part = out[0]
            size = min(len(part), self.window, connection.sendable, budget)
            if size <= 0 < len(part):
                return False
            out.popleft()
            if size < len(part):
                whole = memoryview(part)
                out.appendleft(whole[size:])
                part = whole[:size]
            self.window -= size
            budget -= size
            self.unsent_bytes -= size
            connection.write_data(self.id, part)
        receiver = self.receiver
        if self._trailers is not None:
            self._send_trailers(self._trailers)
        if receiver is not None:
            receiver.drained()
        return True

    def _send_trailers(self, trailers: bytes) -> None:
        self._connection.write_headers(self.id, trailers, ends_stream=True)
        if not self.has_ended:  # the peer need not send the rest
            self._connection.write(frames.rst_stream_frame(self.id, ErrorCode.NO_ERROR))
        self.close()


class Http2Connection:
    """on_request: a request's stream, its fields (None: they are larger than the limit), and whether it has
        no body. It sets the stream's receiver unless it answers at once.
    on_output: called whenever there is something to send after there was nothing.

    failure: why the connection has to be closed, once everything is sent.
    has_more: bytes wait for `receive(b"")`.
    """

    def __init__(
        self,
        on_request: Callable[[Stream, list[Field] | None, bool], None],
        on_output: Callable[[], None],
        limits: Http2Limits,
        now_s: float,
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.failure: Http2Error | None = None
        self.has_more = False
        self.has_preface = False
        self.is_draining = False
        self.is_write_paused = False
        self.unsent_bytes = 0
        """Of answers that wait for windows."""
        self._on_request = on_request
        self._on_output = on_output
        self._limits = limits
        self._now_s = now_s
        self._decoder = Decoder(limits.list_bytes)
        self._buffer = b""
        self._at = 0
        self._preface = PREFACE
        self._last_id = 0
        self._last_served_id: int | None = None
        self._block: list[bytes] | None = None
        self._block_head = (0, 0)
        self._window = WINDOW_DEFAULT
        self._stream_window = WINDOW_DEFAULT
        self._frame_bytes = FRAME_BYTES_DEFAULT
        self._room = CONNECTION_WINDOW_BYTES
        self._taken = 0
        self._ready: OrderedDict[Stream, None] = OrderedDict()
        """Streams with something to send that wait for the connection's window, or for the owner."""
        self._starved: set[Stream] = set()
        """Those that wait for a window of their own: however many they are, they cost the others nothing."""
        self._out: list[bytes] = []
        self._idle_frames = Bucket(IDLE_FRAMES_BURST, IDLE_FRAMES_PER_S, now_s)
        self._settings = Bucket(SETTINGS_BURST, SETTINGS_PER_S, now_s)
        self._resets = Bucket(max(RESETS_BURST, limits.streams), RESETS_PER_S, now_s)

    def start(self) -> None:
        """Send what a server says first."""
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: self._limits.streams,
            Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW_BYTES,
            Setting.MAX_HEADER_LIST_SIZE: self._limits.list_bytes,
        }
        self.write(frames.settings_frame(settings))
        self.write(frames.window_update_frame(0, CONNECTION_WINDOW_BYTES - WINDOW_DEFAULT))

    def receive(self, data: bytes, now_s: float) -> None:
        """Take received bytes, as far as the turn's bound lets them: see `has_more`."""
        if self.failure is not None:
            return
        self._now_s = now_s
        self._buffer = self._buffer[self._at :] + data if self._at < len(self._buffer) else data
        self._at = 0
        try:
            if self.has_preface or self._read_preface():
                self._read_frames()
        except Http2Error as error:
            self.fail(error)

    def take_output(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    @property
    def buffered_bytes(self) -> int:
        """Received bytes that are not taken yet."""
        return len(self._buffer) - self._at

    # -- the end

    def fail(self, error: Http2Error) -> None:
        """The connection ends: nothing more is taken."""
        if self.failure is None:
            self.write(frames.goaway_frame(self._last_id, error.code, error.text[:100]))
            self.failure = error
            self.abandon()

    def abandon(self) -> None:
        """No one waits any more for the requests under way."""
        streams = tuple(self.streams.values())
        self.streams.clear()
        self._ready.clear()
        self._starved.clear()
        self._buffer, self._at, self.has_more = b"", 0, False
        for stream in streams:
            receiver = stream.close()
            if receiver is not None:
                receiver.gone()
        self.unsent_bytes = 0

    def announce_end(self) -> None:
        """Ask the peer for no new requests. Those that are on their way are served (6.8)."""
        self.is_draining = True
        self.write(frames.goaway_frame(WINDOW_MAX, ErrorCode.NO_ERROR))
        self.ping()

    def refuse_new(self) -> None:
        """Serve no further request; the peer sends them elsewhere."""
        if self._last_served_id is None:
            self._last_served_id = self._last_id
            self.write(frames.goaway_frame(self._last_id, ErrorCode.NO_ERROR))

    def ping(self) -> None:
        self.write(frames.frame(frames.PING, 0, 0, b"ledgermq"))

    # -- receiving

    def _read_preface(self) -> bool:
        got = self._buffer[: len(self._preface)]
        if not self._preface.startswith(got):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
        self._preface = self._preface[len(got) :]
        self._at = len(got)
        if self._preface:
            return False
        head = self._buffer[self._at : self._at + HEAD_BYTES]
        if len(head) < HEAD_BYTES:
            self._preface = b""
            return False
        if head[3] != frames.SETTINGS or head[4] & frames.ACK:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
        self.has_preface = True
        return True

    def _read_frames(self) -> None:
        buffer, at, left = self._buffer, self._at, TURN_COST
        end = len(buffer)
        unpack_from = HEAD.unpack_from
        self.has_more = False
        while end - at >= HEAD_BYTES:
            high, low, kind, flags, stream_id = unpack_from(buffer, at)
            size = high << 16 | low
            if size > FRAME_BYTES_DEFAULT:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"a frame of {size} bytes")
            begin = at + HEAD_BYTES
            stop = begin + size
            if stop > end:
                break
            if left <= 0:
                self.has_more = True
                break
            stream_id &= STREAM_ID_MASK
            if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block_head[0]):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a header block is interrupted")
            payload = buffer[begin:stop]
            self._at = at = stop
            if kind == frames.DATA:
                left -= 1 + (size >> 12)
                self._data(stream_id, flags, payload)
            elif kind == frames.HEADERS:
                left -= _CALL_COST + (size >> 6)
                self._headers(stream_id, flags, payload)
            else:
                left -= 1 + (size >> 6)
                if kind == frames.SETTINGS:
                    left -= len(self.streams) >> 4  # whose windows it may change
                self._other(kind, stream_id, flags, payload)
            if self.failure is not None:
                return

    def _other(self, kind: int, stream_id: int, flags: int, payload: bytes) -> None:
        if kind == frames.CONTINUATION:
            self._continuation(flags, payload)
            return
        self._count_idle()
        if kind == frames.WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == frames.RST_STREAM:
            self._rst_stream(stream_id, payload)
        elif kind == frames.PING:
            self._ping(stream_id, flags, payload)
        elif kind == frames.SETTINGS:
            self._settings_received(stream_id, flags, payload)
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client sends no PUSH_PROMISE")
        elif kind == frames.PRIORITY:
            if stream_id == 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY without a stream")
            if len(payload) != 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PRIORITY has 5 bytes")
        elif kind == frames.GOAWAY:
            if stream_id != 0 or len(payload) < 8:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY cannot be read")
            self.is_draining = True

    def _count_idle(self) -> None:
        if not self._idle_frames.take(self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that bring no request forward")

    def _data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._room -= size
        if self._room < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more bytes than the connection's window")
        # Given back at once: what requests hold is bounded by their owner, and one request that waits for
        # its rest must not keep the others from theirs.
        self._taken += size
        if self._taken >= CONNECTION_WINDOW_BYTES // 4:
            self.write(frames.window_update_frame(0, self._taken))
            self._room += self._taken
            self._taken = 0
        is_end = flags & frames.END_STREAM != 0
        stream = self.streams.get(stream_id)
        if size == 0 and not is_end:
            self._count_idle()
        if stream is None:
            self._check_not_idle(stream_id)
            self._count_idle()
            return
        if stream.has_ended:
            self._stream_error(stream, ErrorCode.STREAM_CLOSED)
            return
        if not stream.received(size):
            self._stream_error(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if flags & frames.PADDED:
            payload = unpadded(payload, flags)
            stream.taken(size - len(payload))
        stream.has_ended = is_end
        if stream.receiver is not None:
            stream.receiver.data_received(payload, is_end=is_end)

    def _check_not_idle(self, stream_id: int) -> None:
        if stream_id == 0 or stream_id > self._last_id or stream_id % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a frame for stream {stream_id}, which is not open")

    def _stream_error(self, stream: Stream, code: ErrorCode) -> None:
        self._count_reset()
        receiver = stream.receiver
        stream.reset(code)
        if receiver is not None:
            receiver.gone()

    def _headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & (frames.PADDED | frames.HAS_PRIORITY):
            payload = unpadded(payload, flags, has_priority=flags & frames.HAS_PRIORITY != 0)
        if stream_id % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client has no stream {stream_id}")
        if flags & frames.END_HEADERS:
            self._block_received(stream_id, flags, payload)
        else:
            self._block, self._block_head = [payload], (stream_id, flags)

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        if len(self._block) > CONTINUATIONS_MAX or sum(map(len, self._block)) > BLOCK_BYTES_MAX:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "a header block is too long")
        if flags & frames.END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._block_received(*self._block_head, block)

    def _block_received(self, stream_id: int, flags: int, block: bytes) -> None:
        try:
            fields = self._decoder.decode(block)
        except HpackError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        is_end = flags & frames.END_STREAM != 0
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._trailers_received(stream, is_end)
        elif stream_id <= self._last_id:
            self._count_idle()  # a stream that was reset, or answered before its end
        else:
            self._last_id = stream_id
            self._begin(stream_id, fields, is_end)

    def _begin(self, stream_id: int, fields: list[Field] | None, is_end: bool) -> None:
        if self._last_served_id is not None:
            self._count_idle()
            return
        if len(self.streams) >= self._limits.streams or self.unsent_bytes > self._limits.unsent_bytes:
            self._count_reset()
            self.write(frames.rst_stream_frame(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if fields is not None and is_malformed(fields):
            self._count_reset()
            self.write(frames.rst_stream_frame(stream_id, ErrorCode.PROTOCOL_ERROR))
            return
        stream = Stream(self, stream_id, self._stream_window)
        stream.has_ended = is_end
        self.streams[stream_id] = stream
        self._on_request(stream, fields, is_end)

    def _trailers_received(self, stream: Stream, is_end: bool) -> None:
        if not is_end or stream.has_ended:
            self._stream_error(stream, ErrorCode.STREAM_CLOSED if is_end else ErrorCode.PROTOCOL_ERROR)
            return
        stream.has_ended = True
        if stream.receiver is not None:
            stream.receiver.data_received(b"", is_end=True)

    def _count_reset(self) -> None:
        if not self._resets.take(self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many requests are taken back")

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 bytes")
        self._check_not_idle(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        self._count_reset()
        receiver = stream.close()
        if receiver is not None:
            receiver.gone()

    def _ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "PING has 8 bytes")
        if flags & frames.ACK:
            if self.is_draining:
                self.refuse_new()  # what was on its way before the peer knew has arrived
        else:
            self.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    # -- the peer's settings and windows

    def _settings_received(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id != 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS cannot be read")
        if flags & frames.ACK:
            return
        if not self._settings.take(self._now_s):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS")
        window = self._stream_window
        for at in range(0, len(payload), 6):
            number = int.from_bytes(payload[at : at + 2], "big")
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            self._check_setting(number, value)
            if number == Setting.INITIAL_WINDOW_SIZE:
                window = value
        # Once, however often the frame names it: it changes every stream.
        if window != self._stream_window:
            self._set_stream_window(window)
        self.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _set_stream_window(self, value: int) -> None:
        grown, self._stream_window = value - self._stream_window, value
        for stream in self.streams.values():
            stream.window += grown
            if stream.window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2 GiB")
        if grown > 0:
            for stream in tuple(self._starved):
                self._wait(stream)
            self.pump()

    def _check_setting(self, number: int, value: int) -> None:
        if number == Setting.INITIAL_WINDOW_SIZE and value > WINDOW_MAX:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "a window of more than 2 GiB")
        if number == Setting.MAX_FRAME_SIZE:
            if not FRAME_BYTES_DEFAULT <= value <= frames.FRAME_BYTES_MAX:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frames of {value} bytes")
            self._frame_bytes = min(value, SENT_AT_ONCE_BYTES)
        elif number == Setting.ENABLE_PUSH and value > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 bytes")
        grown = int.from_bytes(payload, "big") & WINDOW_MAX
        if stream_id == 0:
            self._window += grown
            if not grown or self._window > WINDOW_MAX:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window cannot be so")
            self.pump()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            self._check_not_idle(stream_id)
            return
        stream.window += grown
        if not grown or stream.window > WINDOW_MAX:
            self._stream_error(stream, ErrorCode.FLOW_CONTROL_ERROR if grown else ErrorCode.PROTOCOL_ERROR)
        elif stream in self._starved:
            self._wait(stream)
            self.pump()

    # -- sending

    @property
    def sendable(self) -> int:
        """Bytes of bodies that may be written now."""
        return 0 if self.is_write_paused else self._window

    def may_send(self, size: int) -> bool:
        """Whether a body of that size fits into one frame now, and nothing waits before it."""
        return (
            size <= self._window and size <= self._frame_bytes and not (self._ready or self.is_write_paused)
        )

    def write(self, data: bytes) -> None:
        if self.failure is not None:
            return
        if not self._out:
            self._on_output()
        self._out.append(data)

    def write_answer(self, stream_id: int, block: bytes, data: bytes, trailers: bytes) -> None:
        """HEADERS, DATA and HEADERS, which end the stream; blocks fit into a frame."""
        self._window -= len(data)
        pack, size = HEAD.pack, len(data)
        head = pack(0, len(block), frames.HEADERS, frames.END_HEADERS, stream_id)
        middle = pack(size >> 16, size & 0xFFFF, frames.DATA, 0, stream_id)
        last = pack(0, len(trailers), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id)
        self.write(b"".join((head, block, middle, data, last, trailers)))

    def write_headers(self, stream_id: int, block: bytes, *, ends_stream: bool) -> None:
        self.write(
            frames.header_frames(stream_id, block, ends_stream=ends_stream, frame_bytes=self._frame_bytes)
        )

    def write_frame(self, stream_id: int, data: bytes) -> None:
        """One DATA frame that the windows let through."""
        self._window -= len(data)
        self.write(frames.frame(frames.DATA, 0, stream_id, data))

    def write_data(self, stream_id: int, part: bytes | memoryview) -> None:
        """Bytes that the windows let through, in as many frames as they need."""
        self._window -= len(part)
        self.unsent_bytes -= len(part)
        for at in range(0, len(part), self._frame_bytes):
            self.write(frames.frame(frames.DATA, 0, stream_id, bytes(part[at : at + self._frame_bytes])))

    def queued(self, stream: Stream, size: int) -> None:
        """The stream has so many bytes more to send."""
        self.unsent_bytes += size
        if stream not in self._ready and stream not in self._starved:
            self._wait(stream)
            self.pump()

    def _wait(self, stream: Stream) -> None:
        if stream.window > 0:
            self._starved.discard(stream)
            self._ready[stream] = None
        else:
            self._starved.add(stream)

    def pump(self) -> None:
        """Send what has waited and may be sent now, the streams in turn."""
        while self._ready and self.sendable > 0:
            stream, _ = self._ready.popitem(last=False)
            if not stream.pump():
                self._wait(stream)

    def closed(self, stream: Stream) -> None:
        """The stream needs nothing any more."""
        self.streams.pop(stream.id, None)
        self._ready.pop(stream, None)
        self._starved.discard(stream)
        self.unsent_bytes -= stream.unsent_bytes
        stream.unsent_bytes = 0


def is_malformed(fields: list[Field]) -> bool:
    """Whether a request with these fields cannot be served (8.2 and 8.3)."""
    return not (_is_plain_request is not None and _is_plain_request(fields)) and _is_malformed(fields)


def _is_malformed(fields: list[Field]) -> bool:
    pseudo = 0
    for place, (name, value) in enumerate(fields):
        if name[:1] == ":":
            if place != pseudo or name not in _PSEUDO:
                return True
            pseudo += 1
        elif name in _UNFIT or not name or name != name.lower():
            return True
        if not value.isprintable() and any(each in value for each in "\0\r\n"):
            return True
    names = {name for name, _ in fields[:pseudo]}
    return len(names) != pseudo or not names >= {":method", ":scheme", ":path"}
