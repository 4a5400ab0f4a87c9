"""Topics as a table: what a batch query reads."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queues import MessageQueue, QueueBounds, bounds
from rocketmq_spark.client.range_reader import QueueRange, named
from rocketmq_spark.client.times import offset_at
from rocketmq_spark.errors import DataLossError
from rocketmq_spark.source.filters import Constraints, constrain, left_over
from rocketmq_spark.source.joining import group_lengths, partitions_of, read
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.planning import ranges_between, split
from rocketmq_spark.source.reading import range_task
from rocketmq_spark.source.source_options import Missing, batch_options
from rocketmq_spark.source.subscribing import find_queues, resolve


class RocketmqReader(DataSourceReader):
    """Plans a batch query in the driver's Python, then reads its parts in the workers'."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError."""
        self._options = batch_options(options)
        self._schema = schema
        self._constraints = Constraints()
        self._task = range_task(self._options.common, schema, self._options.common.tags)

    def partitions(self) -> list[InputPartition]:
        """The parts, by what the cluster holds now. Raises RocketmqSparkError."""
        common = self._options.common
        connection = common.connection
        if self._task.format.tags == frozenset():
            return []
        with Cluster(connection.namesrv, connection.timeout_s, connection.deadline_s) as cluster:
            queues = find_queues(cluster, common.subscription)
            found = bounds(cluster, queues)
            start = resolve(cluster, common.start, found, common.missing, common.group)
            end = resolve(cluster, self._options.end, found, Missing.LATEST, common.group)
            self._require_kept(start, end, found)
            ranges = [
                self._narrowed(cluster, wanted, found[wanted.queue])
                for wanted in ranges_between(start, end)
                if self._constraints.admits(wanted.queue)
            ]
            parts = split([wanted for wanted in ranges if len(wanted)], common.partitions_min)
            lengths = group_lengths(list(map(len, parts)), common.partitions_max, common.partitions_min)
            return partitions_of(parts, lengths, cluster.known_leader)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._task, partition)

    def _require_kept(self, start: Offsets, end: Offsets, found: Mapping[MessageQueue, QueueBounds]) -> None:
        """Offsets that were given as numbers may lie outside of what the queues hold."""
        problems = []
        for queue, ends in found.items():
            outside = _outside(QueueRange(queue, start[queue], end[queue]), ends)
            if outside:
                problems.append(
                    f"{named(outside)} were asked for, but the queue holds offsets {ends.min_offset} to "
                    f"{ends.max_offset - 1}"
                )
            start[queue] = max(start[queue], ends.min_offset)
            end[queue] = min(end[queue], ends.max_offset)
        if problems and self._options.common.fail_on_data_loss:
            raise DataLossError(
                f"{named(problems)}. With failOnDataLoss=false the query reads only what there is."
            )

    def _narrowed(self, cluster: Cluster, wanted: QueueRange, ends: QueueBounds) -> QueueRange:
        """The part of the range that the filters on offsets and store times leave."""
        limits, skew_ms, queue = self._constraints, self._options.store_time_skew_ms, wanted.queue
        start, stop = wanted.start, wanted.stop
        group = self._options.common.group
        if limits.offset_min is not None:
            start = max(start, limits.offset_min)
        if limits.offset_max is not None:
            stop = min(stop, limits.offset_max + 1)
        # Store times may go back a little where the leader changed: what is near a bound is read.
        if limits.time_ms_min is not None and start < stop:
            start = max(start, offset_at(cluster, queue, max(0, limits.time_ms_min - skew_ms), ends, group))
        if limits.time_ms_max is not None and start < stop:
            stop = min(stop, offset_at(cluster, queue, limits.time_ms_max + skew_ms + 1, ends, group))
        return QueueRange(queue, start, stop)


class RocketmqPushdownReader(RocketmqReader):
    """The same, asked by Spark which rows are wanted. Spark keeps what it reads then for all queries of one
    `load()`, so it is made where the options say that there is one.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Read less by these; those that hold for every row that is read need not come back to Spark."""
        self._constraints = constrain(filters)
        tags, own = self._constraints.tags, self._options.common.tags
        if tags is not None:
            both = tags if own is None else tags & own
            self._task = range_task(self._options.common, self._schema, both)
        return left_over(filters)


def make_reader(options: Mapping[str, str], schema: StructType) -> RocketmqReader:
    """The reader that the options ask for. Raises OptionError."""
    reader = RocketmqPushdownReader if batch_options(options).push_filters else RocketmqReader
    return reader(options, schema)


def _outside(wanted: QueueRange, ends: QueueBounds) -> list[QueueRange]:
    """The parts of the range that lie before or behind what the queue holds."""
    before = QueueRange(wanted.queue, wanted.start, min(wanted.stop, ends.min_offset))
    behind = QueueRange(wanted.queue, max(wanted.start, ends.max_offset), wanted.stop)
    return [part for part in (before, behind) if len(part)]
