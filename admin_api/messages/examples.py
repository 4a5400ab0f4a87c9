"""Examples of messages and dead letters for the OpenAPI description, built from the models."""

from typing import Any, Final

from fastapi.openapi.models import Example

from admin_api.changes import Action
from admin_api.dead_letters.queues import DlqView
from admin_api.dead_letters.service import DlqMessage, DlqWindow
from admin_api.messages.schemas import BodyFormat, BodyView, MessageSummary, MessageView, MessageWindow
from admin_api.messages.tracks import ConsumedState, MessageTrace, MessageTrack, TraceSpan, TrackView
from admin_api.routing import shown
from admin_api.schema import ChangeResult, EffectView, OutcomeView, Page

_ID: Final = "7F00000100002A9F0000000000000BB8"
_COPY_ID: Final = "7F00000100002A9F0000000000000FA0"
_UNIQUE_KEY: Final = "C0A80001000018B4AAC2549A1B2C0000"
_NOW_MS: Final = 1_767_225_600_000
_SUMMARY: Final = MessageSummary(
    id=_ID,
    unique_key=_UNIQUE_KEY,
    topic="orders",
    broker_name="broker-a",
    queue_id=3,
    queue_offset=120,
    tags="paid",
    keys=["order-7"],
    born_at_ms=_NOW_MS,
    stored_at_ms=_NOW_MS + 3,
    stored_bytes=13,
    preview='{"order":"7"}',
)
_CONFIRMATION: Final = "1767225900.5d0c7f9be1a24433.9b1e53a1"

WINDOW: Final = shown(
    MessageWindow(items=[_SUMMARY], next_cursor="eJyLVsovSkktKlbSMTQAAUOdaKUkBRAA", examined=128)
)
MESSAGE: Final = shown(
    MessageView(
        **_SUMMARY.model_dump(),
        position=3000,
        born_host="127.0.0.1:40312",
        store_host="127.0.0.1:10911",
        flag=0,
        sys_flag=0,
        prepared_transaction_offset=0,
        body_crc=1_095_738_169,
        is_crc_right=True,
        properties={"KEYS": "order-7", "TAGS": "paid", "UNIQ_KEY": _UNIQUE_KEY},
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
TRACE: Final = shown(
    MessageTrace(
        id=_UNIQUE_KEY,
        trace_topic="RMQ_SYS_TRACE_TOPIC",
        spans=[
            TraceSpan(
                kind="send",
                at_ms=_NOW_MS,
                cost_ms=3,
                is_success=True,
                group="shop",
                client_host="10.0.0.5",
                topic="orders",
                store_host="127.0.0.1:10911",
                offset_id=_ID,
                message_type="normal",
            ),
            TraceSpan(
                kind="consume",
                at_ms=_NOW_MS + 5,
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
TRACK: Final = shown(
    MessageTrack(
        id=_ID,
        items=[
            TrackView(group="audit", state=ConsumedState.OFFLINE, offset=57, is_online=False),
            TrackView(group="billing", state=ConsumedState.CONSUMED, offset=121, is_online=True),
        ],
    )
)
_DLQ_GROUP: Final = DlqView(
    group="billing",
    topic="%DLQ%billing",
    count=3,
    oldest_at_ms=_NOW_MS - 86_400_000,
    newest_at_ms=_NOW_MS - 60_000,
)
DLQ_GROUP: Final = shown(_DLQ_GROUP)
DLQ_GROUPS: Final = shown(Page[DlqView](items=[_DLQ_GROUP], page=1, page_size=100, total=1))
DLQ_WINDOW: Final = shown(
    DlqWindow(
        group="billing",
        items=[
            DlqMessage(
                **_SUMMARY.model_dump(exclude={"topic", "queue_id", "reconsume_times"}),
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
SENT: Final = shown(
    ChangeResult(
        action=Action.MESSAGE_SEND.value,
        target="orders",
        is_dry_run=False,
        is_destructive=False,
        effects=[EffectView(subject="broker-a/any", after="13 bytes more")],
        outcomes=[OutcomeView(subject=f"orders: {_ID} at broker-a/3, offset 120", ok=True)],
    )
)
RESENT: Final = shown(
    ChangeResult(
        action=Action.MESSAGE_RESEND.value,
        target=_ID,
        is_dry_run=True,
        is_destructive=True,
        effects=[EffectView(subject=_ID, after="once more in orders")],
        warnings=["Every group that consumes the topic gets the message once more."],
        confirmation=_CONFIRMATION,
    )
)
DLQ_RESENT: Final = shown(
    ChangeResult(
        action=Action.DLQ_RESEND.value,
        target="billing",
        is_dry_run=False,
        is_destructive=True,
        effects=[EffectView(subject=_ID, after="once more in %RETRY%billing")],
        outcomes=[OutcomeView(subject=f"{_ID}: {_COPY_ID} at broker-a/0, offset 4", ok=True)],
    )
)

NEW_MESSAGES: Final[dict[str, Example]] = {
    "text": {
        "value": {"text": '{"order":"7"}', "keys": ["order-7"], "tags": "paid", "properties": {"a": "b"}}
    },
    "bytes, delayed": {"value": {"base64": "AAEC", "delayLevel": 3}},
}
RESENDS: Final[dict[str, Example]] = {
    "to its topic": {"value": {"target": "topic"}},
    "to a consumer": {"value": {"target": "consumer", "consumerGroup": "billing"}},
}
DLQ_RESENDS: Final[dict[str, Example]] = {
    "one, to its group": {"value": {"target": "group", "ids": [_ID]}},
    "a window, to the original topic": {
        "value": {"target": "topic", "fromMs": _NOW_MS - 3_600_000, "toMs": _NOW_MS, "limit": 100}
    },
}
FILE: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "One message a line; the last line says so where a bound cut it.",
        "content": {
            "application/jsonl": {
                "schema": {"type": "string"},
                "example": f'{{"id":"{_ID}","originalTopic":"orders","body":"…"}}\n',
            },
            "text/csv": {
                "schema": {"type": "string"},
                "example": f"id,uniqueKey,originalTopic\r\n{_ID},{_UNIQUE_KEY},orders\r\n",
            },
        },
    }
}
BYTES: Final[dict[int | str, dict[str, Any]]] = {
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
