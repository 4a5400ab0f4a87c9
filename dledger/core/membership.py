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
import json
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

MEMBERS_MAX: Final = 32
"""Members of a group, voters and learners: bounds a configuration's bytes and a leader's connections."""
VOTERS_MAX: Final = 9
ID_CHARACTERS_MAX: Final = 32
HOST_CHARACTERS_MAX: Final = 253
CONFIGURATION_BYTES_MAX: Final = 64 * 1024

FIXED_MEMBERS_LEVEL: Final = 2
"""Format level of releases whose members are those of their configuration files."""
CHANGING_MEMBERS_LEVEL: Final = 3
"""Format level from which on the log has configurations. A group reaches it by command, or at its start."""
FORMAT_LEVEL: Final = CHANGING_MEMBERS_LEVEL
"""The newest one that this release reads and writes."""


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
        """What was to replace it replaces none. Raises ConfigurationError."""
        kept = [each for each in self.members if each.id != member_id]
        return replace(
            self,
            members=tuple(replace(e, replaces=None) if e.replaces == member_id else e for e in kept),
        )


@dataclass(frozen=True, slots=True)
class ConfigurationEntry:
    """A configuration and its place in the log; index -1 and term 0: the one before the first entry."""

    index: int
    term: int
    configuration: Configuration


def voters_changed(old: Configuration, new: Configuration) -> frozenset[str]:
    """Who votes in one of both only."""
    return frozenset(old.voters) ^ frozenset(new.voters)


def first_configuration(configuration: Configuration) -> tuple[ConfigurationEntry, ...]:
    """The history of a log without configurations."""
    return (ConfigurationEntry(-1, 0, configuration),)


def encode_configuration(configuration: Configuration) -> bytes:
    """As JSON, with `decode_configuration` as its reverse."""
    members = [_member_to_json(member) for member in configuration.members]
    fields = {
        "version": 1,
        "formatLevel": configuration.format_level,
        "generation": configuration.generation,
        "members": members,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def _member_to_json(member: Member) -> dict[str, str | int]:
    fields: dict[str, str | int] = {"id": member.id, "host": member.host, "port": member.port}
    fields["role"] = member.role.value
    if member.replaces is not None:
        fields["replaces"] = member.replaces
    return fields


def decode_configuration(content: bytes) -> Configuration:
    """Raises ConfigurationError for what `encode_configuration` did not make."""
    if len(content) > CONFIGURATION_BYTES_MAX:
        raise ConfigurationError(f"a configuration of {len(content)} bytes")
    try:
        fields = json.loads(content)
        if fields["version"] != 1:
            raise ConfigurationError(f"a configuration of version {fields['version']!r:.80}")
        members = tuple(_member_from_json(each) for each in fields["members"])
        return Configuration(
            members, operator.index(fields["formatLevel"]), operator.index(fields["generation"])
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"no configuration: {error!r:.200}") from None


def _member_from_json(fields: dict[str, object]) -> Member:
    replaces = fields.get("replaces")
    return Member(
        str(fields["id"]),
        str(fields["host"]),
        operator.index(fields["port"]),  # type: ignore[arg-type] # it raises TypeError for what is no number
        MemberRole(fields["role"]),
        None if replaces is None else str(replaces),
    )


@dataclass(frozen=True, slots=True)
class ConfigurationHistory:
    """What a node keeps durably of the configurations of its log.

    entries: the one in force before the log's first entry, and all in the log. dropped: those that were
    truncated, or belonged to the log before it was reset. The history is on the disk before the log's bytes
    are, so after a crash the log may still have what was dropped; `recovered` finds which ones it has.
    """

    entries: tuple[ConfigurationEntry, ...]
    dropped: tuple[ConfigurationEntry, ...] = ()

    def recovered(self, begin_index: int, term_at: Callable[[int], int]) -> tuple[ConfigurationEntry, ...]:
        """Those that the log has, and the one in force before it. `term_at`: the term of an entry of the
        log, UNKNOWN_TERM for what is not in it. Index and term name an entry (Raft 5.3).
        """
        # Of the dropped ones, only those of a log before its reset are older than the begin.
        before = [entry for entry in (*self.dropped, *self.entries) if entry.index < begin_index][-1:]
        known = {
            entry.index: entry for entry in (*self.dropped, *self.entries) if self._is_in(entry, term_at)
        }
        return (*before, *(known[index] for index in sorted(known) if index >= begin_index))

    @staticmethod
    def _is_in(entry: ConfigurationEntry, term_at: Callable[[int], int]) -> bool:
        return entry.index >= 0 and term_at(entry.index) == entry.term


class ConfigurationLog:
    """The configurations of one node's log, and what follows from the newest one.

    Invariants: indexes rise, terms do not fall; the first entry is older than the log or the node's own first
    configuration.
    """

    def __init__(
        self,
        self_id: str,
        entries: Sequence[ConfigurationEntry],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_change` is called after each change of the newest one."""
        assert entries, "a node has a configuration from its start on"
        self._self_id = self_id
        self._entries = list(entries)
        self._dropped: list[ConfigurationEntry] = []
        self._on_change = on_change
        self._update()

    def _update(self) -> None:
        self.latest = self._entries[-1]
        configuration = self.configuration = self.latest.configuration
        self.voters = configuration.voters
        self.quorum = configuration.quorum
        """How many voters are a majority."""
        self.is_voter = self._self_id in self.voters
        """Whether this node votes."""
        self.others = tuple(each for each in configuration.ids if each != self._self_id)
        """All members but this node, in the one order in which they are visited."""
        self.other_voters = tuple(each for each in self.voters if each != self._self_id)
        self.has_steps = not self.is_voter or any(
            each.role is MemberRole.JOINING or each.replaces is not None for each in configuration.members
        )
        """Whether a leader has something left to do by itself: see `Leadership.next_configuration`."""

    def _changed(self) -> None:
        self._update()
        self._on_change()

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter, so that its own disk is the majority."""
        return self.voters == (self._self_id,)

    @property
    def history(self) -> ConfigurationHistory | None:
        """What has to be durable; None while the log has had no configuration."""
        if self.latest.index < 0 and not self._dropped:
            return None
        return ConfigurationHistory(tuple(self._entries), tuple(self._dropped))

    def at(self, index: int) -> ConfigurationEntry:
        """The one in force up to this entry."""
        return next((e for e in reversed(self._entries) if e.index <= index), self._entries[0])

    def may_lead(self, commit_index: int) -> bool:
        """Whether this node votes in the newest configuration, or in one that may still be the newest
        committed one. A node that removed itself may be the only one with the entry that says so, and the
        others cannot win an election against its longer log (thesis 4.2.2, Figure 4.6).
        """
        committed = self.at(commit_index)
        possible = (entry for entry in self._entries if entry.index >= committed.index)
        return self.is_voter or any(self._self_id in entry.configuration.voters for entry in possible)

    def append(self, entry: ConfigurationEntry) -> None:
        assert entry.index > self.latest.index, (entry, self.latest)
        assert entry.term >= self.latest.term, (entry, self.latest)
        self._entries.append(entry)
        self._changed()

    def truncate_from(self, index: int) -> None:
        """The entries >= index are gone."""
        if self.latest.index < index:
            return
        kept = [entry for entry in self._entries if entry.index < index]
        self._dropped += self._entries[len(kept) :]
        assert kept, f"nothing was in force before entry {index}"
        self._entries = kept
        self._changed()

    def truncate_before(self, begin_index: int) -> None:
        """Retention removed the entries < begin_index: the last of their configurations stays in force."""
        before = [entry for entry in self._entries if entry.index < begin_index]
        self._entries = [*before[-1:], *self._entries[len(before) :]]
        self._dropped = [entry for entry in self._dropped if entry.index >= begin_index]

    def reset(self, base: ConfigurationEntry) -> None:
        """Everything is gone; `base` is in force before the log's new begin."""
        if self._entries == [base]:
            return
        self._dropped, self._entries = self._entries, [base]
        self._changed()

    def check_invariants(self, end_index: int) -> None:
        numbers = [(entry.index, entry.term) for entry in self._entries]
        assert all(one[0] < two[0] and one[1] <= two[1] for one, two in pairwise(numbers)), numbers
        assert self.latest.index <= end_index, (numbers, end_index)
