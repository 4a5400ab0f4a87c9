"""Switches access control on and off while brokers run, previewed with what it will do to clients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from admin_api.access.places import AUTHENTICATION_KEY, AUTHORIZATION_KEY, Access, AccessMode, Place, Places
from admin_api.brokers.changes import change_settings
from admin_api.brokers.service import BrokerService
from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.errors import missing
from admin_api.gateway import Gateway
from admin_api.schema import RequestSchema
from admin_api.sources.broker_admin import ConfigSource
from admin_api.sources.users import UserBody
from broker.state.access import NO_SUPER_USER

_CHECKING: Final = (AccessMode.AUTHENTICATION, AccessMode.AUTHORIZATION)


class AccessSwitch(RequestSchema):
    """What brokers are to check. What is left out stays as it is."""

    authentication_enabled: bool | None = Field(default=None, description="the signatures of users")
    authorization_enabled: bool | None = Field(
        default=None, description="their policies, and so their signatures, too"
    )
    brokers: list[str] | None = Field(
        default=None, min_length=1, max_length=256, description="broker names; left out: all"
    )

    @property
    def values(self) -> dict[str, str]:
        """By RocketMQ's keys."""
        wanted = {
            AUTHENTICATION_KEY: self.authentication_enabled,
            AUTHORIZATION_KEY: self.authorization_enabled,
        }
        return {key: str(value).lower() for key, value in wanted.items() if value is not None}


class Switches:
    """Makes the changes; each is one of `admin_api.changes.Changes`."""

    def __init__(self, gateway: Gateway, places: Places, brokers: BrokerService, account: str | None) -> None:
        """`account`: the user that this service signs as."""
        self.places = places
        self.config = ConfigSource(gateway)
        self.brokers = brokers
        self.account = account

    def switch(self, wanted: AccessSwitch) -> "SwitchChange":
        return SwitchChange(self, wanted)


@dataclass(slots=True)
class SwitchChange:
    """Both keys of one group, or of several one after the other."""

    switches: Switches
    wanted: AccessSwitch
    action: Action = Action.ACCESS_SWITCH
    target: str = "access control"
    _values: dict[Place, Mapping[str, str]] = field(default_factory=dict, init=False)
    """Of the preview: what is to change where."""

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, ChangeRefusedError, AskError."""
        places, troubles = await self.switches.places.find(self.wanted.brokers, to_change=True)
        if not places:
            raise missing("A broker that accepts writes", troubles)
        accesses = [await self.switches.places.access(place) for place in places]
        fixed = [access for access in accesses if not access.place.is_ledgermq]
        if fixed and (len(fixed) == len(accesses) or self.wanted.brokers is not None):
            raise ChangeRefusedError(f"{fixed[0].place.name}: {fixed[0].remedy}")
        warnings = [f"{access.place.name} stays as it is. {access.remedy}" for access in fixed]
        effects: list[Effect] = []
        self._values = {}
        for access in accesses:
            values = self._changes(access) if access.place.is_ledgermq else {}
            if values:
                self._values[access.place] = values
                effects += _effects(access, values)
                warnings += await self._warnings(access, values)
        if not effects:
            warnings.append("Nothing would change.")
        return Preview(
            self.action, self.target, tuple(effects), tuple(warnings), bool(effects), left_out=troubles
        )

    def _changes(self, access: Access) -> dict[str, str]:
        return {
            key: value for key, value in self.wanted.values.items() if str(access.is_on(key)).lower() != value
        }

    async def _warnings(self, access: Access, values: Mapping[str, str]) -> list[str]:
        """What clients and this service will notice. Raises: ChangeRefusedError, AskError."""
        name = access.place.name
        after = Access(access.place, {**access.settings, **values})
        warnings = [f"This holds for every node of {name}, also after a restart."]
        if after.mode not in _CHECKING:
            if after.mode is AccessMode.ACCOUNTS:
                return [*warnings, f"{name} then checks the accounts of plain_acl.yml again."]
            return [*warnings, f"Every client that reaches {name} may then do everything."]
        if not access.can_switch:
            raise ChangeRefusedError(f"{name} cannot check users. {access.remedy}")
        users = await self.switches.places.users(access.place)
        if not any(user.is_super for user in users.values()):
            raise ChangeRefusedError(f"{name}: {NO_SUPER_USER}.")
        warnings += _client_warnings(name, access.mode, after.mode, users)
        return [*warnings, *self._own_warnings(name, users)]

    def _own_warnings(self, name: str, users: Mapping[str, UserBody]) -> Iterator[str]:
        """Whether this service is one of the clients that are refused."""
        account = self.switches.account
        if account is None:
            yield (
                f"Requests from here are not signed: {name} will refuse them, and it cannot be switched off "
                "again from here. Sign as a super user first (LEDGERMQ_ACCESS_KEY, LEDGERMQ_SECRET_KEY)."
            )
        elif account not in users:
            yield f"Requests from here are signed as {account}, no user of {name}: it will refuse them."
        elif not users[account].is_super:
            yield (
                f"Requests from here are signed as {account}, no enabled super user of {name}: it may refuse "
                "them, and it may not be possible to switch it off again from here."
            )

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        outcomes: list[Outcome] = []
        for place, values in self._values.items():
            made = await change_settings(self.switches.config, place.address, values)
            outcomes += [
                Outcome(f"{place.name}: {each.subject}", each.ok, each.problem, each.code, each.is_refused)
                for each in made
            ]
        self.switches.brokers.invalidate()
        return outcomes


def _effects(access: Access, values: Mapping[str, str]) -> Iterator[Effect]:
    for key, value in values.items():
        yield Effect(f"{access.place.name}: {key}", str(access.is_on(key)).lower(), value)


def _client_warnings(
    name: str, before: AccessMode, after: AccessMode, users: Mapping[str, UserBody]
) -> Iterator[str]:
    if before not in _CHECKING:
        yield f"Clients that do not sign as one of the {len(users)} users of {name} are refused."
    if before is AccessMode.ACCOUNTS:
        yield f"{name} then no longer uses the accounts of plain_acl.yml."
    if after is AccessMode.AUTHORIZATION and before is not after:
        count = sum(user.is_super for user in users.values())
        yield f"Users may then do only what their policies allow, but for the {count} super users."
    if before is AccessMode.AUTHORIZATION and before is not after:
        yield "Every user may then do everything: policies are no longer asked."
