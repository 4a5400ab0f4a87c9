"""`/api/v1/messages`: search by id, key or time; trace and consumption; sending and sending again."""

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Body, Depends, Path, Query
from fastapi.openapi.models import Example
from fastapi.responses import Response

from admin_api.changes import Action
from admin_api.errors import InvalidError
from admin_api.messages.sending import NewMessage, ResendOrder, SendMessage, resend_change
from admin_api.messages.service import TRACE_TOPIC
from admin_api.messages.tracks import ConsumedState, MessageTrace, MessageTrack, TraceSpan, TrackView
from admin_api.messages.views import (
    BODY_SHOWN_BYTES,
    BODY_SHOWN_BYTES_MAX,
    BodyFormat,
    BodyView,
    MessageSummary,
    MessageView,
    MessageWindow,
)
from admin_api.messages.window import CURSOR_CHARS_MAX, FOREVER_MS, Search
from admin_api.routing import (
    MakeDep,
    ServicesDep,
    answer,
    changing,
    costly,
    problems,
    require,
    shown,
    shown_outcome,
    shown_preview,
)
from admin_api.schema import EffectView
from admin_api.security.policy import Role

ID_EXAMPLE: Final = "7F00000100002A9F0000000000000BB8"
UNIQUE_KEY_EXAMPLE: Final = "C0A80001000018B4AAC2549A1B2C0000"
NOW_MS_EXAMPLE: Final = 1_767_225_600_000
SUMMARY_EXAMPLE: Final = MessageSummary(
    id=ID_EXAMPLE,
    unique_key=UNIQUE_KEY_EXAMPLE,
    topic="orders",
    broker_name="broker-a",
    queue_id=3,
    queue_offset=120,
    tags="paid",
    keys=["order-7"],
    born_at_ms=NOW_MS_EXAMPLE,
    stored_at_ms=NOW_MS_EXAMPLE + 3,
    stored_bytes=13,
    preview='{"order":"7"}',
)
_CONFIRMATION: Final = "1767225900.5d0c7f9be1a24433.9b1e53a1"

_WINDOW_EXAMPLE: Final = shown(
    MessageWindow(items=[SUMMARY_EXAMPLE], next_cursor="eJyLVsovSkktKlbSMTQAAUOdaKUkBRAA", examined=128)
)
_MESSAGE_EXAMPLE: Final = shown(
    MessageView(
        **SUMMARY_EXAMPLE.model_dump(),
        position=3000,
        born_host="127.0.0.1:40312",
        store_host="127.0.0.1:10911",
        flag=0,
        sys_flag=0,
        prepared_transaction_offset=0,
        body_crc=1_095_738_169,
        is_crc_right=True,
        properties={"KEYS": "order-7", "TAGS": "paid", "UNIQ_KEY": UNIQUE_KEY_EXAMPLE},
        body=BodyView(
            format=BodyFormat.JSON,
            content='{\n  "order": "7"\n}',
            body_bytes=13,
            stored_bytes=13,
            is_text=True,
            is_body_cut=False,
        ),
    )
)
_TRACE_EXAMPLE: Final = shown(
    MessageTrace(
        id=UNIQUE_KEY_EXAMPLE,
        trace_topic="RMQ_SYS_TRACE_TOPIC",
        spans=[
            TraceSpan(
                kind="send",
                at_ms=NOW_MS_EXAMPLE,
                cost_ms=3,
                is_success=True,
                group="shop",
                client_host="10.0.0.5",
                topic="orders",
                store_host="127.0.0.1:10911",
                offset_id=ID_EXAMPLE,
                message_type="normal",
            ),
            TraceSpan(
                kind="consume",
                at_ms=NOW_MS_EXAMPLE + 5,
                cost_ms=12,
                is_success=True,
                status="success",
                group="billing",
                client_host="10.0.0.7",
                retry_times=0,
            ),
        ],
    )
)
_TRACK_EXAMPLE: Final = shown(
    MessageTrack(
        id=ID_EXAMPLE,
        items=[
            TrackView(group="audit", state=ConsumedState.OFFLINE, offset=57, is_online=False),
            TrackView(group="billing", state=ConsumedState.CONSUMED, offset=121, is_online=True),
        ],
    )
)
_SENT_EXAMPLE: Final = shown_outcome(
    Action.MESSAGE_SEND,
    "orders",
    EffectView(subject="broker-a/any", after="13 bytes more"),
    f"orders: {ID_EXAMPLE} at broker-a/3, offset 120",
    is_destructive=False,
)
_RESENT_EXAMPLE: Final = shown_preview(
    Action.MESSAGE_RESEND,
    ID_EXAMPLE,
    EffectView(subject=ID_EXAMPLE, after="once more in orders"),
    warning="Every group that consumes the topic gets the message once more.",
    confirmation=_CONFIRMATION,
)
_NEW_MESSAGE_EXAMPLES: Final[dict[str, Example]] = {
    "text": {
        "value": {"text": '{"order":"7"}', "keys": ["order-7"], "tags": "paid", "properties": {"a": "b"}}
    },
    "bytes, delayed": {"value": {"base64": "AAEC", "delayLevel": 3}},
}
_RESEND_EXAMPLES: Final[dict[str, Example]] = {
    "to its topic": {"value": {"target": "topic"}},
    "to a consumer": {"value": {"target": "consumer", "consumerGroup": "billing"}},
}
_BYTES_EXAMPLE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The bytes.",
        "content": {
            "application/octet-stream": {
                "schema": {"type": "string", "format": "binary"},
                "example": "order-7 is paid",
            }
        },
    }
}


LIMIT_MAX: Final = 200
router = APIRouter(prefix="/api/v1", tags=["messages"])

MessageId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=512,
        description="an offset message id, or with `topic` the id its client gave it",
    ),
]
Topic = Annotated[str, Query(min_length=1, max_length=255, description="the topic to search")]
MaybeTopic = Annotated[
    str | None, Query(min_length=1, max_length=255, description="needed for an id that a client gave")
]
FromMs = Annotated[int, Query(alias="from", ge=0, le=FOREVER_MS, description="stored at or after, Unix ms")]
ToMs = Annotated[int, Query(alias="to", ge=0, le=FOREVER_MS, description="stored at or before, Unix ms")]
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="messages of one answer")]
Cursor = Annotated[
    str | None,
    Query(
        min_length=1,
        max_length=CURSOR_CHARS_MAX,
        description="`nextCursor` of the part before; then times and tag are its own",
    ),
]
_SEARCH = [Depends(require(Role.READ)), Depends(costly)]
_ABSENT = problems(e404="No broker has such a message, or no broker has the topic.")


@router.get(
    "/messages",
    summary="Messages of a topic by key, or by time",
    dependencies=_SEARCH,
    response_model=MessageWindow,
    responses=_WINDOW_EXAMPLE
    | problems(
        e400="The cursor is none, or the offset's queue is not named.", e404="There is no such topic."
    ),
)
async def find_messages(
    services: ServicesDep,
    topic: Topic,
    key: Annotated[
        str | None, Query(min_length=1, max_length=1024, description="one of its keys, or its client's id")
    ] = None,
    from_ms: FromMs = 0,
    to_ms: ToMs = FOREVER_MS,
    tag: Annotated[str | None, Query(min_length=1, max_length=1024, description="only with this one")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    broker_name: Annotated[
        str | None, Query(alias="brokerName", max_length=255, description="only its queues")
    ] = None,
    queue_id: Annotated[
        int | None, Query(alias="queueId", ge=0, le=65_535, description="only queues of this number")
    ] = None,
    offset: Annotated[
        int | None, Query(ge=0, le=FOREVER_MS, description="of the queue named: the messages from there on")
    ] = None,
) -> Response:
    """The newest first. By `key` (or a client's id) the index of the brokers answers, at most 64 of each.
    Without, the messages stored between the two times are read from the queues, as many as one answer may
    cost: with a rare `tag` an answer can be empty and `nextCursor` lead on all the same."""
    messages = services.messages
    if key is not None:
        return answer(await messages.by_key(topic, key, from_ms, to_ms, min(limit, 64)))
    if offset is not None:
        if broker_name is None or queue_id is None:
            raise InvalidError("An offset is of one queue: name it by brokerName and queueId.")
        return answer(await messages.at_offset(topic, broker_name, queue_id, offset, limit))
    if cursor is not None:
        return answer(await messages.next_window(topic, cursor, limit))
    search = Search(topic, from_ms, to_ms, tag)
    return answer(await messages.window(search, limit, broker_name=broker_name, queue_id=queue_id))


@router.get(
    "/messages/{message_id}",
    summary="One message",
    dependencies=_SEARCH,
    response_model=MessageView,
    responses=_MESSAGE_EXAMPLE | _ABSENT,
)
async def get_message(
    services: ServicesDep,
    message_id: MessageId,
    topic: MaybeTopic = None,
    body_format: Annotated[
        BodyFormat, Query(alias="bodyFormat", description="how the body is to be shown")
    ] = BodyFormat.AUTO,
    body_bytes: Annotated[
        int,
        Query(alias="bodyBytes", ge=0, le=BODY_SHOWN_BYTES_MAX, description="of the body that are shown"),
    ] = BODY_SHOWN_BYTES,
) -> Response:
    """With all its properties, and the first `bodyBytes` of its body, unpacked where it was compressed. JSON
    is laid out, other text is shown as it is, anything else as hex, unless `bodyFormat` says how."""
    return answer(await services.messages.view(message_id, topic, body_format, body_bytes))


@router.get(
    "/messages/{message_id}/body",
    summary="The whole body, as its producer made it",
    dependencies=_SEARCH,
    response_class=Response,
    responses=_BYTES_EXAMPLE | _ABSENT | problems(e400="The body is compressed and cannot be unpacked."),
)
async def get_message_body(
    services: ServicesDep, message_id: MessageId, topic: MaybeTopic = None
) -> Response:
    """For saving: never shown by the browser, whatever is in it."""
    body = await services.messages.body(message_id, topic)
    name = re.sub(r"[^0-9A-Za-z_-]", "_", message_id)[:100]
    headers = {"Content-Disposition": f'attachment; filename="{name}.bin"', "Cache-Control": "no-store"}
    return Response(body, media_type="application/octet-stream", headers=headers)


@router.get(
    "/messages/{message_id}/trace",
    summary="What clients report about a message",
    dependencies=_SEARCH,
    response_model=MessageTrace,
    responses=_TRACE_EXAMPLE | problems(),
)
async def get_message_trace(
    services: ServicesDep,
    message_id: MessageId,
    topic: MaybeTopic = None,
    trace_topic: Annotated[
        str,
        Query(alias="traceTopic", min_length=1, max_length=255, description="where its clients write traces"),
    ] = TRACE_TOPIC,
) -> Response:
    """Of clients with `enableMsgTrace`, by their own clocks: the send, and each consumption."""
    return answer(await services.messages.trace(message_id, topic, trace_topic))


@router.get(
    "/messages/{message_id}/track",
    summary="Where a message was consumed",
    dependencies=_SEARCH,
    response_model=MessageTrack,
    responses=_TRACK_EXAMPLE | _ABSENT,
)
async def get_message_track(
    services: ServicesDep, message_id: MessageId, topic: MaybeTopic = None
) -> Response:
    """Computed from the offsets of the groups that consume its topic, or did."""
    return answer(await services.messages.track(message_id, topic))


@router.post(
    "/messages/{message_id}/resend",
    summary="Send a message again",
    **changing(
        Role.OPERATE, _RESENT_EXAMPLE | problems(e400="A consumer without its group."), is_costly=True
    ),
)
async def resend_message(
    services: ServicesDep,
    make: MakeDep,
    message_id: MessageId,
    order: Annotated[ResendOrder, Body(openapi_examples=_RESEND_EXAMPLES)],
    topic: MaybeTopic = None,
) -> Response:
    """As a new message of its topic with the same id, keys, tags and properties; or to one client of a group,
    which consumes it at once. Either way a message may be consumed twice, so it needs a confirmation."""
    return await make(await resend_change(services.messages, message_id, topic, order))


@router.post(
    "/topics/{topic}/messages",
    summary="Send a test message",
    **changing(Role.OPERATE, _SENT_EXAMPLE | problems(e400="The message cannot be sent so.")),
)
async def send_message(
    services: ServicesDep,
    make: MakeDep,
    topic: Annotated[str, Path(min_length=1, max_length=255, description="one that exists")],
    message: Annotated[NewMessage, Body(openapi_examples=_NEW_MESSAGE_EXAMPLES)],
) -> Response:
    """To a topic that exists. The outcome names the new message's id."""
    if not topic.strip():
        raise InvalidError("The topic has no name.")
    return await make(SendMessage(services.messages, topic, message))
