"""What Prometheus reads: the cluster, and this process."""

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from admin_api.metrics import AdminMetrics
from admin_api.routes.cluster import feed_of
from admin_api.security.access import require
from admin_api.security.actor import Role

_EXAMPLE = 'ledgermq_cluster_writable{group="broker-a"} 1.0\n'

metrics_router = APIRouter(tags=["health"], dependencies=[Depends(require(Role.READ))])


@metrics_router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": _EXAMPLE}}}},
)
async def get_metrics(request: Request) -> Response:
    """Prometheus' text format; docs/metrics.md has every name. The cluster may be half a second old."""
    metrics = request.app.state.metrics
    assert isinstance(metrics, AdminMetrics)
    feed = feed_of(request)
    text = metrics.render(await feed.current(), feed.watchers)
    return Response(text, media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})
