"""Dead letters: what groups could not consume."""

from enum import StrEnum

from pydantic import Field

from admin_api.schemas.base import Partial, RequestSchema
from admin_api.schemas.messages import MessageSummary

RESEND_MAX: int = 200
EXPORT_MAX: int = 10_000


class DlqMessage(MessageSummary):
    """One dead letter."""

    original_topic: str | None = Field(description="where it was sent first")
    original_id: str | None = Field(description="offset message id of the first one")
    age_ms: int = Field(description="since it came here, by this service's clock")


class DlqWindow(Partial):
    """A part of a group's dead letters, and where to go on."""

    group: str
    items: list[DlqMessage]
    next_cursor: str | None = Field(description="for the next part; null: there is no more")
    examined: int = Field(description="messages looked at for this part")


class DlqTarget(StrEnum):
    """GROUP: by its retry topic, for this group only. TOPIC: for all groups of the original topic."""

    GROUP = "group"
    TOPIC = "topic"


class DlqResendOrder(RequestSchema):
    """Which dead letters to resend: those with the ids, or the oldest of the window not resent yet."""

    target: DlqTarget = DlqTarget.GROUP
    ids: list[str] = Field(default=[], max_length=RESEND_MAX, description="none: those of the window")
    from_ms: int = Field(default=0, ge=0, le=2**62)
    to_ms: int | None = Field(default=None, ge=0, le=2**62, description="null: until now")
    limit: int = Field(default=RESEND_MAX, ge=1, le=RESEND_MAX)


class ExportFormat(StrEnum):
    """JSONL: an object a line, bodies in base64 where they are no text. CSV: a line each, with a heading."""

    JSONL = "jsonl"
    CSV = "csv"
