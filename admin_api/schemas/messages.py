"""Messages as operators see them: short in lists, whole alone; where they were consumed, and their trace."""

from enum import StrEnum

from pydantic import Field, field_validator

from admin_api.schemas.base import Partial, RequestSchema, Schema

BODY_SHOWN_BYTES: int = 64 * 1024
BODY_SHOWN_BYTES_MAX: int = 1024 * 1024
PREVIEW_CHARS: int = 200
SEND_BYTES_MAX: int = 4 * 1024 * 1024
TEXT_CHARS_MAX: int = 32_767
PROPERTIES_MAX: int = 256


class BodyFormat(StrEnum):
    """How a body is shown. AUTO: JSON laid out, text if it is UTF-8 without control characters, or hex."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"


class BodyView(Schema):
    """A body, or as much of it as was asked for."""

    format: BodyFormat = Field(description="how `content` is written; never auto")
    content: str | None = Field(description="null when the body cannot be unpacked")
    body_bytes: int | None = Field(description="as its producer made it; null when it cannot be unpacked")
    stored_bytes: int = Field(description="as it is in the log, perhaps compressed")
    compression: str | None = Field(default=None, description="zlib, lz4 or zstd; null: none")
    is_text: bool | None = Field(description="whether it is UTF-8")
    is_body_cut: bool = Field(description="`content` is only the beginning")
    problem: str | None = Field(default=None, description="why it is not shown, or not as asked")


class MessageSummary(Schema):
    """One message of a list."""

    id: str = Field(description="offset message id: its broker and its position there")
    unique_key: str | None = Field(description="the id its client gave it; null: none")
    topic: str
    broker_name: str | None
    queue_id: int
    queue_offset: int
    tags: str | None = None
    keys: list[str] = Field(default=[])
    born_at_ms: int = Field(description="Unix time in ms, by its producer's clock")
    stored_at_ms: int = Field(description="Unix time in ms, by its broker's clock")
    reconsume_times: int = 0
    stored_bytes: int = Field(description="of the body, perhaps compressed")
    preview: str | None = Field(default=None, description="the beginning of the body; null: no text")


class MessageWindow(Partial):
    """Messages of a topic with a key, or a part of those between two times, and where to go on."""

    items: list[MessageSummary]
    next_cursor: str | None = Field(description="for the next part; null: there is no more")
    examined: int | None = Field(description="messages looked at for this part; null: found by an index")


class MessageView(MessageSummary):
    """One message, whole."""

    position: int = Field(description="byte of the log where its record begins (physical offset)")
    born_host: str
    store_host: str
    flag: int
    sys_flag: int
    transaction: str | None = Field(default=None, description="prepared, commit or rollback; null: none")
    prepared_transaction_offset: int
    body_crc: int
    is_crc_right: bool = Field(description="whether the body is what its checksum says")
    properties: dict[str, str]
    body: BodyView
    copies: list[MessageSummary] = Field(
        default=[], description="other messages of the topic with the same client's id"
    )


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


class NewMessage(RequestSchema):
    """A test message. Its body is `text` or `base64`."""

    text: str | None = Field(default=None, max_length=SEND_BYTES_MAX)
    base64: str | None = Field(default=None, max_length=SEND_BYTES_MAX * 4 // 3 + 4)
    keys: list[str] = Field(default=[], max_length=64)
    tags: str | None = Field(default=None, max_length=TEXT_CHARS_MAX)
    properties: dict[str, str] = Field(default={}, max_length=PROPERTIES_MAX)
    delay_level: int | None = Field(default=None, ge=1, le=1000)
    broker_name: str | None = Field(default=None, max_length=255)
    queue_id: int | None = Field(default=None, ge=0, le=65_535)

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, keys: list[str]) -> list[str]:
        if any(not key or len(key.split()) != 1 or len(key) > TEXT_CHARS_MAX for key in keys):
            raise ValueError("a key is one word: spaces divide them")
        return keys


class ResendTarget(StrEnum):
    """TOPIC: for all its groups, as a new message. CONSUMER: one client of one group, now; offsets stay."""

    TOPIC = "topic"
    CONSUMER = "consumer"


class ResendOrder(RequestSchema):
    """Where to resend a message. `consumer` needs the group; without `clientId` any member will do."""

    target: ResendTarget = ResendTarget.TOPIC
    consumer_group: str | None = Field(default=None, max_length=255)
    client_id: str | None = Field(default=None, max_length=1024)
