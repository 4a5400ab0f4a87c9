"""TLS and plain text on one port: connections over fake transports, then server and clients over sockets."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from ledgermq.certificates import make_authority
from remoting.client import blocking
from remoting.client.aio import RemotingClient, client_from
from remoting.client.tls import ClientTls, client_tls_from
from remoting.command import FrameDecoder, RemotingCommand, decode_command, encode_command, success_response
from remoting.errors import ConnectFailedError, RemotingClosedError, RemotingError
from remoting.limits import RemotingLimits
from remoting.memory_limit import MemoryLimit
from remoting.router import Router
from remoting.server import Connection, RemotingServer
from remoting.tls import HANDSHAKES_A_TURN, ServerTls, ServerTlsSettings, TlsLayer, server_tls
from sockets.tls import TlsError, TlsFilesError, TlsSettingsError, TlsStream
from tests.support.certificates import TlsPlace
from tests.support.polling import until
from tests.unit.remoting.fakes import FakeOwner, FakeTransport, connect, turn
from tests.unit.remoting.frames import JSON_FRAME, RawPeer

ECHO = 105


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> TlsPlace:
    return TlsPlace(tmp_path_factory.mktemp("tls"))


def permissive(place: TlsPlace) -> ServerTls:
    return ServerTls(place.server("none"), refuses_plain=False)


class TlsPeer:
    """The client at the other end of a connection's fake transport."""

    def __init__(
        self, place: TlsPlace, limits: RemotingLimits | None = None, server: ServerTls | None = None
    ) -> None:
        self.stream: TlsStream = place.client().stream()
        self.connection, self.transport, self.owner = connect(
            limits or RemotingLimits(), tls=TlsLayer(server or permissive(place))
        )
        self.received = b""
        self._read = 0

    def shake_hands(self) -> None:
        self.stream.start()
        while data := self.stream.take_outgoing():
            self.connection.data_received(data)
            self.read()

    def read(self) -> None:
        """What the connection has written meanwhile."""
        writes, self._read = self.transport.writes[self._read :], len(self.transport.writes)
        self.received += self.stream.receive(b"".join(writes))

    def encrypted(self, data: bytes) -> bytes:
        self.stream.encrypt((data,))
        return self.stream.take_outgoing()

    def answers(self) -> list[RemotingCommand]:
        self.read()
        return [decode_command(payload) for payload in FrameDecoder().feed(self.received)]


async def test_requests_and_answers_over_tls(place: TlsPlace) -> None:
    peer = TlsPeer(place)
    peer.shake_hands()
    peer.connection.data_received(peer.encrypted(JSON_FRAME * 2))
    assert [request.code for request in peer.owner.requests] == [105, 105]
    for request in peer.owner.requests:
        peer.connection.send(success_response(request, body=bytes(300_000)))
    await turn()
    assert [(len(answer.body), answer.code) for answer in peer.answers()] == [(300_000, 0)] * 2
    assert bytes(100) not in b"".join(peer.transport.writes)
    assert peer.connection.unanswered == 0


async def test_plain_text_on_the_same_port(place: TlsPlace) -> None:
    connection, transport, owner = connect(tls=TlsLayer(permissive(place)))
    connection.data_received(JSON_FRAME[:1])
    connection.data_received(JSON_FRAME[1:])
    connection.send(success_response(owner.requests[0]))
    await turn()
    assert [answer.code for answer in transport.sent()] == [0]


async def test_bytes_that_come_one_by_one_are_the_same(place: TlsPlace) -> None:
    peer = TlsPeer(place)
    peer.stream.start()
    while data := peer.stream.take_outgoing():
        for byte in data:
            peer.connection.data_received(bytes([byte]))
        await turn()
        peer.read()
    for byte in peer.encrypted(JSON_FRAME):
        peer.connection.data_received(bytes([byte]))
    assert [request.code for request in peer.owner.requests] == [105]
    assert peer.connection.partial_bytes == 0


@pytest.mark.parametrize("seed", range(5))
async def test_cuts_anywhere_are_the_same(place: TlsPlace, seed: int) -> None:
    rng = random.Random(seed)
    peer = TlsPeer(place)
    peer.shake_hands()
    bodies = [rng.randbytes(rng.choice((0, 10, 40_000))) for _ in range(20)]
    frames = [encode_command(RemotingCommand(ECHO, opaque, body=body)) for opaque, body in enumerate(bodies)]
    data = b"".join(peer.encrypted(frame) for frame in frames)
    at = 0
    while at < len(data):
        size = rng.choice((1, 5, 6, 17_000, 70_000))
        peer.connection.data_received(data[at : at + size])
        at += size
    assert [request.body for request in peer.owner.requests] == bodies
    assert peer.connection.partial_bytes == 0


async def test_enforcing_refuses_plain_text_and_says_so_once(
    place: TlsPlace, caplog: pytest.LogCaptureFixture
) -> None:
    tls = TlsLayer(ServerTls(place.server("none"), refuses_plain=True))
    connection, transport, owner = connect(tls=tls)
    connection.data_received(JSON_FRAME)
    connection.data_received(JSON_FRAME)
    assert transport.is_closed
    assert owner.requests == []
    (warning,) = [record.message for record in caplog.records]
    assert warning.endswith("TLS ended, closed: the peer speaks plain text, and only TLS is allowed")


@pytest.mark.parametrize("at", ["greeting", "later"])
async def test_a_broken_record_closes_the_connection(
    place: TlsPlace, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    peer = TlsPeer(place)
    if at == "later":
        peer.shake_hands()
        peer.connection.data_received(peer.encrypted(JSON_FRAME))
        peer.connection.send(success_response(peer.owner.requests[0]))
    broken = b"\x16\x03\x01\x00\x05hello"
    for _ in range(2):
        peer.connection.data_received(broken)
    await turn()
    assert peer.transport.is_closed
    assert len(caplog.records) == 1
    assert b"".join(peer.transport.writes), "an alert says why"
    peer.connection.abort()
    await turn()
    assert peer.owner.closed == [peer.connection]


async def test_what_was_written_before_the_first_byte_waits_for_it(place: TlsPlace) -> None:
    peer = TlsPeer(place)
    peer.connection.send_oneway(RemotingCommand(40))
    await turn()
    assert peer.transport.writes == []
    peer.shake_hands()
    assert [notice.code for notice in peer.answers()] == [40]
    connection, transport, _ = connect(tls=TlsLayer(permissive(place)))
    connection.send_oneway(RemotingCommand(40))
    connection.data_received(JSON_FRAME[:1])
    assert [notice.code for notice in transport.sent()] == [40]


async def test_the_end_is_told_in_both_directions(place: TlsPlace) -> None:
    peer = TlsPeer(place)
    peer.shake_hands()
    peer.connection.send_oneway(RemotingCommand(40))
    peer.connection.close()
    assert [notice.code for notice in peer.answers()] == [40]
    assert peer.stream.is_at_end
    peer = TlsPeer(place)
    peer.shake_hands()
    data = peer.encrypted(JSON_FRAME)
    peer.stream.end()
    peer.connection.data_received(data + peer.stream.take_outgoing())
    assert [request.code for request in peer.owner.requests] == [105]
    await turn()
    assert peer.transport.is_closed


async def test_part_of_a_record_is_counted_and_has_its_time(place: TlsPlace) -> None:
    peer = TlsPeer(place, RemotingLimits(frame_timeout_ms=1000))
    peer.shake_hands()
    now_s = asyncio.get_running_loop().time()
    peer.connection.check(now_s + 2)
    assert not peer.transport.is_aborted, "no part of anything was received"
    data = peer.encrypted(encode_command(RemotingCommand(ECHO, body=bytes(15_000))))
    peer.connection.data_received(data[:12_000])
    assert peer.connection.partial_bytes == 12_000
    assert peer.connection.measure() == 12_000
    peer.connection.check(now_s + 0.5)
    assert not peer.transport.is_aborted
    peer.connection.check(now_s + 2)
    assert peer.transport.is_aborted


async def test_all_of_a_handshake_is_counted_until_it_is_complete(place: TlsPlace) -> None:
    peer = TlsPeer(place, RemotingLimits(frame_timeout_ms=1000))
    hello = b"\x01\x01\xf0\x00"  # the head of a greeting of 127,000 bytes, which OpenSSL waits for
    record = b"\x16\x03\x01\x40\x00"
    peer.connection.data_received(record + hello + bytes(16_380))
    for _ in range(5):
        peer.connection.data_received(record + bytes(16_384))
    assert peer.connection.measure() == 6 * (5 + 16_384)
    peer.connection.check(asyncio.get_running_loop().time() + 2)
    assert peer.transport.is_aborted
    peer = TlsPeer(place)
    peer.shake_hands()
    assert peer.connection.measure() == 0


async def test_handshakes_at_once_are_spread_over_turns_of_the_loop(place: TlsPlace) -> None:
    server = permissive(place)
    peers = [TlsPeer(place, server=server) for _ in range(3 * HANDSHAKES_A_TURN)]
    for peer in peers:
        peer.stream.start()
        greeting = peer.stream.take_outgoing()
        peer.connection.data_received(greeting[:100])
        peer.connection.data_received(greeting[100:])
    held = [peer.connection.measure() for peer in peers]
    assert min(held) > 100, "what waits is counted"
    answered = 0
    while answered < len(peers):
        before = answered
        await asyncio.sleep(0)
        answered = sum(bool(peer.transport.writes) for peer in peers)
        assert answered - before <= HANDSHAKES_A_TURN
    for peer in peers:
        peer.read()
        peer.connection.data_received(peer.stream.take_outgoing() + peer.encrypted(JSON_FRAME))
    plain, _, owner = connect(tls=TlsLayer(server))
    plain.data_received(JSON_FRAME)
    assert [request.code for request in owner.requests] == [105], "plain text waits for no handshake"
    for _ in range(20):
        await turn()
    assert [len(peer.owner.requests) for peer in peers] == [1] * len(peers)
    assert [peer.connection.measure() for peer in peers] == [0] * len(peers)


async def test_a_greeting_that_waits_is_counted_and_ends_with_its_connection(place: TlsPlace) -> None:
    server = permissive(place)
    peers = [TlsPeer(place, server=server) for _ in range(HANDSHAKES_A_TURN + 1)]
    for peer in peers:
        peer.connection.data_received(b"\x16\x03")
    last = peers[-1]
    for _ in range(3):
        last.connection.data_received(bytes(60_000))
    assert last.connection.measure() == 2 + 3 * 60_000
    last.connection.abort()
    await turn()
    assert last.transport.writes == []


async def test_a_large_request_right_behind_the_handshake(place: TlsPlace) -> None:
    peer = TlsPeer(place)
    peer.stream.start()
    peer.connection.data_received(peer.stream.take_outgoing())
    peer.read()
    body = bytes(400_000)
    finished = peer.stream.take_outgoing()
    peer.connection.data_received(finished + peer.encrypted(encode_command(RemotingCommand(ECHO, body=body))))
    assert [request.body for request in peer.owner.requests] == [body]


async def test_half_frames_behind_tls_count_against_the_limit_of_all(place: TlsPlace) -> None:
    connections: list[Connection] = []
    limit = MemoryLimit(500_000, lambda: connections)
    transports = []
    for announced_bytes in (200_000, 450_000):
        layer, stream, transport = TlsLayer(permissive(place)), place.client().stream(), FakeTransport()
        connection = Connection(FakeOwner(), 1, RemotingLimits(), limit, tls=layer)
        connection.connection_made(transport)
        connections.append(connection)
        transports.append(transport)
        stream.start()
        connection.data_received(stream.take_outgoing())
        stream.receive(b"".join(transport.writes))
        frame = encode_command(RemotingCommand(ECHO, body=bytes(announced_bytes)))
        stream.encrypt((frame[:100_000],))
        connection.data_received(stream.take_outgoing())
    assert [transport.is_aborted for transport in transports] == [False, True]


async def test_a_peer_that_leaves_encrypted_answers_unread_is_aborted(place: TlsPlace) -> None:
    peer = TlsPeer(place, RemotingLimits(write_buffer_bytes_max=1000))
    peer.shake_hands()
    peer.connection.data_received(peer.encrypted(JSON_FRAME))
    peer.transport.buffered = 1001
    peer.connection.send(success_response(peer.owner.requests[0]))
    await turn()
    assert peer.transport.is_aborted


async def test_reading_stops_at_the_bound_of_open_requests(place: TlsPlace) -> None:
    peer = TlsPeer(place, RemotingLimits(unanswered_max=4))
    peer.shake_hands()
    peer.connection.data_received(peer.encrypted(JSON_FRAME * 5))
    assert peer.transport.is_reading_paused
    for request in peer.owner.requests[:3]:
        peer.connection.send(success_response(request))
    assert not peer.transport.is_reading_paused


@given(st.data())
@settings_of_hypothesis(max_examples=150, deadline=None)
def test_no_bytes_of_a_peer_raise_or_are_kept_beyond_a_bound(place: TlsPlace, data: st.DataObject) -> None:
    """A greeting or requests with changes: the connection closes, or waits for more."""

    async def main() -> None:
        peer = TlsPeer(place)
        if data.draw(st.booleans()):
            peer.stream.start()
            sent = bytearray(peer.stream.take_outgoing())
        else:
            peer.shake_hands()
            sent = bytearray(peer.encrypted(JSON_FRAME) + peer.encrypted(JSON_FRAME))
        for _ in range(data.draw(st.integers(0, 3))):
            at = data.draw(st.integers(0, len(sent) - 1))
            sent[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=400))
        chunk = data.draw(st.integers(1, 300))
        for at in range(0, len(sent), chunk):
            peer.connection.data_received(bytes(sent[at : at + chunk]))
            assert 0 <= peer.connection.partial_bytes <= len(sent)
            # A frame's announced bytes count, and a changed greeting may begin like a frame.
            assert peer.connection.measure() <= max(len(sent), RemotingLimits().frame_bytes_max)
        await turn()
        peer.connection.close()
        peer.connection.abort()
        await turn()
        assert peer.owner.closed == [peer.connection]

    asyncio.run(main())


# Over sockets


def _router() -> Router:
    router = Router()
    router.register(
        ECHO, lambda request, _: success_response(request, dict(request.ext_fields), request.body)
    )
    return router


@asynccontextmanager
async def serving(
    tls: ServerTls | None, limits: RemotingLimits | None = None
) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(_router(), "127.0.0.1", 0, limits or RemotingLimits(), tls)
    await server.start()
    try:
        yield server, f"127.0.0.1:{server.port}"
    finally:
        await server.stop()


@asynccontextmanager
async def client_with(tls: ClientTls | None) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(tls=None if tls is None else tls.credentials())
    try:
        yield client
    finally:
        await client.close()


def trusting(place: TlsPlace, **more: Any) -> ClientTls:
    return ClientTls(authorities=place.folder / "ca.pem", **more)


def settings(place: TlsPlace, **more: Any) -> ServerTlsSettings:
    return ServerTlsSettings(certificate=place.folder / "server.pem", key=place.folder / "server.key", **more)


async def test_one_server_serves_plain_and_encrypted_clients(place: TlsPlace) -> None:
    async with (
        serving(server_tls(settings(place))) as (server, address),
        client_with(trusting(place)) as encrypted,
        client_with(None) as plain,
    ):
        body = random.Random(1).randbytes(3_000_000)
        for client in (encrypted, plain, encrypted):
            answers = await asyncio.gather(
                *(client.invoke(address, RemotingCommand(ECHO, body=body)) for _ in range(3))
            )
            assert [answer.body == body for answer in answers] == [True] * 3
        assert server.connection_count == 2


async def test_plain_clients_are_read_in_compiled_code_beside_encrypted_ones(
    place: TlsPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[bool] = []
    join = Connection._join_epoll

    def joining(connection: Connection, connected: Any) -> None:
        joined.append(connection._tls is None)
        join(connection, connected)

    monkeypatch.setattr(Connection, "_join_epoll", joining)
    async with (
        serving(server_tls(settings(place))) as (_, address),
        client_with(trusting(place)) as encrypted,
        client_with(None) as plain,
    ):
        for client in (encrypted, plain):
            for _ in range(2):
                await client.invoke(address, RemotingCommand(ECHO))
    assert joined == [True]


async def test_enforcing_closes_plain_clients(place: TlsPlace) -> None:
    async with (
        serving(server_tls(settings(place, mode="enforcing"))) as (_, address),
        client_with(None) as plain,
        client_with(trusting(place)) as encrypted,
    ):
        with pytest.raises(RemotingClosedError):
            await plain.invoke(address, RemotingCommand(ECHO))
        assert (await encrypted.invoke(address, RemotingCommand(ECHO))).code == 0


async def test_a_client_of_tls_fails_at_a_server_without(place: TlsPlace) -> None:
    async with serving(None) as (_, address), client_with(trusting(place)) as client:
        with pytest.raises(ConnectFailedError, match="no TLS: the peer closed the connection"):
            await client.invoke(address, RemotingCommand(ECHO))
        with pytest.raises(ConnectFailedError):
            await asyncio.to_thread(blocking.Connection, address, 5.0, trusting(place).credentials())


async def test_a_server_of_another_authority_or_host_is_not_believed(place: TlsPlace, tmp_path: Path) -> None:
    make_authority("another").save(tmp_path / "ca.pem", tmp_path / "ca.key")
    place.add("elsewhere", "elsewhere.example")
    strangers = ClientTls(tmp_path / "ca.pem")
    async with serving(server_tls(settings(place))) as (server, address):
        async with client_with(strangers) as client:
            with pytest.raises(ConnectFailedError, match="certificate is not accepted"):
                await client.invoke(address, RemotingCommand(ECHO))
        with pytest.raises(ConnectFailedError, match="certificate is not accepted"):
            await asyncio.to_thread(blocking.Connection, address, 5.0, strangers.credentials())
        named = f"localhost:{server.port}"
        async with client_with(trusting(place)) as client:
            with pytest.raises(ConnectFailedError, match="localhost"):
                await client.invoke(named, RemotingCommand(ECHO))
        async with client_with(trusting(place, checks_host_name=False)) as client:
            assert (await client.invoke(named, RemotingCommand(ECHO))).code == 0


async def test_an_address_that_no_certificate_can_have_fails_as_others_do(place: TlsPlace) -> None:
    async with client_with(trusting(place)) as client:
        with pytest.raises(ConnectFailedError):
            await client.invoke(".localhost:1", RemotingCommand(ECHO))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connected = socket.create_connection(listening.getsockname())
        with connected, pytest.raises(TlsError):
            place.client().wrap(connected, ".localhost")


@pytest.mark.parametrize("client_auth", ["optional", "require"])
async def test_certificates_of_clients(place: TlsPlace, client_auth: Any) -> None:
    known = trusting(place, certificate=place.folder / "client.pem", key=place.folder / "client.key")
    asking = settings(place, authorities=place.folder / "ca.pem", client_auth=client_auth)
    async with serving(server_tls(asking)) as (_, address):
        async with client_with(known) as client:
            assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
        async with client_with(trusting(place)) as client:
            if client_auth == "optional":
                assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
            else:
                with pytest.raises(RemotingError, match="certificate required"):
                    await client.invoke(address, RemotingCommand(ECHO))


async def test_a_handshake_that_does_not_end_is_aborted_as_a_silent_connection(place: TlsPlace) -> None:
    limits = RemotingLimits(frame_timeout_ms=20, check_interval_ms=10)
    async with serving(server_tls(settings(place)), limits) as (server, _), RawPeer(server.port) as peer:
        stream = place.client().stream()
        stream.start()
        greeting = stream.take_outgoing()
        peer.writer.write(greeting[: len(greeting) // 2])
        assert await peer.is_closed_by_peer()
        async with RawPeer(server.port) as complete:
            stream = place.client().stream()
            stream.start()
            complete.writer.write(stream.take_outgoing())
            while not stream.is_established:
                stream.receive(await complete.reader.read(65_536))
            complete.writer.write(stream.take_outgoing())
            await until(lambda: server.connection_count == 0)


async def test_a_renewed_certificate_is_shown_to_the_next_client(place: TlsPlace) -> None:
    place.add("renewed", "first.example")
    files = ServerTlsSettings(certificate=place.folder / "renewed.pem", key=place.folder / "renewed.key")
    names = []
    async with serving(server_tls(files)) as (server, _):
        for host in ("second.example", "third.example"):
            place.add("renewed", host)
            async with RawPeer(server.port) as peer:
                stream = place.client().stream()
                stream.start()
                peer.writer.write(stream.take_outgoing())
                while not stream.is_established:
                    stream.receive(await peer.reader.read(65_536))
                names.append(stream.peer_names().dns[0])
    assert names == ["second.example", "third.example"]


async def test_the_blocking_client_over_tls(place: TlsPlace) -> None:
    body = random.Random(2).randbytes(2_000_000)

    def exchange(address: str) -> None:
        with blocking.Connection(address, 10.0, trusting(place).credentials()) as connection:
            for _ in range(3):
                assert connection.invoke(RemotingCommand(ECHO, body=body)).body == body

    async with serving(server_tls(settings(place, mode="enforcing"))) as (_, address):
        await asyncio.to_thread(exchange, address)


# Settings


def test_the_mode_follows_from_the_certificate(place: TlsPlace) -> None:
    assert server_tls(ServerTlsSettings()) is None
    assert server_tls(settings(place, mode="disabled")) is None
    for mode, refuses_plain in ((None, False), ("permissive", False), ("enforcing", True)):
        made = server_tls(settings(place, mode=mode))
        assert made is not None
        assert made.refuses_plain == refuses_plain


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (ServerTlsSettings(mode="enforcing"), "mode enforcing needs a certificate"),
        (ServerTlsSettings(key=Path("k.pem")), "without its certificate"),
        (ServerTlsSettings(certificate=Path("c.pem"), client_auth="require"), "needs the authorities"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(wrong: ServerTlsSettings, sentence: str) -> None:
    with pytest.raises(TlsSettingsError, match=sentence):
        server_tls(wrong)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(TlsFilesError, match=r"none\.pem"):
        server_tls(ServerTlsSettings(certificate=tmp_path / "none.pem"))
    with pytest.raises(TlsFilesError, match=r"none\.pem"):
        ClientTls(tmp_path / "none.pem").credentials()
    with pytest.raises(TlsSettingsError, match="without its certificate"):
        ClientTls(key=tmp_path / "none.key").credentials()


def test_what_the_environment_says() -> None:
    assert client_tls_from({}) is None
    assert client_tls_from({"LEDGERMQ_TLS": "true"}) == ClientTls()
    ca = {"LEDGERMQ_TLS_AUTHORITIES": "/ca.pem"}
    assert client_tls_from(ca) == ClientTls(Path("/ca.pem"))
    assert client_tls_from(ca | {"LEDGERMQ_TLS": "false"}) is None
    every = ca | {
        "LEDGERMQ_TLS_CERT": "/c.pem",
        "LEDGERMQ_TLS_KEY": "/c.key",
        "LEDGERMQ_TLS_CHECK_HOST_NAME": "false",
    }
    assert client_tls_from(every) == ClientTls(Path("/ca.pem"), Path("/c.pem"), Path("/c.key"), False)
    with pytest.raises(TlsSettingsError, match="LEDGERMQ_TLS is 'on', not true or false"):
        client_tls_from({"LEDGERMQ_TLS": "on"})


async def test_a_client_of_the_environment(place: TlsPlace) -> None:
    environment = {"LEDGERMQ_TLS_AUTHORITIES": str(place.folder / "ca.pem")}
    async with serving(server_tls(settings(place, mode="enforcing"))) as (_, address):
        client = client_from(environment)
        assert (await client.invoke(address, RemotingCommand(ECHO))).code == 0
        await client.close()


async def test_a_layer_that_failed_stays_closed(place: TlsPlace) -> None:
    layer = TlsLayer(permissive(place))
    for _ in range(2):
        with pytest.raises(TlsError):
            layer.receive(b"\x16\x03\x01\x00\x05hello")
    assert layer.settled.is_set()
    assert not layer.is_open
