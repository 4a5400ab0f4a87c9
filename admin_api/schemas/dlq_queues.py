"""Dead letter queues: how many letters, how old."""

from pydantic import Field

from admin_api.schemas.base import Schema


class DlqView(Schema):
    """The dead letters of one group."""

    group: str
    topic: str
    count: int | None = Field(description="messages that are still in the log; null: unknown")
    oldest_at_ms: int | None = Field(description="when the oldest of them came; null: none, or unknown")
    newest_at_ms: int | None = Field(description="when the newest came; null: none, or unknown")
    is_partial: bool = Field(default=False, description="a broker that has some of them gave no answer")
