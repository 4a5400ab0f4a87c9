"""TLS of Remoting connections: a server's settings, and the layer between one connection and its transport.

As in RocketMQ, TLS and plain text share a server's port. The first byte of a connection tells them apart.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sockets.tls import (
    HANDSHAKE_FIRST_BYTE,
    PeerCheck,
    PeerNames,
    TlsCredentials,
    TlsError,
    TlsFiles,
    TlsSettingsError,
    TlsStream,
)

TlsMode = Literal["disabled", "permissive", "enforcing"]
"""RocketMQ's `TlsMode`: plain text only, both, TLS only."""
ClientAuth = Literal["none", "optional", "require"]
"""Whether a client must have a certificate that one of the authorities signed."""
_HANDSHAKE: Final = bytes([HANDSHAKE_FIRST_BYTE])
HANDSHAKES_A_TURN: Final = 4
"""Steps of handshakes in one turn of the event loop: the costly one takes half a millisecond."""
_PEER_CHECKS: Final[Mapping[ClientAuth, PeerCheck]] = {
    "none": "none",
    "optional": "optional",
    "require": "required",
}


@dataclass(frozen=True, slots=True)
class ServerTlsSettings:
    """mode: None is permissive where there is a certificate, else disabled.
    authorities: that may have signed the certificates of clients.
    """

    mode: TlsMode | None = None
    certificate: Path | None = None
    key: Path | None = None
    authorities: Path | None = None
    client_auth: ClientAuth = "none"

    @property
    def mode_in_force(self) -> TlsMode:
        return self.mode or ("disabled" if self.certificate is None else "permissive")

    @property
    def knows_clients(self) -> bool:
        """Whether a client may have shown a certificate that was verified."""
        return self.mode_in_force != "disabled" and self.client_auth != "none"

    def check(self) -> None:
        """Raises TlsSettingsError. The files are not read."""
        if self.certificate is None:
            if self.mode_in_force != "disabled":
                raise TlsSettingsError(f"TLS in mode {self.mode} needs a certificate and its key")
            if self.key is not None:
                raise TlsSettingsError("a key for TLS is of no use without its certificate")
        if self.client_auth != "none" and self.authorities is None:
            raise TlsSettingsError(
                f"the authentication of clients by certificates ({self.client_auth}) needs the authorities "
                "that may have signed these"
            )


class HandshakeTurns:
    """Spreads the handshakes of a server over turns of the event loop. A thousand clients that connect at
    once would otherwise hold the loop for half a second, and with it a leader's heartbeats.
    """

    def __init__(self) -> None:
        self._left = HANDSHAKES_A_TURN
        self._waiting: deque[Callable[[], None]] = deque()

    def take(self, step: Callable[[], None]) -> bool:
        """Whether a step may be done now; otherwise `step` is called in a later turn."""
        if not self._left:
            self._waiting.append(step)
            return False
        if self._left == HANDSHAKES_A_TURN:
            asyncio.get_running_loop().call_soon(self._next)
        self._left -= 1
        return True

    def _next(self) -> None:
        steps = min(HANDSHAKES_A_TURN, len(self._waiting))
        self._left = HANDSHAKES_A_TURN - steps
        loop = asyncio.get_running_loop()
        for _ in range(steps):
            loop.call_soon(self._waiting.popleft())
        if steps:
            loop.call_soon(self._next)


class ServerTls:
    """TLS on a server's port; `refuses_plain` closes connections that do not speak it."""

    def __init__(self, credentials: TlsCredentials, refuses_plain: bool) -> None:
        self.credentials = credentials
        self.refuses_plain = refuses_plain
        self.turns = HandshakeTurns()


def server_tls(settings: ServerTlsSettings) -> ServerTls | None:
    """None in mode disabled. Raises TlsFilesError."""
    settings.check()
    if settings.mode_in_force == "disabled":
        return None
    files = TlsFiles(settings.certificate, settings.key, settings.authorities)
    credentials = TlsCredentials(files, "server", _PEER_CHECKS[settings.client_auth])
    return ServerTls(credentials, settings.mode_in_force == "enforcing")


class TlsLayer:
    """Between one connection and its transport. A server's connection is undecided until its first byte.

    is_plain: the peer speaks plain text, and the layer is of no use any more.
    is_open: the handshake is complete, and nothing went wrong since.
    failure: why TLS ended, as a text without the peer's name; empty: it did not.
    settled: set when the handshake is complete or can never be.
    """

    def __init__(self, server: ServerTls | None, stream: TlsStream | None = None) -> None:
        self.is_plain = False
        self.is_open = False
        self.failure = ""
        self.settled = asyncio.Event()
        self._server = server
        self._stream = stream
        self._waiting = bytearray()
        self._is_queued = False
        self._has_turn = False

    @property
    def partial_bytes(self) -> int:
        """The bytes received of a record that is not complete yet, or of a handshake."""
        return len(self._waiting) + (0 if self._stream is None else self._stream.partial_bytes)

    def waits(self, data: bytes, go_on: Callable[[], None]) -> bool:
        """Whether these bytes of a handshake have to wait for their turn. If so they are kept, and `go_on` is
        called then: it passes no bytes to `receive`.
        """
        if self.is_open or self.failure or self._server is None or self._begins_plain(data):
            return False
        if not self._is_queued and not self._has_turn:
            self._has_turn = self._server.turns.take(lambda: self._take_turn(go_on))
            self._is_queued = not self._has_turn
        if self._is_queued:
            self._waiting += data
        return self._is_queued

    def _take_turn(self, go_on: Callable[[], None]) -> None:
        self._is_queued, self._has_turn = False, True
        go_on()

    def _begins_plain(self, data: bytes) -> bool:
        return self._stream is None and not self._waiting and data[:1] != _HANDSHAKE

    @property
    def is_at_end(self) -> bool:
        """The peer has closed its side in order."""
        return self._stream is not None and self._stream.is_at_end

    def peer_names(self) -> PeerNames:
        """The names in the peer's verified certificate; none before the handshake is complete."""
        return self._stream.peer_names() if self._stream is not None and self.is_open else PeerNames()

    def start(self) -> bytes:
        """What a client sends first; nothing of a server."""
        if self._stream is None:
            return b""
        self._stream.start()
        return self._stream.take_outgoing()

    def receive(self, data: bytes) -> bytes:
        """The plain bytes in what has waited and in these; may be none. Raises TlsError."""
        if self.failure:
            raise TlsError(self.failure)
        self._has_turn = False
        if self._waiting:
            data = bytes(self._waiting) + data
            self._waiting.clear()
        stream = self._stream or self._decide(data)
        if stream is None:
            return data
        try:
            plain = stream.receive(data)
        except TlsError as error:
            raise self._failed(error) from None
        if stream.is_established and not self.is_open:
            self.is_open = True
            self.settled.set()
        return plain

    def encrypt(self, data: bytes) -> bytes:
        """What must be written to the transport for these plain bytes. Raises TlsError."""
        assert self._stream is not None, "nothing is encrypted for a peer that speaks plain text"
        self._stream.encrypt((data,))
        return self._stream.take_outgoing()

    def take_outgoing(self) -> bytes:
        """What must be written to the transport now: of the handshake, or why TLS ended."""
        return b"" if self._stream is None else self._stream.take_outgoing()

    def end(self) -> bytes:
        """The last bytes for the peer: that no more come."""
        if self._stream is not None and self.is_open:
            with contextlib.suppress(TlsError):
                self._stream.end()
        return self.take_outgoing()

    def _decide(self, data: bytes) -> TlsStream | None:
        assert self._server is not None, "a client has a stream from the start"
        if data[:1] == _HANDSHAKE:
            self._stream = self._server.credentials.stream()
            return self._stream
        if self._server.refuses_plain:
            raise self._failed(TlsError("the peer speaks plain text, and only TLS is allowed"))
        self.is_plain = True
        return None

    def _failed(self, error: TlsError) -> TlsError:
        self.failure = str(error)
        self.is_open = False
        self._waiting.clear()
        self.settled.set()
        return error
