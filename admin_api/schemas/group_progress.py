"""How far a consumer group is. A number nobody knows is null, never 0."""

from pydantic import Field

from admin_api.schemas.base import Partial, Schema
from admin_api.schemas.consumer_groups import GroupPresence


class QueueProgress(Schema):
    """How far a group is in one queue."""

    broker_name: str
    queue_id: int
    min_offset: int | None = Field(description="its first message; null when it was not told")
    max_offset: int = Field(description="the offset the next message gets")
    offset: int | None = Field(description="the next message to consume; null: the group has no offset here")
    lag: int | None = Field(description="messages not consumed yet; null without an offset")
    in_flight: int | None = Field(
        description="pulled and not committed, where the broker counts it (RocketMQ 5); else null"
    )
    last_consumed_at_ms: int | None = Field(description="store time of the last message consumed, Unix ms")
    delay_ms: int | None = Field(description="how long the next message has been waiting; 0 without one")
    client_id: str | None = Field(description="the consumer that has the queue; null: none, or not known")


class TopicProgressView(Schema):
    """One topic that the group consumes."""

    topic: str
    is_retry: bool
    lag: int | None = Field(
        description="of the queues where it is known; null where it is of none that is filled"
    )
    unknown_queues: int = Field(description="queues with messages that the group has no offset for")
    queues: list[QueueProgress]


class ProgressView(Partial):
    """How far a group is, queue by queue."""

    group: str
    presence: GroupPresence
    is_broadcast: bool | None
    as_of_ms: int = Field(description="Unix time in ms")
    lag: int | None
    consume_tps: float | None
    topics: list[TopicProgressView] | None = Field(description="null: no broker could say")
