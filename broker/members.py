"""The members of this node's group: the broker's one owner of who they are and where they are reached.

They are those of the newest configuration in the node's log. `dLegerPeers` only says who they were before the
log had one, and whom a joining node asks.
"""

from collections.abc import Callable

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


class GroupMembers:
    """Of a broker with a plain log, this node alone."""

    def __init__(self, config: BrokerConfig, engine: DLedgerServer | None) -> None:
        self._config = config
        self._engine = engine

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
    def may_register(self) -> bool:
        """Whether clients may find this node: what they sent to a group that an operator has given up would
        be lost.
        """
        return self.is_member and (self._engine is None or self._engine.newer_generation is None)

    @property
    def is_alone(self) -> bool:
        """Whether no other node has the log."""
        return not self.others

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called as soon as this node's log names other members, or the node is
        outdated.
        """
        if self._engine is not None:
            self._engine.on_members_change(listener)
