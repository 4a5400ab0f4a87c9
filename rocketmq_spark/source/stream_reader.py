"""Topics as a stream: what a streaming query reads.

Spark keeps one reader for the life of a query in a process beside the driver; it says where batches end. The
parts of a batch are read by the workers as those of a batch query.

A queue that turns up while the query runs, of a new broker, a new topic that the pattern matches or a topic
that was given more queues, first enters the offsets where it begins, and is read from the next batch on. So
every batch's start stands in the checkpoint before it is read.
"""

import logging
import time
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queues import MessageQueue, bounds, commit_consumer_offsets
from rocketmq_spark.errors import RocketmqSparkError
from rocketmq_spark.source.admission import Admission
from rocketmq_spark.source.ends import Ends
from rocketmq_spark.source.offsets import OffsetJson, Offsets, from_json, to_json
from rocketmq_spark.source.planning import never_backwards, ranges_between, split
from rocketmq_spark.source.reading import RangePartition, range_task
from rocketmq_spark.source.sampling import message_bytes
from rocketmq_spark.source.source_options import stream_options
from rocketmq_spark.source.subscribing import find_queues, resolve

COMMIT_DEADLINE_S = 5.0
"""A commit for operators' eyes must not hold up the query."""
_log = logging.getLogger(__name__)


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says where batches begin and end. Pickled to the workers before it has talked to a cluster."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError."""
        self._options = stream_options(options)
        common = self._options.common
        self._task = range_task(common, schema, common.tags)
        self._admission = Admission(self._options)
        self._cluster: Cluster | None = None
        self._ends: Ends | None = None
        self._committed: Offsets | None = None
        self._targets: Offsets | None = None
        """Where a query of Trigger.AvailableNow ends."""

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """Where a query without a checkpoint begins. Raises RocketmqSparkError."""
        common = self._options.common
        cluster = self._connected()
        found = bounds(cluster, find_queues(cluster, common.subscription))
        start = resolve(cluster, common.start, found, common.missing, common.group)
        self._committed = start  # nothing is processed yet
        return to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits, to tell Spark that there is one: all of them are applied together."""
        options = self._options
        if options.offsets_max is not None:
            return ReadMaxRows(options.offsets_max)
        if options.bytes_max is not None:
            return ReadMaxBytes(options.bytes_max)
        if options.offsets_min is not None:
            return ReadMinRows(options.offsets_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the queues end now: the query reads up to there."""
        self._targets = self._known_ends().newest()

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        """Where the batch that begins at `start` ends; never before it. Raises RocketmqSparkError."""
        begins = from_json(start)
        self._commit(begins)
        ends = self._known_ends()
        newest = ends.newest() if self._targets is None else self._targets
        ends.require_not_before(begins, newest, waits=self._targets is not None)
        reachable = {queue: end for queue, end in newest.items() if queue in begins}
        found = never_backwards(begins, reachable) | ends.first_offsets(set(newest) - set(begins))
        if not isinstance(limit, ReadAllAvailable):
            now_ms = time.monotonic_ns() // 1_000_000
            found = self._admission.admit(begins, found, now_ms, self._weigh, self._targets is None)
        return to_json(found)

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        """Where the queues ended when last asked: `latestOffset` in the query's progress."""
        return None if self._ends is None or self._ends.last is None else to_json(self._ends.last)

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        ranges = ranges_between(from_json(start), from_json(end))
        return [RangePartition(part) for part in split(ranges, self._options.common.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)

    def commit(self, end: OffsetJson) -> None:
        """Spark says so once it has planned the next batch; `latestOffset`, which begins there, has told the
        group already.
        """
        self._commit(from_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _commit(self, processed: Offsets) -> None:
        """Tell the consumer group, if there is one, what was processed. The checkpoint alone counts: a commit
        that fails is logged, and the next one covers it.
        """
        group = self._options.commit_group
        if group is None or processed == self._committed:
            return
        try:
            commit_consumer_offsets(self._connected(), group, processed, COMMIT_DEADLINE_S)
        except RocketmqSparkError as error:
            _log.warning("offsets of group %s are not committed: %s", group, error)
        else:
            self._committed = processed

    def _connected(self) -> Cluster:
        if self._cluster is None:
            connection = self._options.common.connection
            self._cluster = Cluster(connection.namesrv, connection.timeout_s, connection.deadline_s)
        return self._cluster

    def _known_ends(self) -> Ends:
        if self._ends is None:
            common = self._options.common
            self._ends = Ends(self._connected(), common.subscription, common.fail_on_data_loss)
        return self._ends

    def _weigh(self, queues: list[MessageQueue], start: Offsets) -> Mapping[MessageQueue, float]:
        return message_bytes(
            self._connected(), {queue: start[queue] for queue in queues}, self._options.common.group
        )
