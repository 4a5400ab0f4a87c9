"""Producers, as `/api/v1/producer-groups` answers them."""

from pydantic import Field

from admin_api.schemas.base import Page, Schema


class ProducerView(Schema):
    """One client that may send."""

    client_id: str
    address: str | None
    language: str | None
    version: str | None = Field(description="of its RocketMQ library; null when it is none we know")
    last_heartbeat_at_ms: int | None = Field(description="Unix time in ms, of the latest broker")
    brokers: list[str] = Field(description="names of the brokers it is connected to")


class ProducerGroupView(Schema):
    """One producer group and its connected clients."""

    group: str
    clients: list[ProducerView]


class ProducerGroups(Page[ProducerGroupView]):
    """Groups by name."""
