"""TLS without I/O: it decrypts the bytes of the peer and encrypts those for the peer. Certificates are loaded
again when their files change.

A connection passes received bytes to a `TlsStream`, and writes the stream's outgoing bytes to its transport.
So plain text and TLS can share one port (the first byte of a connection shows which it is), and the same code
runs over simulated networks. Cryptography and protocol are OpenSSL's (`ssl.SSLObject`).
"""

import contextlib
import logging
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

logger = logging.getLogger(__name__)

HANDSHAKE_FIRST_BYTE: Final = 0x16
"""The content type of a handshake (RFC 8446, 5.1): the first byte of every TLS connection. No remoting frame
begins with it: its first byte is the highest byte of a length, and lengths are below 16 MiB, so it is 0.
"""
READ_AT_ONCE_BYTES: Final = 16 * 1024
"""The most bytes that one call of `SSLObject.read` may return: a record has no more, and each call allocates
this much memory.
"""
_RECORD_HEAD_BYTES: Final = 5

Side = Literal["server", "client"]
PeerCheck = Literal["none", "optional", "required"]
"""Whether the peer must show a certificate that one of the trusted authorities signed."""


class TlsError(Exception):
    """The peer broke the TLS protocol, or one side did not accept the other's certificate."""


class TlsFilesError(ValueError):
    """A certificate, key or authority cannot be loaded; the text is a sentence that names the file."""


class TlsSettingsError(TlsFilesError):
    """The TLS settings contradict each other; the text is a sentence."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one side.

    certificate, key: this side's certificate, followed by intermediate ones, and its key; None: it has none.
    authorities: certificates of the authorities that may have signed the peer's; None: the system's.
    """

    certificate: Path | None = None
    key: Path | None = None
    authorities: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.authorities) if path is not None)


@dataclass(frozen=True, slots=True)
class PeerNames:
    """The names in a verified certificate: its subject alternative names, and its common name.

    ends_at_s: when the certificate expires, in Unix s; None: not known.
    """

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    common_name: str = ""
    ends_at_s: int | None = None


class TlsCredentials:
    """Makes the streams of one side. Files that changed since the last connection are loaded again. If they
    cannot be loaded, for example because the certificate was replaced and its key not yet, the earlier ones
    stay in use.
    """

    def __init__(
        self,
        files: TlsFiles,
        side: Side,
        peer_check: PeerCheck = "required",
        checks_host_name: bool = False,
        protocols: tuple[str, ...] = (),
    ) -> None:
        """Load the files. `protocols`: that the peer may choose from (ALPN); empty: it is not asked.

        Raises:
            TlsFilesError: a file cannot be read, or a key does not belong to its certificate.
        """
        self._files = files
        self._side: Side = side
        self._peer_check = peer_check
        self._checks_host_name = checks_host_name
        self._protocols = protocols
        self._state = self._stat()
        self._context = self._load()

    def stream(self, host_name: str | None = None) -> "TlsStream":
        """The stream of a new connection. `host_name`: the server's, for a client that checks it.

        Raises TlsError: `host_name` is not a valid host name.
        """
        try:
            return TlsStream(self.context(), self._side, host_name)
        except ValueError as error:
            raise TlsError(str(error)) from None

    def wrap(self, connected: socket.socket, host_name: str) -> ssl.SSLSocket:
        """Do the handshake on a blocking socket, as client. For programs without an event loop.

        Raises:
            TlsError, OSError: the handshake failed; the caller must close the socket.
        """
        self.stream(host_name)  # raises for a wrong name; `wrap_socket` would leave the socket open
        try:
            return self.context().wrap_socket(connected, server_hostname=host_name)
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from None

    def context(self) -> ssl.SSLContext:
        """The SSL context for the next connection, with the present files."""
        state = self._stat()
        if state != self._state:
            self._state = state
            self._reload()
        return self._context

    def _stat(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_signature(path) for path in self._files.paths)

    def _reload(self) -> None:
        try:
            self._context = self._load()
        except TlsFilesError as error:
            logger.error("the certificates of before stay in use: %s", error)
        else:
            logger.info("certificates loaded again: %s", ", ".join(map(str, self._files.paths)))

    def _load(self) -> ssl.SSLContext:
        protocol = ssl.PROTOCOL_TLS_SERVER if self._side == "server" else ssl.PROTOCOL_TLS_CLIENT
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self._checks_host_name
        context.verify_mode = {
            "none": ssl.CERT_NONE,
            "optional": ssl.CERT_OPTIONAL,
            "required": ssl.CERT_REQUIRED,
        }[self._peer_check]
        if self._protocols:
            context.set_alpn_protocols(self._protocols)
        if self._files.certificate is not None:
            _load_certificate(context, self._files.certificate, self._files.key)
        if self._peer_check != "none":
            _load_authorities(context, self._files.authorities)
        return context


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Values that change when a file is replaced; None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
    both = f"{certificate} and {key}" if key is not None else str(certificate)
    try:
        # An empty password: otherwise OpenSSL would ask for one on the terminal, and block the process.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise TlsFilesError(
            f"{both} are not a certificate and its key without a password, as PEM: {error.reason or error}"
        ) from None
    except (OSError, ValueError) as error:
        raise TlsFilesError(f"{both} cannot be read: {error}") from None


def _load_authorities(context: ssl.SSLContext, authorities: Path | None) -> None:
    if authorities is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(authorities)
    except ssl.SSLError as error:
        raise TlsFilesError(f"{authorities} has no certificates as PEM: {error.reason or error}") from None
    except OSError as error:
        raise TlsFilesError(f"{authorities} cannot be read: {error.strerror or error}") from None


def certificate_ends_ms(certificates: Path) -> list[int]:
    """When each certificate in a PEM file expires, in Unix ms; at least one value.

    Raises:
        TlsFilesError: the file cannot be read, or has no certificate.
    """
    from cryptography import x509  # imported only when needed: the import takes some 10 ms

    try:
        found = x509.load_pem_x509_certificates(certificates.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsFilesError(f"{certificates} has no certificates as PEM: {error}") from None
    return [round(each.not_valid_after_utc.timestamp() * 1000) for each in found]


class TlsStream:
    """The TLS of one connection. After TlsError it must not be used any more, except that `take_outgoing`
    still returns the alert with the reason for the peer.
    """

    def __init__(self, context: ssl.SSLContext, side: Side, host_name: str | None = None) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._records = _Records()
        self._handshake_bytes = 0
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=side == "server", server_hostname=host_name
        )
        self.is_established = False
        """The handshake is complete, and the peer's certificate is accepted."""
        self.is_at_end = False
        """The peer has sent close_notify: no more bytes come from it."""

    @property
    def partial_bytes(self) -> int:
        """The number of received bytes of an incomplete record; a record has little more than 16 KiB at most.
        During the handshake, all received bytes: OpenSSL keeps messages of several records, up to 128 KiB.
        """
        return self._records.partial_bytes if self.is_established else self._handshake_bytes

    def start(self) -> None:
        """The first step of a client; afterwards `take_outgoing` returns its ClientHello."""
        self._shake_hands()

    def receive(self, data: bytes) -> bytes:
        """Decrypt bytes from the peer; the result may be empty. Raises TlsError."""
        self._incoming.write(data)
        self._records.advance(data)
        if not self.is_established:
            self._handshake_bytes += len(data)
            self._shake_hands()
        return self._read() if self.is_established else b""

    def encrypt(self, parts: Iterable[bytes | memoryview]) -> None:
        """Encrypt plain bytes and append them for `take_outgoing`. Raises TlsError."""
        assert self.is_established, "plain bytes before the handshake is complete"
        try:
            for part in parts:
                if len(part):
                    self._object.write(part)
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from None

    def take_outgoing(self) -> bytes:
        """Return and remove the bytes that must be sent to the peer now."""
        return self._outgoing.read()

    def end(self) -> None:
        """Send close_notify: no more bytes come from this side. It does not wait for the peer's answer."""
        if self.is_established:
            with contextlib.suppress(ssl.SSLError):  # the peer has not sent its own close_notify yet
                self._object.unwrap()

    def peer_names(self) -> PeerNames:
        """The names in the peer's verified certificate; empty if it showed none."""
        found = self._object.getpeercert() or {}
        names: tuple[tuple[str, Any], ...] = found.get("subjectAltName", ())  # type: ignore[assignment]
        parts: Any = found.get("subject", ())
        subject: list[tuple[str, str]] = [pair for part in parts for pair in part]
        return PeerNames(
            tuple(str(value) for kind, value in names if kind == "URI"),
            tuple(str(value) for kind, value in names if kind == "DNS"),
            next((str(value) for kind, value in subject if kind == "commonName"), ""),
            ssl.cert_time_to_seconds(str(found["notAfter"])) if "notAfter" in found else None,
        )

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from None
        self.is_established = True

    def _read(self) -> bytes:
        parts = []
        try:
            # Usually only whole records were received. Then no call raises an exception, which would cost
            # as much time as a record.
            while self._incoming.pending or self._object.pending():
                part = self._object.read(READ_AT_ONCE_BYTES)
                if not part:
                    self.is_at_end = True
                    break
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_at_end = True
        except ssl.SSLError as error:
            raise TlsError(_reason(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Records:
    """Finds the ends of the records in a stream (RFC 8446, 5.1): OpenSSL does not report an incomplete one.

    partial_bytes: received bytes of the incomplete record.
    """

    def __init__(self) -> None:
        self.partial_bytes = 0
        self._head = bytearray()
        self._left_bytes = 0

    def advance(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if not self._left_bytes:
                taken = min(_RECORD_HEAD_BYTES - len(self._head), len(data) - at)
                self._head += data[at : at + taken]
                if len(self._head) == _RECORD_HEAD_BYTES:
                    self._left_bytes = int.from_bytes(self._head[3:])
                    self._head.clear()
            else:
                taken = min(self._left_bytes, len(data) - at)
                self._left_bytes -= taken
            at += taken
            is_between = not self._left_bytes and not self._head
            self.partial_bytes = 0 if is_between else self.partial_bytes + taken


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's error text, without the position in its source code."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is not accepted: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()
