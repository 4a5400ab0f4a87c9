"""What is wrong, in sentences."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request

from admin_api.routes.parts import shown
from admin_api.schemas.doctor import SAMPLE_MS_MAX, DoctorReport, Finding, Severity
from admin_api.security.access import costly, require
from admin_api.security.actor import Role
from admin_api.services.context import Services

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
    200: `isWell` says whether a finding is an error, and what could not be looked at is in `problems`."""
    services = request.app.state.services
    assert isinstance(services, Services)
    return await services.doctor.examine(sample_ms)
