"""The name server's own state, and what is cleaned up by hand."""

from pydantic import Field

from admin_api.schemas.base import RequestSchema, Schema
from admin_api.sources.cleaning import Garbage


class NameServerView(Schema):
    """The name server that this service asks."""

    address: str
    config: dict[str, str] = Field(description="every key with its value in force; secrets masked")


class NameServerChange(RequestSchema):
    """Keys of its configuration that are to change, all or none."""

    values: dict[str, str] = Field(min_length=1, max_length=100)


class ItemsView(Schema):
    """The key-value items of one namespace."""

    namespace: str
    items: dict[str, str]


class ItemValue(RequestSchema):
    """What an item is to be."""

    value: str = Field(max_length=32_000)


class WritePermission(RequestSchema):
    """Whether the routes of a broker's topics show it as writable."""

    is_writable: bool


class Cleaning(RequestSchema):
    """What is to be deleted at once, and where."""

    garbage: Garbage
    addresses: list[str] | None = Field(
        default=None, max_length=256, description="of brokers; null: all that the name server lists"
    )
