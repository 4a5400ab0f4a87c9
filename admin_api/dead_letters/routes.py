"""`/api/v1/dlq`: dead-letter queues, their messages, sending again, export."""

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query, Request
from fastapi.openapi.models import Example
from fastapi.responses import Response, StreamingResponse

from admin_api.audit.log import Auditor, Export
from admin_api.audit.routes import AuditedFile
from admin_api.changes import Action
from admin_api.dead_letters.queues import DlqView
from admin_api.dead_letters.resend import DlqResend
from admin_api.dead_letters.service import (
    EXPORT_MAX,
    DlqMessage,
    DlqResendOrder,
    DlqWindow,
    ExportFormat,
    Written,
)
from admin_api.messages.routes import (
    ID_EXAMPLE,
    NOW_MS_EXAMPLE,
    SUMMARY_EXAMPLE,
    UNIQUE_KEY_EXAMPLE,
    Cursor,
    FromMs,
    Limit,
    ToMs,
)
from admin_api.messages.window import FOREVER_MS
from admin_api.routing import (
    MakeDep,
    PageDep,
    ServicesDep,
    actor_of,
    answer,
    changing,
    costly,
    problems,
    require,
    shown,
    shown_outcome,
)
from admin_api.schema import EffectView, Page
from admin_api.security.policy import Role

_COPY_ID: Final = "7F00000100002A9F0000000000000FA0"
_GROUP: Final = DlqView(
    group="billing",
    topic="%DLQ%billing",
    count=3,
    oldest_at_ms=NOW_MS_EXAMPLE - 86_400_000,
    newest_at_ms=NOW_MS_EXAMPLE - 60_000,
)
_GROUP_EXAMPLE: Final = shown(_GROUP)
_GROUPS_EXAMPLE: Final = shown(Page[DlqView](items=[_GROUP], page=1, page_size=100, total=1))
_WINDOW_EXAMPLE: Final = shown(
    DlqWindow(
        group="billing",
        items=[
            DlqMessage(
                **SUMMARY_EXAMPLE.model_dump(exclude={"topic", "queue_id", "reconsume_times"}),
                topic="%DLQ%billing",
                queue_id=0,
                reconsume_times=17,
                original_topic="orders",
                original_id="7F00000100002A9F00000000000003E8",
                age_ms=86_400_000,
            )
        ],
        next_cursor=None,
        examined=1,
    )
)
_RESENT_EXAMPLE: Final = shown_outcome(
    Action.DLQ_RESEND,
    "billing",
    EffectView(subject=ID_EXAMPLE, after="once more in %RETRY%billing"),
    f"{ID_EXAMPLE}: {_COPY_ID} at broker-a/0, offset 4",
    is_destructive=True,
)

_RESEND_EXAMPLES: Final[dict[str, Example]] = {
    "one, to its group": {"value": {"target": "group", "ids": [ID_EXAMPLE]}},
    "a window, to the original topic": {
        "value": {
            "target": "topic",
            "fromMs": NOW_MS_EXAMPLE - 3_600_000,
            "toMs": NOW_MS_EXAMPLE,
            "limit": 100,
        }
    },
}
_FILE_EXAMPLE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One message a line; the last line says so where a bound cut it.",
        "content": {
            "application/jsonl": {
                "schema": {"type": "string"},
                "example": f'{{"id":"{ID_EXAMPLE}","originalTopic":"orders","body":"…"}}\n',
            },
            "text/csv": {
                "schema": {"type": "string"},
                "example": f"id,uniqueKey,originalTopic\r\n{ID_EXAMPLE},{UNIQUE_KEY_EXAMPLE},orders\r\n",
            },
        },
    }
}


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
    responses=_GROUPS_EXAMPLE | problems(),
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
    responses=_GROUP_EXAMPLE | _ABSENT,
)
async def get_dlq_group(services: ServicesDep, group: Group) -> Response:
    """How many, the oldest and the newest."""
    return answer(await services.dlq.group(group))


@router.get(
    "/{group}/messages",
    summary="Dead letters, the newest first",
    dependencies=_SEARCH,
    response_model=DlqWindow,
    responses=_WINDOW_EXAMPLE
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
        _RESENT_EXAMPLE | problems(e400="An id is no dead letter of the group."),
        is_costly=True,
    ),
)
async def resend_dead_letters(
    services: ServicesDep,
    make: MakeDep,
    group: Group,
    order: Annotated[DlqResendOrder, Body(openapi_examples=_RESEND_EXAMPLES)],
) -> Response:
    """Those named by `ids`, or the oldest of a window, at most 200 a call: to the group alone (by its retry
    topic) or to the original topic. The preview lists each; those that were resent before are left out."""
    return await make(DlqResend(services.dlq, group, order))


@router.get(
    "/{group}/export",
    summary="Dead letters as a file",
    dependencies=[Depends(require(Role.OPERATE)), Depends(costly)],
    response_class=StreamingResponse,
    responses=_FILE_EXAMPLE | _ABSENT,
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
