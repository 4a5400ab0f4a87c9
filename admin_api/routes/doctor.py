"""What is wrong, in sentences."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from admin_api.routes.overview_examples import DOCTOR
from admin_api.schemas.doctor import SAMPLE_MS_MAX, DoctorReport
from admin_api.security.access import costly, require
from admin_api.security.actor import Role
from admin_api.services.context import Services

router = APIRouter(
    prefix="/api/v1/doctor",
    tags=["doctor"],
    dependencies=[Depends(require(Role.READ)), Depends(costly)],
)


@router.get("", summary="What is wrong, and what to do", responses=DOCTOR)
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
