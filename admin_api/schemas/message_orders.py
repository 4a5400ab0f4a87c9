"""What is asked for when messages are sent."""

from enum import StrEnum

from pydantic import Field, field_validator

from admin_api.schemas.base import RequestSchema

SEND_BYTES_MAX: int = 4 * 1024 * 1024
TEXT_CHARS_MAX: int = 32_767
PROPERTIES_MAX: int = 256


class NewMessage(RequestSchema):
    """A test message. Its body is `text` or `base64`."""

    text: str | None = Field(default=None, max_length=SEND_BYTES_MAX)
    base64: str | None = Field(default=None, max_length=SEND_BYTES_MAX * 4 // 3 + 4)
    keys: list[str] = Field(default=[], max_length=64)
    tags: str | None = Field(default=None, max_length=TEXT_CHARS_MAX)
    properties: dict[str, str] = Field(default={}, max_length=PROPERTIES_MAX)
    delay_level: int | None = Field(default=None, ge=1, le=1000)
    broker_name: str | None = Field(default=None, max_length=255)
    queue_id: int | None = Field(default=None, ge=0, le=65_535)

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, keys: list[str]) -> list[str]:
        if any(not key or len(key.split()) != 1 or len(key) > TEXT_CHARS_MAX for key in keys):
            raise ValueError("a key is one word: spaces divide them")
        return keys


class ResendTarget(StrEnum):
    """TOPIC: for all its groups, as a new message. CONSUMER: one client of one group, now; offsets stay."""

    TOPIC = "topic"
    CONSUMER = "consumer"


class ResendOrder(RequestSchema):
    """Where to resend a message. `consumer` needs the group; without `clientId` any member will do."""

    target: ResendTarget = ResendTarget.TOPIC
    consumer_group: str | None = Field(default=None, max_length=255)
    client_id: str | None = Field(default=None, max_length=1024)
