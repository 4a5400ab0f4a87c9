"""What the features know of a call besides its message: who calls, and how long the caller waits."""

import asyncio
import re
from collections.abc import Awaitable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from google.protobuf.message import Message

from grpc_endpoint.messaging_pb2 import Code
from grpc_endpoint.status import StatusError
from remoting.acl import GrpcProof
from remoting.client.aio import SentRequest
from remoting.command import RemotingCommand

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
CLIENT_VERSION: Final = "x-mq-client-version"
CLIENT_ID_CHARS_MAX: Final = 512
DEFAULT_S: Final = 10.0
"""For a call without a deadline."""
RESERVE_S: Final = 0.1
"""So much earlier than its deadline a call is answered, or the answer would come too late."""
LANGUAGES: Final[Mapping[str, str]] = {
    **{name: name for name in ("JAVA", "CPP", "PYTHON", "RUBY", "PHP", "RUST", "NODE_JS")},
    "GOLANG": "GO",
    "DOT_NET": "DOTNET",
    "CSHARP": "DOTNET",
}
"""Names of the Remoting protocol for those of gRPC's clients; OTHER for what is not here."""


AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_AUTHORIZATION: Final = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^/,]+)[^,]*, *SignedHeaders=[^,]*, *Signature=([0-9A-Fa-f]{40})\Z"
)
_HEADER_CHARS_MAX: Final = 1_024
_HOSTS_KEPT: Final = 1_024

PROOF: ContextVar[GrpcProof | None] = ContextVar("PROOF", default=None)
"""Of the client for whom the current task works; what it asks of brokers they check, allow or refuse, and
charge to it.
"""


@dataclass(slots=True)  # a frozen one takes five times as long to make
class Call:
    """`deadline_s`: by the event loop's clock. `host`: the client's, `host:port`. `proof`: see PROOF."""

    client_id: str
    language: str
    version: str
    host: str
    deadline_s: float
    proof: GrpcProof | None = None

    @property
    def remaining_s(self) -> float:
        return self.deadline_s - asyncio.get_running_loop().time()

    def enter(self) -> None:
        """The current task works for its client from now on."""
        PROOF.set(self.proof)

    def limit_s(self, most_s: float) -> float:
        """The end, by the loop's clock, of what may take `most_s` and must be over before the deadline."""
        return min(asyncio.get_running_loop().time() + most_s, self.deadline_s - RESERVE_S)


class Begun(Protocol):
    """A call of which all is known that its request to a broker needs. `sent`: it was sent, without a task;
    None: `result` sends it.
    """

    @property
    def sent(self) -> SentRequest | None: ...

    def response(self, answer: RemotingCommand) -> Message | None:
        """What the broker's answer becomes; None: `result` has to go on."""

    def result(self) -> Awaitable[Message]: ...


def proof_of(metadata: Mapping[str, str], host: str) -> GrpcProof | None:
    """What the client signed its call with; None when it has no account, or the text cannot be read."""
    text, signed = metadata.get(AUTHORIZATION, ""), metadata.get(DATE_TIME, "")
    found = _AUTHORIZATION.match(text) if len(text) <= _HEADER_CHARS_MAX else None
    if found is None or len(signed) > _HEADER_CHARS_MAX:
        return None
    return GrpcProof(found[1], signed, found[2], *_place(host))


def _place(host: str) -> tuple[str, str]:
    """Address and port."""
    address, _, port = host.rpartition(":")
    return address.strip("[]"), port


@lru_cache(_HOSTS_KEPT)
def _unsigned(host: str) -> GrpcProof:
    """Of a client without an account."""
    return GrpcProof("", "", "", *_place(host))


def call_of(
    metadata: Mapping[str, str],
    host: str,
    remaining_s: float | None,
    *,
    needs_proof: bool = False,
    default_s: float = DEFAULT_S,
) -> Call:
    """Raises StatusError.

    default_s: for a call without a deadline, whose `remaining_s` is None.
    """
    proof = proof_of(metadata, host) if needs_proof else _unsigned(host)
    if proof is None:
        raise StatusError(Code.UNAUTHORIZED, "the call is not signed (authorization, x-mq-date-time)")
    client_id = metadata.get(CLIENT_ID, "")
    if not client_id.strip():
        raise StatusError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > CLIENT_ID_CHARS_MAX:
        raise StatusError(Code.BAD_REQUEST, f"the client id is longer than {CLIENT_ID_CHARS_MAX}")
    deadline_s = asyncio.get_running_loop().time() + (default_s if remaining_s is None else remaining_s)
    language = LANGUAGES.get(metadata.get(LANGUAGE, "").upper(), "OTHER")
    return Call(client_id, language, metadata.get(CLIENT_VERSION, ""), host, deadline_s, proof)
