"""Whether this process lives, and whether the cluster takes messages."""

from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request

from admin_api.examples import PROBLEM_EXAMPLE
from admin_api.problems import MEDIA_TYPE, ProblemError
from admin_api.routes.cluster import feed_of, known
from admin_api.routes.parts import shown
from admin_api.schemas.base import Problem
from admin_api.schemas.cluster import GroupState, Health, Readiness

router = APIRouter(tags=["health"])

_HEALTH: Final = shown(Health())
_READY: Final = shown(Readiness(leaders={"broker-a": "n1"}))


@router.get("/healthz", summary="This process lives", responses=_HEALTH)
async def get_health() -> Health:
    """200 while the admin process serves; it says nothing about the brokers."""
    return Health()


@router.get(
    "/readyz",
    summary="The cluster takes messages",
    responses={
        **_READY,
        503: {
            "model": Problem,
            "description": "A group has no leader that takes messages.",
            "content": {MEDIA_TYPE: {"example": PROBLEM_EXAMPLE}},
        },
    },
)
async def get_readiness(request: Request) -> Readiness:
    """200 when there is a group and every group has a writable leader; 503 with the reason otherwise."""
    view = known(await feed_of(request).current())
    unable = [f"{g.group} is {g.state}" for g in view.groups if g.state is not GroupState.WRITABLE]
    if unable or not view.groups:
        detail = ", ".join(unable) or "the name server lists no broker"
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, f"Messages cannot be written: {detail}.")
    return Readiness(leaders={g.group: g.leader_id for g in view.groups if g.leader_id is not None})
