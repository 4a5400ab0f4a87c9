"""The public messages of the broker's own admin requests: what LEDGERMQ_NODE_STATUS and
LEDGERMQ_GROUP_PROGRESS answer, and what LEDGERMQ_CHANGE_MEMBERS takes and answers.

Keys on the wire are camelCase. What a node does not know is null, never 0. Readers ignore keys they do not
know, so that nodes of different versions can be shown on one page. Of ours this module imports one number:
other processes read it.
"""

import re
from enum import StrEnum
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from dledger.core.membership import FORMAT_LEVEL as FORMAT_LEVEL

NODE_STATUS_VERSION = 1
PROGRESS_VERSION = 1
UNREAD_MAX: Final = 100
MEMBER_PLAN_VERSION = 1
ADDRESS_CHARACTERS_MAX: Final = 260
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]")


class NodeRole(StrEnum):
    LEADER = "LEADER"
    FOLLOWER = "FOLLOWER"
    CANDIDATE = "CANDIDATE"


class _Message(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", defer_build=True
    )


class EpochStatus(_Message):
    """A term that has entries in the node's log, and the first of them."""

    term: int
    first_index: int


class PeerView(_Message):
    """One other member as this node sees it; push and index fields only a leader knows."""

    id: str
    replication_address: str
    remoting_address: str | None = None
    is_connected: bool | None = None
    push_state: str | None = None
    match_index: int | None = None
    next_index: int | None = None
    lag_entries: int | None = None
    lag_bytes: int | None = None
    lag_ms: int | None = None
    """How long ago the first entry it lacks was stored; 0 when it lacks none."""
    last_contact_ms: int | None = None
    is_throttled: bool | None = None
    """Whether it is far behind and gets only what the producers leave free, or its quota."""
    bytes_per_s: int | None = None
    """How fast its disk gets the log, over the last seconds; of one that keeps up, over the seconds in
    which this status was read.
    """
    held_bytes: int | None = None
    """Bytes of the leader's log that it has, of held_bytes + lag_bytes."""
    caught_up_in_ms: int | None = None
    """When it has caught up at this speed; None: unknown, or the log grows faster."""


class MemberView(_Message):
    """One member of the newest configuration in the node's log."""

    id: str
    replication_address: str
    role: str
    """voter, learner or joining: a learner that the leader makes a voter when it has nearly the whole log."""
    replaces: str | None = None
    """The member that is removed as soon as this one votes."""


class OlderNodeView(_Message):
    """A node of an earlier generation that runs, as it introduced itself to the one that answers."""

    id: str
    replication_address: str
    remoting_address: str
    generation: int


class ElectionView(_Message):
    """A change of the leader that this node saw; `at_ms` is milliseconds since 1970."""

    at_ms: int
    term: int
    leader_id: str | None
    reason: str


class NodeStatusMessage(_Message):
    """One node's view of itself and its group (body of the answer to LEDGERMQ_NODE_STATUS)."""

    version: int = NODE_STATUS_VERSION
    cluster: str
    group: str
    broker_name: str
    node_id: str
    role: NodeRole
    term: int | None
    leader_id: str | None
    impairment: str | None = None
    """Why it does not vote, or is not to lead, until it is repaired."""
    is_writable: bool
    durability: str
    release: str | None = None
    """The version of LedgerMQ, such as `0.2.0`; None: 0.1.0, whose answer does not name it."""
    protocol_version: int | None = None
    """The newest replication protocol that it speaks."""
    format_level_max: int | None = None
    """The newest format level that its release reads and writes."""
    accepts_messages: bool | None = None
    """Whether routes give its group's queues for writing too (brokerPermission); None: 0.1.0."""
    remoting_address: str
    replication_address: str | None = None
    begin_index: int | None = None
    end_index: int | None = None
    committed_index: int | None = None
    persisted_index: int | None = None
    applied_index: int
    end_position: int | None = None
    committed_position: int
    epochs: tuple[EpochStatus, ...] = ()
    peers: tuple[PeerView, ...] = ()
    members: tuple[MemberView, ...] | None = None
    """None: a node without a group, or of a release whose members are fixed."""
    configuration_index: int | None = None
    """The entry that made these the members; -1: they are those of dLegerPeers."""
    is_configuration_committed: bool | None = None
    format_level: int | None = None
    """The newest formats of log and messages that every member understands; members can change from 3 on."""
    generation: int | None = None
    """How often an operator decided without a majority who the members are (`ledgermq recover`)."""
    newer_generation: int | None = None
    """The one in which an operator went on without this node, as it has heard: it keeps its old files."""
    older_nodes: tuple[OlderNodeView, ...] = ()
    """Nodes of earlier generations that run and are refused."""
    begin_position: int | None = None
    """Where the log begins that a member which joins must get."""
    watermarks_by_term: dict[int, dict[str, int]] = {}
    elections: tuple[ElectionView, ...] = ()
    started_at_ms: int
    pid: int

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "NodeStatusMessage":
        """Raises pydantic.ValidationError."""
        return cls.model_validate_json(data)


class ChangeKind(StrEnum):
    """What is done to the members. ADD: a voter, or a learner. REPLACE: another takes the place of `old`.
    MOVE: the same member at another address. PROMOTE: a learner is to vote. DEMOTE: a voter stays as a
    learner. FORMAT_LEVEL: newer formats of log and messages, which older releases do not understand.
    """

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"
    MOVE = "move"
    PROMOTE = "promote"
    DEMOTE = "demote"
    FORMAT_LEVEL = "format_level"


_NEEDED: Final = {
    ChangeKind.ADD: ("id", "address"),
    ChangeKind.REMOVE: ("id",),
    ChangeKind.REPLACE: ("old", "id", "address"),
    ChangeKind.MOVE: ("id", "address"),
    ChangeKind.PROMOTE: ("id",),
    ChangeKind.DEMOTE: ("id",),
    ChangeKind.FORMAT_LEVEL: ("level",),
}
_ID: Final = r"^[A-Za-z][0-9]{1,9}$"


class MemberChange(_Message):
    """A change of the members (body of LEDGERMQ_CHANGE_MEMBERS)."""

    model_config = ConfigDict(extra="forbid")

    change: ChangeKind
    id: str | None = Field(default=None, pattern=_ID)
    old: str | None = Field(default=None, pattern=_ID)
    address: str | None = Field(default=None, max_length=ADDRESS_CHARACTERS_MAX)
    """host:port for replication."""
    role: Literal["voter", "learner"] = "voter"
    level: int | None = Field(default=None, ge=1, le=1_000)
    force: bool = False
    """Also where fewer than a majority of the voters keep up afterwards."""
    dry_run: bool = False
    """Only say what would be done."""

    @model_validator(mode="after")
    def _check_together(self) -> "MemberChange":
        given = {name for name in ("id", "old", "address", "level") if getattr(self, name) is not None}
        needed = set(_NEEDED[self.change])
        if given != needed:
            wrong = ", ".join(sorted(given ^ needed))
            raise ValueError(f"{self.change} needs {' and '.join(_NEEDED[self.change])}: {wrong}")
        if self.address is not None:
            split_address(self.address)
        return self

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "MemberChange":
        """Raises pydantic.ValidationError."""
        return cls.model_validate_json(data)


def split_address(address: str) -> tuple[str, int]:
    """host and port of `host:port`; an IPv6 host is in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not colon or not is_port or not _HOST.fullmatch(host):
        raise ValueError(f"'{address}' is not of the form host:port")
    return host.strip("[]"), int(port)


class MemberPlanView(_Message):
    """What a change does (body of the answer to LEDGERMQ_CHANGE_MEMBERS)."""

    version: int = MEMBER_PLAN_VERSION
    steps: tuple[str, ...]
    """Sentences, in the order in which it is done. The first one is done when the answer comes."""
    warnings: tuple[str, ...] = ()
    lost: str | None = None
    """What a forced change may cost; None: it needed no force."""
    members: tuple[MemberView, ...]
    """As they are after the first step."""

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "MemberPlanView":
        """Raises pydantic.ValidationError."""
        return cls.model_validate_json(data)


class TopicProgress(_Message):
    """How far a group is in one topic here. `lag` is that of the queues it has an offset for."""

    lag: int | None
    unknown_queues: int = 0
    """Queues with messages for which the group has no offset: it never consumed them here."""


class GroupProgress(_Message):
    """One consumer group on one broker. While it has no members, what its clients say is None."""

    topics: dict[str, TopicProgress] = {}
    members: int = 0
    consume_type: str | None = None
    message_model: str | None = None
    consume_tps: float = 0.0
    """Messages a second over the last minute."""
    pop_in_flight: int | None = None
    """Messages that were popped and neither acknowledged nor given up; None where that is not known."""


class ProgressMessage(_Message):
    """All consumer groups of one broker, and what else is left to do there (body of the answer to
    LEDGERMQ_GROUP_PROGRESS). Releases up to 0.1.0 give the groups only.
    """

    version: int = PROGRESS_VERSION
    broker_name: str
    at_ms: int
    groups: dict[str, GroupProgress]
    quiet_ms: int | None = None
    """For how long no message was stored, of what clients sent or the broker delivered."""
    waiting: dict[str, int | None] | None = None
    """Messages that the broker itself still has to deliver, by kind: delay, timer, transaction; None where it
    does not know."""
    unread: dict[str, int] | None = None
    """Messages of topics for which no group has offsets or is online, of UNREAD_MAX topics."""
    unread_topics: int | None = None
    """How many such topics there are."""
    refuses_messages: bool | None = None
    """Whether no send is taken any more (refuseMessages)."""

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "ProgressMessage":
        """Raises pydantic.ValidationError."""
        return cls.model_validate_json(data)
