"""Examples of the cluster for the OpenAPI description, built from the models so that both stay in step."""

from typing import Any

from admin_api.cluster.schemas import (
    ClusterView,
    ElectionView,
    EpochView,
    GroupState,
    GroupView,
    GrpcEndpointView,
    LastKnown,
    LogView,
    NamesrvView,
    NodeState,
    NodeView,
    PushView,
)
from admin_api.schema import Problem

_NOW_MS = 1_767_225_600_000


def _log(end_index: int) -> LogView:
    return LogView(
        begin_index=0,
        end_index=end_index,
        persisted_index=end_index,
        committed_index=2041,
        applied_index=2041,
        end_position=612_480,
        committed_position=612_240,
    )


_LEADER = NodeView(
    id="n1",
    state=NodeState.UP,
    broker_id=0,
    remoting_address="127.0.0.1:10921",
    replication_address="127.0.0.1:10924",
    role="LEADER",
    term=4,
    leader_id="n1",
    is_writable=True,
    log=_log(2042),
    lag_entries=0,
    lag_bytes=0,
    pid=4712,
    started_at_ms=_NOW_MS - 90_000,
)
_FOLLOWER = NodeView(
    id="n2",
    state=NodeState.UP,
    broker_id=3,
    remoting_address="127.0.0.1:10931",
    replication_address="127.0.0.1:10934",
    role="FOLLOWER",
    term=4,
    leader_id="n1",
    is_writable=False,
    log=_log(2041),
    lag_entries=1,
    lag_bytes=240,
    push=PushView(state="APPEND", match_index=2041, next_index=2042, is_connected=True, last_contact_ms=12),
    pid=4713,
    started_at_ms=_NOW_MS - 90_000,
)
_DEAD = NodeView(
    id="n0",
    state=NodeState.DOWN,
    remoting_address="127.0.0.1:10911",
    replication_address="127.0.0.1:10914",
    lag_entries=402,
    lag_bytes=96_480,
    push=PushView(
        state="APPEND", match_index=1640, next_index=1641, is_connected=False, last_contact_ms=30_000
    ),
    problem="127.0.0.1:10911 cannot be reached: Connection refused",
    last_known=LastKnown(at_ms=_NOW_MS - 30_000, role="LEADER", term=3, pid=4711, log=_log(1640)),
)
GROUP_EXAMPLE = GroupView(
    group="broker-a",
    cluster="DefaultCluster",
    broker_name="broker-a",
    state=GroupState.WRITABLE,
    durability="persisted",
    leader_id="n1",
    term=4,
    in_sync=["n1", "n2"],
    epochs=[EpochView(term=3, first_index=0), EpochView(term=4, first_index=1641)],
    watermarks_by_term={"4": {"n0": 1640, "n1": 2042, "n2": 2041}},
    elections=[
        ElectionView(at_ms=_NOW_MS - 90_000, term=3, leader_id="n0"),
        ElectionView(at_ms=_NOW_MS - 30_000, term=4, leader_id="n1"),
    ],
    nodes=[_DEAD, _LEADER, _FOLLOWER],
)
_NAMESRV = NamesrvView(address="127.0.0.1:9876", state=NodeState.UP)
CLUSTER_EXAMPLE: dict[str, Any] = ClusterView(
    as_of_ms=_NOW_MS,
    namesrv=_NAMESRV,
    namesrvs=[_NAMESRV],
    groups=[GROUP_EXAMPLE],
    grpc_endpoints=[GrpcEndpointView(address="127.0.0.1:8081", state=NodeState.UP)],
).model_dump(mode="json", by_alias=True)
PROBLEM_EXAMPLE: dict[str, Any] = Problem(
    title="Service Unavailable",
    status=503,
    detail="The name server does not answer and no node is known: 127.0.0.1:9876 cannot be reached.",
    instance="/api/v1/cluster",
).model_dump(mode="json")
