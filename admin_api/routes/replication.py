"""Replication groups: their rules, and who leads them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response

from admin_api.routes.changes import CHANGE_RESPONSES, Confirmation, DryRun, run_change
from admin_api.schemas.base import Problem
from admin_api.schemas.changes import ChangeResult
from admin_api.schemas.replication import LeaderChoice, PreferredLeader, ReplicationView
from admin_api.security.access import costly, require
from admin_api.security.actor import Role
from admin_api.services.context import Services
from admin_api.services.replication import Replication

router = APIRouter(prefix="/api/v1/replication/{group}", tags=["replication"])

Group = Annotated[str, Path(min_length=1, max_length=255, description="such as `broker-a`")]
_UNKNOWN: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "No such group. Stock RocketMQ brokers have none."},
    503: {"model": Problem, "description": "Nobody who answers knows it."},
}


def _service(request: Request) -> Replication:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services.replication


@router.get(
    "",
    summary="One group, who is in sync, and its rules",
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
    responses=_UNKNOWN,
)
async def get_replication(request: Request, group: Group) -> ReplicationView:
    """As in `/api/v1/cluster`, with the preferred leader and the settings that rule elections and pushes."""
    return await _service(request).view(group)


@router.post(
    "/transfer",
    summary="Hand leadership over",
    dependencies=[Depends(require(Role.OPERATE))],
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def transfer_leadership(
    request: Request,
    group: Group,
    choice: LeaderChoice,
    dry_run: DryRun = None,
    confirmation: Confirmation = None,
) -> Response:
    """To a member that is up, healthy and near enough. Answered once it leads, within 3 s."""
    change = _service(request).transfer(group, choice.node_id)
    return await run_change(request, change, dry_run, confirmation)


@router.put(
    "/preferred-leader",
    summary="Say who is to lead whenever it can",
    dependencies=[Depends(require(Role.ADMIN))],
    response_model=ChangeResult,
    responses=CHANGE_RESPONSES,
)
async def put_preferred_leader(
    request: Request,
    group: Group,
    preferred: PreferredLeader,
    dry_run: DryRun = None,
    confirmation: Confirmation = None,
) -> Response:
    """Every node of the group has it, also after a restart. Another that leads hands over by itself."""
    change = _service(request).prefer(group, preferred.node_id)
    return await run_change(request, change, dry_run, confirmation)
