"""Where a message was consumed, and what clients tell of it."""

from enum import StrEnum

from pydantic import Field

from admin_api.schemas.base import Partial, Schema


class ConsumedState(StrEnum):
    """What a group made of a message, as far as its offset tells."""

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
    is_success: bool | None = Field(description="null: the client did not tell the end (yet)")
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
    """What clients that trace told of a message, in order of time. Empty: none told, or none traces."""

    id: str
    trace_topic: str
    spans: list[TraceSpan]
