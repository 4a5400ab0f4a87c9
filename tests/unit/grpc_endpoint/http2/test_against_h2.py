"""The frame layer with the library h2 as its client: whatever the two say, every body arrives whole."""

from __future__ import annotations

from collections import defaultdict

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, ResponseReceived, StreamEnded, TrailersReceived
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpc_endpoint.http2.connection import Http2Connection, Http2Limits, Stream
from grpc_endpoint.http2.hpack import Field, encoded

HEAD = encoded([(":status", "200"), ("content-type", "application/grpc")])
TRAILERS = encoded([("grpc-status", "0"), ("grpc-message", "ok" * 100)])
FIELDS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "there")]
SIZES = st.integers(0, 150_000)
CALL = st.tuples(SIZES, SIZES, st.integers(0, 3))
"""Bytes of the request and of the answer, and how many kinds of fields."""


class Echo:
    """Keeps a request's body and answers with bytes of the wanted length, in two parts."""

    def __init__(self, stream: Stream, answer: bytes) -> None:
        self.stream, self.answer, self.body = stream, answer, b""

    def data_received(self, data: bytes, *, is_end: bool) -> None:
        self.body += data
        self.stream.taken(len(data))
        if is_end:
            self.reply()

    def reply(self) -> None:
        half = len(self.answer) // 2
        if half % 2:
            self.stream.answer(HEAD, self.answer, TRAILERS)
            return
        self.stream.send_head(HEAD)
        for part in (self.answer[:half], self.answer[half:]):
            if part:
                self.stream.send(part)
        self.stream.end(TRAILERS)

    def gone(self) -> None:
        raise AssertionError("the stream was broken off")

    def drained(self) -> None:
        pass


class Pair:
    """Our server and h2's client; bytes go over in pieces."""

    def __init__(self, window: int, piece: int) -> None:
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self.client.initiate_connection()
        self.client.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.answers: dict[int, bytes] = {}
        self.echoes: dict[int, Echo] = {}
        self.fields: dict[int, list[Field] | None] = {}
        self.server = Http2Connection(self._on_request, lambda: None, Http2Limits(), 0.0)
        self.server.start()
        self.piece = piece
        self.got: dict[int, bytes] = defaultdict(bytes)
        self.status: dict[int, bytes] = {}
        self.ended: set[int] = set()

    def _on_request(self, stream: Stream, fields: list[Field] | None, is_end: bool) -> None:
        self.fields[stream.id] = fields
        echo = stream.receiver = self.echoes[stream.id] = Echo(stream, self.answers[stream.id])
        if is_end:
            echo.reply()

    def turn(self) -> bool:
        """Carry what both sides have to say; whether there was anything."""
        data = self.client.data_to_send()
        for at in range(0, len(data), self.piece):
            self.server.receive(data[at : at + self.piece], 0.0)
        while self.server.has_more:
            self.server.receive(b"", 0.0)
        assert self.server.failure is None, self.server.failure
        back = b"".join(self.server.take_output())
        for at in range(0, len(back), self.piece):
            for event in self.client.receive_data(back[at : at + self.piece]):
                self._take(event)
        return bool(data or back)

    def _take(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self.got[event.stream_id] += event.data
            self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, ResponseReceived):
            assert dict(event.headers)[b":status"] == b"200"
        elif isinstance(event, TrailersReceived):
            self.status[event.stream_id] = dict(event.headers)[b"grpc-status"]
        elif isinstance(event, StreamEnded):
            self.ended.add(event.stream_id)
        assert not isinstance(event, RequestReceived)

    def send(self, stream_id: int, left: bytes) -> bytes:
        """As much of the body as the windows let through; the rest."""
        size = min(len(left), self.client.local_flow_control_window(stream_id))
        while size > 0:
            part = left[: min(size, self.client.max_outbound_frame_size)]
            left, size = left[len(part) :], size - len(part)
            self.client.send_data(stream_id, part, pad_length=3 if len(part) < 100 else None)
            size = min(size, self.client.local_flow_control_window(stream_id))
        return left


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(CALL, min_size=1, max_size=6),
    st.sampled_from([1_000, 65_535, 300_000]),
    st.sampled_from([7_919, 65_536]),
)
def test_every_body_arrives_whole_both_ways(
    calls: list[tuple[int, int, int]], window: int, piece: int
) -> None:
    pair = Pair(window, piece)
    pair.turn()
    left: dict[int, bytes] = {}
    for number, (asked, answered, kinds) in enumerate(calls):
        stream_id = pair.client.get_next_available_stream_id()
        pair.answers[stream_id] = bytes([number]) * answered
        left[stream_id] = bytes([255 - number]) * asked
        fields = [*FIELDS, *((f"x-{kind}", f"value {number} {kind}") for kind in range(kinds))]
        pair.client.send_headers(stream_id, fields)
        pair.fields[stream_id] = fields
    bodies = dict(left)
    open_ids = set(left)
    while pair.turn() or open_ids:
        for stream_id in sorted(open_ids):
            left[stream_id] = pair.send(stream_id, left[stream_id])
            if not left[stream_id]:
                pair.client.end_stream(stream_id)
                open_ids.discard(stream_id)
    assert {stream_id: echo.body for stream_id, echo in pair.echoes.items()} == bodies
    assert {stream_id: pair.got[stream_id] for stream_id in bodies} == pair.answers
    assert pair.status == dict.fromkeys(bodies, b"0")
    assert pair.ended == set(bodies)
    assert not pair.server.streams
    assert pair.server.unsent_bytes == 0
