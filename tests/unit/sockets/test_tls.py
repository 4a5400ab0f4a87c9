"""sockets/tls.py: two streams that talk to each other in memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ledgermq.certificates import issue, make_authority
from sockets.tls import (
    HANDSHAKE_FIRST_BYTE,
    TlsCredentials,
    TlsError,
    TlsFiles,
    TlsFilesError,
    TlsStream,
)
from tests.support.certificates import TlsPlace


@pytest.fixture
def place(tmp_path: Path) -> TlsPlace:
    return TlsPlace(tmp_path)


def shake_hands(server: TlsStream, client: TlsStream) -> tuple[bytes, bytes]:
    """Until neither has anything to say; the plain bytes that server and client got."""
    client.start()
    at_server = at_client = b""
    while data := client.take_outgoing():
        at_server += server.receive(data)
        at_client += client.receive(server.take_outgoing())
    return at_server, at_client


def test_bytes_pass_in_both_directions_and_the_names_are_those_of_the_certificates(place: TlsPlace) -> None:
    server, client = place.server().stream(), place.client().stream()
    shake_hands(server, client)
    assert server.is_established
    assert client.is_established
    assert server.peer_names().uris == ("ledgermq://group/client",)
    assert client.peer_names().dns == ("broker.example",)
    assert client.peer_names().common_name == "server"
    client.encrypt([b"to the ", b"", memoryview(b"server")])
    assert server.receive(client.take_outgoing()) == b"to the server"
    server.encrypt([bytes(3_000_000)])
    assert client.receive(server.take_outgoing()) == bytes(3_000_000)


def test_the_first_byte_tells_a_handshake_from_a_frame(place: TlsPlace) -> None:
    client = place.client().stream()
    client.start()
    assert client.take_outgoing()[0] == HANDSHAKE_FIRST_BYTE


def test_bytes_that_come_one_by_one_are_the_same(place: TlsPlace) -> None:
    server, client = place.server().stream(), place.client().stream()
    client.start()
    while data := client.take_outgoing():
        for byte in data:
            assert server.receive(bytes([byte])) == b""
        client.receive(server.take_outgoing())
    client.encrypt([b"text"])
    assert b"".join(server.receive(bytes([byte])) for byte in client.take_outgoing()) == b"text"


def test_an_orderly_end_is_seen(place: TlsPlace) -> None:
    server, client = place.server().stream(), place.client().stream()
    shake_hands(server, client)
    client.encrypt([b"last"])
    client.end()
    assert server.receive(client.take_outgoing()) == b"last"
    assert server.is_at_end


def test_a_client_without_certificate_is_refused_where_one_is_required(place: TlsPlace) -> None:
    anonymous = TlsCredentials(TlsFiles(authorities=place.folder / "ca.pem"), "client")
    with pytest.raises(TlsError, match="did not return a certificate"):
        shake_hands(place.server().stream(), anonymous.stream())
    server = place.server("optional").stream()
    shake_hands(server, anonymous.stream())
    assert server.is_established
    assert server.peer_names().uris == ()


def test_a_certificate_of_another_authority_is_refused(place: TlsPlace) -> None:
    stranger = place.add("stranger", "client.example", make_authority("another authority"))
    with pytest.raises(TlsError, match="certificate is not accepted"):
        shake_hands(place.server().stream(), TlsCredentials(stranger, "client").stream())
    with pytest.raises(TlsError, match="certificate is not accepted"):
        shake_hands(TlsCredentials(stranger, "server", "none").stream(), place.client().stream())


def test_an_expired_certificate_is_refused(place: TlsPlace) -> None:
    expired = issue(place.authority, "client", days=0)
    with pytest.raises(ValueError, match="after"):
        issue(place.authority, "client", days=-2)
    expired.save(place.folder / "client.pem", place.folder / "client.key")
    assert expired.certificate.not_valid_after_utc > expired.certificate.not_valid_before_utc
    with pytest.raises(TlsError, match="expired"):
        shake_hands(place.server().stream(), place.client().stream())


def test_a_client_checks_the_host_name_when_it_is_told_to(place: TlsPlace) -> None:
    checking = TlsCredentials(place.files("client"), "client", checks_host_name=True)
    for host in ("broker.example", "127.0.0.1"):
        client = checking.stream(host)
        shake_hands(place.server().stream(), client)
        assert client.is_established
    with pytest.raises(TlsError, match="not accepted"):
        shake_hands(place.server().stream(), checking.stream("other.example"))


def test_what_is_not_tls_is_an_error(place: TlsPlace) -> None:
    for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x16\x03\x01\xff\xff" + bytes(100)):
        with pytest.raises(TlsError):
            place.server().stream().receive(data)


def test_a_record_that_was_changed_on_its_way_is_an_error(place: TlsPlace) -> None:
    server, client = place.server().stream(), place.client().stream()
    shake_hands(server, client)
    client.encrypt([b"text"])
    record = bytearray(client.take_outgoing())
    record[-1] ^= 1
    with pytest.raises(TlsError):
        server.receive(bytes(record))


def test_replaced_files_are_used_for_the_next_connection(place: TlsPlace) -> None:
    credentials, client = place.server(), place.client().stream()
    place.add("server", "renewed.example")
    shake_hands(credentials.stream(), client)
    assert client.peer_names().dns == ("renewed.example",)


def test_files_that_do_not_fit_together_leave_the_earlier_ones_in_use(
    place: TlsPlace, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = place.server()
    renewed = issue(place.authority, "server", ("renewed.example",))
    (place.folder / "server.pem").write_bytes(renewed.certificate_pem())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            client = place.client().stream()
            shake_hands(credentials.stream(), client)
            assert client.peer_names().dns == ("broker.example",)
    assert len(caplog.records) == 1
    assert "stay in use" in caplog.text
    (place.folder / "server.key").write_bytes(renewed.key_pem())
    client = place.client().stream()
    shake_hands(credentials.stream(), client)
    assert client.peer_names().dns == ("renewed.example",)


def test_an_authority_is_replaced_by_way_of_a_file_with_both(place: TlsPlace) -> None:
    credentials = place.server()
    second = make_authority("second authority")
    both = place.authority.certificate_pem() + second.certificate_pem()
    (place.folder / "ca.pem").write_bytes(both)
    for files in (place.files("client"), place.add("renewed", "client.example", second)):
        server = credentials.stream()
        shake_hands(server, TlsCredentials(files, "client").stream())
        assert server.is_established
    (place.folder / "ca.pem").write_bytes(second.certificate_pem())
    with pytest.raises(TlsError, match="not accepted"):
        shake_hands(credentials.stream(), TlsCredentials(place.files("client"), "client", "none").stream())


@pytest.mark.parametrize("broken", ["server.pem", "server.key", "ca.pem"])
@pytest.mark.parametrize("harm", ["absent", "not PEM"])
def test_unusable_files_are_named_at_the_start(place: TlsPlace, broken: str, harm: str) -> None:
    path = place.folder / broken
    path.unlink()
    if harm == "not PEM":
        path.write_text("text")
    with pytest.raises(TlsFilesError, match=broken):
        place.server()


def test_a_key_with_a_password_is_an_error_and_no_question(place: TlsPlace) -> None:
    from cryptography.hazmat.primitives import serialization

    encrypted = place.authority.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (place.folder / "server.key").write_bytes(encrypted)
    with pytest.raises(TlsFilesError, match=r"server\.key"):
        place.server()


def test_a_key_file_is_for_its_owner_only(place: TlsPlace) -> None:
    assert (place.folder / "server.key").stat().st_mode & 0o777 == 0o600
