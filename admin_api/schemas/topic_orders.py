"""What is asked for when a topic is made or changed."""

from typing import Annotated

from pydantic import Field, StringConstraints

from admin_api.schemas.base import RequestSchema

QUEUES_MAX = 65_536
ATTRIBUTES_MAX = 64
TopicName = Annotated[str, StringConstraints(pattern=r"^[%|a-zA-Z0-9_+-]+$", max_length=127)]
AttributeKey = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_.-]+$", max_length=64)]
AttributeValue = Annotated[str, StringConstraints(pattern=r"^[^,=\x00-\x1f]*$", max_length=1024)]


class TopicSpec(RequestSchema):
    """What a topic shall be. What is left out stays as it is, and is 8 queues, readable and writable for a
    new topic."""

    read_queues: int | None = Field(default=None, ge=1, le=QUEUES_MAX)
    write_queues: int | None = Field(default=None, ge=1, le=QUEUES_MAX)
    can_read: bool | None = None
    can_write: bool | None = None
    is_ordered: bool | None = None
    attributes: dict[AttributeKey, AttributeValue | None] = Field(
        default={}, max_length=ATTRIBUTES_MAX, description="what to set; null takes an attribute away"
    )
    brokers: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="broker names; left out: those that have it, or all for a new topic",
    )


class NewTopic(TopicSpec):
    """A topic that is not there yet."""

    name: TopicName
