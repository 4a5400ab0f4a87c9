"""Access control of RocketMQ 4 ("ACL 1.0"): accounts of a file `plain_acl.yml`, and what they may do, decided
as `PlainPermissionManager` does. Pure.

A request from a white address is allowed, signed or not. Any other is signed by an account; administrators'
requests need one with `admin`; the others need PUB or SUB on each topic and SUB on each group that they use,
from the account's lists or else from its defaults.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker.security.decisions import Access
from broker.security.required_access import UnreadableRequestError, required_access
from broker.state.access import (
    AccessError,
    AccessList,
    Action,
    Decision,
    Pattern,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
)
from broker.state.topics import TRACE_TOPIC
from remoting.acl import ACCESS_KEY, is_signed_with
from remoting.codes import RequestCode as Code
from remoting.command import RemotingCommand

KEY_CHARS_MIN: Final = 7
TOO_SHORT: Final = "The accessKey={} and its secretKey cannot be null and length should longer than 6"
ACCOUNTS_MAX: Final = 10_000
_ADMIN_CODES: Final = frozenset(
    {
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_BROKER_CONFIG,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.DELETE_SUBSCRIPTIONGROUP,
    }
)
_READS: Final = frozenset({Action.GET, Action.LIST})
PERMISSIONS: Final[Mapping[str, frozenset[Action]]] = {
    "DENY": frozenset(),
    "PUB": frozenset({Action.PUB}),
    "SUB": frozenset({Action.SUB}),
    "PUB|SUB": frozenset({Action.PUB, Action.SUB}),
    "SUB|PUB": frozenset({Action.PUB, Action.SUB}),
}
_Permission = frozenset[Action]
_Matches = Callable[[str], bool]


class PlainAclError(ValueError):
    """The accounts cannot be used; the text is a sentence without a secret in it."""


def _permission(text: object) -> _Permission:
    """What is not known is DENY, as nothing is."""
    return PERMISSIONS.get(text.strip() if isinstance(text, str) else "", frozenset())


def _listed(rows: object, what: str) -> dict[str, _Permission]:
    """`NAME=PERMISSION` each. Raises PlainAclError."""
    listed = {}
    for row in rows if isinstance(rows, list) else ():
        name, _, permission = row.partition("=") if isinstance(row, str) else ("", "", "")
        if not name.strip() or not permission.strip() or "=" in permission:
            raise PlainAclError(f"Parse resource permission failed for {what}:{row}")
        listed[name.strip()] = _permission(permission)
    return listed


def addresses(text: object) -> _Matches:
    """Which hosts a white address means: one, several by `,` or `{…}` at the end, a range by `*` or `1-9` in
    a part, all by `*`; none when it is empty. Raises PlainAclError.
    """
    if text is None or (isinstance(text, str) and not text.strip()):
        return lambda host: False
    if not isinstance(text, str):
        raise PlainAclError(f"Netaddress examine Exception netaddress is {text}")
    pattern = text.strip()
    if pattern in ("*", "*.*.*.*", "*:*:*:*:*:*:*:*"):
        return lambda host: True
    if pattern.endswith("}"):
        head, brace, choices = pattern[:-1].partition("{")
        if not brace or head[-1:] not in (".", ":"):
            raise PlainAclError(f"Netaddress examine Exception netaddress is {pattern}")
        return _any_of([head + choice.strip() for choice in choices.split(",")])
    if "," in pattern:
        return _any_of([part.strip() for part in pattern.split(",")])
    return _range(pattern) if "*" in pattern or "-" in pattern else _any_of([pattern])


def _any_of(texts: Iterable[str]) -> _Matches:
    try:
        known = frozenset(map(ipaddress.ip_address, texts))
    except ValueError as error:
        raise PlainAclError(f"Netaddress examine Exception: {error}") from None
    return lambda host: (address := _address(host)) is not None and address in known


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _range(pattern: str) -> _Matches:
    """Raises PlainAclError."""
    is_v6 = ":" in pattern
    separator, base, length = (":", 16, 8) if is_v6 else (".", 10, 4)
    texts = [part.strip() for part in (_groups(pattern) if is_v6 else pattern.split(separator))]
    parts = [_bounds(text, base, pattern) for text in texts]
    if len(parts) != length:
        raise PlainAclError(f"Netaddress examine Exception netaddress is {pattern}")

    def matches(host: str) -> bool:
        address = _address(host)
        if address is None or address.version != (6 if is_v6 else 4):
            return False
        numbers = [int(part, base) for part in address.exploded.split(separator)]
        return all(low <= number <= high for number, (low, high) in zip(numbers, parts, strict=True))

    return matches


def _groups(pattern: str) -> list[str]:
    """The groups of an IPv6 pattern, those that `::` stands for among them. One that is too short is a
    beginning, whose rest may be anything.
    """
    before, compressed, after = pattern.partition("::")
    front, back = (text.split(":") if text else [] for text in (before, after))
    missing = 8 - len(front) - len(back)
    return [*front, *["0"] * missing, *back] if compressed else [*front, *["*"] * missing]


def _bounds(part: str, base: int, pattern: str) -> tuple[int, int]:
    most = 0xFFFF if base == 16 else 0xFF
    low, dash, high = part.partition("-")
    try:
        bounds = (0, most) if part == "*" else (int(low, base), int(high if dash else low, base))
    except ValueError:
        bounds = (1, 0)
    if not 0 <= bounds[0] <= bounds[1] <= most:
        raise PlainAclError(f"Netaddress examine Exception netaddress is {pattern}")
    return bounds


@dataclass(frozen=True, slots=True)
class PlainAccount:
    """One account of the file."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool
    topics: Mapping[str, _Permission]
    groups: Mapping[str, _Permission]
    default_topic: _Permission
    default_group: _Permission
    is_white: _Matches

    @classmethod
    def parse(cls, row: Any) -> "PlainAccount":
        """Raises PlainAclError."""
        values = row if isinstance(row, dict) else {}
        access_key, secret_key = values.get("accessKey"), values.get("secretKey")
        is_long = all(isinstance(key, str) and len(key) >= KEY_CHARS_MIN for key in (access_key, secret_key))
        if not is_long:
            raise PlainAclError(TOO_SHORT.format(access_key))
        return cls(
            str(access_key),
            str(secret_key),
            values.get("admin") in (True, "true"),
            _listed(values.get("topicPerms"), "topic"),
            _listed(values.get("groupPerms"), "group"),
            _permission(values.get("defaultTopicPerm")),
            _permission(values.get("defaultGroupPerm")),
            addresses(values.get("whiteRemoteAddress")),
        )

    def missing(self, access: Access, code: int) -> str | None:
        """Why the account may not do it (`checkPerm`)."""
        if not self.is_admin and (code in _ADMIN_CODES or _is_of_admins(access)):
            return f"Need admin permission for request code={code}, but accessKey={self.access_key} is not"
        needed = Action.PUB if Action.PUB in access.actions else Action.SUB
        if needed not in access.actions or (self.is_admin and not self.topics and not self.groups):
            return None
        is_group = access.type is ResourceType.GROUP
        listed, default = (self.groups, self.default_group) if is_group else (self.topics, self.default_topic)
        if needed in listed.get(access.name, default):
            return None
        return f"No default permission for {'group' if is_group else 'topic'}:{access.name}"

    def rights(self) -> AccessList | None:
        """The same as policies of RocketMQ 5 (`AuthMigrator`); None: there are none."""
        custom = [
            _entry(kind, name, Pattern.LITERAL, permission)
            for kind, listed in ((ResourceType.TOPIC, self.topics), (ResourceType.GROUP, self.groups))
            for name, permission in listed.items()
        ]
        defaults = [
            _entry(kind, "", Pattern.ANY, permission)
            for kind, permission in (
                (ResourceType.TOPIC, self.default_topic),
                (ResourceType.GROUP, self.default_group),
            )
        ]
        policies = {PolicyType.CUSTOM: custom, PolicyType.DEFAULT: defaults}
        return AccessList(self.access_key, {kind: entries for kind, entries in policies.items() if entries})


def _is_of_admins(access: Access) -> bool:
    """What neither sends nor consumes, nor only reads: RocketMQ 4 lets every account do most of it."""
    return not {Action.PUB, Action.SUB, *_READS} & set(access.actions)


def _entry(kind: ResourceType, name: str, pattern: Pattern, permission: _Permission) -> PolicyEntry:
    resource = Resource(kind, name, pattern)
    if not permission:
        return PolicyEntry(resource, (Action.ALL,), Decision.DENY)
    return PolicyEntry(resource, tuple(sorted(permission, key=lambda each: each.value)), Decision.ALLOW)


@dataclass(frozen=True, slots=True)
class PlainAcl:
    """The content of the file."""

    accounts: Mapping[str, PlainAccount]
    global_white: Sequence[_Matches]

    @classmethod
    def parse(cls, data: Any) -> "PlainAcl":
        """Raises PlainAclError."""
        if data is None:
            data = {}
        if not isinstance(data, dict):
            raise PlainAclError("the file is not a table of accounts")
        rows, white = (data.get(key) for key in ("accounts", "globalWhiteRemoteAddresses"))
        rows, white = ([] if each is None else each for each in (rows, white))
        if not isinstance(rows, list) or not isinstance(white, list) or len(rows) > ACCOUNTS_MAX:
            raise PlainAclError(
                f"accounts or globalWhiteRemoteAddresses is no list of at most {ACCOUNTS_MAX}"
            )
        accounts: dict[str, PlainAccount] = {}
        for account in map(PlainAccount.parse, rows):
            accounts.setdefault(account.access_key, account)
        return cls(accounts, [addresses(text) for text in white])

    def refusal(self, request: RemotingCommand, host: str, cluster: str) -> str | None:
        """Why the request is refused (`PlainPermissionManager.validate`); None: it is allowed."""
        if any(matches(host) for matches in self.global_white):
            return None
        access_key = request.ext_fields.get(ACCESS_KEY)
        if access_key is None:
            return "No accessKey is configured"
        account = self.accounts.get(access_key)
        if account is None:
            return f"No acl config for {access_key}"
        if account.is_white(host):
            return None
        if not is_signed_with(request, account.secret_key.encode()):
            return f"Check signature failed for accessKey={access_key}"
        try:
            needed = list(required_access(request, cluster))
        except UnreadableRequestError:
            return "the request cannot be read"
        # Every client that traces writes there.
        if any((each.name, each.actions) == (TRACE_TOPIC, (Action.PUB,)) for each in needed):
            return None
        return next(filter(None, (account.missing(access, request.code) for access in needed)), None)

    def signer(self, request: RemotingCommand, host: str) -> PlainAccount | None:
        """Whose signature `refusal` has verified, before it allowed the request; None: it asked for none."""
        account = self.accounts.get(request.ext_fields.get(ACCESS_KEY, ""))
        is_white = any(matches(host) for matches in self.global_white)
        return None if account is None or is_white or account.is_white(host) else account


def checked_rights(account: PlainAccount) -> AccessList | None:
    """`rights` that the replicated state accepts. Raises PlainAclError."""
    rights = account.rights()
    try:
        return None if rights is None else AccessList.from_json(rights.to_json())
    except AccessError as error:
        raise PlainAclError(f"{account.access_key}: {error}") from error
