"""Users and what each may do, as RocketMQ 5.3 has them (its module `auth`): the model, its JSON forms, and
which values are good. Pure.

A policy entry allows or denies actions on a resource, from some addresses. A resource is `*`, `Topic:*`,
`Topic:orders*` or `Topic:orders`; the types are Cluster, Namespace, Topic and Group.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeVar

USERS_MAX: Final = 10_000
ENTRIES_MAX: Final = 1_000
"""Policy entries of one user."""
NAME_CHARS_MAX: Final = 255
PASSWORD_CHARS_MAX: Final = 1_024
SOURCE_IPS_MAX: Final = 100
_VALUE_CHARS_MAX: Final = 40
USER_PREFIX: Final = "User:"
NO_SUPER_USER: Final = "there is no enabled super user to switch access control off again: create one first"
"""Why a node refuses to switch access control on."""


class AccessError(ValueError):
    """A user or a policy from outside cannot be used; the text is the remark of the answer."""


class UserType(Enum):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(Enum):
    ENABLE = "enable"
    DISABLE = "disable"


class ResourceType(Enum):
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(Enum):
    """How a policy's resource is compared with the one of a request."""

    LITERAL = "Literal"
    PREFIXED = "Prefixed"
    ANY = "Any"


class Action(Enum):
    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(Enum):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(Enum):
    CUSTOM = "Custom"
    DEFAULT = "Default"
    """Asked only when no custom entry matches."""


_Value = TypeVar("_Value", bound=Enum)


def by_name(values: type[_Value], name: object) -> _Value | None:
    """The value with this name, in whatever case; None when there is none."""
    lowered = name.lower() if isinstance(name, str) and len(name) <= _VALUE_CHARS_MAX else None
    return next((value for value in values if value.value.lower() == lowered), None)


@dataclass(frozen=True, slots=True)
class User:
    """`password` is encrypted (`broker.security.passwords`) and in no text of the user."""

    name: str
    password: str = field(repr=False)
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    def to_json(self) -> dict[str, str]:
        """The form in the log; what clients see has no password."""
        return {"username": self.name, "password": self.password} | self.shown()

    def shown(self) -> dict[str, str]:
        """RocketMQ's UserInfo, without the password."""
        return {"username": self.name, "userType": self.type.value, "userStatus": self.status.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "User":
        """Reads the form in the log. Raises AccessError, KeyError."""
        kind, status = by_name(UserType, data["userType"]), by_name(UserStatus, data["userStatus"])
        if kind is None or status is None:
            raise AccessError("a user has a type or a status that this node does not know")
        return cls(checked_name(data["username"]), str(data["password"]), kind, status)


def checked_name(name: object) -> str:
    """A user's name. Raises AccessError."""
    if not isinstance(name, str) or not name.strip():
        raise AccessError("username can not be blank")
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise AccessError(f"username has more than {NAME_CHARS_MAX} characters, or not only printable ones")
    return name


@dataclass(frozen=True, slots=True)
class Resource:
    """What a policy is about. `name` is "" where the pattern is ANY."""

    type: ResourceType
    name: str
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, key: object) -> "Resource":
        """Raises AccessError."""
        if key == "*":
            return cls(ResourceType.ANY, "", Pattern.ANY)
        if not isinstance(key, str) or not key.strip():
            raise AccessError("The resource is null.")
        kind, _, name = key.partition(":")
        resource_type = by_name(ResourceType, kind)
        if resource_type is None or resource_type is ResourceType.ANY:
            raise AccessError("The resource type is null.")
        if len(name) > NAME_CHARS_MAX:
            raise AccessError(f"The resource name has more than {NAME_CHARS_MAX} characters.")
        if name == "*":
            return cls(resource_type, "", Pattern.ANY)
        if name.endswith("*"):
            return cls(resource_type, name.partition("*")[0], Pattern.PREFIXED)
        return cls(resource_type, name)

    @property
    def key(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type.value}:{self.name}{star}"


def _network(text: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if not isinstance(text, str) or not text.strip():
        raise AccessError("The source ip is empty.")
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise AccessError("The source ip is invalid.") from None


@dataclass(frozen=True)
class PolicyEntry:
    """Allows or denies actions on a resource. `source_ips`: addresses and networks; none: from anywhere."""

    resource: Resource
    actions: tuple[Action, ...]
    decision: Decision
    source_ips: tuple[str, ...] = ()

    @cached_property
    def networks(self) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
        return tuple(map(_network, self.source_ips))

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's PolicyEntryInfo."""
        return {
            "resource": self.resource.key,
            "actions": [action.value for action in self.actions],
            "sourceIps": list(self.source_ips),
            "decision": self.decision.value,
        }

    @classmethod
    def from_json(cls, data: Any) -> "PolicyEntry":
        """Raises AccessError."""
        if not isinstance(data, dict):
            raise AccessError("The policy entries is empty.")
        actions = _actions(data.get("actions"))
        source_ips = data.get("sourceIps") or []
        if not isinstance(source_ips, list) or len(source_ips) > SOURCE_IPS_MAX:
            raise AccessError(f"The source ips are no list of at most {SOURCE_IPS_MAX}.")
        for text in source_ips:
            _network(text)
        decision = by_name(Decision, data.get("decision"))
        if decision is None:
            raise AccessError("The decision is null or illegal.")
        return cls(Resource.parse(data.get("resource")), actions, decision, tuple(source_ips))


def _actions(names: Any) -> tuple[Action, ...]:
    if not isinstance(names, list) or len(names) > 2 * len(Action):
        raise AccessError("The actions is empty.")
    if any(isinstance(name, str) and name.lower() == "any" for name in names):
        raise AccessError("The actions can not be Any.")
    actions = tuple(dict.fromkeys(filter(None, (by_name(Action, name) for name in names))))
    if not actions:
        raise AccessError("The actions is empty.")
    return actions


Policies = Mapping[PolicyType, Sequence[PolicyEntry]]


@dataclass(frozen=True, slots=True)
class AccessList:
    """What one user may do (RocketMQ's Acl)."""

    username: str
    policies: Policies

    @property
    def subject(self) -> str:
        return USER_PREFIX + self.username

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's AclInfo, also the form in the log."""
        return {
            "subject": self.subject,
            "policies": [
                {"policyType": kind.value, "entries": [entry.to_json() for entry in entries]}
                for kind, entries in self.policies.items()
            ],
        }

    @classmethod
    def from_json(cls, data: Any, subject: str | None = None) -> "AccessList":
        """`subject`: the one that is meant where the body names none. Raises AccessError."""
        named = data.get("subject") if isinstance(data, dict) else None
        username = user_of(named if isinstance(named, str) and named else subject)
        listed = data.get("policies") if isinstance(data, dict) else None
        if not isinstance(listed, list) or not listed:
            raise AccessError("The policies is empty.")
        sizes = [len(entries) for each in listed if isinstance(entries := _entries(each), list)]
        if max(len(listed), sum(sizes)) > ENTRIES_MAX:
            raise AccessError(f"A user has at most {ENTRIES_MAX} policy entries.")
        policies: dict[PolicyType, list[PolicyEntry]] = {}
        for policy in listed:
            entries = _entries(policy)
            if not isinstance(entries, list) or not entries:
                raise AccessError("The policy entries is empty.")
            kind = by_name(PolicyType, policy.get("policyType")) or PolicyType.CUSTOM
            policies.setdefault(kind, []).extend(map(PolicyEntry.from_json, entries))
        return _bounded(cls(username, {kind: _merged((), new) for kind, new in policies.items()}))

    def updated(self, other: "AccessList") -> "AccessList":
        """With the other's entries: one about the same resource replaces the one that is here."""
        policies = {kind: list(entries) for kind, entries in self.policies.items()}
        for kind, entries in other.policies.items():
            policies[kind] = _merged(policies.get(kind, ()), entries)
        return _bounded(replace(self, policies=policies))

    def without(self, kind: PolicyType, resource: Resource) -> "AccessList":
        """Without the entry about the resource; a policy without entries goes too."""
        policies = {
            each: [entry for entry in entries if each is not kind or entry.resource != resource]
            for each, entries in self.policies.items()
        }
        return replace(self, policies={each: entries for each, entries in policies.items() if entries})


def _entries(policy: object) -> object:
    return policy.get("entries") if isinstance(policy, dict) else None


def _merged(known: Iterable[PolicyEntry], new: Iterable[PolicyEntry]) -> list[PolicyEntry]:
    by_resource = {entry.resource: entry for entry in known}
    by_resource.update((entry.resource, entry) for entry in new)
    return list(by_resource.values())


def _bounded(acl: AccessList) -> AccessList:
    if sum(map(len, acl.policies.values())) > ENTRIES_MAX:
        raise AccessError(f"A user has at most {ENTRIES_MAX} policy entries.")
    return acl


def user_of(subject: object) -> str:
    """The name in `User:name`. Raises AccessError."""
    kind, _, name = subject.partition(":") if isinstance(subject, str) else ("", "", "")
    if kind.lower() != "user":
        raise AccessError("The subject type is null.")
    return checked_name(name)
