"""Models of messages: a short one in lists, a full one alone."""

from enum import StrEnum

from pydantic import Field

from admin_api.schema import Partial, Schema

BODY_SHOWN_BYTES: int = 64 * 1024
BODY_SHOWN_BYTES_MAX: int = 1024 * 1024
PREVIEW_CHARS: int = 200


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
    examined: int | None = Field(description="messages read for this part; null: found by an index")


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
