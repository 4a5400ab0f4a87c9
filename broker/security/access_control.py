"""Access control of RocketMQ 5: who signed a request, and whether that user may send it. Asked for each
request before any handler, by `Router.guard`; while it is off, the router has no guard, or RocketMQ 4's.

Every request's signature is checked; the decision about (user, address, access) is kept until users or rights
change. The super users of the configuration are always there, so that the first users can be made
and no change of the others locks the operators out.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.config import BrokerConfig
from broker.leadership import CLIENT_USER, MARK
from broker.members import GroupMembers
from broker.security.decisions import Access, refusal
from broker.security.passwords import PasswordCipher, missing_key
from broker.security.required_access import (
    BY_POSITION,
    UnreadableRequestError,
    access_to_message,
    required_access,
)
from broker.state.access import NO_SUPER_USER, AccessList, UserStatus, UserType
from broker.state.state import ReplicatedState
from broker.state.tables import AccessTable
from broker.state.topics import HALF_TOPIC
from broker.store.redelivery import property_of
from broker.timer.scheduling import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, decode_record
from remoting.acl import ACCESS_KEY, GRPC_USER, GrpcProof, is_signed_with
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.fair_shares import FairShares
from remoting.headers.fields import parse_int
from remoting.headers.send import SendRequest
from remoting.router import Guard, Router

_KEPT_FOR_OTHERS: Final = frozenset({HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC})
"""Topics whose messages are of the topic in their property REAL_TOPIC."""
DECISIONS_MAX: Final = 50_000
SIGNED_BODY_BYTES_MAX: Final = 5 * 1024 * 1024
"""The largest message, and what may be around it; a signature over more takes too long."""
_NO_RIGHTS: Final = "Authorization failed. Please verify your access rights and try again."

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Account:
    """What a node knows of a user when a request comes. `secret` is None when this node cannot decrypt it."""

    name: str
    secret: bytes | None = field(repr=False)
    is_super: bool
    is_enabled: bool
    rights: AccessList | None


class Accounts:
    """The users of the log, over those of the configuration. One that is in both is as the log has it."""

    def __init__(self, config: BrokerConfig, state: ReplicatedState, cipher: PasswordCipher | None) -> None:
        self._state = state
        self._cipher = cipher
        configured = (config.init_user, config.inner_account)
        self.configured: Mapping[str, str] = dict(filter(None, configured))
        """Super users of the configuration: name and password."""
        self._known: dict[str, Account | None] = {}
        self._version = -1

    @property
    def table(self) -> AccessTable:
        return self._state.access

    def get(self, name: str) -> Account | None:
        """The user of that name."""
        if self._version != self.table.version:
            self._version = self.table.version
            self._known.clear()
        if name in self._known:
            return self._known[name]
        account = self._make(name)
        if account is not None:  # unknown names are not kept: clients choose them
            self._known[name] = account
        return account

    def _make(self, name: str) -> Account | None:
        user, rights = self.table.users.get(name), self.table.rights.get(name)
        if user is None:
            password = self.configured.get(name)
            return None if password is None else Account(name, password.encode(), True, True, rights)
        secret = None if self._cipher is None else self._cipher.decrypt(name, user.password)
        if secret is None:
            logger.error("the password of user %s cannot be decrypted: authKeyPath has another key", name)
        is_enabled = user.status is UserStatus.ENABLE
        return Account(name, secret, user.type is UserType.SUPER, is_enabled, rights)

    def has_super_user(self) -> bool:
        """Whether the cluster could be administered if access control were on."""
        supers = (user.name for user in self.table.users.values() if user.type is UserType.SUPER)
        accounts = filter(None, map(self.get, (*self.configured, *supers)))
        return any(each.is_super and each.is_enabled and each.secret is not None for each in accounts)


def check_switch_on(
    config: BrokerConfig, accounts: Accounts, members: GroupMembers, wanted: BrokerConfig
) -> str | None:
    """Why access control cannot be switched on as wanted; None: it can, or it is on already."""
    if not wanted.checks_signatures or config.checks_signatures:
        return None
    problem = missing_key(config, has_others=not members.is_alone)
    if problem is not None:
        return f"access control needs, in the configuration file of each node, {problem}"
    if not accounts.has_super_user():
        return NO_SUPER_USER
    return None


class AccessControl:
    """The router's guard, while access control is on."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        accounts: Accounts,
        router: Router,
        log: MessageLog,
        shares: FairShares,
        otherwise: Guard | None = None,
    ) -> None:
        """`otherwise`: the guard while this access control is off."""
        self._log = log
        self._config = config
        self._state = state
        self._accounts = accounts
        self._router = router
        self._shares = shares
        self._otherwise = otherwise
        self._unsigned: frozenset[int] = frozenset()
        self._unasked: frozenset[int] = frozenset()
        self._decisions: dict[tuple[str, str, Access], str | None] = {}
        self._sends: dict[tuple[str, str, str], str | None] = {}
        self._version = -1
        self._is_on = False
        state.on_settings_changed(self.apply_settings)
        self.apply_settings()

    def apply_settings(self) -> None:
        """Take over the settings as they are now."""
        config = self._config
        self._unsigned = _codes(config.authentication_whitelist)
        self._unasked = _codes(config.authorization_whitelist)
        is_on = config.checks_signatures
        self._router.guard = self.refusal if is_on else self._otherwise
        if is_on != self._is_on:
            self._is_on = is_on
            logger.warning("access control is %s", "on" if is_on else "off")

    def acting_user(self, request: RemotingCommand) -> Account | None:
        """The user whose rights count: of a request that another node passed on, the one who sent it there.
        None while access control is off.
        """
        if not self._is_on:
            return None
        fields = request.ext_fields
        name = fields.get(ACCESS_KEY, "")
        if MARK in fields and self._is_inner(name):
            name = fields.get(CLIENT_USER, "")
        elif (proof := self._grpc_client(fields)) is not None:
            name = proof.user
        return self._accounts.get(name) or Account(name, None, False, False, None)

    def _is_inner(self, name: str) -> bool:
        inner = self._config.inner_account
        return inner is not None and inner[0] == name

    def _grpc_client(self, fields: Mapping[str, str]) -> GrpcProof | None:
        """The client for whom the gRPC endpoint asks, if it does; only the inner account may."""
        return GrpcProof.of(fields) if self._is_inner(fields.get(ACCESS_KEY, "")) else None

    def refusal(self, request: RemotingCommand, connection: Connection) -> RequestError | None:
        """Router's Guard."""
        code = request.code
        is_signed = code not in self._unsigned
        remark = self._unproved(request) if is_signed else None
        if remark is None and self._config.authorization_enabled and code not in self._unasked:
            remark = self._forbidden(request, connection.remote_host)
        if remark is None:
            return self._over_quota(request, connection) if is_signed else None
        connection.warn_once(f"access {code} {remark[:100]}", f"request code {code} is refused: {remark}")
        return RequestError(ResponseCode.NO_PERMISSION, remark)

    def _over_quota(self, request: RemotingCommand, connection: Connection) -> RequestError | None:
        """Of the user who signed the request. Operators have no quota, nor have other nodes: these forward
        the requests of many users. What the gRPC endpoint asks counts for its client.
        """
        name, proof = request.ext_fields[ACCESS_KEY], self._grpc_client(request.ext_fields)
        if proof is not None:
            self._shares.trust(connection)
            account = self._accounts.get(proof.user)
            is_free = account is None or account.is_super
            user = None if is_free else proof.user
            return self._shares.client_refusal(request, connection, proof.host, user)
        if connection.usage is None:
            return None
        if self._is_inner(name):
            self._shares.exempt(connection)
            return None
        account = self._accounts.get(name)
        if account is None or account.is_super:
            return None
        return self._shares.user_refusal(name, request, connection)

    def _unproved(self, request: RemotingCommand) -> str | None:
        """Why the signature is not that of a user (DefaultAuthenticationHandler)."""
        name = request.ext_fields.get(ACCESS_KEY)
        if not name:
            return "username cannot be null."
        account = self._accounts.get(name)
        if account is None:
            return f"User:{name} is not found."
        if not account.is_enabled:
            return f"User:{name} is disabled."
        if len(request.body) > SIGNED_BODY_BYTES_MAX:
            return f"the body is too large to be checked: {SIGNED_BODY_BYTES_MAX} bytes are possible."
        if account.secret is None or not is_signed_with(request, account.secret):
            return "check signature failed."
        if GRPC_USER not in request.ext_fields:
            return None
        proof = self._grpc_client(request.ext_fields)
        if proof is None:  # or each client of the endpoint would have that account's rights
            return f"User:{name} may not ask for gRPC clients: the endpoint needs the nodes' own account."
        return self._unproved_client(proof)

    def _unproved_client(self, proof: GrpcProof) -> str | None:
        """The same of a gRPC client; the endpoint itself knows no password."""
        account = self._accounts.get(proof.user)
        if account is None:
            return f"User:{proof.user} is not found."
        if not account.is_enabled:
            return f"User:{proof.user} is disabled."
        if account.secret is None or not proof.is_of(account.secret):
            return "check signature failed."
        return None

    def _forbidden(self, request: RemotingCommand, host: str) -> str | None:
        """Why the user may not send it (UserAuthorizationHandler, AclAuthorizationHandler)."""
        name = request.ext_fields.get(ACCESS_KEY)
        proof = self._grpc_client(request.ext_fields)
        if proof is not None:
            name, host = proof.user, proof.host
        if not name:
            return _NO_RIGHTS
        account = self._accounts.get(name)
        if account is None:
            return f"User:{name} not found."
        if account.is_super:
            return None
        if type(request) is SendRequest:
            return self._send_decision(account, request, host)
        return self._refusal_of(account, request, host)

    def _send_decision(self, account: Account, request: SendRequest, host: str) -> str | None:
        """Of a send, kept as a whole: what it needs follows from its topic alone."""
        key = account.name, host, request.header.topic
        if self._version == self._state.access.version and key in self._sends:
            return self._sends[key]
        remark = self._refusal_of(account, request, host)
        self._sends[key] = remark
        return remark

    def _refusal_of(self, account: Account, request: RemotingCommand, host: str) -> str | None:
        name = account.name
        try:
            accesses = [*required_access(request, self._config.broker_cluster_name)]
            if request.code in BY_POSITION:
                accesses += self._message_access(request)
        except (UnreadableRequestError, ValueError):
            return "parse authorization context error."
        for access in accesses:
            reason = self._decision(account, access, host)
            if reason is not None:
                resource = f"{access.type.value}:{access.name}"
                return f"User:{name} has no permission to access {resource} from {host}, {reason}"
        return None

    def _message_access(self, request: RemotingCommand) -> Iterator[Access]:
        """To the topic of the message that the request names by its position, if there is one. Raises
        ValueError.
        """
        field, _ = BY_POSITION[request.code]
        position = parse_int(field, request.ext_fields.get(field, ""), 64)
        try:
            data = self._log.record_at(position)
            record = None if data is None else decode_record(data)
        except (CorruptRecordError, DamagedRecordError):
            return  # the handler reports it
        if record is not None:
            topic = property_of(record, PROPERTY_REAL_TOPIC) if record.topic in _KEPT_FOR_OTHERS else None
            yield access_to_message(request.code, topic or record.topic)

    def _decision(self, account: Account, access: Access, host: str) -> str | None:
        if self._version != self._state.access.version or len(self._decisions) >= DECISIONS_MAX:
            self._version = self._state.access.version
            self._decisions.clear()
            self._sends.clear()
        key = account.name, host, access
        if key not in self._decisions:
            self._decisions[key] = refusal(account.rights, access, host)
        return self._decisions[key]


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(code) for code in text.split(",") if code.strip())
