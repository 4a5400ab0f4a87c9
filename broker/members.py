"""The members of this node's group: the broker's one owner of who they are and where they are reached.

They are those of the newest configuration in the node's log. `dLegerPeers` only says who they were before the
log had one, and whom a joining node asks.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from broker.config import BrokerConfig
from dledger.core.membership import (
    FIXED_MEMBERS_LEVEL,
    Configuration,
    ConfigurationEntry,
    Member,
    MemberRole,
    first_configuration,
)
from dledger.core.types import NO_INDEX
from dledger.server import DLedgerServer

LOOK_S: Final = 1.0
"""Interval at which the log's configuration is compared with the one that listeners know."""


class GroupMembers:
    """Of a broker with a plain log, this node alone."""

    def __init__(self, config: BrokerConfig, engine: DLedgerServer | None) -> None:
        self._config = config
        self._engine = engine

        self._listeners: list[Callable[[], None]] = []
        self._known: Configuration | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def entry(self) -> ConfigurationEntry:
        """The newest configuration in this node's log, committed or not."""
        if self._engine is not None:
            return self._engine.members
        members = tuple(Member(peer.id, peer.host, peer.port) for peer in self._config.peers)
        (first,) = first_configuration(Configuration(members, FIXED_MEMBERS_LEVEL))
        return first

    @property
    def is_committed(self) -> bool:
        return self._engine is None or self.entry.index <= self._engine.commit_index

    @property
    def configuration(self) -> Configuration:
        return self.entry.configuration

    @property
    def all(self) -> tuple[Member, ...]:
        return self.configuration.members

    @property
    def others(self) -> tuple[Member, ...]:
        own_id = self._config.dledger_self_id
        return tuple(member for member in self.all if member.id != own_id)

    @property
    def own_role(self) -> MemberRole | None:
        """None: this node is no member. It was removed, or has not been added yet."""
        entry = self.entry
        own = entry.configuration.member(self._config.dledger_self_id)
        is_waiting = self._config.dledger_join and entry.index == NO_INDEX
        return None if own is None or is_waiting else own.role

    @property
    def is_member(self) -> bool:
        return self.own_role is not None

    @property
    def is_alone(self) -> bool:
        """Whether no other node has the log."""
        return not self.others

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called within LOOK_S of a change, while the service runs."""
        self._listeners.append(listener)

    async def start(self) -> None:
        self._known = self.configuration
        if self._engine is not None:
            self._task = asyncio.get_running_loop().create_task(self._look(), name="group members")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Notify the listeners if the members are others than before."""
        configuration = self.configuration
        if configuration != self._known:
            self._known = configuration
            for listener in self._listeners:
                listener()
