"""Models of `/api/v1/cluster`, `/healthz` and `/readyz`."""

from enum import StrEnum

from pydantic import Field

from admin_api.schema import Schema


class NodeState(StrEnum):
    """UP: it answered this time. DOWN: it did not, or its leader lost it. UNKNOWN: not known."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


class GroupState(StrEnum):
    """WRITABLE: a leader takes messages. ELECTING: nodes are up, none does. DOWN: no node answers."""

    WRITABLE = "writable"
    ELECTING = "electing"
    DOWN = "down"


class EpochView(Schema):
    """One leader epoch: the entries from `first_index` on were written in `term`."""

    term: int
    first_index: int


class ElectionView(Schema):
    """One change of leader as a node saw it."""

    at_ms: int = Field(description="Unix time in ms")
    term: int
    leader_id: str | None
    reason: str | None = None


class LogView(Schema):
    """The marks of one node's log. Indexes count entries from 0 (-1: empty); positions are bytes."""

    begin_index: int | None = None
    end_index: int | None = None
    persisted_index: int | None = None
    committed_index: int | None = None
    applied_index: int | None = None
    end_position: int | None = None
    committed_position: int | None = None


class LastKnown(Schema):
    """What a node that is not up said when it last answered."""

    at_ms: int = Field(description="Unix time in ms of that answer")
    role: str | None
    term: int | None
    pid: int | None
    log: LogView


class PushView(Schema):
    """A follower as its leader sees it."""

    state: str | None = Field(description="COMPARE, TRUNCATE, APPEND or COMMIT")
    match_index: int | None = Field(description="last entry the leader knows to be the same there")
    next_index: int | None = Field(description="the entry the leader pushes next")
    is_connected: bool | None = Field(description="whether the leader has a connection to it")
    last_contact_ms: int | None = Field(description="ms since the leader heard of it")
    is_throttled: bool | None = Field(
        default=None, description="it is far behind and gets only what the producers leave free, or its quota"
    )


class MemberProgress(Schema):
    """How much of the log a member has, as its leader knows it."""

    total_bytes: int = Field(description="of the leader's log")
    received_bytes: int
    bytes_per_s: int | None = Field(description="over the last seconds; null: not known yet")


class NodeMember(Schema):
    """What a node is in its group, by the newest configuration in the leader's log."""

    role: str = Field(description="voter, learner or joining: it votes when it has nearly the whole log")
    replaces: str | None = Field(default=None, description="the member that is removed when this one votes")
    replication_address: str = Field(description="where the others reach it")
    progress: MemberProgress | None = Field(default=None, description="null: unknown, or it leads")


class NodeView(Schema):
    """One replica of a group: its own answer where it is up, the leader's list of peers where not."""

    id: str | None = Field(description="dLegerSelfId; null while only its address is known")
    state: NodeState
    is_ledgermq: bool | None = Field(
        default=None, description="false: a stock RocketMQ broker, which reports nothing about replication"
    )
    broker_id: int | None = Field(default=None, description="its id in the name server; 0 takes the writes")
    release: str | None = Field(
        default=None, description="the version of LedgerMQ; null of a node that is up: 0.1.0"
    )
    protocol_version: int | None = Field(
        default=None, description="the newest replication protocol that it speaks; null: unknown"
    )
    format_level: int | None = Field(
        default=None, description="the group's format level in this node's log; null: unknown"
    )
    format_level_max: int | None = Field(
        default=None, description="the newest format level that its release reads and writes; null: unknown"
    )
    remoting_address: str | None = None
    replication_address: str | None = None
    role: str | None = Field(default=None, description="LEADER, FOLLOWER or CANDIDATE")
    impairment: str | None = Field(
        default=None, description="What is being repaired; until then it does not vote, or is not to lead"
    )
    newer_generation: int | None = Field(
        default=None,
        description="the generation in which an operator went on without it (`ledgermq recover`): it has its "
        "old files, its members refuse it, and clients do not find it",
    )
    term: int | None = None
    leader_id: str | None = Field(default=None, description="whom this node follows")
    is_writable: bool | None = None
    log: LogView = LogView()
    lag_entries: int | None = Field(
        default=None, description="entries behind the leader's end, in its own count"
    )
    lag_bytes: int | None = None
    lag_ms: int | None = Field(
        default=None, description="how long ago the first entry it lacks was stored; 0: it lacks none"
    )
    is_in_sync: bool | None = Field(
        default=None,
        description="its leader reaches it, and it holds all that is committed or is behind by 1 s at most",
    )
    push: PushView | None = Field(default=None, description="how its leader sees it; null for the leader")
    member: NodeMember | None = Field(
        default=None, description="null: it is no member, or `membership` of its group is null"
    )
    pid: int | None = None
    started_at_ms: int | None = None
    problem: str | None = Field(default=None, description="why it did not answer")
    last_known: LastKnown | None = None


class MembershipView(Schema):
    """The newest configuration of the members in the leader's log, or in that of the newest term."""

    format_level: int = Field(description="newest formats in use; members can be changed from 3 on")
    configuration_index: int = Field(description="its entry; -1: the members are those of dLegerPeers")
    is_committed: bool
    generation: int = Field(
        default=0, description="how often an operator decided without a majority (`ledgermq recover`)"
    )


class GroupView(Schema):
    """One replication group."""

    group: str
    cluster: str | None
    broker_name: str
    state: GroupState
    durability: str | None = Field(
        default=None, description="persisted or replicated: where a majority has it at the ack"
    )
    accepts_messages: bool | None = Field(
        default=None, description="false: routes give its queues for reading only; null: unknown"
    )
    leader_id: str | None
    term: int | None
    in_sync: list[str] | None = Field(
        default=None, description="ids of the members in sync, the leader among them; null: no leader"
    )
    epochs: list[EpochView] | None = Field(default=None, description="null: no node that knows them answers")
    watermarks_by_term: dict[str, dict[str, int]] | None = Field(
        default=None,
        description="term -> node id -> last index the leader knows to be held there; null: no leader",
    )
    elections: list[ElectionView] | None = Field(
        default=None, description="the last ones, as the nodes that answer saw them; null: none answers"
    )
    membership: MembershipView | None = Field(
        default=None, description="null: unknown, or the nodes are of a release whose members are fixed"
    )
    nodes: list[NodeView]


class NamesrvView(Schema):
    """A name server. UP: it answers."""

    address: str
    state: NodeState
    problem: str | None = None
    unlisted: list[str] = Field(
        default=[], description="addresses of brokers that other name servers list and this one does not"
    )


class GrpcEndpointView(Schema):
    """An endpoint for gRPC clients that the name server lists. UP: it accepts connections."""

    address: str
    state: NodeState
    problem: str | None = None


class ClusterView(Schema):
    """Every group that the name servers know of, and every node that was ever seen in one of them."""

    version: int = 1
    as_of_ms: int = Field(description="Unix time in ms of the oldest answer in here")
    namesrv: NamesrvView = Field(
        description="one that answers; while none does, the first one, with the problems of all"
    )
    namesrvs: list[NamesrvView] = Field(default=[], description="each name server that is asked")
    groups: list[GroupView]
    grpc_endpoints: list[GrpcEndpointView] = Field(
        default_factory=list,
        description="those that were there within the last day and did not say that they stop",
    )


class Health(Schema):
    """The admin process itself."""

    status: str = "ok"


class Readiness(Schema):
    """Whether every group takes messages."""

    status: str = "ready"
    leaders: dict[str, str] = Field(description="group -> id of its leader")
