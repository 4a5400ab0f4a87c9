"""The columns of `rocketmq-log`. Pure."""

from typing import Final

from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketmq_spark.source.schema import FULL_SCHEMA, check_choice

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
