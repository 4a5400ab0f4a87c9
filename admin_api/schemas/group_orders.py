"""What is asked for when a consumer group is changed."""

from enum import StrEnum

from pydantic import Field

from admin_api.schemas.base import RequestSchema


class GroupSettingsChange(RequestSchema):
    """What is left out stays as it is; a new group gets RocketMQ's values."""

    consume_enabled: bool | None = None
    consume_from_min_enabled: bool | None = None
    consume_broadcast_enabled: bool | None = None
    is_orderly: bool | None = None
    retry_queues: int | None = Field(default=None, ge=0, le=1024)
    retry_max_times: int | None = Field(default=None, ge=0, le=1_000_000)
    notify_consumer_ids_changed: bool | None = None
    consume_timeout_minutes: int | None = Field(default=None, ge=0, le=525_600)
    brokers: list[str] | None = Field(
        default=None, max_length=256, description="names of brokers; all of the cluster when left out"
    )


class ConsumeMode(StrEnum):
    """How RocketMQ 5 consumers get messages when the broker shares the queues out."""

    PULL = "PULL"
    POP = "POP"


class ConsumeModeChange(RequestSchema):
    """Of one topic, on all brokers that have it."""

    topic: str = Field(min_length=1, max_length=127, pattern=r"^[%|a-zA-Z0-9_-]+$")
    mode: ConsumeMode
    pop_share_queues: int = Field(default=0, ge=0, le=100_000, description="for POP; 0: all share all queues")
