"""The frame layer: its bytes, flow control both ways, and what a hostile peer meets."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from grpc_endpoint.http2 import connection as module
from grpc_endpoint.http2.connection import (
    CONNECTION_WINDOW_BYTES,
    CONTINUATIONS_MAX,
    IDLE_FRAMES_BURST,
    RESETS_BURST,
    SETTINGS_BURST,
    STREAM_WINDOW_BYTES,
    TURN_COST,
    Bucket,
    Http2Connection,
    Http2Limits,
    Stream,
    is_malformed,
)
from grpc_endpoint.http2.frames import (
    HEAD,
    PREFACE,
    ErrorCode,
    Setting,
    frame,
    goaway_frame,
    rst_stream_frame,
    settings_frame,
    window_update_frame,
)
from grpc_endpoint.http2.hpack import Field, encoded

DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, PADDED, HAS_PRIORITY, ACK = 0x1, 0x4, 0x8, 0x20, 0x1
FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B")]
BLOCK = encoded(FIELDS)
HEAD_BLOCK, TRAILERS = b"\x88", b"\x10\x01a\x01b"


class Body:
    """A receiver that keeps what it gets."""

    def __init__(self, stream: Stream, *, takes: bool = True) -> None:
        self.stream = stream
        self.data = b""
        self.is_complete = False
        self.is_gone = False
        self.drains = 0
        self.takes = takes

    def data_received(self, data: bytes, *, is_end: bool) -> None:
        self.data += data
        self.is_complete = is_end
        if self.takes:
            self.stream.taken(len(data))

    def gone(self) -> None:
        self.is_gone = True

    def drained(self) -> None:
        self.drains += 1


class Server:
    """A connection after both sides' SETTINGS."""

    def __init__(self, limits: Http2Limits | None = None, *, begins: bool = True, takes: bool = True) -> None:
        self.bodies: dict[int, Body] = {}
        self.fields: dict[int, list[Field] | None] = {}
        self.now_s = 0.0
        self.takes = takes
        self.http2 = Http2Connection(self._on_request, lambda: None, limits or Http2Limits(), 0.0)
        self.http2.start()
        if begins:
            self.get(PREFACE + settings_frame({}))
            self.out()

    def _on_request(self, stream: Stream, fields: list[Field] | None, is_end: bool) -> None:
        body = stream.receiver = self.bodies[stream.id] = Body(stream, takes=self.takes)
        body.is_complete = is_end
        self.fields[stream.id] = fields

    def get(self, data: bytes) -> None:
        self.http2.receive(data, self.now_s)
        while self.http2.has_more:
            self.http2.receive(b"", self.now_s)

    def out(self) -> bytes:
        return b"".join(self.http2.take_output())

    def frames(self) -> list[tuple[int, int, int, bytes]]:
        """Type, flags, stream and payload of what was sent."""
        data, found = self.out(), []
        while data:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data)
            size = high << 16 | low
            found.append((kind, flags, stream_id, data[9 : 9 + size]))
            data = data[9 + size :]
        return found

    def fails(self, data: bytes, code: ErrorCode) -> None:
        self.get(data)
        assert self.http2.failure is not None, "the connection goes on"
        assert self.http2.failure.code == code
        kind, _, _, payload = self.frames()[-1]
        assert (kind, payload[4:8]) == (GOAWAY, code.to_bytes(4, "big"))
        assert not self.http2.streams


def request(stream_id: int, *, ends: bool = False, block: bytes = BLOCK) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream_id, block)


# -- golden bytes


def test_what_a_server_says_first() -> None:
    server = Server(Http2Limits(streams=100), begins=False)
    assert server.out() == bytes.fromhex(
        "000012" "04" "00" "00000000" "000300000064" "000400100000" "000600004000"
        "000004" "08" "00" "00000000" "003f0001"
    )  # fmt: skip
    server.get(PREFACE + settings_frame({Setting.INITIAL_WINDOW_SIZE: 10}))
    assert server.out() == bytes.fromhex("000000040100000000"), "the peer's are acknowledged"


def test_an_answer_that_fits_is_three_frames() -> None:
    server = Server()
    server.get(request(1) + frame(DATA, END_STREAM, 1, b"ping"))
    assert server.fields[1] == FIELDS
    assert (server.bodies[1].data, server.bodies[1].is_complete) == (b"ping", True)
    server.bodies[1].stream.answer(HEAD_BLOCK, b"pong", TRAILERS)
    assert server.out() == bytes.fromhex(
        "000001" "01" "04" "00000001" "88"
        "000004" "00" "00" "00000001" "706f6e67"
        "000005" "01" "05" "00000001" "1001610162"
    )  # fmt: skip
    assert not server.http2.streams


def test_bytes_may_come_one_by_one() -> None:
    server = Server(begins=False)
    for byte in PREFACE + settings_frame({}) + request(1) + frame(DATA, END_STREAM, 1, b"ping"):
        server.get(bytes([byte]))
    assert server.bodies[1].data == b"ping"


def test_padding_and_priority_are_left_out() -> None:
    server = Server()
    padded = b"\x03" + b"\x80\x00\x00\x00\x10" + BLOCK + b"\0\0\0"
    server.get(frame(HEADERS, END_HEADERS | PADDED | HAS_PRIORITY, 1, padded))
    server.get(frame(DATA, END_STREAM | PADDED, 1, b"\x02hi\0\0"))
    assert (server.fields[1], server.bodies[1].data) == (FIELDS, b"hi")


def test_a_block_in_parts() -> None:
    server = Server()
    server.get(frame(HEADERS, END_STREAM, 1, BLOCK[:2]) + frame(CONTINUATION, 0, 1, BLOCK[2:4]))
    server.get(frame(CONTINUATION, END_HEADERS, 1, BLOCK[4:]))
    assert server.fields[1] == FIELDS
    assert server.bodies[1].is_complete


def test_the_peers_trailers_end_a_request() -> None:
    server = Server()
    server.get(request(1) + frame(DATA, 0, 1, b"x") + request(1, ends=True, block=encoded([("a", "b")])))
    assert server.bodies[1].is_complete


def test_a_ping_is_answered() -> None:
    server = Server()
    server.get(frame(PING, 0, 0, b"12345678") + frame(PRIORITY, 0, 7, bytes(5)) + frame(0x63, 0, 5, b"?"))
    assert server.frames() == [(PING, ACK, 0, b"12345678")]


def test_an_answer_before_the_requests_end_lets_the_peer_stop() -> None:
    server = Server()
    server.get(request(1))
    server.bodies[1].stream.end(HEAD_BLOCK)
    assert server.frames() == [(HEADERS, END_HEADERS | END_STREAM, 1, HEAD_BLOCK), (RST, 0, 1, bytes(4))]
    server.get(frame(DATA, END_STREAM, 1, b"late"))
    assert server.http2.failure is None


# -- flow control


def test_an_answer_waits_for_the_windows_of_stream_and_connection() -> None:
    server = Server()
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 3}) + request(1, ends=True))
    server.out()
    stream = server.bodies[1].stream
    stream.answer(HEAD_BLOCK, b"abcdefgh", TRAILERS)
    assert [(kind, data) for kind, _, _, data in server.frames()] == [(HEADERS, HEAD_BLOCK), (DATA, b"abc")]
    assert server.http2.unsent_bytes == 5
    server.get(window_update_frame(1, 2))
    assert server.frames() == [(DATA, 0, 1, b"de")]
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 9}))
    kinds = [(kind, data) for kind, _, _, data in server.frames()]
    assert kinds == [(DATA, b"fgh"), (HEADERS, TRAILERS), (SETTINGS, b"")]
    assert (server.http2.unsent_bytes, server.http2.streams) == (0, {})


def test_a_smaller_window_of_the_peer_makes_that_of_a_stream_negative() -> None:
    server = Server()
    server.get(request(1, ends=True))
    stream = server.bodies[1].stream
    stream.send(bytes(65_535))
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}) + window_update_frame(0, 100_000))
    server.out()
    stream.send(b"more")
    server.get(window_update_frame(1, 65_535))
    assert server.frames() == []
    server.get(window_update_frame(1, 4))
    assert server.frames() == [(DATA, 0, 1, b"more")]


def test_streams_share_the_connections_window_in_turns() -> None:
    server = Server()
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 1_000_000}))
    for stream_id in (1, 3, 5):
        server.get(request(stream_id, ends=True))
    for stream_id in (1, 3, 5):
        server.bodies[stream_id].stream.send(bytes(200_000))
    server.out()
    server.get(window_update_frame(0, 3 * 64 * 1024))
    sent = [(stream_id, len(data)) for _, _, stream_id, data in server.frames()]
    assert {stream_id for stream_id, _ in sent} == {1, 3, 5}
    assert {sum(size for each, size in sent if each == number) for number in (1, 3, 5)} == {65_536}


def test_a_window_given_byte_by_byte_costs_a_step_each_however_many_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    server.get(b"".join(request(number, ends=True) for number in range(1, 401, 2)))
    for body in server.bodies.values():
        body.stream.send(bytes(65_535))  # the first takes all of the connection's window
    server.out()
    steps: list[int] = []
    pump = Stream.pump

    def counted(stream: Stream) -> bool:
        steps.append(stream.id)
        return pump(stream)

    monkeypatch.setattr(Stream, "pump", counted)
    server.get(b"".join(window_update_frame(0, 1) for _ in range(10)))
    assert [(stream_id, len(data)) for _, _, stream_id, data in server.frames()] == [
        (number, 1) for number in range(3, 23, 2)
    ]
    assert len(steps) == 10


def test_settings_change_the_windows_of_all_streams_once_a_frame_and_few_frames_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    server.get(b"".join(request(number) for number in range(1, 801, 2)))
    changes: list[int] = []
    change = Http2Connection._set_stream_window

    def counted(http2: Http2Connection, value: int) -> None:
        changes.append(value)
        change(http2, value)

    monkeypatch.setattr(Http2Connection, "_set_stream_window", counted)
    rows = b"".join(b"\0\4" + number.to_bytes(4, "big") for number in range(2_000))
    server.http2.receive(frame(SETTINGS, 0, 0, rows) + settings_frame({}) * 100, 0.0)
    assert changes == [1_999]
    assert server.http2.has_more
    assert {body.stream.window for body in server.bodies.values()} == {1_999}


def test_a_large_body_is_cut_into_the_peers_frames() -> None:
    server = Server()
    server.get(settings_frame({Setting.MAX_FRAME_SIZE: 20_000}) + request(1, ends=True))
    server.out()
    server.bodies[1].stream.answer(HEAD_BLOCK, bytes(50_000), TRAILERS)
    assert [len(data) for kind, _, _, data in server.frames() if kind == DATA] == [20_000, 20_000, 10_000]


def test_a_body_is_sent_as_far_as_the_windows_go() -> None:
    server = Server()
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 300_000}) + window_update_frame(0, 300_000))
    server.get(request(1, ends=True))
    server.out()
    server.bodies[1].stream.send(bytes(400_000))
    assert sum(len(data) for kind, _, _, data in server.frames() if kind == DATA) == 300_000
    assert server.http2.unsent_bytes == 100_000


def test_nothing_is_sent_while_the_transport_is_full() -> None:
    server = Server()
    server.get(request(1, ends=True))
    server.http2.is_write_paused = True
    server.bodies[1].stream.answer(HEAD_BLOCK, b"data", TRAILERS)
    assert [kind for kind, *_ in server.frames()] == [HEADERS]
    server.http2.is_write_paused = False
    server.http2.pump()
    assert [kind for kind, *_ in server.frames()] == [DATA, HEADERS]
    assert server.bodies[1].drains == 1


def test_windows_are_given_back_as_bytes_are_taken() -> None:
    server = Server(takes=False)
    server.get(request(1))
    for _ in range(STREAM_WINDOW_BYTES // 16_384):
        server.get(frame(DATA, 0, 1, bytes(16_384)))
    assert server.frames() == [(WINDOW, 0, 0, (CONNECTION_WINDOW_BYTES // 4).to_bytes(4, "big"))]
    server.bodies[1].stream.taken(STREAM_WINDOW_BYTES)
    assert server.frames() == [(WINDOW, 0, 1, STREAM_WINDOW_BYTES.to_bytes(4, "big"))]
    server.get(frame(DATA, 0, 1, bytes(16_384)))
    assert server.frames() == []


def test_a_peer_that_ignores_a_streams_window_loses_the_stream() -> None:
    server = Server(takes=False)
    server.get(request(1))
    for _ in range(STREAM_WINDOW_BYTES // 16_384 + 1):
        server.get(frame(DATA, 0, 1, bytes(16_384)))
    assert (RST, 0, 1, ErrorCode.FLOW_CONTROL_ERROR.to_bytes(4, "big")) in server.frames()
    assert server.bodies[1].is_gone
    assert server.http2.failure is None


def test_a_reset_frees_what_waits() -> None:
    server = Server()
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1, ends=True))
    server.bodies[1].stream.answer(HEAD_BLOCK, b"unread", TRAILERS)
    assert server.http2.unsent_bytes == 6
    server.get(rst_stream_frame(1, ErrorCode.CANCEL))
    assert server.bodies[1].is_gone
    assert (server.http2.unsent_bytes, server.http2.streams) == (0, {})


def test_new_requests_are_refused_while_too_many_answers_wait() -> None:
    server = Server(Http2Limits(unsent_bytes=5))
    server.get(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}) + request(1, ends=True))
    server.bodies[1].stream.answer(HEAD_BLOCK, b"unread", TRAILERS)
    server.out()
    server.get(request(3, ends=True))
    assert server.frames() == [(RST, 0, 3, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))]


# -- bounds


def test_requests_beyond_the_bound_are_refused_and_their_fields_read() -> None:
    server = Server(Http2Limits(streams=1))
    server.get(request(1) + request(3, block=BLOCK + b"\x40\x01x\x01y"))
    assert server.frames() == [(RST, 0, 3, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))]
    server.get(rst_stream_frame(1, ErrorCode.CANCEL) + request(5, block=BLOCK + b"\xbe"))
    assert server.fields[5] == [*FIELDS, ("x", "y")]


def test_fields_beyond_the_bound_are_the_owners_to_refuse() -> None:
    server = Server(Http2Limits(list_bytes=200))
    server.get(request(1, block=encoded([*FIELDS, ("x", "y" * 200)])))
    assert server.fields[1] is None


def test_a_turn_takes_a_bounded_number_of_frames() -> None:
    server = Server()
    server.http2.receive(frame(PING, 0, 0, bytes(8)) * (TURN_COST * 2 + 1), 0.0)
    answered = [len(server.frames())]
    while server.http2.has_more:
        server.http2.receive(b"", 0.0)
        answered.append(len(server.frames()))
    assert answered == [TURN_COST, TURN_COST, 1]
    assert server.http2.buffered_bytes == 0


def calm(server: Server, data: bytes, most: int) -> None:
    """So many frames at once are too many, and a few are not."""
    server.get(data * 10)
    assert server.http2.failure is None
    server.fails(data * most, ErrorCode.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize(
    "data",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(PRIORITY, 0, 1, bytes(5)),
        frame(DATA, 0, 1),
        frame(DATA, 0, 3, b"for a stream that is closed"),
        frame(0x99, 0, 0),
        window_update_frame(0, 1),
        request(3),
    ],
    ids=["ping", "priority", "empty-data", "closed", "unknown", "window-update", "closed-headers"],
)
def test_floods_of_frames_that_bring_nothing_forward(data: bytes) -> None:
    server = Server()
    server.get(request(1) + request(3) + rst_stream_frame(3, ErrorCode.CANCEL))
    calm(server, data, IDLE_FRAMES_BURST)


def test_a_flood_of_settings() -> None:
    calm(Server(), settings_frame({Setting.INITIAL_WINDOW_SIZE: 1}), SETTINGS_BURST)


def test_rapid_resets() -> None:
    server = Server()
    for stream_id in range(1, 21, 2):
        server.get(request(stream_id) + rst_stream_frame(stream_id, ErrorCode.CANCEL))
    assert server.http2.failure is None
    many = range(21, 21 + 2 * RESETS_BURST, 2)
    attack = b"".join(request(each) + rst_stream_frame(each, ErrorCode.CANCEL) for each in many)
    server.fails(attack, ErrorCode.ENHANCE_YOUR_CALM)


def test_resets_that_the_server_is_made_to_send() -> None:
    server = Server()
    many = range(1, 2 * RESETS_BURST + 3, 2)
    attack = b"".join(request(each) + window_update_frame(each, 0) for each in many)
    server.fails(attack, ErrorCode.ENHANCE_YOUR_CALM)


def test_a_flood_of_continuations() -> None:
    server = Server()
    first = frame(HEADERS, 0, 1, BLOCK)
    server.fails(first + frame(CONTINUATION, 0, 1) * CONTINUATIONS_MAX, ErrorCode.ENHANCE_YOUR_CALM)


def test_a_block_that_is_too_long() -> None:
    parts = frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 1, bytes(16_384)) * 2
    Server().fails(parts, ErrorCode.ENHANCE_YOUR_CALM)


def test_a_bucket_refills_with_time() -> None:
    bucket = Bucket(2, 10.0, 0.0)
    assert [bucket.take(0.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(0.2) for _ in range(2)] == [True, False]


# -- what breaks the protocol

_OPEN = request(1)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(DATA, 0, 9, b"x"), ErrorCode.PROTOCOL_ERROR),
        (request(2), ErrorCode.PROTOCOL_ERROR),
        (request(0), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\xff" + BLOCK), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | PADDED, 1), ErrorCode.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, b"abc"), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 3, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, BLOCK), ErrorCode.PROTOCOL_ERROR),
        (request(1, block=b"\x80"), ErrorCode.COMPRESSION_ERROR),
        (b"\x00\x40\x01" + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(RST, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (_OPEN + frame(RST, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (settings_frame({Setting.INITIAL_WINDOW_SIZE: 2**31}), ErrorCode.FLOW_CONTROL_ERROR),
        (settings_frame({Setting.MAX_FRAME_SIZE: 1_000}), ErrorCode.PROTOCOL_ERROR),
        (settings_frame({Setting.ENABLE_PUSH: 2}), ErrorCode.PROTOCOL_ERROR),
        (frame(PUSH, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (window_update_frame(0, 0), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update_frame(0, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update_frame(7, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(WINDOW, 0, 0, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_what_ends_a_connection(data: bytes, code: ErrorCode) -> None:
    Server().fails(data, code)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", PREFACE + frame(PING, 0, 0, bytes(8))])
def test_a_connection_that_does_not_begin_as_it_should(data: bytes) -> None:
    Server(begins=False).fails(data, ErrorCode.PROTOCOL_ERROR)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(DATA, END_STREAM, 1, b"x") + frame(DATA, 0, 1, b"y"), ErrorCode.STREAM_CLOSED),
        (request(1), ErrorCode.PROTOCOL_ERROR),
        (window_update_frame(1, 0), ErrorCode.PROTOCOL_ERROR),
        (window_update_frame(1, 2**31 - 1), ErrorCode.FLOW_CONTROL_ERROR),
    ],
)
def test_what_ends_a_stream_only(data: bytes, code: ErrorCode) -> None:
    server = Server()
    server.get(_OPEN + data)
    assert (RST, 0, 1, code.to_bytes(4, "big")) in server.frames()
    assert server.bodies[1].is_gone
    server.get(request(3))
    assert 3 in server.bodies


def _with(*fields: Field) -> list[Field]:
    return [*FIELDS, *fields]


@pytest.mark.parametrize(
    "fields",
    [
        FIELDS[:2],
        [*FIELDS, FIELDS[0]],
        [FIELDS[0], ("a", "b"), *FIELDS[1:]],
        _with((":status", "200")),
        _with(("connection", "close")),
        _with(("Upper", "case")),
        _with(("", "b")),
        _with(("a", "b\r\nc: d")),
    ],
)
def test_malformed_requests(fields: list[Field]) -> None:
    assert is_malformed(fields)
    server = Server()
    server.get(request(1, block=encoded(fields)))
    assert server.frames() == [(RST, 0, 1, ErrorCode.PROTOCOL_ERROR.to_bytes(4, "big"))]
    assert not server.fields


# -- the end


def test_a_server_that_stops_serves_what_is_on_its_way() -> None:
    server = Server()
    server.get(request(1))
    server.http2.announce_end()
    assert server.out() == goaway_frame(2**31 - 1, ErrorCode.NO_ERROR) + frame(PING, 0, 0, b"ledgermq")
    server.get(request(3) + frame(PING, ACK, 0, b"ledgermq"))
    assert server.out() == goaway_frame(3, ErrorCode.NO_ERROR)
    server.get(request(5))
    assert sorted(server.bodies) == [1, 3]
    server.bodies[1].stream.end(HEAD_BLOCK)
    assert server.frames()[0] == (HEADERS, END_HEADERS | END_STREAM, 1, HEAD_BLOCK)


@pytest.mark.parametrize("ending", ["answer", "in parts", "reset by the peer", "connection"])
def test_what_has_ended_is_freed_without_the_garbage_collector(ending: str) -> None:
    server = Server()
    server.get(frame(HEADERS, END_HEADERS | END_STREAM, 1, BLOCK))
    body = server.bodies.pop(1)
    if ending == "answer":
        body.stream.answer(HEAD_BLOCK, b"data", TRAILERS)
    elif ending == "in parts":
        body.stream.send_head(HEAD_BLOCK)
        body.stream.send(b"data")
        body.stream.end(TRAILERS)
    elif ending == "reset by the peer":
        server.get(rst_stream_frame(1, ErrorCode.CANCEL))
    else:
        server.http2.abandon()
    is_left = weakref.ref(body)
    gc.disable()
    try:
        del body
        assert is_left() is None
    finally:
        gc.enable()


def test_requests_learn_that_their_connection_has_gone() -> None:
    server = Server()
    server.get(request(1) + request(3))
    server.http2.abandon()
    assert all(body.is_gone for body in server.bodies.values())
    server.bodies[1].stream.answer(HEAD_BLOCK, b"late", TRAILERS)
    assert server.out() == b""


def test_output_is_announced_once_for_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[int] = []
    announce: Callable[[], None] = lambda: announced.append(1)  # noqa: E731
    http2 = module.Http2Connection(lambda *_: None, announce, Http2Limits(), 0.0)
    http2.start()
    http2.ping()
    assert len(announced) == 1
    http2.take_output()
    http2.ping()
    assert len(announced) == 2
