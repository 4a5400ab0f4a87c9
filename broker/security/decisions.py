"""Whether a user's policies allow an access, decided as RocketMQ's `AclAuthorizationHandler` does. Pure.

Of the entries that match resource, action and address, the most specific decides: a resource of the type
before one of any type, a literal name before a prefix, a longer prefix before a shorter one, a prefix before
any name; of two alike, the one that denies. Entries of the default policy are asked only when no custom one
matches. Without a match the access is refused.
"""

import ipaddress
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.state.access import (
    AccessList,
    Action,
    Decision,
    Pattern,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
)

_RANKS: Final = {Pattern.LITERAL: 0, Pattern.PREFIXED: 1, Pattern.ANY: 2}


class Access(NamedTuple):
    """What a request does to one resource; the right to one of the actions is enough."""

    type: ResourceType
    name: str
    actions: tuple[Action, ...]


def refusal(rights: AccessList | None, access: Access, source_ip: str) -> str | None:
    """Why the access is refused; None: it is allowed."""
    entry = None if rights is None else _deciding_entry(rights, access, source_ip)
    if entry is None:
        return "no matched policies."
    return "the decision is deny." if entry.decision is Decision.DENY else None


def _deciding_entry(rights: AccessList, access: Access, source_ip: str) -> PolicyEntry | None:
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        entries = rights.policies.get(kind, ())
        matching = [entry for entry in entries if _matches(entry, access, source_ip)]
        if matching:
            return min(matching, key=_order)
    return None


def _order(entry: PolicyEntry) -> tuple[bool, int, int, bool]:
    resource = entry.resource
    is_any_type = resource.type is ResourceType.ANY
    is_allowed = entry.decision is Decision.ALLOW
    return is_any_type, _RANKS[resource.pattern], -len(resource.name), is_allowed


def _matches(entry: PolicyEntry, access: Access, source_ip: str) -> bool:
    return (
        is_about(entry.resource, access.type, access.name)
        and _is_of(entry.actions, access.actions)
        and _is_from(entry, source_ip)
    )


def is_about(resource: Resource, kind: ResourceType, name: str) -> bool:
    """Whether a policy's resource covers the one of this type and name."""
    if resource.type is ResourceType.ANY:
        return True
    if resource.type is not kind:
        return False
    if resource.pattern is Pattern.PREFIXED:
        return name.startswith(resource.name)
    return resource.pattern is Pattern.ANY or name == resource.name


def _is_of(allowed: Iterable[Action], needed: Iterable[Action]) -> bool:
    return Action.ALL in allowed or any(action in allowed for action in needed)


def _is_from(entry: PolicyEntry, source_ip: str) -> bool:
    if not entry.source_ips:
        return True
    try:
        address = ipaddress.ip_address(source_ip)
    except ValueError:
        return False
    return any(address in network for network in entry.networks)
