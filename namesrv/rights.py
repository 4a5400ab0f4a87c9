"""Who may register which broker name: the one place where a sender's identity decides.

Without a list every host may, and what one host registered another cannot remove (`route_info`). With a list,
`--broker-identity NAME=IDENTITY[,IDENTITY…]`, only the names in it can be registered, and only by these.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from namesrv.route_info import Registrant
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError

KINDS: Final = ("host",)
"""host: the address that the connection comes from."""

Identities = Callable[[RemotingCommand, Connection], Iterable[str]]
"""Returns who sent a request, as texts `kind:value` that are verified."""


class BrokerIdentityError(ValueError):
    """A text is no broker identity; the message says what it must be."""


def parse_broker_identities(texts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read `NAME=KIND:VALUE[,KIND:VALUE…]`, each for one broker name.

    Raises:
        BrokerIdentityError: a text has another form.
    """
    allowed: dict[str, frozenset[str]] = {}
    for text in texts:
        name, _, listed = text.partition("=")
        identities = frozenset(part.strip() for part in listed.split(",") if part.strip())
        is_good = all(
            kind in KINDS and value for kind, _, value in (part.partition(":") for part in identities)
        )
        if not (name and identities and is_good):
            kinds = ", ".join(f"{kind}:…" for kind in KINDS)
            raise BrokerIdentityError(f"{text!r} is not of the form NAME=IDENTITY[,IDENTITY…] with {kinds}")
        allowed[name] = allowed.get(name, frozenset()) | identities
    return allowed


def source_host(_: RemotingCommand, connection: Connection) -> Iterable[str]:
    """The identity that every connection has."""
    return (f"host:{connection.remote_host}",)


class BrokerRights:
    """`allowed`: the identities that may register each broker name; empty: every host may any."""

    def __init__(self, allowed: Mapping[str, frozenset[str]], identities: Identities = source_host) -> None:
        self._allowed = allowed
        self._identities = identities

    def registrant(self, broker_name: str, request: RemotingCommand, connection: Connection) -> Registrant:
        """Who sent a request that registers, refreshes or removes a node of this name.

        Raises:
            RequestError: the sender may not (NO_PERMISSION).
        """
        is_proven = False
        if self._allowed:
            is_proven = not self._allowed.get(broker_name, frozenset()).isdisjoint(
                self._identities(request, connection)
            )
            if not is_proven:
                text = f"broker name {broker_name} may not be registered from {connection.remote_host}"
                connection.warn_once(f"broker {broker_name}", text)
                raise RequestError(ResponseCode.NO_PERMISSION, text)
        return Registrant(connection.connection_id, connection.remote_host, is_proven)
