"""Reads access control: whether it is on, the users, and their policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from admin_api.access.places import AccessMode, Place, Places
from admin_api.errors import PageWanted, missing, partial_fields
from admin_api.gateway import AskError, Gateway
from admin_api.schema import Page, Partial, Schema
from admin_api.sources.users import Entry, UserBody
from broker.state.access import UserStatus, UserType


class AccessView(Schema):
    """Access control of one LedgerMQ group, or of one RocketMQ broker."""

    place: str = Field(description="the broker's name; of a RocketMQ broker with its address")
    broker_name: str
    address: str = Field(description="that is asked; of a LedgerMQ group its leader")
    is_ledgermq: bool
    mode: AccessMode
    can_switch: bool = Field(description="while it runs; false: see `remedy`")
    keeps_users: bool = Field(description="whether users with passwords can be stored")
    remedy: str | None = Field(description="what is to be done before it can be switched, or keeps users")
    user_count: int | None
    super_user_count: int | None = Field(description="enabled ones")


class AccessState(Partial):
    """Access control everywhere."""

    places: list[AccessView]
    is_signing: bool = Field(description="whether this service signs its requests with an account")


class UserRow(Schema):
    """One user. A field is null where brokers have different values, or one that is not known here."""

    username: str
    user_type: UserType | None
    user_status: UserStatus | None
    places: list[str] = Field(description="where it is")
    missing_places: list[str] = Field(description="that answered and do not have it")


class UserPage(Page[UserRow]):
    """By name."""


class PolicyView(Schema):
    """One policy entry. The type `Default` counts only where no `Custom` entry matches."""

    policy_type: str
    resource: str = Field(description="`Topic:orders`, `Group:order*`, `Cluster:*`, `*`")
    actions: list[str]
    source_ips: list[str] = Field(description="addresses and networks; none: from anywhere")
    decision: str
    places: list[str] = Field(description="where it is so")


class PolicyRow(PolicyView):
    """One policy entry of a user."""

    username: str


class PolicyPage(Page[PolicyRow]):
    """By user and resource."""


class PoliciesView(Partial):
    """All policy entries of a user."""

    username: str
    policies: list[PolicyView]


class UserView(UserRow, PoliciesView):
    """One user with its policies."""


@dataclass(frozen=True, slots=True)
class UserQuery:
    """Which users: `name` is a part of it, case aside; None means any."""

    name: str = ""
    type: UserType | None = None
    status: UserStatus | None = None


@dataclass(frozen=True, slots=True)
class PolicyQuery:
    """Which policy entries: parts of the user's name and of the resource, case aside."""

    username: str = ""
    resource: str = ""


class AccessReader:
    """Reads; what changes it is in `changes.py` and `switching.py`."""

    def __init__(self, gateway: Gateway, places: Places, *, is_signing: bool) -> None:
        self._gateway = gateway
        self._places = places
        self._is_signing = is_signing

    async def state(self) -> AccessState:
        """Raises: AskError when the name server is silent and was always."""
        places, troubles = await self._places.find()
        asked = await self._gateway.ask_each(places, self._view)
        return AccessState(
            places=list(asked.answers.values()),
            is_signing=self._is_signing,
            **partial_fields(troubles, asked.troubles),
        )

    async def users(self, query: UserQuery, page: PageWanted) -> UserPage:
        """Raises: AskError as `state`."""
        places, troubles = await self._places.find()
        asked = await self._gateway.ask_each(places, self._places.users)
        names = sorted({name for users in asked.answers.values() for name in users})
        rows = [
            row
            for name in names
            if query.name.lower() in name.lower()
            and (row := _row(name, {place: users.get(name) for place, users in asked.answers.items()}))
            and (query.type is None or row.user_type is query.type)
            and (query.status is None or row.user_status is query.status)
        ]
        return UserPage(
            items=list(page.of(rows)),
            page=page.number,
            page_size=page.size,
            total=len(rows),
            **partial_fields(troubles, asked.troubles),
        )

    async def user(self, name: str) -> UserView:
        """Raises: NotFoundError, UnavailableError, AskError."""
        found = await self._places.look_for(name)
        if not found.having:
            raise missing(f"The user {name}", found.troubles)
        row = _row(name, {place: None if seen is None else seen.user for place, seen in found.seen.items()})
        entries = {place: seen.entries for place, seen in found.having.items()}
        return UserView(
            **row.model_dump(),
            policies=[PolicyView(**_fields(*each)) for each in _merged(entries)],
            **partial_fields(found.troubles),
        )

    async def policies(self, query: PolicyQuery, page: PageWanted) -> PolicyPage:
        """Raises: AskError as `state`."""
        places, troubles = await self._places.find()
        asked = await self._gateway.ask_each(places, self._places.policies)
        username, resource = query.username.lower(), query.resource.lower()
        # Ten thousand users may have a hundred thousand entries: only those of the page become views.
        rows = [
            (name, entry, places)
            for name in sorted({name for known in asked.answers.values() for name in known})
            if username in name.lower()
            for entry, places in _merged({at: known.get(name, ()) for at, known in asked.answers.items()})
            if resource in entry.resource.lower()
        ]
        return PolicyPage(
            items=[
                PolicyRow(username=name, **_fields(entry, places)) for name, entry, places in page.of(rows)
            ],
            page=page.number,
            page_size=page.size,
            total=len(rows),
            **partial_fields(troubles, asked.troubles),
        )

    async def policies_of(self, name: str) -> PoliciesView:
        """Raises: NotFoundError, UnavailableError, AskError."""
        view = await self.user(name)
        return PoliciesView(
            username=name, policies=view.policies, is_partial=view.is_partial, problems=view.problems
        )

    async def _view(self, place: Place) -> AccessView:
        access = await self._places.access(place)
        try:
            users = await self._places.users(place)
        except AskError:
            users = None
        return AccessView(
            place=place.name,
            broker_name=place.broker_name,
            address=place.address,
            is_ledgermq=place.is_ledgermq,
            mode=access.mode,
            can_switch=access.can_switch,
            keeps_users=access.keeps_users,
            remedy=access.remedy,
            user_count=None if users is None else len(users),
            super_user_count=None if users is None else sum(user.is_super for user in users.values()),
        )


def _row(name: str, users: Mapping[Place, UserBody | None]) -> UserRow:
    known = [user for user in users.values() if user is not None]
    types = {user.user_type for user in known}
    statuses = {user.user_status for user in known}
    return UserRow(
        username=name,
        user_type=types.pop() if len(types) == 1 else None,
        user_status=statuses.pop() if len(statuses) == 1 else None,
        places=[place.name for place, user in users.items() if user is not None],
        missing_places=[place.name for place, user in users.items() if user is None],
    )


def _merged(entries: Mapping[Place, Sequence[Entry]]) -> list[tuple[Entry, list[str]]]:
    """By resource, each with the places where it is so: alike ones of several places are one."""
    places: dict[Entry, list[str]] = {}
    for place, known in entries.items():
        for entry in known:
            places.setdefault(entry, []).append(place.name)
    return sorted(places.items(), key=lambda each: (each[0].resource, each[0].policy_type))


def _fields(entry: Entry, places: list[str]) -> dict[str, Any]:
    """Of a PolicyView."""
    return {**entry.to_json(), "policyType": entry.policy_type, "places": places}
