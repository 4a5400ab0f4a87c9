"""Members know each other by their certificates, and nobody else is heard."""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dledger import transport
from dledger.codec import PROTOCOL_VERSION, Hello, encode_frame
from dledger.core.membership import Configuration, ConfigurationEntry
from dledger.core.messages import AppendResponse, HeartbeatResponse, MembershipNotice
from dledger.core.output import Envelope
from dledger.core.types import ResponseCode
from dledger.credentials import MemberCredentials, member_uri
from dledger.transport import Transport, TransportLimits
from ledgermq.certificates import KeyPair, issue
from ledgermq.members import MemberFiles
from sockets.tls import TlsFiles
from tests.support.polling import until
from tests.unit.dledger.test_transport import Sink, free_port

GROUP = "g%1|x"
LIMITS = TransportLimits(handshake_bytes_max=4096, reconnect_delay_ms=10, closed_log_interval_ms=1)
IMPATIENT = replace(LIMITS, handshake_timeout_ms=300)
AGE_MS = 60_000
BEAT = HeartbeatResponse(1, 5)
ENTRY = ConfigurationEntry(0, 1, Configuration.of_voters(("n0", "n1")))


def files_of(folder: Path, node: str) -> TlsFiles:
    return TlsFiles(folder / f"{node}.pem", folder / f"{node}.key", folder / "ca.pem")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of n0, n1 and n2 of the group; `other/` has those of another group, and of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    hosts = dict.fromkeys(("n0", "n1", "n2", "n9"), ("127.0.0.1",))
    MemberFiles(folder).complete(GROUP, hosts)
    MemberFiles(folder / "other").complete(GROUP, hosts)
    MemberFiles(folder / "group").complete(GROUP, {})
    for name in ("ca.pem", "ca.key"):
        (folder / "group" / name).write_bytes((folder / name).read_bytes())
    MemberFiles(folder / "group").complete("old", hosts)
    return folder


class Node:
    def __init__(
        self,
        node_id: str,
        ports: dict[str, int],
        credentials: MemberCredentials | None,
        limits: TransportLimits = LIMITS,
    ) -> None:
        self.sink = Sink()
        self.port = ports[node_id]
        addresses = {peer: ("127.0.0.1", port) for peer, port in ports.items()}
        hello = Hello(GROUP, node_id, PROTOCOL_VERSION, f"client of {node_id}")
        self.transport = Transport(hello, addresses[node_id], addresses, self.sink, limits, credentials)


@pytest.fixture
def replaced_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections get successors long before their age limit, so that a busy machine does not end them."""
    monkeypatch.setattr(transport, "_REPLACED_AT", (0.002, 0.003))


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    for node in nodes:
        await node.transport.start()
    try:
        yield
    finally:
        for node in nodes:
            await node.transport.stop()


def two_ports() -> dict[str, int]:
    return {"n0": free_port(), "n1": free_port()}


def load(folder: Path, node: str, age_max_ms: int = AGE_MS) -> MemberCredentials:
    return MemberCredentials.load(files_of(folder, node), age_max_ms)


async def test_members_hear_each_other(certificates: Path) -> None:
    ports = two_ports()
    one, other = (Node(node, ports, load(certificates, node)) for node in ports)
    async with running(one, other):
        await until(lambda: one.transport.is_connected("n1") and other.sink.connected == ["n0"])
        one.transport.send_all([Envelope("n1", BEAT)])
        await until(lambda: other.sink.messages == [("n0", BEAT)])
        assert other.transport.client_addresses == {"n0": "client of n0"}
        # The writer thread cannot encrypt.
        ack = AppendResponse(1, ResponseCode.SUCCESS, 0, 5, 5)
        assert one.transport.direct_ack(Envelope("n1", ack)) is None
    assert other.sink.disconnected in ([], ["n0"])


async def test_what_is_much_is_encrypted_in_several_turns(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ENCRYPTED_BYTES_MAX", 100)
    ports = two_ports()
    one, other = (Node(node, ports, load(certificates, node)) for node in ports)
    beats = [HeartbeatResponse(1, number) for number in range(200)]
    async with running(one, other):
        await until(lambda: one.transport.is_connected("n1") and other.sink.connected == ["n0"])
        one.transport.send_all([Envelope("n1", each) for each in beats[:100]])
        assert one.transport._dialers["n1"].connection._outbox_bytes > 0
        one.transport.send_all([Envelope("n1", each) for each in beats[100:]])
        await until(lambda: len(other.sink.messages) == 200)
    assert [message for _, message in other.sink.messages] == beats


async def client_of(
    folder: Path | None, node: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TLS connection with a member's certificate, or none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / f"{node}.pem", folder / f"{node}.key")
    return await asyncio.open_connection("127.0.0.1", port, ssl=context)


def hello_of(node: str, group: str = GROUP) -> bytes:
    return b"".join(bytes(part) for part in encode_frame(Hello(group, node, PROTOCOL_VERSION, "evil:1")))


async def ends(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            await reader.read()  # a Welcome or the reason may come first
            return True
    except (ConnectionError, ssl.SSLError):
        return True


@pytest.mark.parametrize(
    ("place", "node", "hello"),
    [
        pytest.param(".", "n1", hello_of("n2"), id="speaks for another member"),
        pytest.param(".", "n9", hello_of("n1"), id="no member of the group"),
        pytest.param("other", "n1", hello_of("n1"), id="another authority"),
        pytest.param("group", "n1", hello_of("n1"), id="a member of another group"),
        pytest.param("group", "n1", hello_of("n1", "old"), id="says so itself"),
        pytest.param(None, "n1", hello_of("n1"), id="no certificate"),
    ],
)
async def test_who_is_not_the_member_is_refused(
    certificates: Path, place: str | None, node: str, hello: bytes
) -> None:
    ports = {**two_ports(), "n2": free_port()}
    listener = Node("n0", ports, load(certificates, "n0"))
    async with running(listener):
        try:
            folder = None if place is None else certificates / place
            reader, writer = await client_of(folder, node, listener.port)
            writer.write(hello)
        except (ConnectionError, ssl.SSLError):
            pass
        else:
            assert await ends(reader)
            writer.close()
        assert (listener.sink.connected, listener.sink.messages) == ([], [])


async def test_plain_text_is_refused_by_a_member_with_certificates(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Node("n0", two_ports(), load(certificates, "n0"))
    async with running(listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(hello_of("n1"))
        assert await ends(reader)
        writer.close()
    assert listener.sink.connected == []
    assert "does not speak TLS; every member needs the group's certificates" in caplog.text


async def test_tls_is_refused_by_a_member_without_certificates(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports = two_ports()
    plain, other = Node("n0", ports, None), Node("n1", ports, load(certificates, "n1"))
    async with running(plain, other):
        await until(lambda: "speaks TLS, and this node has no certificates" in caplog.text)
        assert not other.transport.is_connected("n0")
    assert plain.sink.connected == []


@pytest.mark.parametrize("place", ["other", "group"])
async def test_who_answers_a_dial_must_be_the_member_that_was_dialled(
    certificates: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    ports = two_ports()
    one = Node("n0", ports, load(certificates, "n0"))
    false = Node("n1", ports, load(certificates / place, "n1"))
    with caplog.at_level(logging.WARNING):
        async with running(one, false):
            await until(lambda: "closing the replication connection of n1" in caplog.text)
            assert not one.transport.is_connected("n1")
            one.transport.send_all([Envelope("n1", BEAT)])
    assert false.sink.messages == []


async def test_an_address_at_which_another_member_answers_is_refused(
    certificates: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ports = {**two_ports(), "n2": free_port()}
    one = Node("n0", {**ports, "n1": ports["n2"]}, load(certificates, "n0"))
    wrong = Node("n2", ports, load(certificates, "n2"))
    async with running(one, wrong):
        expected = f"its certificate names {member_uri(GROUP, 'n2')}, not {member_uri(GROUP, 'n1')}"
        await until(lambda: expected in caplog.text)
        assert not one.transport.is_connected("n1")


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\xff\xff" + bytes(5_000)])
async def test_a_handshake_that_is_not_completed_ends_in_time(certificates: Path, data: bytes) -> None:
    listener = Node("n0", two_ports(), load(certificates, "n0"), IMPATIENT)
    async with running(listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        writer.write(data)
        async with asyncio.timeout(5):
            while await reader.read(1 << 16):
                pass
        writer.close()


async def test_tls_without_a_hello_ends_in_time(certificates: Path) -> None:
    listener = Node("n0", two_ports(), load(certificates, "n0"), IMPATIENT)
    async with running(listener):
        reader, writer = await client_of(certificates, "n1", listener.port)
        assert await ends(reader)
        writer.close()
    assert listener.sink.connected == []


@pytest.mark.usefixtures("replaced_soon")
@pytest.mark.parametrize(("days", "is_warned"), [(29, True), (31, False)])
async def test_a_certificate_that_ends_soon_is_reported_once(
    certificates: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, is_warned: bool
) -> None:
    authority = KeyPair.load(certificates / "ca.pem", certificates / "ca.key")
    ends_soon = issue(authority, "n1", uris=(member_uri(GROUP, "n1"),), days=days)
    ends_soon.save(tmp_path / "n1.pem", tmp_path / "n1.key")
    (tmp_path / "ca.pem").write_bytes((certificates / "ca.pem").read_bytes())
    ports = two_ports()
    one, other = Node("n0", ports, load(certificates, "n0")), Node("n1", ports, load(tmp_path, "n1"))
    async with running(one, other):
        await until(lambda: len(other.sink.connected) > 2)
    assert caplog.text.count("the certificate of n1 for replication ends in 28 days: renew it") == is_warned
    assert "certificate of n0" not in caplog.text


@pytest.mark.parametrize("age_max_ms", [1_000, 600_000, 86_400_000])
async def test_a_successor_says_hello_in_time(certificates: Path, age_max_ms: int) -> None:
    limits = TransportLimits()
    node = Node("n0", two_ports(), load(certificates, "n0", age_max_ms), limits)
    delay_ms = node.transport._dialers["n1"].successor_delay_ms
    assert delay_ms + limits.connect_timeout_ms < limits.handshake_timeout_ms / 2
    assert delay_ms < age_max_ms / 10


async def test_strangers_that_connect_often_take_no_time_for_handshakes(certificates: Path) -> None:
    """They are closed at once; members do not count."""
    limits = replace(LIMITS, strangers_per_s=0)
    ports = two_ports()
    listener = Node("n0", ports, load(certificates, "n0"), limits)
    listener.transport._hosts = {"10.0.0.1"}
    async with running(listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        assert await ends(reader)
        writer.close()
    one, other = (Node(node, ports, load(certificates, node), limits) for node in ports)
    async with running(one, other):
        await until(lambda: one.sink.connected == ["n1"])


@pytest.mark.usefixtures("replaced_soon")
async def test_a_connection_gets_a_successor_without_loss(certificates: Path) -> None:
    """Messages arrive each once, in order, and nobody seems to be gone, while connections are made again."""
    ports = two_ports()
    one, other = (Node(node, ports, load(certificates, node)) for node in ports)
    async with running(one, other):
        await until(lambda: one.transport.is_connected("n1"))
        sent = 0

        def goes_on() -> bool:
            nonlocal sent
            sent += 1
            one.transport.send_all([Envelope("n1", HeartbeatResponse(1, sent))])
            return len(other.sink.connected) > 3

        await until(goes_on)
        await until(lambda: len(other.sink.messages) == sent)
        assert [message for _, message in other.sink.messages] == [
            HeartbeatResponse(1, number + 1) for number in range(sent)
        ]
        assert other.sink.disconnected == []


async def test_a_connection_whose_successor_is_refused_ends(certificates: Path, tmp_path: Path) -> None:
    """The removed authority takes effect at the age limit, without a restart."""
    ports = two_ports()
    for name in ("ca.pem", "n0.pem", "n0.key"):
        (tmp_path / name).write_bytes((certificates / name).read_bytes())
    one, other = (
        Node("n0", ports, load(tmp_path, "n0", 400)),
        Node("n1", ports, load(certificates, "n1", 400)),
    )
    async with running(one, other):
        await until(lambda: one.sink.connected == ["n1"])
        (tmp_path / "ca.pem").write_bytes((certificates / "other" / "ca.pem").read_bytes())
        await until(lambda: one.sink.disconnected == ["n1"])
        await until(lambda: not one.transport.is_connected("n1"))


async def test_a_stranger_with_its_own_certificate_is_heard_and_answered(certificates: Path) -> None:
    ports = {"n0": free_port(), "n9": free_port()}
    one = Node("n0", {"n0": ports["n0"]}, load(certificates, "n0"))
    stranger = Node("n9", ports, load(certificates, "n9"))
    async with running(one, stranger):
        await until(lambda: one.sink.introduced == [("n9", stranger.transport.introduction())])
        await until(lambda: one.transport.version_of("n9") == stranger.transport.version_of("n0") == 3)
        one.transport.send_all([Envelope("n9", BEAT)])
        stranger.transport.send_all([Envelope("n0", BEAT)])
        await until(lambda: one.sink.messages == [("n9", BEAT)] and stranger.sink.messages == [("n0", BEAT)])


async def test_a_generation_is_taken_from_any_certified_member(certificates: Path) -> None:
    """Also from one that this node's files do not name: it has no address of the recovered one."""
    ports = {"n0": free_port(), "n9": free_port()}
    one = Node("n0", {"n0": ports["n0"]}, load(certificates, "n0"))
    one.transport.on_newer_generation = lambda generation: True
    recovered = Node("n9", ports, load(certificates, "n9"))
    recovered.transport.generation = 5
    async with running(one, recovered):
        await until(lambda: one.transport.generation == 5)
        await until(lambda: one.transport.version_of("n9") == recovered.transport.version_of("n0") == 3)


@pytest.mark.parametrize(
    ("place", "words"), [("other", "certificate"), ("group", "no other member of the group")]
)
async def test_a_stranger_with_another_certificate_is_refused(
    certificates: Path, place: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    ports = {"n0": free_port(), "n9": free_port()}
    one = Node("n0", {"n0": ports["n0"]}, load(certificates, "n0"))
    async with running(one, Node("n9", ports, load(certificates / place, "n9"))):
        await until(lambda: words in caplog.text)
        assert (one.sink.connected, one.transport._visitors) == ([], {})


@pytest.mark.usefixtures("replaced_soon")
async def test_messages_of_version_3_do_not_wait_for_the_welcome_of_a_successor(certificates: Path) -> None:
    ports = two_ports()
    one, other = (Node(node, ports, load(certificates, node)) for node in ports)
    async with running(one, other):
        await until(lambda: one.transport.version_of("n1") == 3)
        sent = 0

        def goes_on() -> bool:
            nonlocal sent
            sent += 1
            one.transport.send_all([Envelope("n1", MembershipNotice(sent, ENTRY))])
            return len(other.sink.introduced) > 3

        await until(goes_on)
        await until(lambda: len(other.sink.messages) == sent)
        assert (one.transport.unsupported_messages, other.sink.disconnected) == (0, [])
