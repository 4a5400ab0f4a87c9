"""Which column of a DataFrame is what of a message. Pure."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from rocketmq_spark.errors import OptionError

_TEXT: Final[tuple[type[DataType], ...]] = (StringType,)
_NUMBER: Final[tuple[type[DataType], ...]] = (ByteType, ShortType, IntegerType, LongType)
_KINDS: Final[Mapping[str, tuple[tuple[type[DataType], ...], str]]] = {
    "body": ((StringType, BinaryType), "a string or binary"),
    "value": ((StringType, BinaryType), "a string or binary"),
    "topic": (_TEXT, "a string"),
    "keys": (_TEXT, "a string"),
    "tags": (_TEXT, "a string"),
    "properties": ((MapType,), "a map of string to string"),
    "queueId": (_NUMBER, "a whole number"),
    "brokerName": (_TEXT, "a string"),
    "delayLevel": (_NUMBER, "a whole number"),
    "deliverTimestamp": ((TimestampType, LongType), "a timestamp, or a long in ms since 1970"),
    "flag": (_NUMBER, "a whole number"),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """`body`: the name of the column with it. `names`: all columns in the DataFrame's order."""

    body: str
    names: tuple[str, ...] = field(default=())

    def has(self, name: str) -> bool:
        return name in self.names


def read_columns(schema: StructType, topic: str | None) -> Columns:
    """Raises OptionError that names what is unknown, doubled, missing or of a wrong type."""
    by_lower = {name.lower(): name for name in _KINDS}
    names = []
    for column in schema.fields:
        name = by_lower.get(column.name.lower())
        if name is None:
            raise OptionError(_unknown(column.name))
        _check_type(name, column.dataType)
        names.append(name)
    _check_names(names, topic)
    return Columns("body" if "body" in names else "value", tuple(names))


def _check_names(names: Sequence[str], topic: str | None) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise OptionError(f"the DataFrame has the column {doubled[0]} more than once")
    if ("body" in names) == ("value" in names):
        raise OptionError("the DataFrame needs one column with the messages' bodies: body, or value")
    if topic is None and "topic" not in names:
        raise OptionError("no topic is given: neither the option topic nor a column topic")


def _check_type(name: str, found: DataType) -> None:
    kinds, text = _KINDS[name]
    is_right = isinstance(found, kinds)
    if is_right and isinstance(found, MapType):
        is_right = isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if not is_right:
        raise OptionError(f"the column {name} is {found.simpleString()}, must be {text}")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in _KINDS], n=2)
    nearest = [one for one in _KINDS if one.lower() in near]
    hint = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(_KINDS)}"
    return f"the sink rocketmq has no column {name}; {hint}"
