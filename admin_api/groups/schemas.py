"""Models of the list `/api/v1/consumer-groups`. A number that no broker reported is null, never 0."""

from enum import StrEnum

from pydantic import Field

from admin_api.schema import Schema


class GroupPresence(StrEnum):
    """ONLINE: a consumer is connected. OFFLINE: every broker says that none is. UNKNOWN: not known."""

    ONLINE = "online"
    OFFLINE = "offline"
    UNKNOWN = "unknown"


class GroupSort(StrEnum):
    """What the list is ordered by."""

    NAME = "name"
    LAG = "lag"
    MEMBERS = "members"
    RATE = "rate"


class ConsumerGroupItem(Schema):
    """One group in the list."""

    group: str
    brokers: list[str] = Field(description="names of the brokers that have its settings")
    is_system: bool = Field(description="one of RocketMQ's own")
    presence: GroupPresence
    members: int | None = Field(
        description="connected consumers; each counts once, however many brokers know it"
    )
    message_model: str | None = Field(description="CLUSTERING or BROADCASTING, as its consumers say")
    consume_type: str | None = Field(
        description="CONSUME_PASSIVELY (push), CONSUME_ACTIVELY (pull), CONSUME_POP"
    )
    consume_enabled: bool | None = Field(description="null where brokers differ")
    lag: int | None = Field(
        description="messages not consumed yet in all topics, retries included; null for a group that has no "
        "offset, for one that broadcasts (its consumers keep their offsets), and where it was not asked for"
    )
    is_lag_partial: bool = Field(description="a broker that may have more of it did not answer")
    unknown_queues: int | None = Field(description="queues with messages that it has no offset for")
    lag_by_topic: dict[str, int | None] = Field(default={}, description="the same by topic")
    consume_tps: float | None = Field(description="messages a second over the last minute")
    pop_in_flight: int | None = Field(description="popped, and neither acknowledged nor given up")
