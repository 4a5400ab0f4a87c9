"""What is asked for when offsets are changed."""

from enum import StrEnum

from pydantic import AwareDatetime, Field, model_validator

from admin_api.schemas.base import RequestSchema, Schema

QUEUES_MAX = 4096
OFFSET_MAX = 2**63 - 1


class ResetTo(StrEnum):
    """Where a group is to go on. EARLIEST: the first message. LATEST: behind the last. TIME: the first that
    was stored at or after it. OFFSET: exactly there.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSET = "offset"


class QueueOffset(Schema):
    """One queue, and for an exact reset its offset."""

    broker_name: str = Field(min_length=1, max_length=127)
    queue_id: int = Field(ge=0, le=2**31 - 1)
    offset: int | None = Field(default=None, ge=0, le=OFFSET_MAX)


class OffsetReset(RequestSchema):
    """Moves a group in one topic."""

    topic: str = Field(min_length=1, max_length=255)
    to: ResetTo
    time: AwareDatetime | None = Field(default=None, description="for `time`, with its zone")
    time_ms: int | None = Field(default=None, ge=0, le=253_402_300_799_999, description="the same as Unix ms")
    offset: int | None = Field(
        default=None, ge=0, le=OFFSET_MAX, description="for `offset`: of every queue that names none itself"
    )
    queues: list[QueueOffset] | None = Field(
        default=None,
        min_length=1,
        max_length=QUEUES_MAX,
        description="only these; all of the topic when left out",
    )

    @model_validator(mode="after")
    def _is_whole(self) -> "OffsetReset":
        times = sum(value is not None for value in (self.time, self.time_ms))
        if times != (self.to is ResetTo.TIME):
            raise ValueError("`time` or `timeMs` belongs to a reset to `time`, and only to it")
        named = [queue.offset for queue in self.queues or ()]
        if self.to is not ResetTo.OFFSET and (self.offset is not None or any(o is not None for o in named)):
            raise ValueError("an offset belongs to a reset to `offset`")
        if self.to is ResetTo.OFFSET and self.offset is None and (not named or None in named):
            raise ValueError("a reset to `offset` needs `offset`, or one for each of `queues`")
        keys = [(queue.broker_name, queue.queue_id) for queue in self.queues or ()]
        if len(set(keys)) != len(keys):
            raise ValueError("a queue is named twice")
        return self

    def unix_ms(self) -> int:
        """The time of a reset to one."""
        if self.time is not None:
            return max(0, int(self.time.timestamp() * 1000))
        assert self.time_ms is not None, self
        return self.time_ms


class OffsetSkip(RequestSchema):
    """Skips everything that has accumulated: a reset to the latest."""

    topic: str | None = Field(
        default=None, min_length=1, max_length=255, description="all that the group consumes when left out"
    )


class OffsetClone(RequestSchema):
    """Has another group go on where this one is. Its own offsets of the topics are overwritten."""

    target_group: str = Field(min_length=1, max_length=255, pattern=r"^[%|a-zA-Z0-9_-]+$")
    topic: str | None = Field(
        default=None, min_length=1, max_length=255, description="all that the group consumes when left out"
    )
