"""Reads of the format `rocketmq` as users write them, for its tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.integration.waiting import wait_for
from tests.spark.producing import Stored

QUERY_LIMIT_S = 180.0
STARTS_MAX = 6
Place = tuple[int, int]
"""Queue id and offset."""


def batch(spark: SparkSession, namesrv: str, **options: object) -> DataFrame:
    reader = spark.read.format("rocketmq").option("namesrv", namesrv)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def stream(spark: SparkSession, namesrv: str, **options: object) -> DataFrame:
    reader = spark.readStream.format("rocketmq").option("namesrv", namesrv)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


class Sink:
    """Where a streaming query writes to, with its checkpoint: files, so that every batch counts once."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.out = folder / "out"
        self.checkpoint = folder / "checkpoint"

    def start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**trigger).start(str(self.out))

    def run_available(self, frame: DataFrame) -> StreamingQuery:
        """Read what is there now and end. Raises StreamingQueryException.

        Spark gives a Python worker 10 s to start, which a machine full of other work may not make: such a
        query is started again.
        """
        for _ in range(STARTS_MAX - 1):
            try:
                return self._run(frame)
            except StreamingQueryException as error:
                if "failed to connect back" not in str(error):
                    raise
        return self._run(frame)

    def _run(self, frame: DataFrame) -> StreamingQuery:
        query = self.start(frame, availableNow=True)
        try:
            assert query.awaitTermination(int(QUERY_LIMIT_S)), "the query did not end"
        finally:
            query.stop()
        return query

    def rows(self) -> DataFrame:
        return self._spark.read.schema("topic string, queueId int, queueOffset long, body binary").parquet(
            str(self.out)
        )

    def bodies(self) -> dict[Place, bytes]:
        """The bodies by place. Raises AssertionError when a place was written twice."""
        if not self.out.exists():
            return {}
        found = self.rows().collect()
        places = {(row.queueId, row.queueOffset): bytes(row.body) for row in found}
        assert len(places) == len(found), "a message was written twice"
        return places

    def wait_count(self, count: int, query: StreamingQuery, where: str = "true") -> None:
        """Wait until so many messages are written for which this holds. Raises what the query raised."""
        counted = found = 0

        def is_there() -> bool:
            nonlocal counted, found
            if query.exception() is not None:
                raise AssertionError(str(query.exception()))
            if (batches := self._batches()) > counted:  # to count is a job of Spark's own
                counted, found = batches, self.rows().where(where).count()
            return found >= count

        wait_for(f"{count} messages written", is_there, QUERY_LIMIT_S)

    def _batches(self) -> int:
        """How many are written whole: the log beside the rows has a file for each batch, or one for many."""
        log = self.out / "_spark_metadata"
        names = [path.name.removesuffix(".compact") for path in log.iterdir()] if log.is_dir() else []
        return 1 + max((int(name) for name in names if name.isdecimal()), default=-1)


def places(stored: list[Stored]) -> dict[Place, bytes]:
    """What was sent, by place."""
    return {(one.queue_id, one.offset): one.out.body for one in stored}


@contextmanager
def stopping(query: StreamingQuery) -> Iterator[StreamingQuery]:
    """Stop the query at the end, whatever happens."""
    try:
        yield query
    finally:
        query.stop()


@contextmanager
def meanwhile(action: Any) -> Iterator[None]:
    """Run the action in a thread beside the block; its error is raised at the end."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]
