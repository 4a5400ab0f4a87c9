"""The streaming source: plans the micro-batches of a query.

Spark keeps one reader per query, in a Python process beside the driver. The reader determines the end offsets
of each batch; tasks read the parts of a batch as those of a batch query.

A queue that is found while the query runs (new broker, new topic that the pattern matches, or a topic with
more queues) is first added to the offsets with its first offset, and read from the next batch on. The same
holds if retention deleted the stream's next messages, or the topic was created again. So every
batch's start is in the checkpoint before it is read.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

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

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.cluster import Cluster, by_broker
from rocketmq_spark.client.pulling import QueueRange, report_lost
from rocketmq_spark.client.queue_offsets import bounds, commit_consumer_offsets, min_offsets
from rocketmq_spark.errors import RocketmqSparkError
from rocketmq_spark.source.data_loss import LossDetector, RemovalDetector
from rocketmq_spark.source.message_sizes import message_bytes
from rocketmq_spark.source.offsets import LATEST, OffsetJson, Offsets, from_json, start_time_ms, to_json
from rocketmq_spark.source.options import Position, stream_options
from rocketmq_spark.source.planning import Admission, never_backwards, ranges_between, split, without_lost
from rocketmq_spark.source.reading import group_lengths, partitions_of, range_task, read
from rocketmq_spark.source.subscription import LatestOffsets, find_queues, resolve

COMMIT_DEADLINE_S = 5.0
"""Time limit of the commits to the consumer group at one trigger, since the query does not need them: for
retries, and for the queues of a broker after the first COMMIT_QUEUES. The next trigger commits the others.
"""
COMMIT_QUEUES = 512
COMMIT_PAUSE_S = 15.0
"""Pause after a failed commit to a broker: without it every trigger would wait for that broker."""
JOIN_MARGIN_MS: Final = 5 * 60_000
"""A stream with startingOffsets=latest reads a queue that it finds later from this time before its own start:
clocks differ, and messages of such a queue must not be missed.
"""
_log = logging.getLogger(__name__)


class RocketmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches at the driver. Spark pickles it for the tasks before it has a connection."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError."""
        self._options = stream_options(options)
        common = self._options.common
        self._task = range_task(common, schema, common.tags)
        self._admission = Admission(self._options)
        self._cluster: Cluster | None = None
        self._ends: LatestOffsets | None = None
        self._losses: LossDetector | None = None
        self._removals: RemovalDetector | None = None
        self._passed: Offsets = {}
        """First offsets of queues whose earlier messages were already reported as lost."""
        self._committed: Offsets = {}
        """Offsets that this run has committed for the group: every queue once, even without new messages."""
        self._no_commit_before_s: dict[str, float] = {}
        """By broker: no commit before this time of the monotonic clock, after a failed one."""
        self._targets: Offsets | None = None
        """End offsets of a query with Trigger.AvailableNow; None for other triggers."""

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """Start offsets of a query without a checkpoint. Raises RocketmqSparkError."""
        common = self._options.common
        cluster = self._connected()
        found = bounds(cluster, find_queues(cluster, common.subscription))
        now_ms = time.time_ns() // 1_000_000
        start = resolve(cluster, common.start, found, common.missing, common.group)
        beyond = [QueueRange(queue, ends.max_offset, start[queue]) for queue, ends in found.items()]
        if not common.fail_on_data_loss and any(map(len, beyond)):
            report_lost([one for one in beyond if len(one)], fails=False)
            start = {queue: min(start[queue], ends.max_offset) for queue, ends in found.items()}
        return to_json(start, _start_time_ms(common.start, now_ms))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """One of the limits. Spark only has to know that there is one: `latestOffset` applies all of them."""
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
        """End offsets of the batch that begins at `start`; lower only in truncated or recreated queues.

        Raises RocketmqSparkError.
        """
        begins, start_ms = from_json(start), start_time_ms(start)
        # The sink has finished all batches before `start`: only now may the consumer group see these offsets.
        self._commit(begins)
        newest, deleted = self._newest(begins)
        begins = {queue: offset for queue, offset in begins.items() if queue not in deleted}
        places = self._places(begins, newest, start_ms)
        stays = {queue: offset for queue, offset in begins.items() if queue not in places}
        found = never_backwards(stays, {queue: newest[queue] for queue in newest if queue in stays})
        if not isinstance(limit, ReadAllAvailable):
            now_ms = time.monotonic_ns() // 1_000_000
            found = self._admission.admit(begins, found, now_ms, self._weigh, self._targets is None)
        return to_json(found | places, start_ms)

    def _places(self, begins: Offsets, newest: Offsets, start_ms: int | None) -> Offsets:
        """First offsets of queues that are not read in this batch: the stream's offset in them is new."""
        losses = self._loss_detector()
        back = losses.set_back(begins, newest, waits=self._targets is not None)
        passed = losses.overtaken(begins, newest)
        self._passed = {queue: at for queue, at in self._passed.items() if queue not in back} | passed
        if self._targets is not None:
            self._targets |= {queue: max(place, newest[queue]) for queue, place in passed.items()}
        joining = self._known_ends().first_offsets(set(newest) - set(begins), start_ms)
        return back | passed | joining

    def _newest(self, begins: Offsets) -> tuple[Offsets, frozenset[MessageQueue]]:
        """The end offsets, and the queues of deleted topics, which the query drops."""
        ends = self._known_ends()
        newest = ends.newest() if self._targets is None else self._targets
        short = [queue for queue, end in newest.items() if end < begins.get(queue, 0)]
        removed = self._removal_detector().find(begins, {*ends.unlisted(begins), *short})
        ends.drop(removed.deleted | removed.closed)
        ends.require_named(removed.deleted)
        self._passed = {queue: at for queue, at in self._passed.items() if queue not in removed.deleted}
        newest, left = removed.left_of(newest), removed.left_of(begins)
        if self._targets is not None:
            newest = self._targets = ends.wait_for_away(left, newest)
        else:
            ends.note_away(left, newest)
        return newest, removed.deleted

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        """The end offsets of the last request: `latestOffset` in the progress of the query."""
        return None if self._ends is None or self._ends.last is None else to_json(self._ends.last)

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        """The parts of a batch. Lost messages are left out after the batch is split, so a repeated batch has
        its rows in the same partitions as before: a sink with exactly-once delivery needs that.

        Raises:
            DataLossError: naming all lost ranges.
        """
        common, begins = self._options.common, from_json(start)
        ranges = ranges_between(begins, from_json(end))
        cluster = self._connected()
        # `latestOffset` has read the minimum offsets of this batch, unless Spark planned it before a restart.
        checked, kept = self._loss_detector().checked
        if checked != begins or any(wanted.queue not in kept for wanted in ranges):
            kept = min_offsets(cluster, (wanted.queue for wanted in ranges))
        lost = [
            QueueRange(wanted.queue, max(wanted.start, self._passed.get(wanted.queue, 0)), kept[wanted.queue])
            for wanted in ranges
        ]
        if any(map(len, lost)):
            report_lost([one for one in lost if len(one)], common.fail_on_data_loss)
            self._passed |= {one.queue: one.stop for one in lost if len(one)}
        parts = split(ranges, common.partitions_min)
        lengths = group_lengths(list(map(len, parts)), common.partitions_max, common.partitions_min)
        return partitions_of(without_lost(parts, kept), lengths, cluster.known_leader)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(self._task, partition)

    def commit(self, end: OffsetJson) -> None:
        """Commit offsets that `latestOffset` has not committed yet. Spark calls this after it has planned the
        next batch.
        """
        self._commit(from_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _commit(self, processed: Offsets) -> None:
        """Commit processed offsets to the consumer group, if there is one. The query continues by its
        checkpoint only, so a failed commit is logged and a later one replaces it. An unreachable broker does
        not delay the commits to the others.
        """
        group = self._options.commit_group
        if group is None:
            return
        new = {queue: offset for queue, offset in processed.items() if self._committed.get(queue) != offset}
        committed_before = {queue: number for number, queue in enumerate(self._committed)}
        # The queues with the oldest commits first: the time limit must not leave out the same ones each time.
        longest_ago = sorted(new, key=lambda queue: committed_before.get(queue, -1))
        until_s = time.monotonic() + COMMIT_DEADLINE_S
        for broker_name, queues in by_broker(longest_ago).items():
            if time.monotonic() < self._no_commit_before_s.get(broker_name, 0.0):
                continue
            for at in range(0, len(queues), COMMIT_QUEUES):
                left_s = max(0.0, until_s - time.monotonic())
                batch = {queue: new[queue] for queue in queues[at : at + COMMIT_QUEUES]}
                if (at and not left_s) or not self._commit_batch(group, broker_name, batch, left_s):
                    break

    def _commit_batch(self, group: str, broker_name: str, batch: Offsets, deadline_s: float) -> bool:
        """Commit some queues of one broker. Returns whether it accepted them."""
        try:
            commit_consumer_offsets(self._connected(), group, batch, deadline_s)
        except RocketmqSparkError as error:
            self._no_commit_before_s[broker_name] = time.monotonic() + COMMIT_PAUSE_S
            _log.warning("offsets of group %s are not committed: %s", group, error)
            return False
        for queue, offset in batch.items():
            self._committed.pop(queue, None)  # the dict is ordered by the last commit
            self._committed[queue] = offset
        return True

    def _connected(self) -> Cluster:
        if self._cluster is None:
            connection = self._options.common.connection
            self._cluster = connection.cluster()
        return self._cluster

    def _known_ends(self) -> LatestOffsets:
        if self._ends is None:
            common = self._options.common
            self._ends = LatestOffsets(
                self._connected(), common.subscription, common.fail_on_data_loss, common.group
            )
        return self._ends

    def _loss_detector(self) -> LossDetector:
        if self._losses is None:
            common = self._options.common
            self._losses = LossDetector(self._connected(), common.fail_on_data_loss, common.group)
        return self._losses

    def _removal_detector(self) -> RemovalDetector:
        if self._removals is None:
            common = self._options.common
            self._removals = RemovalDetector(self._connected(), common.fail_on_data_loss, common.group)
        return self._removals

    def _weigh(self, ranges: Sequence[QueueRange]) -> Mapping[MessageQueue, float]:
        return message_bytes(self._connected(), ranges, self._options.common.group)


def _start_time_ms(start: Position, now_ms: int) -> int | None:
    """The store time at which a stream begins, in ms; None if it begins at offsets."""
    if start.time_ms is not None:
        return start.time_ms
    return now_ms - JOIN_MARGIN_MS if start.of_all == LATEST else None
