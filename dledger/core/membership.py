"""The members of a group as the log says: who votes, who only receives the log, and where each is reached.

A configuration is an entry of the log, and a node uses the newest one in its log, committed or not (thesis
4.1). Two configurations that follow each other differ by at most one voter, so each majority of one shares a
member with each majority of the other, and no two leaders of one term can be elected by them (thesis 4.1,
Figure 4.3). docs/decisions/replicated_state.md says why these steps and not joint consensus.

Two rules make that hold across leaders (Ongaro's mail of 2015 to raft-dev, "bug in single-server membership
changes"): a leader proposes a configuration only after an entry of its own term is committed, and only while
the one before it is committed.
"""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from dledger.core.types import NO_INDEX, NO_TERM

MEMBERS_MAX: Final = 32
"""Members of a group, voters and learners: bounds a configuration's bytes and a leader's connections."""
VOTERS_MAX: Final = 9
ID_CHARACTERS_MAX: Final = 32
HOST_CHARACTERS_MAX: Final = 253

FIXED_MEMBERS_LEVEL: Final = 2
"""Format level of releases whose members are those of their configuration files."""
CHANGING_MEMBERS_LEVEL: Final = 3
"""Format level from which on the log has configurations. A group reaches it by command, or at its start."""


class ConfigurationError(ValueError):
    """Members that a group cannot have, or a change that may not be made in one step."""


class MemberRole(enum.Enum):
    """VOTER: counts for majorities. LEARNER: gets the log and has no vote (thesis 4.2.1). JOINING: a learner
    that the leader makes a voter as soon as it has nearly the whole log.
    """

    VOTER = "voter"
    LEARNER = "learner"
    JOINING = "joining"


@dataclass(frozen=True, slots=True)
class Member:
    """One member. host and port: its address for replication. replaces: the member that is removed once this
    one votes.
    """

    id: str
    host: str
    port: int
    role: MemberRole = MemberRole.VOTER
    replaces: str | None = None

    @property
    def is_voter(self) -> bool:
        return self.role is MemberRole.VOTER


@dataclass(frozen=True, slots=True)
class Configuration:
    """All members of a group, ordered by id.

    format_level: the newest formats of log and messages that every member understands.
    generation: how often an operator decided without a majority who the members are (`ledgermq recover`);
    members of different generations do not take each other's messages.

    Raises ConfigurationError for members that no group can have.
    """

    members: tuple[Member, ...]
    format_level: int = CHANGING_MEMBERS_LEVEL
    generation: int = 0
    voters: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The ids of those who vote, ordered."""

    def __post_init__(self) -> None:
        members = tuple(sorted(self.members, key=lambda member: member.id))
        object.__setattr__(self, "members", members)
        object.__setattr__(self, "voters", tuple(each.id for each in members if each.is_voter))
        self._check(members)

    def _check(self, members: Sequence[Member]) -> None:
        ids = [member.id for member in members]
        if len(set(ids)) != len(ids):
            raise ConfigurationError(f"a member is named twice in {ids}")
        if not self.voters:
            raise ConfigurationError("a group needs at least one voter")
        if len(members) > MEMBERS_MAX or len(self.voters) > VOTERS_MAX:
            raise ConfigurationError(
                f"{len(members)} members with {len(self.voters)} voters; "
                f"a group has at most {MEMBERS_MAX} members with {VOTERS_MAX} voters"
            )
        for member in members:
            if not 1 <= len(member.id) <= ID_CHARACTERS_MAX or len(member.host) > HOST_CHARACTERS_MAX:
                raise ConfigurationError(f"member {member.id!r:.80} at {member.host!r:.80}")
            if not 0 <= member.port <= 65535:
                raise ConfigurationError(f"port {member.port} of member {member.id}")

    @classmethod
    def of_voters(cls, ids: Iterable[str], format_level: int = FIXED_MEMBERS_LEVEL) -> "Configuration":
        """Voters without addresses: for hosts that find their peers by name."""
        return cls(tuple(Member(each, "", 0) for each in ids), format_level)

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(member.id for member in self.members)

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    def member(self, member_id: str) -> Member | None:
        return next((each for each in self.members if each.id == member_id), None)

    def is_voter(self, member_id: str) -> bool:
        return member_id in self.voters

    def with_member(self, member: Member) -> "Configuration":
        """This member added, or in the place of the one with its id. Raises ConfigurationError."""
        others = tuple(each for each in self.members if each.id != member.id)
        return replace(self, members=(*others, member))

    def without(self, member_id: str) -> "Configuration":
        """Nobody is left to replace it, either. Raises ConfigurationError."""
        kept = [each for each in self.members if each.id != member_id]
        return replace(
            self,
            members=tuple(replace(e, replaces=None) if e.replaces == member_id else e for e in kept),
        )


@dataclass(frozen=True, slots=True)
class ConfigurationEntry:
    """A configuration and its place in the log; index NO_INDEX: the one before the first entry."""

    index: int
    term: int
    configuration: Configuration


def voters_changed(old: Configuration, new: Configuration) -> frozenset[str]:
    """Who votes in one of both only."""
    return frozenset(old.voters) ^ frozenset(new.voters)


def first_configuration(configuration: Configuration) -> tuple[ConfigurationEntry, ...]:
    """The history of a log without configurations."""
    return (ConfigurationEntry(NO_INDEX, NO_TERM, configuration),)
