"""The last hour, for plots."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from admin_api.routes.parts import answer, shown
from admin_api.schemas.history import GroupHistory, HistorySample, HistoryView
from admin_api.security.access import require
from admin_api.security.actor import Role
from admin_api.services.history import History

history_router = APIRouter(prefix="/api/v1", tags=["cluster"])

_NOW_MS: Final = 1_767_225_600_000
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
    """Sampled every few seconds while the admin process runs, and kept in memory: a restart begins anew.
    What nobody could say is null."""
    history = request.app.state.history
    assert isinstance(history, History)
    return answer(history.view(since_ms))
