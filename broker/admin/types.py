"""The public messages of the broker's own admin requests: what LEDGERMQ_NODE_STATUS and
LEDGERMQ_GROUP_PROGRESS answer.

Keys on the wire are camelCase. What a node does not know is null, never 0. Readers ignore keys they do not
know, so that nodes of different versions can be shown on one page. This module imports nothing of ours: other
processes read it.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

NODE_STATUS_VERSION = 1
PROGRESS_VERSION = 1


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
    """All consumer groups of one broker (body of the answer to LEDGERMQ_GROUP_PROGRESS)."""

    version: int = PROGRESS_VERSION
    broker_name: str
    at_ms: int
    groups: dict[str, GroupProgress]

    def to_json(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "ProgressMessage":
        """Raises pydantic.ValidationError."""
        return cls.model_validate_json(data)
