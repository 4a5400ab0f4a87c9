"""What a task does with its part: pulls it and makes Arrow batches. Runs in Spark's Python workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import ALL_TAGS
from rocketmq_spark.client.range_reader import QueueRange, RangeReader, ReadSettings
from rocketmq_spark.options import ConnectionOptions
from rocketmq_spark.source.arrow_rows import RowFormat
from rocketmq_spark.source.schema import check_schema
from rocketmq_spark.source.source_options import SourceOptions

BATCH_BYTES: Final = 4 << 20
"""So many bytes of records become one Arrow batch: what a task holds is a few times this."""


class RangePartition(InputPartition):
    """One part of one queue."""

    def __init__(self, wanted: QueueRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Everything a worker needs to know besides the part itself. Pickled."""

    connection: ConnectionOptions
    settings: ReadSettings
    format: RowFormat

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a part, in the queue's order. A plan without parts gets one that Spark made up."""
        if not isinstance(partition, RangePartition):
            return
        wanted, connection = partition.wanted, self.connection
        with Cluster(connection.namesrv, connection.timeout_s, connection.deadline_s) as cluster:
            for data in gathered(RangeReader(cluster, wanted, self.settings), BATCH_BYTES):
                yield from self.format.batches(data, wanted.queue, wanted.start, wanted.stop)


def range_task(options: SourceOptions, schema: StructType, tags: frozenset[str] | None) -> RangeTask:
    """The task of a query that reads these columns, only of messages with one of the tags.

    Raises:
        OptionError: the schema has a column that there is not.
    """
    check_schema(schema)
    settings = ReadSettings(tags_expression(tags), options.group, options.fail_on_data_loss)
    arrow_schema = to_arrow_schema(schema, timezone="UTC")
    row_format = RowFormat(arrow_schema, options.include_headers, options.decompress, tags)
    return RangeTask(options.connection, settings, row_format)


def tags_expression(tags: frozenset[str] | None) -> str:
    """`TagA || TagB`; everything when a tag could not be written so, since rows are filtered here again."""
    if tags is None or any(not tag or "||" in tag or tag != tag.strip() or tag == ALL_TAGS for tag in tags):
        return ALL_TAGS
    return " || ".join(sorted(tags))


def gathered(parts: Iterator[bytes] | RangeReader, bytes_min: int) -> Iterator[bytes]:
    """The same bytes in pieces of at least `bytes_min`, but for the last."""
    held: list[bytes] = []
    held_bytes = 0
    for part in parts:
        held.append(part)
        held_bytes += len(part)
        if held_bytes >= bytes_min:
            yield b"".join(held)
            held.clear()
            held_bytes = 0
    if held:
        yield b"".join(held)
