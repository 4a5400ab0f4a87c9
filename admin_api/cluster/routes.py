"""`/api/v1/cluster`, once or as a stream of server-sent events; `/api/v1/history`; and
`/api/v1/replication/{group}`, the rules and the leadership of one group.
"""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from admin_api.changes import Action
from admin_api.cluster.draining import AcceptedMessages, DrainingView, LagHere, SettingsSource
from admin_api.cluster.examples import GROUP_EXAMPLE, PROBLEM_EXAMPLE
from admin_api.cluster.feed import Feed
from admin_api.cluster.grpc_clients import GrpcClientView
from admin_api.cluster.history import GroupHistory, History, HistorySample, HistoryView
from admin_api.cluster.members import (
    MemberRow,
    MembersView,
    NewAddress,
    NewMember,
    NewRole,
    Replacement,
)
from admin_api.cluster.replication import LeaderChoice, PreferredLeader, ReplicationSettings, ReplicationView
from admin_api.cluster.schemas import ClusterView, MemberProgress, NodeState
from admin_api.problems import MEDIA_TYPE, ProblemError
from admin_api.routing import (
    MakeDep,
    PageDep,
    ServicesDep,
    actor_of,
    answer,
    changing,
    costly,
    problems,
    require,
    shown,
    shown_preview,
)
from admin_api.schema import EffectView, Page, Problem
from admin_api.security.policy import Role
from broker.admin.types import ChangeKind

router = APIRouter(prefix="/api/v1", tags=["cluster"])

_UNAVAILABLE = {
    "model": Problem,
    "description": "The name server does not answer and no node is known yet, or too many streams are open.",
    "content": {MEDIA_TYPE: {"example": PROBLEM_EXAMPLE}},
}


def feed_of(request: Request) -> Feed:
    feed = request.app.state.feed
    assert isinstance(feed, Feed)
    return feed


def known(view: ClusterView) -> ClusterView:
    """The view, unless it knows nothing at all.

    Raises: ProblemError (503).
    """
    if view.namesrv.state is NodeState.DOWN and not view.groups:
        detail = f"The name server does not answer and no node is known: {view.namesrv.problem}."
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    return view


@router.get(
    "/cluster",
    summary="Every group and node",
    response_model=ClusterView,
    responses={503: _UNAVAILABLE},
)
async def get_cluster(request: Request) -> Response:
    """Roles, terms, log marks, lag and state of every node. An unknown value is null, never 0.
    A node that died stays listed as down. The answer may be half a second old."""
    view = known(await feed_of(request).current())
    return answer(view)


@router.get(
    "/cluster/events",
    summary="The same, live (server-sent events)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Events named `cluster`, whose data is the body of `GET /api/v1/cluster`; and "
            "some named `unchanged`, with its `asOfMs`: all else is as before, but for `lastContactMs`.",
            "content": {
                "text/event-stream": {
                    "example": 'event: cluster\ndata: {"version":1,...}\n\n'
                    'event: unchanged\ndata: {"asOfMs":1790000000000}\n\n'
                }
            },
        },
        503: _UNAVAILABLE,
    },
)
async def watch_cluster(request: Request) -> StreamingResponse:
    """The whole picture at first, and again about every half second in which something changed."""
    actor = actor_of(request)
    is_shared = request.app.policy.is_open  # all requests have the same client then
    client = None if is_shared else f"{actor.name}@{actor.remote}"
    return StreamingResponse(
        _events(feed_of(request).watch(client)),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _events(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    async for event in events:
        yield event


grpc_router = APIRouter(prefix="/api/v1/grpc-endpoints", tags=["cluster"])

_NOW_MS: Final = 1_767_225_600_000
_CLIENT: Final = GrpcClientView(
    client_id="orders-1@4711@0@abc",
    language="JAVA",
    version="5.2.0",
    client_type="PUSH_CONSUMER",
    address="10.0.0.7:40312",
    namespace="",
    groups=["billing"],
    topics=["orders"],
    topic_count=1,
    request_timeout_ms=3_000,
    settings_at_ms=_NOW_MS,
    is_connected=True,
)


@grpc_router.get(
    "/{address}/clients",
    summary="The clients of a gRPC endpoint",
    response_model=Page[GrpcClientView],
    responses={
        **problems(
            e404="No such endpoint is connected to the brokers.",
            e503="No broker answers, or the endpoint does not.",
        ),
        **shown(Page[GrpcClientView](items=[_CLIENT], page=1, page_size=100, total=1)),
    },
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
)
async def get_grpc_clients(
    services: ServicesDep,
    page: PageDep,
    address: Annotated[
        str, Path(min_length=1, max_length=300, description="as in `grpcEndpoints` of `/api/v1/cluster`")
    ],
) -> Response:
    """Their kinds, libraries, addresses, groups and topics, in the order in which they came. Asked through a
    broker, whose access control counts."""
    return answer(await services.grpc_clients.page(address, page))


history_router = APIRouter(prefix="/api/v1", tags=["cluster"])

_INTERVAL_MS: Final = 5_000
_HISTORY: Final = shown(
    HistoryView(
        as_of_ms=_NOW_MS,
        interval_ms=_INTERVAL_MS,
        keep_ms=3_600_000,
        groups=[
            GroupHistory(
                broker_name="broker-a",
                samples=[
                    HistorySample(at_ms=_NOW_MS - 2 * _INTERVAL_MS),
                    HistorySample(
                        at_ms=_NOW_MS - _INTERVAL_MS,
                        leader_id="n1",
                        put_per_s=118.5,
                        get_per_s=237.0,
                        put_p99_ms=4.2,
                        lag_entries={"n0": None, "n2": 1},
                        lag_ms={"n0": None, "n2": 3},
                    ),
                ],
            )
        ],
    )
)


@history_router.get(
    "/history",
    summary="The last hour of throughput, put latency and lag",
    response_model=HistoryView,
    responses=_HISTORY,
    dependencies=[Depends(require(Role.READ))],
)
async def get_history(
    request: Request,
    since_ms: Annotated[
        int | None,
        Query(alias="sinceMs", ge=0, le=2**53, description="only what came after; Unix time in ms"),
    ] = None,
) -> Response:
    """Sampled every few seconds while the admin process runs, and kept in memory: a restart starts empty.
    An unknown value is null."""
    history = request.app.state.history
    assert isinstance(history, History)
    return answer(history.view(since_ms))


replication_router = APIRouter(prefix="/api/v1/replication/{group}", tags=["replication"])

_REPLICATION: Final = shown(
    ReplicationView(
        group=GROUP_EXAMPLE,
        preferred_leader_id=None,
        in_sync=GROUP_EXAMPLE.in_sync,
        settings=ReplicationSettings(
            heartbeat_interval_ms=100,
            election_timeout_min_ms=1_000,
            election_timeout_max_ms=2_000,
            wait_ack_timeout_ms=2_500,
            pending_appends_max=10_000,
            throttle_bytes_per_s=0,
            throttle_lag_bytes=None,
        ),
    )
)

ReplicationGroup = Annotated[str, Path(min_length=1, max_length=255, description="such as `broker-a`")]
_UNKNOWN = problems(
    e404="No such group. Stock RocketMQ brokers have none.", e503="No broker that answers knows it."
)


@replication_router.get(
    "",
    summary="One group, who is in sync, and its rules",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses={**_UNKNOWN, **_REPLICATION},
)
async def get_replication(services: ServicesDep, group: ReplicationGroup) -> ReplicationView:
    """As in `/api/v1/cluster`, with the preferred leader and the settings that rule elections and pushes."""
    return await services.replication.view(group)


@replication_router.post("/transfer", summary="Hand leadership over", **changing(Role.OPERATE))
async def transfer_leadership(
    services: ServicesDep,
    make: MakeDep,
    group: ReplicationGroup,
    choice: LeaderChoice,
) -> Response:
    """To a member that is up, healthy and near enough. Answered once it leads, within 3 s."""
    return await make(services.replication.transfer(group, choice.node_id))


@replication_router.put(
    "/preferred-leader", summary="Say who is to lead whenever it can", **changing(Role.ADMIN)
)
async def put_preferred_leader(
    services: ServicesDep,
    make: MakeDep,
    group: ReplicationGroup,
    preferred: PreferredLeader,
) -> Response:
    """Every node of the group has it, also after a restart. Another that leads hands over by itself."""
    return await make(services.replication.prefer(group, preferred.node_id))


_DRAINING: Final = shown(
    DrainingView(
        group="broker-b",
        accepts_messages=False,
        refuses_messages=False,
        is_drained=False,
        reasons=["Consumer groups have not consumed everything: billing."],
        quiet_ms=94_000,
        lags=[LagHere(consumer_group="billing", topic="orders", lag=12)],
        waiting={"delay": 0, "timer": 0, "transaction": 0},
        unread={},
    )
)


@replication_router.get(
    "/draining",
    summary="Whether a group may be removed",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses={**_UNKNOWN, **_DRAINING},
)
async def get_draining(services: ServicesDep, group: ReplicationGroup) -> DrainingView:
    """What would be lost with it: messages that are not consumed, or that it has still to deliver."""
    return await services.draining.view(group)


@replication_router.put(
    "/accepts-messages", summary="Let producers choose a group's queues, or not", **changing(Role.ADMIN)
)
async def put_accepts_messages(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, wanted: AcceptedMessages
) -> Response:
    """The first step of a group's removal. Sends of producers that have an older route are still taken, until
    they are `refused`: the last step but one, after which what is left is looked at again.
    """
    return await make(services.draining.accept(group, wanted))


@replication_router.post(
    "/copied-settings",
    summary="Give a group the topics and consumer groups of another",
    **changing(Role.ADMIN),
)
async def copy_settings(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, wanted: SettingsSource
) -> Response:
    """What it has already stays as it is. The last step of the addition of a group."""
    return await make(services.draining.copy_settings(wanted.source, group))


_GIB: Final = 1024**3
_MEMBERS: Final = shown(
    MembersView(
        group="broker-a",
        leader_id="n1",
        term=4,
        format_level=3,
        configuration_index=2_040,
        is_committed=True,
        members=[
            MemberRow(
                id="n3",
                role="joining",
                replaces="n0",
                is_leader=False,
                state=NodeState.UP,
                replication_address="127.0.0.1:10944",
                remoting_address="127.0.0.1:10941",
                progress=MemberProgress(
                    total_bytes=20 * _GIB, received_bytes=5 * _GIB, bytes_per_s=90 * 1024**2
                ),
                is_in_sync=False,
                problem=None,
            )
        ],
        strangers=[],
    )
)
_ADDED: Final = shown_preview(
    Action.MEMBER_REPLACE,
    "replication group broker-a",
    EffectView(subject="member n3", before=None, after="joining at 127.0.0.1:10944, replaces n0"),
    EffectView(subject="step 1", after="n3 at 127.0.0.1:10944 gets the whole log, without a vote."),
)
MemberId = Annotated[
    str, Path(alias="id", min_length=1, max_length=32, description="of a member, such as `n2`")
]
Forced = Annotated[
    bool, Query(description="also where fewer than a majority of the voters keep up afterwards")
]
_CHANGED: Final = changing(Role.ADMIN, _ADDED)


@replication_router.get(
    "/members",
    summary="Its members",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses={**_UNKNOWN, **_MEMBERS},
)
async def get_members(services: ServicesDep, group: ReplicationGroup) -> MembersView:
    """Who votes, who only gets the log, and how many bytes of it one that joins has. By the newest
    configuration in the leader's log."""
    return await services.members.view(group)


@replication_router.post("/members", summary="Add a member", **_CHANGED)
async def add_member(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, new: NewMember
) -> Response:
    """It gets the log without a vote, and its vote when it has nearly all of it. Answered when it is a
    member: `GET` shows its progress."""
    values = {"id": new.id, "address": new.address, "role": new.role, "force": new.force}
    return await make(services.members.change(group, ChangeKind.ADD, **values))


@replication_router.delete("/members/{id}", summary="Remove a member", **_CHANGED)
async def remove_member(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, member_id: MemberId, force: Forced = False
) -> Response:
    """Dead or alive. One that leads hands leadership over. One that joins is given up."""
    return await make(services.members.change(group, ChangeKind.REMOVE, id=member_id, force=force))


@replication_router.post("/members/{id}/replace", summary="Put another in a member's place", **_CHANGED)
async def replace_member(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, member_id: MemberId, new: Replacement
) -> Response:
    """The new one joins; when it votes, the old one is removed."""
    values = {"old": member_id, "id": new.id, "address": new.address, "force": new.force}
    return await make(services.members.change(group, ChangeKind.REPLACE, **values))


@replication_router.put("/members/{id}/address", summary="Change a member's address", **_CHANGED)
async def move_member(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, member_id: MemberId, new: NewAddress
) -> Response:
    """The same member, with its files, at another host or port."""
    values = {"id": member_id, "address": new.address, "force": new.force}
    return await make(services.members.change(group, ChangeKind.MOVE, **values))


@replication_router.put("/members/{id}/role", summary="Give or take a vote", **_CHANGED)
async def put_member_role(
    services: ServicesDep, make: MakeDep, group: ReplicationGroup, member_id: MemberId, new: NewRole
) -> Response:
    """A learner gets the log and has no vote."""
    kind = ChangeKind.PROMOTE if new.role == "voter" else ChangeKind.DEMOTE
    return await make(services.members.change(group, kind, id=member_id, force=new.force))
