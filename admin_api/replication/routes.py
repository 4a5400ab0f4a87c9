"""`/api/v1/replication/{group}`: one group's rules and leadership."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path
from fastapi.responses import Response

from admin_api.cluster.examples import GROUP_EXAMPLE
from admin_api.replication.service import LeaderChoice, PreferredLeader, ReplicationSettings, ReplicationView
from admin_api.routing import MakeDep, ServicesDep, changing, costly, problems, require, shown
from admin_api.security.policy import Role

router = APIRouter(prefix="/api/v1/replication/{group}", tags=["replication"])

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

Group = Annotated[str, Path(min_length=1, max_length=255, description="such as `broker-a`")]
_UNKNOWN = problems(
    e404="No such group. Stock RocketMQ brokers have none.", e503="No broker that answers knows it."
)


@router.get(
    "",
    summary="One group, who is in sync, and its rules",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses={**_UNKNOWN, **_REPLICATION},
)
async def get_replication(services: ServicesDep, group: Group) -> ReplicationView:
    """As in `/api/v1/cluster`, with the preferred leader and the settings that rule elections and pushes."""
    return await services.replication.view(group)


@router.post("/transfer", summary="Hand leadership over", **changing(Role.OPERATE))
async def transfer_leadership(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    choice: LeaderChoice,
) -> Response:
    """To a member that is up, healthy and near enough. Answered once it leads, within 3 s."""
    return await make(services.replication.transfer(group, choice.node_id))


@router.put("/preferred-leader", summary="Say who is to lead whenever it can", **changing(Role.ADMIN))
async def put_preferred_leader(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    preferred: PreferredLeader,
) -> Response:
    """Every node of the group has it, also after a restart. Another that leads hands over by itself."""
    return await make(services.replication.prefer(group, preferred.node_id))
