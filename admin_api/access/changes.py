"""Creates, changes and deletes users and their policies, each previewed first.

A password stands in the request to the brokers and nowhere else: effects say that it changes, and what is
confirmed has a hash of it.
"""

import hashlib
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Final

import orjson
from pydantic import Field, SecretStr, field_validator

from admin_api.access.places import AccessMode, Found, Place, Places, Seen
from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.errors import InvalidError, missing
from admin_api.gateway import AskError
from admin_api.schema import RequestSchema
from admin_api.sources.users import Entry, UserBody
from broker.state import access as rules
from broker.state.access import (
    ENTRIES_MAX,
    NAME_CHARS_MAX,
    PASSWORD_CHARS_MAX,
    SOURCE_IPS_MAX,
    AccessError,
    Decision,
    PolicyType,
    Resource,
    UserStatus,
    UserType,
    checked_name,
)
from remoting.codes import ResponseCode

_SUPER: Final = "by super user"
"""In what brokers answer, as a system error, when only a super user may do it."""
RESOURCES_MAX: Final = 100
"""Of one change: each becomes an entry."""
_RESOURCE_CHARS_MAX: Final = NAME_CHARS_MAX + 16
_ADDRESS_CHARS_MAX: Final = 64
Brokers = Annotated[
    list[str] | None, Field(min_length=1, max_length=256, description="broker names; left out: all")
]
Password = Annotated[SecretStr, Field(json_schema_extra={"minLength": 1, "maxLength": PASSWORD_CHARS_MAX})]


class UserSpec(RequestSchema):
    """What is to change about a user. What is left out stays as it is."""

    password: Password | None = None
    user_type: UserType | None = None
    user_status: UserStatus | None = None
    brokers: Brokers = None

    @field_validator("password")
    @classmethod
    def _usable(cls, value: SecretStr | None) -> SecretStr | None:
        text = "" if value is None else value.get_secret_value()
        if value is not None and (not text.strip() or len(text) > PASSWORD_CHARS_MAX):
            raise ValueError(f"it is blank, or has more than {PASSWORD_CHARS_MAX} characters")
        return value


class NewUser(UserSpec):
    """A user that is not there yet: `Normal` and enabled unless something else is given."""

    username: str = Field(min_length=1, max_length=NAME_CHARS_MAX)
    password: Password


class PolicySpec(RequestSchema):
    """What a user may do, or may not, with some resources: an entry for each of them."""

    resources: list[Annotated[str, Field(min_length=1, max_length=_RESOURCE_CHARS_MAX)]] = Field(
        min_length=1,
        max_length=RESOURCES_MAX,
        description="`*`, or `Topic`, `Group`, `Cluster` or `Namespace`, a colon and a name, `order*` or `*`",
    )
    actions: list[rules.Action] = Field(min_length=1, max_length=16)
    source_ips: list[Annotated[str, Field(min_length=1, max_length=_ADDRESS_CHARS_MAX)]] = Field(
        default=[],
        max_length=SOURCE_IPS_MAX,
        description="addresses and networks, such as `10.0.0.0/8`; none: from anywhere",
    )
    decision: Decision = Decision.ALLOW
    policy_type: PolicyType = PolicyType.CUSTOM
    brokers: Brokers = None

    def entries(self) -> list[Entry]:
        """As brokers keep them. Raises: InvalidError."""
        actions = tuple(dict.fromkeys(action.value for action in self.actions))
        addresses = tuple(dict.fromkeys(map(_checked_address, self.source_ips)))
        keys = dict.fromkeys(map(resource_key, self.resources))
        return [Entry(self.policy_type.value, key, actions, addresses, self.decision.value) for key in keys]


def resource_key(text: str) -> str:
    """`topic:orders` -> `Topic:orders`. Raises: InvalidError."""
    name = text.partition(":")[2]
    try:
        resource = Resource.parse(text)
    except AccessError:
        resource = None
    is_odd = text != "*" and (not name.strip() or not name.isprintable() or "*" in name[:-1])
    if resource is None or is_odd:
        raise InvalidError(
            f"{text!r} is no resource: write *, or Topic, Group, Cluster or Namespace, a colon and a name "
            f"of at most {NAME_CHARS_MAX} characters, the beginning of one and *, or * alone."
        )
    return resource.key


def _spellings(text: str) -> set[str]:
    """As it was given, and as LedgerMQ would keep it: a RocketMQ broker may have one of its own."""
    try:
        return {text, resource_key(text)}
    except InvalidError:
        return {text}


def _checked_address(text: str) -> str:
    try:
        ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise InvalidError(
            f"{text!r} is no address and no network, such as 10.0.0.7 or 10.0.0.0/8."
        ) from None
    return text.strip()


@dataclass(slots=True)
class AccessChange:
    """One change of users or policies. `plan` looks at the places, and says what would happen at each."""

    action: Action
    target: str
    plan: Callable[[], Awaitable["Plan"]]
    _planned: "Plan | None" = field(default=None, init=False)
    """Of the preview: execution uses the same, even if other brokers answer by then."""

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, InvalidError, ChangeRefusedError, AskError."""
        plan = self._planned = await self.plan()
        warnings = list(plan.warnings)
        if not plan.effects:
            warnings.append("Nothing would change.")
        return Preview(
            self.action,
            self.target,
            tuple(plan.effects),
            tuple(warnings),
            plan.is_destructive and bool(plan.effects),
            plan.basis,
            plan.found.troubles,
        )

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        plan = self._planned
        assert plan is not None, "carried out without a preview"
        return [await _outcome(place, doing()) for place, doing in plan.doing.items()]


@dataclass(slots=True)
class Plan:
    """What a change found and would do, by place."""

    found: Found
    effects: list[Effect] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    doing: dict[Place, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    is_destructive: bool = False
    basis: str | None = None

    def __post_init__(self) -> None:
        """Raises: ChangeRefusedError, UnavailableError where no place could be looked at."""
        if not self.found.seen and self.found.unable:
            raise ChangeRefusedError(" ".join(self.found.unable))
        if not self.found.seen:
            raise missing("A broker that keeps users", self.found.troubles)
        self.warnings += self.found.unable


async def _outcome(place: Place, doing: Awaitable[None]) -> Outcome:
    try:
        await doing
    except AskError as error:
        failed = Outcome.failed(place.name, error)
        is_refused = failed.is_refused or (error.code == ResponseCode.SYSTEM_ERROR and _SUPER in str(error))
        return replace(failed, is_refused=is_refused)
    return Outcome(place.name, ok=True)


class AccessChanger:
    """Makes the changes; each is one of `admin_api.changes.Changes`."""

    def __init__(self, places: Places, account: str | None) -> None:
        """`account`: the user that this service signs as."""
        self._places = places
        self._source = places.source
        self._account = account

    def create_user(self, spec: NewUser) -> AccessChange:
        """Raises: InvalidError."""
        name = _name(spec.username)

        async def plan() -> Plan:
            found = await self._places.look_for(name, spec.brokers, to_change=True)
            plan = Plan(found)
            if not found.lacking:
                there = ", ".join(place.name for place in found.having)
                raise ChangeRefusedError(f"The user {name} exists already, on {there}; change it.")
            await self._require_keys(found.lacking)
            shown = _user_text(spec.user_type or UserType.NORMAL, spec.user_status or UserStatus.ENABLE)
            for place in found.lacking:
                plan.effects.append(Effect(place.name, None, shown))
                plan.doing[place] = partial(self._put_user, place, name, spec, is_new=True)
            plan.warnings += [f"{place.name} has it already and keeps it." for place in found.having]
            if spec.user_type is UserType.SUPER:
                plan.warnings.append("A super user may do everything, also change users and policies.")
            return plan

        return AccessChange(Action.USER_CREATE, _target(name), plan)

    def update_user(self, username: str, spec: UserSpec) -> AccessChange:
        """Raises: InvalidError."""
        name = _name(username)

        async def plan() -> Plan:
            found = await self._places.look_for(name, spec.brokers, to_change=True)
            plan = Plan(found)
            having = _require_user(found, name)
            if spec.password is not None:
                await self._require_keys(having)
            for place, seen in having.items():
                effects = list(_user_effects(place, seen.user, spec))
                if effects:
                    plan.effects += effects
                    plan.doing[place] = partial(self._put_user, place, name, spec, is_new=False)
                    await self._warn_of_loss(plan, place, seen.user, spec)
            plan.warnings += _absent(found, name)
            plan.basis = _basis(plan.effects, spec.password)
            return plan

        return AccessChange(Action.USER_UPDATE, _target(name), plan)

    def delete_user(self, username: str, brokers: Sequence[str] | None = None) -> AccessChange:
        """Raises: InvalidError."""
        name = _name(username)

        async def plan() -> Plan:
            found = await self._places.look_for(name, brokers, to_change=True)
            plan = Plan(found, is_destructive=True)
            for place, seen in _require_user(found, name).items():
                text = _user_text(seen.user.user_type, seen.user.user_status)
                plan.effects.append(Effect(place.name, f"{text}, {_counted(len(seen.entries))}", None))
                plan.doing[place] = partial(self._source.delete_user, place.address, name)
                await self._warn_of_last(plan, place, seen.user)
            plan.warnings += self._warn_of_own(name)
            return plan

        return AccessChange(Action.USER_DELETE, _target(name), plan)

    def put_policies(self, username: str, spec: PolicySpec, *, is_new: bool) -> AccessChange:
        """Raises: InvalidError."""
        name, wanted = _name(username), spec.entries()
        action = Action.POLICY_CREATE if is_new else Action.POLICY_UPDATE

        async def plan() -> Plan:
            found = await self._places.look_for(name, spec.brokers, to_change=True)
            plan = Plan(found, is_destructive=spec.decision is Decision.DENY)
            having = _require_user(found, name)
            _require_entries(having, wanted, name, is_new=is_new)
            for place, seen in having.items():
                self._plan_entries(plan, place, seen, name, wanted)
            plan.warnings += _absent(found, name)
            return plan

        return AccessChange(action, _target(name), plan)

    def _plan_entries(self, plan: Plan, place: Place, seen: Seen, name: str, wanted: Sequence[Entry]) -> None:
        known = {entry.key: entry for entry in seen.entries}
        changed = [entry for entry in wanted if known.get(entry.key) != entry]
        if not changed:
            return
        if len({*known, *(entry.key for entry in wanted)}) > ENTRIES_MAX and place.is_ledgermq:
            raise ChangeRefusedError(f"{place.name}: a user has at most {ENTRIES_MAX} policy entries.")
        for entry in changed:
            before = known.get(entry.key)
            plan.effects.append(_entry_effect(place, entry, before, entry))
            plan.is_destructive |= before is not None
        is_new = not any(entry.key in known for entry in changed)
        plan.doing[place] = partial(self._source.put_policies, place.address, name, changed, is_new=is_new)

    def delete_policies(
        self,
        username: str,
        resource: str | None,
        policy_type: PolicyType,
        brokers: Sequence[str] | None = None,
    ) -> AccessChange:
        """About this resource, or all of the user. Raises: InvalidError."""
        name = _name(username)
        keys = None if resource is None else {(policy_type.value, key) for key in _spellings(resource)}

        async def plan() -> Plan:
            found = await self._places.look_for(name, brokers, to_change=True)
            plan = Plan(found, is_destructive=True)
            for place, seen in _require_user(found, name).items():
                gone = [entry for entry in seen.entries if keys is None or entry.key in keys]
                plan.effects += [_entry_effect(place, entry, entry, None) for entry in gone]
                if gone:
                    only = None if keys is None else gone[0]
                    plan.doing[place] = partial(self._source.delete_policies, place.address, name, only)
            if not plan.effects:
                about = "" if resource is None else f" about {resource}"
                raise missing(f"A policy of {name}{about}", found.troubles)
            return plan

        return AccessChange(Action.POLICY_DELETE, _target(name), plan)

    async def _put_user(self, place: Place, name: str, spec: UserSpec, *, is_new: bool) -> None:
        password = None if spec.password is None else spec.password.get_secret_value()
        await self._source.put_user(
            place.address,
            name,
            is_new=is_new,
            password=password,
            kind=spec.user_type,
            status=spec.user_status,
        )

    async def _require_keys(self, places: Iterable[Place]) -> None:
        """Raises: ChangeRefusedError where a place cannot keep passwords; AskError."""
        for place in places:
            if not place.is_ledgermq:
                continue
            access = await self._places.access(place)
            if not access.keeps_users:
                raise ChangeRefusedError(f"{place.name} can keep no passwords. {access.remedy}")

    async def _warn_of_loss(self, plan: Plan, place: Place, user: UserBody, spec: UserSpec) -> None:
        is_weaker = spec.user_type is UserType.NORMAL or spec.user_status is UserStatus.DISABLE
        loses = is_weaker and user.is_super
        is_disabled = spec.user_status is UserStatus.DISABLE
        plan.is_destructive |= loses or is_disabled or spec.password is not None
        if spec.password is not None:
            plan.warnings.append(f"{place.name} refuses clients that still sign with the old password.")
        if loses:
            await self._warn_of_last(plan, place, user)
        if plan.is_destructive:
            plan.warnings += [
                warning for warning in self._warn_of_own(user.username) if warning not in plan.warnings
            ]

    async def _warn_of_last(self, plan: Plan, place: Place, user: UserBody) -> None:
        """Without a super user no client can change users, or switch access control off."""
        if not user.is_super:
            return
        users = await self._places.users(place)
        if sum(each.is_super for each in users.values()) > 1:
            return
        access = await self._places.access(place)
        is_checked = access.mode in (AccessMode.AUTHENTICATION, AccessMode.AUTHORIZATION)
        effect = (
            "no user could administer it any more" if is_checked else "access control cannot be on without"
        )
        plan.warnings.append(f"{user.username} is the only enabled super user of {place.name}: {effect}.")

    def _warn_of_own(self, name: str) -> list[str]:
        if name != self._account:
            return []
        return [f"Requests from here are signed as {name}: brokers that check users may refuse them then."]


def _name(name: str) -> str:
    """Raises: InvalidError."""
    try:
        return checked_name(name)
    except AccessError:
        raise InvalidError(
            f"A user's name has 1 to {NAME_CHARS_MAX} printable characters and is not blank."
        ) from None


def _target(name: str) -> str:
    return f"user {name}"


def _user_text(kind: UserType | None, status: UserStatus | None) -> str:
    words = {UserStatus.ENABLE: "enabled", UserStatus.DISABLE: "disabled", None: "unknown status"}
    return f"{'Unknown type' if kind is None else kind.value}, {words[status]}"


def _counted(policies: int) -> str:
    return "1 policy" if policies == 1 else f"{policies or 'no'} policies"


def _user_effects(place: Place, user: UserBody, spec: UserSpec) -> Iterator[Effect]:
    if spec.user_type not in (None, user.user_type):
        before = None if user.user_type is None else user.user_type.value
        yield Effect(f"{place.name}: type", before, spec.user_type.value)
    if spec.user_status not in (None, user.user_status):
        before = None if user.user_status is None else user.user_status.value
        yield Effect(f"{place.name}: status", before, spec.user_status.value)
    if spec.password is not None:
        yield Effect(f"{place.name}: password", None, "changed")


def _require_user(found: Found, name: str) -> dict[Place, Seen]:
    """Raises: NotFoundError, UnavailableError."""
    if not found.having:
        raise missing(f"The user {name}", found.troubles)
    return found.having


def _absent(found: Found, name: str) -> list[str]:
    return [f"{place.name} has no user {name}." for place in found.lacking]


def _require_entries(
    having: Mapping[Place, Seen], wanted: Sequence[Entry], name: str, *, is_new: bool
) -> None:
    """A new entry replaces none, and a change makes none. Raises: ChangeRefusedError, NotFoundError."""
    known = {entry.key: entry for seen in having.values() for entry in seen.entries}
    for entry in wanted:
        if is_new and known.get(entry.key, entry) != entry:
            raise ChangeRefusedError(
                f"{name} has a policy about {entry.resource} already: {known[entry.key].text}; change it."
            )
        if not is_new and entry.key not in known:
            raise missing(f"A policy of {name} about {entry.resource}")


def _entry_effect(place: Place, entry: Entry, before: Entry | None, after: Entry | None) -> Effect:
    kind = "" if entry.policy_type == PolicyType.CUSTOM.value else f" ({entry.policy_type})"
    return Effect(
        f"{place.name}: {entry.resource}{kind}",
        None if before is None else before.text,
        None if after is None else after.text,
    )


def _basis(effects: Sequence[Effect], password: SecretStr | None) -> str:
    """With the password's hash: what was confirmed may not be done with another one."""
    rows = [[effect.subject, effect.before, effect.after] for effect in effects]
    secret = None if password is None else password.get_secret_value()
    return hashlib.sha256(orjson.dumps([rows, secret])).hexdigest()
