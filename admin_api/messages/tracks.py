"""Where a message was consumed (judged by each group's offset), and what clients' traces report about it.
Pure.

A trace message holds records that end with 0x02; their fields end with 0x01 and the first field is the kind
(RocketMQ's TraceDataEncoder). SubBefore and SubAfter of one consumption share a request id; they may arrive
in two messages, and SubAfter may be missing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import Field

from admin_api.messages.views import host_text
from admin_api.schema import Partial, Schema
from admin_api.sources.groups import Connections
from remoting.message_body import BodyError, unpack_body
from remoting.record import Record, get_property


class ConsumedState(StrEnum):
    """What a group made of a message, judged by its offset."""

    CONSUMED = "consumed"
    FILTERED = "filtered"
    NOT_YET = "notYet"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class TrackView(Schema):
    """One group and one message."""

    group: str
    state: ConsumedState = Field(
        description="consumed: its offset is beyond; filtered: likewise, but its filter leaves the tag out; "
        "notYet: its offset is not beyond; offline: likewise, and it has no members"
    )
    offset: int | None = Field(description="the group's offset in the message's queue; null: unknown or none")
    is_online: bool | None = None
    problem: str | None = None


class MessageTrack(Partial):
    """Where a message was consumed."""

    id: str
    items: list[TrackView]


class TraceSpan(Schema):
    """What a client says it did with a message."""

    kind: str = Field(description="send, consume or endTransaction")
    at_ms: int | None = Field(description="Unix time in ms of its begin, by the client's clock")
    cost_ms: int | None
    is_success: bool | None = Field(description="null: the client did not report the end (yet)")
    status: str | None = Field(default=None, description="what the client calls the outcome")
    group: str | None
    client_host: str | None
    topic: str | None = None
    store_host: str | None = None
    offset_id: str | None = None
    message_type: str | None = None
    retry_times: int | None = None
    transaction_state: str | None = None
    is_from_check: bool | None = None


class MessageTrace(Partial):
    """What clients that trace reported about a message, in order of time. Empty: no trace."""

    id: str
    trace_topic: str
    spans: list[TraceSpan]


def broadcast_track(group: str) -> TrackView:
    problem = "its members keep their offsets themselves"
    return TrackView(group=group, state=ConsumedState.UNKNOWN, offset=None, is_online=True, problem=problem)


def track_of(group: str, record: Record, offset: int | None, members: Connections | None) -> TrackView:
    """`members` is None where none is connected."""
    state = _state(record, offset, members)
    return TrackView(group=group, state=state, offset=offset, is_online=members is not None)


def _state(record: Record, offset: int | None, members: Connections | None) -> ConsumedState:
    if offset is None or offset <= record.queue_offset:
        return ConsumedState.OFFLINE if members is None else ConsumedState.NOT_YET
    row = None if members is None else members.subscription_table.get(record.topic)
    if row is None or row.expression_type == "SQL92" or row.sub_string.strip() in ("", "*"):
        return ConsumedState.CONSUMED
    wanted = {tag.strip() for tag in row.sub_string.split("||")}
    tag = (get_property(record.properties, b"TAGS") or b"").decode(errors="replace")
    return ConsumedState.CONSUMED if tag in wanted else ConsumedState.FILTERED


_TRACE_BYTES_MAX: Final = 512 * 1024
"""Clients send 128,000 bytes at most unless configured otherwise."""
_PIECES_MAX: Final = 20_000
_CONSUMED: Final = ("success", "timeout", "exception", "returned null", "failed")
"""ConsumeReturnType by its ordinal."""
_MESSAGE_TYPES: Final = ("normal", "half", "commit", "delay", "order")
"""MessageType by its ordinal."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One piece and who sent it."""

    fields: list[str]
    client_host: str

    def text(self, number: int) -> str | None:
        """None where the piece has no such field, or Java wrote null into it."""
        value = self.fields[number] if number < len(self.fields) else ""
        return value if value not in ("", "null") else None

    def number(self, number: int) -> int | None:
        text = self.text(number)
        is_number = (
            text is not None and text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20
        )
        return int(text) if text is not None and is_number else None

    def flag(self, number: int) -> bool | None:
        text = self.text(number)
        return None if text is None else text.lower() == "true"

    def one_of(self, number: int, words: tuple[str, ...]) -> str | None:
        ordinal = self.number(number)
        return words[ordinal] if ordinal is not None and 0 <= ordinal < len(words) else None


def spans_of(records: Iterable[Record], message_id: str) -> list[TraceSpan]:
    """What the trace messages report about this message, in order of time; unreadable ones are skipped."""
    spans: list[TraceSpan] = []
    begun: dict[str, TraceSpan] = {}
    ended: dict[str, _Piece] = {}
    for piece in _pieces(records):
        kind = piece.fields[0]
        if kind == "Pub" and piece.text(5) == message_id:
            spans.append(_sent(piece))
        elif kind == "EndTransaction" and piece.text(5) == message_id:
            spans.append(_transaction(piece))
        elif kind == "SubBefore" and piece.text(5) == message_id:
            begun[piece.fields[4]] = _begun(piece)
        elif kind == "SubAfter" and piece.text(2) == message_id:
            ended[piece.fields[1]] = piece
    spans += (_joined(begun.get(request), ended.get(request)) for request in begun.keys() | ended.keys())
    return sorted(spans, key=lambda span: (span.at_ms is None, span.at_ms or 0, span.kind))


def _pieces(records: Iterable[Record]) -> Iterable[_Piece]:
    left = _PIECES_MAX
    for record in records:
        try:
            text = unpack_body(record.body, record.sys_flag, _TRACE_BYTES_MAX).decode()
        except (BodyError, UnicodeDecodeError):
            continue
        host = host_text(record.born_host).rpartition(":")[0]
        for piece in text.split("\x02", left)[:left]:
            left -= 1
            fields = piece.split("\x01")
            if len(fields) >= 6:
                yield _Piece(fields, host)
        if left <= 0:
            return


def _sent(piece: _Piece) -> TraceSpan:
    """Pub; older clients report neither the offset id nor, in its place, more than success."""
    has_offset_id = len(piece.fields) >= 14
    return TraceSpan(
        kind="send",
        at_ms=piece.number(1),
        cost_ms=piece.number(10),
        is_success=piece.flag(13 if has_offset_id else 12),
        group=piece.text(3),
        client_host=piece.text(14) or piece.client_host,
        topic=piece.text(4),
        store_host=piece.text(8),
        offset_id=piece.text(12) if has_offset_id else None,
        message_type=piece.one_of(11, _MESSAGE_TYPES),
    )


def _transaction(piece: _Piece) -> TraceSpan:
    return TraceSpan(
        kind="endTransaction",
        at_ms=piece.number(1),
        cost_ms=None,
        is_success=None,
        group=piece.text(3),
        client_host=piece.client_host,
        topic=piece.text(4),
        store_host=piece.text(8),
        message_type=piece.one_of(9, _MESSAGE_TYPES),
        transaction_state=piece.text(11),
        is_from_check=piece.flag(12),
    )


def _begun(piece: _Piece) -> TraceSpan:
    return TraceSpan(
        kind="consume",
        at_ms=piece.number(1),
        cost_ms=None,
        is_success=None,
        group=piece.text(3),
        client_host=piece.client_host,
        retry_times=piece.number(6),
    )


def _joined(begun: TraceSpan | None, end: _Piece | None) -> TraceSpan:
    if begun is None:
        assert end is not None
        host = end.client_host
        begun = TraceSpan(
            kind="consume", at_ms=None, cost_ms=None, is_success=None, group=None, client_host=host
        )
    if end is None:
        return begun
    changed = {
        "cost_ms": end.number(3),
        "is_success": end.flag(4),
        "status": end.one_of(6, _CONSUMED),
        "group": begun.group or end.text(8),
    }
    return begun.model_copy(update=changed)
