"""Certificates and encrypted streams of the simulated network, behind the interface of the real ones
(`dledger.credentials.PeerStream`).

OpenSSL draws its random numbers itself, and the length of a signature depends on them: with real TLS no seed
would give the same run twice. So an authority here is a secret, and its signature a hash. The frames are like
those of TLS in what the transport depends on: the first byte, a handshake with an answer, data that are
delivered only when a record is complete, and an end that both sides see.
"""

import hashlib
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from sockets.tls import HANDSHAKE_FIRST_BYTE, PeerNames, Side, TlsError

_RECORD = struct.Struct(">BI")
_DATA = 0x17
_ALERT = 0x15
_RECORD_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Certificate:
    """The names, and the secret of the authority that stands for them."""

    authority: str
    uris: tuple[str, ...]

    def encode(self) -> bytes:
        return "\n".join((_signature(self.authority, self.uris), *self.uris)).encode()


def _signature(authority: str, uris: Iterable[str]) -> str:
    return hashlib.sha256("\n".join((authority, *uris)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SimulatedCredentials:
    """What one machine shows and believes, on one side of its connections."""

    side: Side
    certificate: Certificate
    trusted: Collection[str]

    def stream(self) -> "SimulatedStream":
        return SimulatedStream(self)


@dataclass(slots=True)
class SimulatedStream:
    """As `sockets.tls.TlsStream`."""

    credentials: SimulatedCredentials
    is_established: bool = False
    is_at_end: bool = False
    _incoming: bytearray = field(default_factory=bytearray)
    _outgoing: bytearray = field(default_factory=bytearray)
    _names: PeerNames = field(default_factory=PeerNames)

    def start(self) -> None:
        self._put(HANDSHAKE_FIRST_BYTE, self.credentials.certificate.encode())

    def receive(self, data: bytes) -> bytes:
        self._incoming += data
        plain = bytearray()
        while len(self._incoming) >= _RECORD.size:
            kind, length = _RECORD.unpack_from(self._incoming)
            if length > _RECORD_BYTES_MAX:
                raise TlsError("record overflow")
            end = _RECORD.size + length
            if len(self._incoming) < end:
                break
            body = bytes(self._incoming[_RECORD.size : end])
            del self._incoming[:end]
            plain += self._take(kind, body)
        return bytes(plain)

    def _take(self, kind: int, body: bytes) -> bytes:
        if kind == HANDSHAKE_FIRST_BYTE and not self.is_established:
            self._accept(body)
        elif kind == _DATA and self.is_established:
            return body
        elif kind == _ALERT and self.is_established:
            self.is_at_end = True
        else:
            raise TlsError("unexpected message")
        return b""

    def _accept(self, body: bytes) -> None:
        signature, *uris = body.decode(errors="replace").split("\n")
        if all(signature != _signature(authority, uris) for authority in self.credentials.trusted):
            raise TlsError("the peer's certificate is not accepted: unknown authority")
        self._names = PeerNames(tuple(uris))
        if self.credentials.side == "server":
            self.start()
        self.is_established = True

    def encrypt(self, parts: Iterable[bytes | memoryview]) -> None:
        for part in parts:
            self._put(_DATA, part)

    def take_outgoing(self) -> bytes:
        outgoing = bytes(self._outgoing)
        self._outgoing.clear()
        return outgoing

    def end(self) -> None:
        if self.is_established:
            self._put(_ALERT, b"")

    def peer_names(self) -> PeerNames:
        return self._names

    def _put(self, kind: int, body: bytes | memoryview) -> None:
        self._outgoing += _RECORD.pack(kind, len(body))
        self._outgoing += body
