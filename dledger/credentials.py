"""Who is at the other end of a replication connection: the names that members have in certificates, and what
makes the encrypted streams.

A member's certificate names it by one URI in its subject alternative name:

    ledgermq://<group>/<node id>

The group is percent-encoded where it has characters that a URI does not allow. A certificate may have more
names, also those of members of other groups; nothing but this URI counts for replication.
"""

from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import quote, unquote

from sockets.tls import PeerNames, TlsCredentials, TlsFiles

CONNECTION_AGE_MAX_MS: Final = 600_000
"""After this time a connection is closed. Its successor is made before: see `dledger.transport`."""


def member_uri(group: str, node_id: str) -> str:
    """The name of a member in its certificate."""
    return f"ledgermq://{quote(group, safe='')}/{quote(node_id, safe='')}"


def member_id_in(group: str, uri: str) -> str | None:
    """The node id in a member's name; None when it is not the name of a member of this group."""
    start = member_uri(group, "")
    node_id = unquote(uri.removeprefix(start))
    return node_id if node_id and member_uri(group, node_id) == uri else None


class PeerStream(Protocol):
    """The encryption of one connection, without I/O: `sockets.tls.TlsStream`, and that of the simulated
    network, since OpenSSL's random numbers cannot be seeded.
    """

    is_established: bool
    is_at_end: bool

    def start(self) -> None: ...
    def receive(self, data: bytes) -> bytes:
        """Raises sockets.tls.TlsError."""

    def encrypt(self, parts: list[bytes | memoryview]) -> None:
        """Raises sockets.tls.TlsError."""

    def take_outgoing(self) -> bytes: ...
    def end(self) -> None: ...
    def peer_names(self) -> PeerNames: ...


class StreamSource(Protocol):
    """Makes the streams of one side; as PeerStream, there are a real one and a simulated one."""

    def stream(self) -> PeerStream: ...


@dataclass(frozen=True, slots=True)
class MemberCredentials:
    """What a member shows to its peers, and whom it believes.

    accepting: for the connections that peers open. dialling: for those that this member opens.
    connection_age_max_ms: no connection is older, so that new certificates and a removed authority are in
    force after this time, although they are checked only while a connection is made.
    """

    accepting: StreamSource
    dialling: StreamSource
    connection_age_max_ms: int = CONNECTION_AGE_MAX_MS

    @classmethod
    def load(cls, files: TlsFiles, connection_age_max_ms: int = CONNECTION_AGE_MAX_MS) -> "MemberCredentials":
        """Of one certificate for both sides. Raises sockets.tls.TlsFilesError."""
        return cls(TlsCredentials(files, "server"), TlsCredentials(files, "client"), connection_age_max_ms)
