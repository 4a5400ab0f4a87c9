"""The sink on RocketMQ's own broker: at least once, and no word of more than that."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlog.record import parse_properties
from tests.spark.conftest import TopicName
from tests.spark.reading import read_topic
from tests.spark.stock_broker import StockBroker
from tests.spark.writing import write

ROWS = 3_000


def test_rows_are_written_at_least_once_and_exactly_once_is_refused(
    spark: SparkSession, java_broker: StockBroker, topic_name: TopicName
) -> None:
    namesrv, topic = java_broker.namesrv, topic_name("SinkStock")
    frame = spark.range(0, ROWS, 1, 2).selectExpr(
        "cast(id as string) body", "if(id % 2 = 0, concat('k', id % 10), null) keys", "'TagA' tags"
    )
    with pytest.raises(PySparkException, match=r"exactly-once is not possible: broker .* delivery=auto"):
        write(frame, namesrv, topic=topic, createTopicQueues=3, delivery="exactly-once")
    write(frame, namesrv, topic=topic, createTopicQueues=3, batchBytes=20_000, delivery="auto")
    delayed = spark.sql("select 'late' body, 1 delayLevel")
    write(delayed, namesrv, topic=topic)
    found = read_topic(namesrv, topic)
    records = [record for records in found.values() for record in records if record.body != b"late"]
    assert sorted(int(record.body) for record in records) == list(range(ROWS))
    assert all(len(queue) > ROWS // 10 for queue in found.values())
    properties = [parse_properties(record.properties) for record in records]
    assert {one["TAGS"] for one in properties} == {"TagA"}
    assert {one["KEYS"] for one in properties if "KEYS" in one} == {f"k{n}" for n in range(0, 10, 2)}
    assert len({one["UNIQ_KEY"] for one in properties}) == ROWS
