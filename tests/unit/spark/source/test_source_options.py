"""Options of the source: what they mean, and how wrong ones are refused."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from remoting.client.routes import MessageQueue
from rocketmq_spark.errors import OptionError
from rocketmq_spark.schemas import FULL_SCHEMA, check_schema
from rocketmq_spark.source.batch_reader import RocketmqPushdownReader, RocketmqReader, make_reader
from rocketmq_spark.source.offsets import EARLIEST, LATEST
from rocketmq_spark.source.options import Missing, Position, batch_options, stream_options

BASE = {"namesrv": "127.0.0.1:9876", "subscribe": "T"}


def test_defaults_of_a_batch() -> None:
    options = batch_options(BASE)
    common = options.common
    assert common.start == Position("startingOffsets", of_all=EARLIEST)
    assert options.end == Position("endingOffsets", of_all=LATEST)
    assert common.subscription.topics == ("T",)
    assert (common.partitions_min, common.fail_on_data_loss, common.missing) == (0, True, Missing.ERROR)
    assert (common.include_headers, common.decompress, common.tags) == (False, True, None)


def test_defaults_of_a_stream() -> None:
    options = stream_options(BASE)
    assert options.common.start == Position("startingOffsets", of_all=LATEST)
    assert (options.offsets_max, options.offsets_min, options.bytes_max) == (None, None, None)
    assert options.trigger_delay_ms == 900_000
    assert options.commit_group is None


def test_names_are_case_insensitive() -> None:
    assert stream_options({"NAMESRV": "h:1", "SubScribe": "T", "maxoffsetspertrigger": "5"}).offsets_max == 5


def test_subscriptions() -> None:
    two = batch_options(BASE | {"subscribe": " B, A ,B"})
    assert two.common.subscription.topics == ("A", "B")
    assigned = batch_options({"namesrv": "h:1", "assign": '{"T":["a:1"]}'})
    assert assigned.common.subscription.queues == (MessageQueue("T", "a", 1),)
    matched = batch_options({"namesrv": "h:1", "subscribePattern": "Ord.*"}).common.subscription.pattern
    assert matched is not None
    assert matched.fullmatch("Orders")


def test_a_time_for_all_goes_before_times_by_queue_and_these_before_offsets() -> None:
    given = BASE | {"startingOffsets": "latest"}
    assert stream_options(given).common.start.of_all == LATEST
    given |= {"startingOffsetsByTimestamp": '{"T":{"a:0":5}}'}
    assert stream_options(given).common.start.times_ms == {MessageQueue("T", "a", 0): 5}
    given |= {"startingTimestamp": "9"}
    assert stream_options(given).common.start == Position("startingTimestamp", time_ms=9)


def test_required_brokers() -> None:
    assert batch_options(BASE).common.subscription.brokers == ()
    assert batch_options(BASE | {"requireBrokers": "b, a"}).common.subscription.brokers == ("a", "b")


def test_tags() -> None:
    assert batch_options(BASE | {"tags": "A || B||A"}).common.tags == frozenset({"A", "B"})
    assert batch_options(BASE | {"tags": "*"}).common.tags is None


def test_group_commits_unless_told_not_to() -> None:
    assert stream_options(BASE | {"groupId": "G"}).commit_group == "G"
    silent = stream_options(BASE | {"groupId": "G", "commitOffsets": "false"})
    assert (silent.commit_group, silent.common.group) == (None, "G")


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"maxOffsetPerTriger": "5"}, "no option maxOffsetPerTriger; nearest: maxOffsetsPerTrigger"),
        ({"endingOffsets": "latest"}, "option endingOffsets is for batch queries only"),
        ({"subscribePattern": "x"}, "exactly one of subscribe, subscribePattern, assign is needed, 2 are"),
        ({"startingOffsets": "newest"}, "option startingOffsets is not JSON"),
        ({"maxOffsetsPerTrigger": "0"}, "must be at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "'many', not a whole number"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, "more than maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "must be a time such as"),
        ({"failOnDataLoss": "yes"}, "must be true or false"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "must be one of error, latest"),
        ({"commitOffsets": "true"}, "needs groupId"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay changes nothing without minOffsetsPerTrigger"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "changes nothing without startingTimestamp or"),
        ({"subscribe": " , "}, "option subscribe names no topic"),
        ({"tags": "||"}, "option tags"),
    ],
)
def test_wrong_options_of_a_stream_are_refused(more: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        stream_options(BASE | more)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"subscribe": "T"}, "needs the option namesrv"),
        ({"namesrv": "h:1"}, "exactly one of"),
        ({"namesrv": "h:1", "subscribePattern": "("}, "no regular expression"),
        (BASE | {"startingOffsets": "latest"}, "startingOffsets of a batch query cannot be latest"),
        (BASE | {"endingOffsets": "earliest"}, "endingOffsets of a batch query cannot be earliest"),
        (BASE | {"endingOffsets": '{"T":{"a:0":-2}}'}, "cannot be earliest (-2)"),
        (BASE | {"maxOffsetsPerTrigger": "1"}, "maxOffsetsPerTrigger is for streaming queries only"),
    ],
)
def test_wrong_options_of_a_batch_are_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        batch_options(given)
    assert problem in str(caught.value)


def test_all_unknown_options_are_named() -> None:
    with pytest.raises(OptionError) as caught:
        batch_options(BASE | {"foo": "1", "tag": "A"})
    assert "no option foo; known: accountFile, assign" in str(caught.value)
    assert "no option tag; nearest: tags" in str(caught.value)


def test_the_argument_of_load_is_no_topic() -> None:
    for read in (batch_options, stream_options):
        with pytest.raises(OptionError, match="option path names a folder: topics are named by subscribe"):
            read(BASE | {"path": "Orders"})


def test_all_wrong_columns_of_a_schema_are_named() -> None:
    kinds: list[tuple[str, DataType]] = [("Body", BinaryType()), ("tags", IntegerType())]
    kinds += [("price", DoubleType()), ("topic", StringType()), ("topic", StringType())]
    schema = StructType([StructField(name, kind) for name, kind in kinds])
    with pytest.raises(OptionError) as caught:
        check_schema(schema)
    words = str(caught.value)
    assert "no column Body (nearest: body)" in words
    assert "no column price; " in words
    assert "column tags is string, not int" in words
    assert "column topic is named twice" in words
    assert "it has topic, brokerName" in words


def test_filters_are_taken_where_the_option_asks_for_it() -> None:
    assert type(make_reader(BASE, FULL_SCHEMA)) is RocketmqReader
    assert type(make_reader(BASE | {"pushFilters": "true"}, FULL_SCHEMA)) is RocketmqPushdownReader
    with pytest.raises(OptionError, match="option pushFilters is for batch queries only"):
        stream_options(BASE | {"pushFilters": "true"})


def test_a_query_has_so_many_tasks_at_most() -> None:
    def both(**options: str) -> tuple[int, int | None]:
        common = batch_options(BASE | options).common
        return common.partitions_min, common.partitions_max

    assert both() == (0, None)
    assert both(minPartitions="5", maxPartitions="8") == (5, 8)
    with pytest.raises(OptionError, match="minPartitions is 9, more than maxPartitions 8"):
        both(minPartitions="9", maxPartitions="8")
    with pytest.raises(OptionError, match="maxPartitions is 0, must be at least 1"):
        both(maxPartitions="0")
