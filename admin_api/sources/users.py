"""Requests to one broker about users and their policies (3001 to 3010), which RocketMQ has from 5.3 on.

A password goes one way, into the body of a request. Stock brokers answer with passwords: what reads their
answers has no field for one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import Field, ValidationInfo, field_validator

from admin_api.gateway import Gateway
from admin_api.sources.bodies import Body, check, read_json, read_list
from broker.state.access import USER_PREFIX, PolicyType, UserStatus, UserType, by_name
from remoting.codes import RequestCode
from remoting.headers.auth import (
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    SubjectRequestHeader,
    UserRequestHeader,
)

CHANGE_TIMEOUT_MS: Final = 5_000
"""A change waits for a majority."""
LIST_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a list of users or policies: each row is checked on the event loop."""
_WHAT_USERS: Final = "list of users"
_WHAT_POLICIES: Final = "list of policies"


class UserBody(Body):
    """RocketMQ's UserInfo, but for its password. A type or a status that is not known here is None."""

    username: str
    user_type: UserType | None = None
    user_status: UserStatus | None = None

    @field_validator("user_type", "user_status", mode="before")
    @classmethod
    def _known(cls, value: object, info: ValidationInfo) -> object:
        return by_name(UserType if info.field_name == "user_type" else UserStatus, value)

    @property
    def is_super(self) -> bool:
        """Whether it may do everything now."""
        return self.user_type is UserType.SUPER and self.user_status is UserStatus.ENABLE


class _EntryBody(Body):
    resource: str
    actions: list[str] = Field(max_length=100)
    source_ips: list[str] | None = Field(default=None, max_length=10_000)
    decision: str


class _PolicyBody(Body):
    policy_type: str | None = None
    entries: list[_EntryBody]


class _AclBody(Body):
    subject: str
    policies: list[_PolicyBody]


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy entry, in RocketMQ's words. `source_ips`: addresses and networks; none: from anywhere."""

    policy_type: str
    resource: str
    actions: tuple[str, ...]
    source_ips: tuple[str, ...]
    decision: str

    @property
    def key(self) -> tuple[str, str]:
        """A broker keeps one entry for it."""
        return self.policy_type, self.resource

    @property
    def text(self) -> str:
        """`Allow Pub, Sub from 10.0.0.0/8`"""
        places = ", ".join(self.source_ips) or "anywhere"
        return f"{self.decision} {', '.join(self.actions)} from {places}"

    def to_json(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "actions": list(self.actions),
            "sourceIps": list(self.source_ips),
            "decision": self.decision,
        }


class UserSource:
    """Asks one address. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def users(self, address: str) -> list[UserBody]:
        """3005"""
        ext = ListUsersRequestHeader().ext_fields()
        code = RequestCode.AUTH_LIST_USER
        answer = await self._gateway.ask(address, code, ext)
        return read_list(address, answer.body, UserBody, _WHAT_USERS, LIST_BYTES_MAX)

    async def user(self, address: str, name: str) -> UserBody | None:
        """3004"""
        ext = UserRequestHeader(username=name).ext_fields()
        answer = await self._gateway.ask(address, RequestCode.AUTH_GET_USER, ext)
        if not answer.body:
            return None
        return check(address, read_json(address, answer.body, "user"), UserBody, "user")

    async def policies(self, address: str) -> dict[str, list[Entry]]:
        """3010: by user."""
        ext = ListAclsRequestHeader().ext_fields()
        code = RequestCode.AUTH_LIST_ACL
        answer = await self._gateway.ask(address, code, ext)
        rows = read_list(address, answer.body, _AclBody, _WHAT_POLICIES, LIST_BYTES_MAX)
        return {row.subject.removeprefix(USER_PREFIX): list(_entries(row)) for row in rows}

    async def policies_of(self, address: str, name: str) -> list[Entry]:
        """3009: of a user that there is."""
        ext = SubjectRequestHeader(subject=USER_PREFIX + name).ext_fields()
        answer = await self._gateway.ask(address, RequestCode.AUTH_GET_ACL, ext)
        if not answer.body:
            return []
        value = read_json(address, answer.body, _WHAT_POLICIES)
        return list(_entries(check(address, value, _AclBody, _WHAT_POLICIES)))

    async def put_user(
        self,
        address: str,
        name: str,
        *,
        is_new: bool,
        password: str | None,
        kind: UserType | None,
        status: UserStatus | None,
    ) -> None:
        """3001 or 3002: what is None stays as it is, and of a new user is the usual."""
        fields = {
            "username": name,
            "password": password,
            "userType": None if kind is None else kind.value,
            "userStatus": None if status is None else status.value,
        }
        code = RequestCode.AUTH_CREATE_USER if is_new else RequestCode.AUTH_UPDATE_USER
        ext = UserRequestHeader(username=name).ext_fields()
        body = orjson.dumps({key: value for key, value in fields.items() if value is not None})
        await self._gateway.ask(address, code, ext, body, timeout_ms=CHANGE_TIMEOUT_MS)

    async def delete_user(self, address: str, name: str) -> None:
        """3003: with its policies."""
        ext = UserRequestHeader(username=name).ext_fields()
        code = RequestCode.AUTH_DELETE_USER
        await self._gateway.ask(address, code, ext, timeout_ms=CHANGE_TIMEOUT_MS)

    async def put_policies(self, address: str, name: str, entries: Sequence[Entry], *, is_new: bool) -> None:
        """3006 or 3007, which brokers treat alike: an entry replaces the one about the same resource."""
        subject = USER_PREFIX + name
        kinds = dict.fromkeys(entry.policy_type for entry in entries)
        policies = [
            {"policyType": kind, "entries": [each.to_json() for each in entries if each.policy_type == kind]}
            for kind in kinds
        ]
        code = RequestCode.AUTH_CREATE_ACL if is_new else RequestCode.AUTH_UPDATE_ACL
        ext = SubjectRequestHeader(subject=subject).ext_fields()
        body = orjson.dumps({"subject": subject, "policies": policies})
        await self._gateway.ask(address, code, ext, body, timeout_ms=CHANGE_TIMEOUT_MS)

    async def delete_policies(self, address: str, name: str, entry: Entry | None) -> None:
        """3008: this entry, or all of the user."""
        header = DeleteAclRequestHeader(
            subject=USER_PREFIX + name,
            policy_type="" if entry is None else entry.policy_type,
            resource="" if entry is None else entry.resource,
        )
        code = RequestCode.AUTH_DELETE_ACL
        await self._gateway.ask(address, code, header.ext_fields(), timeout_ms=CHANGE_TIMEOUT_MS)


def _entries(acl: _AclBody) -> Iterable[Entry]:
    for policy in acl.policies:
        kind = policy.policy_type or PolicyType.CUSTOM.value
        for entry in policy.entries:
            yield Entry(
                kind, entry.resource, tuple(entry.actions), tuple(entry.source_ips or ()), entry.decision
            )
