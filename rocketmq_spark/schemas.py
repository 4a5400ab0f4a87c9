"""The columns of the formats `rocketmq` and `rocketmq-log`, and which of them a query wants. Pure."""

import difflib
from collections.abc import Iterable
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketmq_spark.errors import OptionError

FULL_SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("brokerName", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("physicalOffset", LongType()),
        StructField("msgId", StringType()),
        StructField("keys", StringType()),
        StructField("tags", StringType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField("bornTimestamp", TimestampType()),
        StructField("storeTimestamp", TimestampType()),
        StructField("bornHost", StringType()),
        StructField("reconsumeTimes", IntegerType()),
        StructField("flag", IntegerType()),
        StructField("sysFlag", IntegerType()),
    ]
)


_LIKENESS_MIN: Final = 0.7
"""Minimum likeness (difflib) of a name that is suggested for an unknown one: `price` is not like `topic`."""


def check_schema(schema: StructType) -> None:
    """Accept the full schema or any choice of its columns, in any order, of the same types.

    Raises:
        OptionError: naming every column that is unknown or of another type.
    """
    check_choice("rocketmq", FULL_SCHEMA, schema)


def check_choice(what: str, full: StructType, schema: StructType) -> None:
    """Accept any choice of the columns of `full`, the schema of the format `what`.

    Raises:
        OptionError: naming every column that is unknown, doubled or of another type.
    """
    types = {field.name: field.dataType for field in full.fields}
    unknown = [field.name for field in schema.fields if field.name not in types]
    problems = [_unknown_column(what, name, types) for name in unknown]
    problems += [
        f"column {field.name} is {types[field.name].simpleString()}, not {field.dataType.simpleString()}"
        for field in schema.fields
        if field.name in types and field.dataType != types[field.name]
    ]
    names = [field.name for field in schema.fields]
    problems += [f"column {name} is named twice" for name in types if names.count(name) > 1]
    if problems:
        has = f"; it has {', '.join(types)}" if unknown else ""
        raise OptionError("; ".join(problems) + has)


def _unknown_column(what: str, name: str, known: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_LIKENESS_MIN)
    nearest = f" (nearest: {by_lower[near[0]]})" if near else ""
    return f"{what} has no column {name}{nearest}"


_PLACE: Final = (
    StructField("store", StringType()),
    StructField("index", LongType()),
    StructField("term", LongType()),
    StructField("position", LongType()),
)
_STATUS: Final = (
    StructField("length", LongType()),
    StructField("status", StringType()),
    StructField("error", StringType()),
)

MESSAGES: Final = StructType([*FULL_SCHEMA.fields, *_PLACE, *_STATUS])
"""The columns of `rocketmq`, and the place of the message's entry."""

ENTRIES: Final = StructType(
    [
        *_PLACE,
        StructField("size", LongType()),
        StructField("crcOk", BooleanType()),
        StructField("bodyCrcOk", BooleanType()),
        StructField("topic", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        StructField("physicalOffset", LongType()),
        StructField("storeTimestamp", TimestampType()),
        StructField("sysFlag", IntegerType()),
        StructField("isSystem", BooleanType()),
        *_STATUS,
    ]
)


def schema_of(view: str) -> StructType:
    """All columns of a view."""
    return ENTRIES if view == "entries" else MESSAGES


def check_columns(schema: StructType, view: str) -> None:
    """Accept any choice of the view's columns, in any order. Raises OptionError naming all wrong ones."""
    check_choice("rocketmq-log", schema_of(view), schema)
