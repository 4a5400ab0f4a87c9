"""Who may register which broker name, and who may send the requests of administrators: the one place where a
sender's identity decides.

Without a list every host may register any name, and what one host registered another cannot remove
(`route_info`). With a list, `--broker-identity NAME=IDENTITY[,IDENTITY…]`, only the names in it can be
registered, and only by these. An identity is

    host:10.0.0.1                        the address that the connection comes from
    certificate:ledgermq://broker-a/*    a name in the client's verified certificate; * stands for any text
    account:broker-a                     an account of `--accounts` that has signed the request

A pattern with :// is compared with the URIs of a certificate, any other one with its DNS names, or with the
common name of a certificate that has none.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

from namesrv.accounts import FILE_OPTION, Accounts
from namesrv.queries import ROUTE_BYTES_MAX
from namesrv.route_info import Registrant
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.route import RouteError, parse_topic_route
from sockets.tls import PeerNames

HOST: Final = "host"
CERTIFICATE: Final = "certificate"
ACCOUNT: Final = "account"
KINDS: Final = (HOST, CERTIFICATE, ACCOUNT)
ADMIN_CODES: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)
"""What changes the tables or the configuration, and does not come from a broker about itself."""


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


def check_usable(
    allowed: Mapping[str, frozenset[str]], *, knows_certificates: bool, has_accounts: bool
) -> None:
    """Raises BrokerIdentityError: the name server could never find out that a sender has such an identity."""
    kinds = {identity.partition(":")[0] for identities in allowed.values() for identity in identities}
    if CERTIFICATE in kinds and not knows_certificates:
        raise BrokerIdentityError(
            "a broker identity by certificate needs --tls-cert, --tls-ca, and --tls-client-auth optional or "
            "require"
        )
    if ACCOUNT in kinds and not has_accounts:
        raise BrokerIdentityError(f"a broker identity by account needs {FILE_OPTION}")


def is_in_certificate(names: PeerNames, pattern: str) -> bool:
    """Whether the certificate with these names is one that the pattern means."""
    if "://" in pattern:
        candidates = names.uris
    else:
        candidates = names.dns or ((names.common_name,) if names.common_name else ())
    return any(fnmatchcase(name, _only_stars(pattern)) for name in candidates)


def _only_stars(pattern: str) -> str:
    """Brackets and question marks stand for themselves."""
    return "".join(f"[{sign}]" if sign in "[?" else sign for sign in pattern)


class BrokerRights:
    """`allowed`: the identities that may register each broker name."""

    def __init__(self, allowed: Mapping[str, frozenset[str]], accounts: Accounts | None = None) -> None:
        self._allowed = allowed
        self._accounts = accounts

    def registrant(self, broker_name: str, request: RemotingCommand, connection: Connection) -> Registrant:
        """Who sent a request that registers, refreshes or removes a node of this name.

        Raises:
            RequestError: the sender may not (NO_PERMISSION).
        """
        if not self.may_register(broker_name, request, connection):
            text = f"broker name {broker_name} may not be registered from {connection.remote_host}"
            connection.warn_once(f"broker {broker_name}", text)
            raise RequestError(ResponseCode.NO_PERMISSION, text)
        return Registrant(connection.connection_id, connection.remote_host, is_proven=True)

    def may_register(self, broker_name: str, request: RemotingCommand, connection: Connection) -> bool:
        allowed = sorted(self._allowed.get(broker_name, ()), key=lambda each: each.startswith(ACCOUNT))
        return any(self._is_sender(identity, request, connection) for identity in allowed)

    def _is_sender(self, identity: str, request: RemotingCommand, connection: Connection) -> bool:
        kind, _, value = identity.partition(":")
        if kind == HOST:
            return connection.remote_host == value
        if kind == CERTIFICATE:
            return is_in_certificate(connection.peer_names, value)
        account = None if self._accounts is None else self._accounts.signer_of(request)
        return account is not None and account.access_key == value


class AdminRights:
    """The router's guard where there are accounts: administrators sign as one that is marked so."""

    def __init__(self, accounts: Accounts, brokers: BrokerRights | None) -> None:
        self._accounts = accounts
        self._brokers = brokers

    def refusal(self, request: RemotingCommand, connection: Connection) -> RequestError | None:
        """Router's Guard."""
        if request.code not in ADMIN_CODES:
            return None
        account = self._accounts.signer_of(request)
        if account is not None and account.is_admin:
            return None
        if self._is_about_own_topic(request, connection):
            return None
        who = "no known account has signed it" if account is None else f"{account.access_key} is none"
        text = f"request code {request.code} needs an account marked admin: {who}"
        connection.warn_once(f"admin {request.code}", f"{text} (from {connection.remote_host})")
        return RequestError(ResponseCode.NO_PERMISSION, text)

    def _is_about_own_topic(self, request: RemotingCommand, connection: Connection) -> bool:
        """RocketMQ's brokers may register a single topic by 217 (`enableSingleTopicRegister`)."""
        if request.code != RequestCode.REGISTER_TOPIC_IN_NAMESRV or self._brokers is None:
            return False
        if len(request.body) > ROUTE_BYTES_MAX:
            return False
        try:
            names = {queue.broker_name for queue in parse_topic_route(request.body).queue_datas}
        except RouteError:
            return False
        return bool(names) and all(self._brokers.may_register(name, request, connection) for name in names)
