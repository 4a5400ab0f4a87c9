"""The sink's options and columns: everything that cannot be used is named."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketmq_spark.errors import OptionError
from rocketmq_spark.sink.options import Delivery, parse_sink_options
from rocketmq_spark.sink.rows import read_columns

NAMESRV = {"namesrv": "h:1"}
TEXT, NUMBER = StringType(), IntegerType()


def test_defaults() -> None:
    options = parse_sink_options(NAMESRV, is_stream=True)
    assert (options.topic, options.delivery, options.producer_group) == (
        None,
        Delivery.AT_LEAST_ONCE,
        "rocketmq-spark",
    )
    assert (options.send_timeout_s, options.batch_bytes, options.window_bytes) == (120.0, 512 << 10, 4 << 20)
    assert (options.writer_id, options.batch_id, options.create_queues) == (None, 0, 0)


def test_everything_can_be_set_and_sparks_own_options_are_passed_over() -> None:
    given = {
        **NAMESRV,
        "TOPIC": "T",
        "delivery": "Exactly-Once",
        "producerGroup": "p",
        "createTopicQueues": "8",
        "sendTimeout": "30s",
        "batchBytes": "1000",
        "inFlightBytes": "5000",
        "writerId": "copy-1",
        "batchId": "7",
        "checkRepeats": "false",
    }
    options = parse_sink_options(given, is_stream=False)
    assert (options.topic, options.delivery, options.producer_group) == ("T", Delivery.EXACTLY_ONCE, "p")
    assert (options.create_queues, options.send_timeout_s) == (8, 30.0)
    assert (options.batch_bytes, options.window_bytes) == (1000, 5000)
    assert (options.writer_id, options.batch_id) == ("copy-1", 7)
    assert not options.check_repeats
    parse_sink_options({**NAMESRV, "checkpointLocation": "/c", "queryName": "q"}, is_stream=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "needs the option namesrv"),
        ({"topik": "T"}, "no option topik; nearest: topic"),
        ({"delivery": "exactly"}, "must be one of at-least-once, exactly-once, auto"),
        ({"batchBytes": "1048577"}, "option batchBytes is 1048577, must be at most 1048576"),
        ({"inFlightBytes": "x"}, "option inFlightBytes is 'x'"),
        ({"createTopicQueues": "-1"}, "createTopicQueues"),
        ({"batchId": "3"}, "beside the option writerId"),
        ({"writerId": "w"}, "writerId is for delivery=exactly-once"),
        ({"writerId": "a|b", "delivery": "auto"}, "option writerId is 'a|b'"),
        ({"writerId": "w" * 48, "delivery": "auto"}, "at most 47 characters"),
        ({"path": "Orders"}, "option path names a folder"),
        ({"checkpointLocation": "c", "queryName": "q"}, "checkpointLocation is for .*; option queryName is"),
        ({"sendTimeout": "soon"}, "option sendTimeout is 'soon'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], words: str) -> None:
    given = {**NAMESRV, **options} if options else {}
    with pytest.raises(OptionError, match=words.replace("|", r"\|")):
        parse_sink_options(given, is_stream=False)


def test_a_stream_has_its_ids_from_spark() -> None:
    with pytest.raises(OptionError, match="no option writerId"):
        parse_sink_options({**NAMESRV, "writerId": "w"}, is_stream=True)


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def test_columns_are_known_in_any_case() -> None:
    strings = MapType(TEXT, TEXT)
    schema = schema_of(
        Value=BinaryType(), TOPIC=TEXT, keys=TEXT, tags=TEXT, properties=strings, queueid=ShortType(),
        brokerName=TEXT, delayLevel=NUMBER, deliverTimestamp=TimestampType(), flag=NUMBER,
    )  # fmt: skip
    columns = read_columns(schema, None)
    assert columns.body == "value"
    assert columns.names[5] == "queueId"
    assert read_columns(schema_of(body=TEXT, deliverTimestamp=LongType()), "T").body == "body"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (schema_of(body=TEXT, boddy=TEXT), "no column boddy; nearest: body"),
        (schema_of(body=TEXT, zzzz=TEXT), "no column zzzz; known: body"),
        (schema_of(body=NUMBER), "column body is int, must be a string or binary"),
        (schema_of(body=TEXT, keys=NUMBER), "column keys is int, must be a string"),
        (schema_of(body=TEXT, keys=ArrayType(TEXT)), "column keys is array<string>"),
        (schema_of(body=TEXT, properties=MapType(TEXT, NUMBER)), "a map of string to string"),
        (schema_of(body=TEXT, queueId=TEXT), "column queueId is string, must be a whole number"),
        (schema_of(body=TEXT, value=TEXT), "one column with the messages' bodies"),
        (schema_of(keys=TEXT), "one column with the messages' bodies"),
        (schema_of(body=TEXT, BODY=TEXT), "the column body more than once"),
    ],
)
def test_wrong_columns_are_named(schema: StructType, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_columns(schema, "T")


def test_a_topic_must_come_from_somewhere() -> None:
    with pytest.raises(OptionError, match="no topic is given"):
        read_columns(schema_of(body=TEXT), None)
