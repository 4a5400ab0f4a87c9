"""The cluster as JSON, once or as a stream."""

from collections.abc import AsyncIterator
from http import HTTPStatus

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from admin_api.examples import PROBLEM_EXAMPLE
from admin_api.feed import Feed
from admin_api.problems import MEDIA_TYPE, ProblemError
from admin_api.routes.parts import answer
from admin_api.schemas.base import Problem
from admin_api.schemas.cluster import ClusterView, NodeState
from admin_api.security.access import actor_of

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
        detail = f"The name server gives no answer and no node is known: {view.namesrv.problem}."
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, detail)
    return view


@router.get(
    "/cluster",
    summary="Every group and node",
    response_model=ClusterView,
    responses={503: _UNAVAILABLE},
)
async def get_cluster(request: Request) -> Response:
    """Roles, terms, log marks, lag and state of every node. What nobody could say is null, never 0.
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
    is_shared = request.app.policy.is_open  # everybody is the same client then
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
