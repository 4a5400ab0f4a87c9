"""`/api/v1/dlq`: dead-letter queues, their messages, sending again, export."""

import re
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from admin_api.audit.auditor import Auditor, Export
from admin_api.audit.routes import AuditedFile
from admin_api.changes import Action
from admin_api.dead_letters.queues import DlqView
from admin_api.dead_letters.resend import DlqResend
from admin_api.dead_letters.service import EXPORT_MAX, DlqResendOrder, DlqWindow, ExportFormat, Written
from admin_api.messages import examples
from admin_api.messages.routes import Cursor, FromMs, Limit, ToMs
from admin_api.messages.window import FOREVER_MS
from admin_api.routing import MakeDep, PageDep, ServicesDep, answer, changing, problems
from admin_api.schema import Page
from admin_api.security.access import actor_of, costly, require
from admin_api.security.actor import Role

router = APIRouter(prefix="/api/v1/dlq", tags=["dead letters"])

Group = Annotated[str, Path(min_length=1, max_length=255, description="the consumer group")]
_SEARCH = [Depends(require(Role.READ)), Depends(costly)]
_ABSENT = problems(e404="The group has no dead letters.")
_MEDIA_TYPES = {ExportFormat.JSONL: "application/jsonl", ExportFormat.CSV: "text/csv; charset=utf-8"}


@router.get(
    "",
    summary="Groups with dead letters",
    dependencies=_SEARCH,
    response_model=Page[DlqView],
    responses=examples.DLQ_GROUPS | problems(),
)
async def get_dlq_groups(
    services: ServicesDep,
    page: PageDep,
    name: Annotated[str | None, Query(max_length=255, description="a part of the name, case aside")] = None,
) -> Response:
    """By name: how many messages each has that are still in the log, and how old they are."""
    return answer(await services.dlq.groups(page, name))


@router.get(
    "/{group}",
    summary="The dead letters of one group, counted",
    dependencies=_SEARCH,
    response_model=DlqView,
    responses=examples.DLQ_GROUP | _ABSENT,
)
async def get_dlq_group(services: ServicesDep, group: Group) -> Response:
    """How many, the oldest and the newest."""
    return answer(await services.dlq.group(group))


@router.get(
    "/{group}/messages",
    summary="Dead letters, the newest first",
    dependencies=_SEARCH,
    response_model=DlqWindow,
    responses=examples.DLQ_WINDOW
    | _ABSENT
    | problems(e400="The cursor is none.", e404="The group has no dead letters."),
)
async def get_dlq_messages(
    services: ServicesDep,
    group: Group,
    from_ms: FromMs = 0,
    to_ms: ToMs = FOREVER_MS,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """With the topic and id they had first, and how often they were tried."""
    if cursor is not None:
        return answer(await services.dlq.next_window(group, cursor, limit))
    return answer(await services.dlq.window(group, from_ms, to_ms, limit))


@router.post(
    "/{group}/resend",
    summary="Send dead letters again",
    **changing(
        Role.OPERATE,
        examples.DLQ_RESENT | problems(e400="An id is no dead letter of the group."),
        is_costly=True,
    ),
)
async def resend_dead_letters(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    order: Annotated[DlqResendOrder, Body(openapi_examples=examples.DLQ_RESENDS)],
) -> Response:
    """Those named by `ids`, or the oldest of a window, at most 200 a call: to the group alone (by its retry
    topic) or to the original topic. The preview lists each; those that were resent before are left out."""
    return await make(DlqResend(services.dlq, group, order))


@router.get(
    "/{group}/export",
    summary="Dead letters as a file",
    dependencies=[Depends(require(Role.OPERATE)), Depends(costly)],
    response_class=StreamingResponse,
    responses=examples.FILE | _ABSENT,
)
async def export_dead_letters(
    request: Request,
    services: ServicesDep,
    group: Group,
    file_format: Annotated[
        ExportFormat, Query(alias="format", description="of the file")
    ] = ExportFormat.JSONL,
    from_ms: FromMs = 0,
    to_ms: ToMs = FOREVER_MS,
    limit: Annotated[int, Query(ge=1, le=EXPORT_MAX, description="messages of the file")] = EXPORT_MAX,
) -> StreamingResponse:
    """JSON lines or CSV, the oldest first. A broker that falls silent on the way breaks the download off, so
    that what arrived whole is whole."""
    auditor = request.app.state.auditor
    assert isinstance(auditor, Auditor)
    written = Written()
    lines = services.dlq.export(group, file_format, from_ms, to_ms, limit, written)
    first = await anext(lines, None)  # what cannot be begun is a problem, not a file
    audited = Export(auditor, Action.DLQ_EXPORT, group, actor_of(request))
    await audited.begin()
    name = re.sub(r"[^0-9A-Za-z_-]", "_", group)[:100]
    headers = {
        "Content-Disposition": f'attachment; filename="dlq-{name}.{file_format.value}"',
        "Cache-Control": "no-store",
    }
    response = AuditedFile(_chain(first, lines), media_type=_MEDIA_TYPES[file_format], headers=headers)
    response.ends = lambda: audited.end("dead letters", written.letters, is_whole=written.is_whole)
    return response


async def _chain(first: str | None, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    if first is not None:
        yield first
    async for line in lines:
        yield line
