"""`/healthz`, `/readyz`, `/metrics` and `/api/v1/doctor`."""

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from admin_api.cluster.examples import PROBLEM_EXAMPLE
from admin_api.cluster.routes import feed_of, known
from admin_api.cluster.schemas import GroupState, Health, Readiness
from admin_api.health_checks.facts import SAMPLE_MS_MAX, DoctorReport, Finding, Severity
from admin_api.metrics import AdminMetrics
from admin_api.problems import MEDIA_TYPE, ProblemError
from admin_api.routing import costly, require, shown
from admin_api.schema import Problem
from admin_api.security.policy import Role
from admin_api.services import Services

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


_EXAMPLE = 'ledgermq_cluster_writable{group="broker-a"} 1.0\n'

metrics_router = APIRouter(tags=["health"], dependencies=[Depends(require(Role.READ))])


@metrics_router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": _EXAMPLE}}}},
)
async def get_metrics(request: Request) -> Response:
    """Prometheus' text format; docs/monitoring.md has every name. The cluster may be half a second old."""
    metrics = request.app.state.metrics
    assert isinstance(metrics, AdminMetrics)
    feed = feed_of(request)
    text = metrics.render(await feed.current(), feed.watchers)
    return Response(text, media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})


doctor_router = APIRouter(
    prefix="/api/v1/doctor",
    tags=["doctor"],
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
)

_NOW_MS: Final = 1_767_225_600_000
_DOCTOR: Final = shown(
    DoctorReport(
        as_of_ms=_NOW_MS,
        is_well=True,
        findings=[
            Finding(
                severity=Severity.WARNING,
                code="node-down",
                subject="broker-a/n0",
                sentence="broker-a/n0 is down (it answered last 30 s ago): 127.0.0.1:10911 cannot be "
                "reached: Connection refused.",
                remedy="Start it again (on its own machine: `ledgermq node n0`); it catches up by itself.",
            )
        ],
        looked_at={"groups": 1, "nodes": 3, "consumerGroups": 12, "deadLetterQueues": None},
    )
)


@doctor_router.get("", summary="What is wrong, and what to do", responses=_DOCTOR)
async def get_doctor(
    request: Request,
    sample_ms: Annotated[
        int,
        Query(
            alias="sampleMs",
            ge=0,
            le=SAMPLE_MS_MAX,
            description="Look at consumers twice, so many ms apart: only so can be said that a lag grows.",
        ),
    ] = 0,
) -> DoctorReport:
    """Looks at every node, its machine, the addresses in the routes, consumer groups and dead letters. Always
    200: `isWell` says whether a finding is an error, and what could not be checked is in `problems`."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return await services.health_checks.examine(sample_ms)
