"""The columns of the format `rocketmq`, and which of them a query wants. Pure."""

from typing import Final

from pyspark.sql.types import (
    BinaryType,
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


def check_schema(schema: StructType) -> None:
    """Accept the full schema or any choice of its columns, in any order, of the same types.

    Raises:
        OptionError: naming the column.
    """
    types = {field.name: field.dataType for field in FULL_SCHEMA.fields}
    for field in schema.fields:
        expected = types.get(field.name)
        if expected is None:
            raise OptionError(f"rocketmq has no column {field.name}; it has {', '.join(types)}")
        if field.dataType != expected:
            raise OptionError(
                f"column {field.name} is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )
