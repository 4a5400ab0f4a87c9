"""Where users are kept, and what is there. A LedgerMQ group has one table of users, which its leader is asked
for. Each RocketMQ broker, slaves included, has its own, so that every address is asked, as mqadmin does.
"""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

from admin_api.errors import missing
from admin_api.gateway import AskError, Gateway, Trouble, outcome
from admin_api.sources.broker_admin import ConfigSource
from admin_api.sources.brokers import BrokerDirectory, BrokerSet
from admin_api.sources.users import Entry, UserBody, UserSource
from remoting.codes import ResponseCode

AUTHENTICATION_KEY: Final = "authenticationEnabled"
AUTHORIZATION_KEY: Final = "authorizationEnabled"
_TRUE: Final = "true"
T = TypeVar("T")


class AccessMode(StrEnum):
    """What a broker checks. ACCOUNTS: RocketMQ 4's plain_acl.yml. AUTHENTICATION: signatures of users.
    AUTHORIZATION: their policies too."""

    OFF = "off"
    ACCOUNTS = "accounts"
    AUTHENTICATION = "authentication"
    AUTHORIZATION = "authorization"


@dataclass(frozen=True, slots=True)
class Place:
    """Something with users of its own."""

    name: str
    broker_name: str
    address: str
    is_ledgermq: bool


@dataclass(frozen=True, slots=True)
class Access:
    """Access control at one place, by its settings."""

    place: Place
    settings: Mapping[str, str]

    @property
    def mode(self) -> AccessMode:
        if self.is_on(AUTHORIZATION_KEY):
            return AccessMode.AUTHORIZATION
        if self.is_on(AUTHENTICATION_KEY):
            return AccessMode.AUTHENTICATION
        return AccessMode.ACCOUNTS if self.is_on("aclEnable") else AccessMode.OFF

    def is_on(self, key: str) -> bool:
        """RocketMQ shows the keys of access control only where its file has them; without they are off."""
        return self.settings.get(key) == _TRUE

    @property
    def keeps_users(self) -> bool:
        """Whether users can be stored: LedgerMQ encrypts their passwords, RocketMQ names what stores them."""
        key = "authKeyPath" if self.place.is_ledgermq else "authenticationMetadataProvider"
        return bool(self.settings.get(key))

    @property
    def can_switch(self) -> bool:
        """Whether it can be switched on and off while it runs."""
        return self.place.is_ledgermq and self.keeps_users

    @property
    def remedy(self) -> str | None:
        """What is to be done before it keeps users, or is switched on; None: nothing."""
        if self.can_switch:
            return None
        if self.place.is_ledgermq:
            return (
                "Its nodes have no key to encrypt passwords with: set authKeyPath in the configuration file "
                "of each node and restart them one by one."
            )
        if not self.keeps_users:
            return (
                "RocketMQ keeps users from 5.3 on, once authenticationMetadataProvider is set in its "
                "configuration file."
            )
        return (
            f"RocketMQ reads {AUTHENTICATION_KEY} and {AUTHORIZATION_KEY} when it starts: set them in its "
            "configuration file and restart it."
        )


class NoUsersError(AskError):
    """The place keeps no users, however often it is asked."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A user at one place, as it is now."""

    user: UserBody
    entries: Sequence[Entry]


@dataclass(frozen=True, slots=True)
class Found:
    """What each place that answered has; `unable` are sentences about those that keep no users."""

    seen: Mapping[Place, Seen | None]
    unable: tuple[str, ...]
    troubles: tuple[Trouble, ...]

    @property
    def having(self) -> dict[Place, Seen]:
        """The places where the user is."""
        return {place: seen for place, seen in self.seen.items() if seen is not None}

    @property
    def lacking(self) -> list[Place]:
        return [place for place, seen in self.seen.items() if seen is None]


class Places:
    """Finds and asks them."""

    def __init__(self, gateway: Gateway, directory: BrokerDirectory) -> None:
        self._gateway = gateway
        self._directory = directory
        self._config = ConfigSource(gateway)
        self.source = UserSource(gateway)

    async def find(
        self, brokers: Sequence[str] | None = None, *, to_change: bool = False
    ) -> tuple[list[Place], tuple[Trouble, ...]]:
        """Those of all brokers, or of the ones named; and which brokers are missing. `to_change`: so is a
        group without a leader.

        Raises: NotFoundError, UnavailableError for a name that is not known; AskError when the name server is
        silent and was always.
        """
        found = await self._directory.current()
        asked = found.masters if to_change else found.readers
        places = sorted(_places(found, asked), key=lambda place: place.name)
        if brokers is None:
            return places, found.troubles
        unknown = sorted(set(brokers) - {place.broker_name for place in places})
        if unknown:
            raise missing(f"A broker {unknown[0]} that accepts writes", found.troubles)
        return [place for place in places if place.broker_name in brokers], ()

    async def look_for(
        self, name: str, brokers: Sequence[str] | None = None, *, to_change: bool = False
    ) -> Found:
        """The user at each place. Raises: as `find`."""
        places, troubles = await self.find(brokers, to_change=to_change)
        answers = await asyncio.gather(*(outcome(self.seen(place, name)) for place in places))
        errors = [error for _, error in answers if error is not None]
        return Found(
            {place: seen for place, (seen, error) in zip(places, answers, strict=True) if error is None},
            tuple(str(error) for error in errors if isinstance(error, NoUsersError)),
            troubles + tuple(Trouble(e.address, str(e)) for e in errors if not isinstance(e, NoUsersError)),
        )

    async def access(self, place: Place) -> Access:
        """Raises: AskError."""
        settings = await self._config.read(place.address)
        return Access(place, settings.values)

    async def seen(self, place: Place, name: str) -> Seen | None:
        """Raises: AskError."""
        user = await self._explained(place, self.source.user(place.address, name))
        return None if user is None else Seen(user, await self.source.policies_of(place.address, name))

    async def users(self, place: Place) -> dict[str, UserBody]:
        """By name. Raises: AskError."""
        users = await self._explained(place, self.source.users(place.address))
        return {user.username: user for user in users}

    async def policies(self, place: Place) -> dict[str, list[Entry]]:
        """By user. Raises: AskError."""
        return await self._explained(place, self.source.policies(place.address))

    async def _explained(self, place: Place, asking: Awaitable[T]) -> T:
        """A RocketMQ broker that keeps no users does not know the request, or calls it a system error."""
        try:
            return await asking
        except AskError as error:
            is_fault = error.code == ResponseCode.SYSTEM_ERROR and not place.is_ledgermq
            if not is_fault and error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            access = await self.access(place)
            if access.keeps_users:
                raise
            raise NoUsersError(place.address, f"{place.name} keeps no users. {access.remedy}") from error


def _places(found: BrokerSet, asked: Mapping[str, str]) -> Iterator[Place]:
    groups = {status.broker_name for status in found.statuses.values()}
    for name, address in asked.items():
        if name in groups:
            yield Place(name, name, address, is_ledgermq=True)
            continue
        for entry in found.listed:
            if entry.broker_name == name:
                yield Place(f"{name} at {entry.address}", name, entry.address, is_ledgermq=False)
