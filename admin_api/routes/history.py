"""The last hour, for plots."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from admin_api.routes.overview_examples import HISTORY
from admin_api.routes.parts import answer
from admin_api.schemas.history import HistoryView
from admin_api.security.access import require
from admin_api.security.actor import Role
from admin_api.services.history import History

router = APIRouter(prefix="/api/v1", tags=["cluster"])


@router.get(
    "/history",
    summary="The last hour of throughput, put latency and lag",
    response_model=HistoryView,
    responses=HISTORY,
    dependencies=[Depends(require(Role.READ))],
)
async def get_history(
    request: Request,
    since_ms: Annotated[
        int | None,
        Query(alias="sinceMs", ge=0, le=2**53, description="only what came after; Unix time in ms"),
    ] = None,
) -> Response:
    """Sampled every few seconds while the admin process runs, and kept in memory: a restart begins anew.
    What nobody could say is null."""
    history = request.app.state.history
    assert isinstance(history, History)
    return answer(history.view(since_ms))
