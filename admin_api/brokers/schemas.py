"""Models of `/api/v1/brokers`."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from admin_api.cluster.schemas import NodeState
from admin_api.schema import Page, RequestSchema, Schema

CHANGES_MAX = 64

SettingKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=128)]
SettingValue = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f]*$", max_length=4096)]


class Product(StrEnum):
    """What kind of broker it is: ours knows of replication and more."""

    LEDGERMQ = "ledgermq"
    ROCKETMQ = "rocketmq"


class BrokerRow(Schema):
    """One broker process. Where it did not answer, only its place in the name server is known."""

    address: str
    broker_name: str
    cluster: str | None
    broker_id: int | None = Field(description="its id in the name server; 0 takes the writes")
    state: NodeState
    problem: str | None = Field(description="why it did not answer")
    product: Product | None
    node_id: str | None = Field(description="its id in its replication group; null for RocketMQ's own")
    role: str | None = Field(
        description="LEADER, FOLLOWER or CANDIDATE; MASTER or SLAVE for RocketMQ's own, by its broker id"
    )
    is_writable: bool | None
    version: str | None
    started_at_ms: int | None
    put_per_second: float | None = Field(description="messages taken, over the last 10 s")
    get_per_second: float | None = Field(description="messages given out, over the last 10 s")
    put_today: int | None = Field(description="messages taken since midnight")
    get_today: int | None = Field(description="messages given out since midnight")
    disk_used_ratio: float | None = Field(description="of the disk its log is on, 0 to 1")


class Brokers(Page[BrokerRow]):
    """By broker name, then broker id."""


class BrokerRuntime(Schema):
    """Everything a broker says of itself in figures, in its own words."""

    address: str
    broker: BrokerRow
    figures: dict[str, str]


class SettingView(Schema):
    """One key. `canChange` is null where the broker does not say."""

    key: str
    value: str = Field(description="secrets are masked")
    can_change: bool | None = Field(description="while it runs; false: set it in its file and restart it")


class BrokerConfig(Schema):
    """Every key with the value in force."""

    address: str
    settings: list[SettingView]


class ConfigPatch(RequestSchema):
    """The keys to change."""

    settings: dict[SettingKey, SettingValue] = Field(min_length=1, max_length=CHANGES_MAX)


class DiskView(Schema):
    """The disk the log is on."""

    total_bytes: int | None
    free_bytes: int | None
    used_ratio: float | None
    clean_above_ratio: float | None = Field(description="old files are deleted early above it")
    full_above_ratio: float | None = Field(description="no message is taken above it")


class LogStorage(Schema):
    """The message log's files. Positions are bytes of the log."""

    begin_position: int | None
    end_position: int | None
    dispatched_position: int | None = Field(description="up to here the queues show it")
    size_bytes: int | None
    file_bytes: int | None = Field(description="size of one file")
    file_count: int | None
    earliest_message_at_ms: int | None = Field(description="Unix time in ms")


class RetentionView(Schema):
    """How long messages stay."""

    keep_hours: int | None
    delete_hours: str | None = Field(description="hours of the day at which old files are deleted")


class BrokerStorage(Schema):
    """What a broker has on its disk. null: it does not say."""

    address: str
    directory: str | None
    log: LogStorage
    disk: DiskView
    retention: RetentionView
