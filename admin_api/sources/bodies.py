"""Parses the JSON bodies of brokers' answers, including fastjson's dialect, into validated values.

Any fault in a body is an AskError: the broker gave no usable answer.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from admin_api.gateway import AskError
from remoting.fastjson import FastjsonError, loads

BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""A frame holds no more."""

K = TypeVar("K")
M = TypeVar("M", bound="Body")


class Body(BaseModel):
    """What a broker sends; keys that are not named are passed over."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore", defer_build=True
    )


class QueueKey(Body):
    """RocketMQ's MessageQueue, the key of its per-queue tables."""

    topic: str
    broker_name: str
    queue_id: int


def read_json(address: str, body: bytes, what: str, bytes_max: int = BODY_BYTES_MAX) -> dict[str, Any]:
    """The object in an answer's body; `what` names it in the error. Raises: AskError."""
    value = _read(address, body, what, bytes_max)
    if not isinstance(value, dict):
        raise AskError(address, f"{address}: its {what} cannot be read: it is no object")
    return value


def read_list(
    address: str, body: bytes, model: type[M], what: str, bytes_max: int = BODY_BYTES_MAX
) -> list[M]:
    """The list in an answer's body; an answer without a body has none. Raises: AskError."""
    value = _read(address, body, what, bytes_max) if body else []
    if not isinstance(value, list):
        raise AskError(address, f"{address}: its {what} cannot be read: it is no list")
    return [check(address, row, model, what) for row in value]


def _read(address: str, body: bytes, what: str, bytes_max: int) -> Any:
    if len(body) > bytes_max:
        raise AskError(address, f"{address}: its {what} has {len(body)} bytes, {bytes_max} are read")
    try:
        return loads(body)
    except FastjsonError as error:
        raise AskError(address, f"{address}: its {what} cannot be read: {error}") from error


def table_of(address: str, value: Mapping[str, Any], key: str, what: str, rows_max: int) -> dict[str, Any]:
    """The table at `key`; an answer without it is no answer, not an empty table. Raises: AskError."""
    table = value.get(key)
    if not isinstance(table, dict) or len(table) > rows_max:
        raise AskError(address, f"{address}: its {what} is no table of at most {rows_max} rows")
    return table


def check(address: str, value: Any, model: type[M], what: str) -> M:
    """The value as `model`. Raises: AskError."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _unreadable(address, what, error) from error


def check_rows(address: str, table: Mapping[K, Any], model: type[M], what: str) -> dict[K, M]:
    """The table with each value as `model`. Raises: AskError."""
    try:
        return {key: model.model_validate(row) for key, row in table.items()}
    except ValidationError as error:
        raise _unreadable(address, what, error) from error


def _unreadable(address: str, what: str, error: ValidationError) -> AskError:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "body"
    return AskError(address, f"{address}: its {what} cannot be read: {where}: {first['msg']}")


def by_queue(address: str, table: Mapping[str, Any], what: str) -> Iterator[tuple[QueueKey, Any]]:
    """The rows of a table whose keys are queues. Raises: AskError."""
    for text, value in table.items():
        try:
            key = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise AskError(address, f"{address}: its {what} cannot be read: {text[:80]!r}") from error
        yield check(address, key, QueueKey, what), value
