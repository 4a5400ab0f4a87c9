"""The batch source: plans the ranges of a batch query, and pushes its filters down.

Filters that the source applies completely are not returned to Spark: EXPLAIN lists them under PushedFilters.
Spark applies all others again, so for these the source may read too many rows, but never too few.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeGuard

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.cluster import Cluster, QueueBounds
from rocketmq_spark.client.offset_lookup import offset_at
from rocketmq_spark.client.pulling import QueueRange, named
from rocketmq_spark.client.queue_offsets import bounds
from rocketmq_spark.errors import DataLossError
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.options import Missing, batch_options
from rocketmq_spark.source.planning import ranges_between, split
from rocketmq_spark.source.reading import group_lengths, partitions_of, range_task, read
from rocketmq_spark.source.subscription import find_queues, resolve

KnownFilter: TypeAlias = EqualTo | GreaterThan | GreaterThanOrEqual | In | LessThan | LessThanOrEqual
_KINDS = (EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_QUEUE_COLUMNS: Final[dict[str, Callable[[MessageQueue], Any]]] = {
    "topic": operator.attrgetter("topic"),
    "brokerName": operator.attrgetter("broker_name"),
    "queueId": operator.attrgetter("queue_id"),
}


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """A condition on a column that is the same for a whole queue. `kind` is a comparison or In."""

    column: str
    kind: type[Filter]
    value: Any

    def holds(self, queue: MessageQueue) -> bool:
        own = _QUEUE_COLUMNS[self.column](queue)
        if self.kind is In:
            return own in self.value
        return _COMPARISONS[self.kind](own, self.value)


@dataclass(frozen=True, slots=True)
class Constraints:
    """The conditions of all filters of a query together; None is no condition. Bounds are inclusive.

    times are store times in milliseconds. tags: only messages with one of these.
    """

    queue_checks: tuple[QueueCheck, ...] = ()
    offset_min: int | None = None
    offset_max: int | None = None
    time_ms_min: int | None = None
    time_ms_max: int | None = None
    tags: frozenset[str] | None = None

    def admits(self, queue: MessageQueue) -> bool:
        """Whether the queue can hold a message that the filters let pass."""
        return all(check.holds(queue) for check in self.queue_checks)


def constrain(filters: Iterable[Filter]) -> Constraints:
    """The conditions of these filters, combined with AND; those that do not reduce reading are ignored."""
    found = Constraints()
    for item in filters:
        found = _narrowed(found, item)
    return found


def left_over(filters: Iterable[Filter]) -> list[Filter]:
    """The filters that a row may still fail although it satisfies `constrain`."""
    return [item for item in filters if not _is_kept_wholly(item)]


def _is_kept_wholly(item: Filter) -> bool:
    if not _is_known(item):
        return False
    (column,) = item.attribute
    if column == "queueOffset":
        return not isinstance(item, In) or len(set(item.value)) == 1
    return column in _QUEUE_COLUMNS or (column == "tags" and isinstance(item, (EqualTo, In)))


def _is_known(item: Filter) -> TypeGuard[KnownFilter]:
    return isinstance(item, _KINDS) and len(item.attribute) == 1 and item.value is not None


def _narrowed(found: Constraints, item: Filter) -> Constraints:
    if not _is_known(item):
        return found
    column, kind = item.attribute[0], type(item)
    values = tuple(one for one in item.value if one is not None) if isinstance(item, In) else (item.value,)
    if column in _QUEUE_COLUMNS:
        value = values if kind is In else item.value
        return replace(found, queue_checks=(*found.queue_checks, QueueCheck(column, kind, value)))
    if column == "tags" and kind in (EqualTo, In):
        tags = frozenset(values)
        return replace(found, tags=tags if found.tags is None else found.tags & tags)
    if column == "queueOffset":
        low, high = _range(kind, values)
        low = low + 1 if kind is GreaterThan and low is not None else low
        high = high - 1 if kind is LessThan and high is not None else high
        return replace(
            found,
            offset_min=_tighter(max, found.offset_min, low),
            offset_max=_tighter(min, found.offset_max, high),
        )
    if column == "storeTimestamp" and all(isinstance(one, datetime) and one.tzinfo for one in values):
        # A timestamp without a zone depends on the time zone of the session, which is unknown here.
        low, high = _range(kind, [(one - _EPOCH) // _MILLISECOND for one in values])
        return replace(
            found,
            time_ms_min=_tighter(max, found.time_ms_min, low),
            time_ms_max=_tighter(min, found.time_ms_max, high),
        )
    return found


def _range(kind: type[Filter], values: Sequence[int]) -> tuple[int | None, int | None]:
    """The least and the greatest number that may pass, both inclusive."""
    if not values:
        return 0, -1  # an IN without values: nothing passes
    low = None if kind in (LessThan, LessThanOrEqual) else min(values)
    high = None if kind in (GreaterThan, GreaterThanOrEqual) else max(values)
    return low, high


def _tighter(choose: Callable[[int, int], int], known: int | None, more: int | None) -> int | None:
    if known is None or more is None:
        return more if known is None else known
    return choose(known, more)


class RocketmqReader(DataSourceReader):
    """Plans a batch query in the driver's Python, then reads its parts in the workers'."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError."""
        self._options = batch_options(options)
        self._schema = schema
        self._constraints = Constraints()
        self._task = range_task(self._options.common, schema, self._options.common.tags)

    def partitions(self) -> list[InputPartition]:
        """Plan the parts of the query. Raises RocketmqSparkError."""
        common = self._options.common
        connection = common.connection
        if self._task.format.tags == frozenset():
            return []
        with connection.cluster() as cluster:
            queues = find_queues(cluster, common.subscription)
            # One snapshot of the bounds: all tasks, and repeated ones, read up to the same ends.
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
        """Check offsets that were given as numbers: they may be outside of the queues' bounds."""
        problems = []
        for queue, ends in found.items():
            outside = _outside(QueueRange(queue, start[queue], end[queue]), ends)
            if outside:
                problems.append(
                    f"{named(outside)} were requested, but the queue holds offsets {ends.min_offset} to "
                    f"{ends.max_offset - 1}"
                )
            start[queue] = max(start[queue], ends.min_offset)
            end[queue] = min(end[queue], ends.max_offset)
        if problems and self._options.common.fail_on_data_loss:
            raise DataLossError(
                f"{named(problems)}. With failOnDataLoss=false the query reads only the messages that exist."
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
        # Store times may go back a little after a failover, so messages near a bound are read too.
        if limits.time_ms_min is not None and start < stop:
            start = max(start, offset_at(cluster, queue, max(0, limits.time_ms_min - skew_ms), ends, group))
        if limits.time_ms_max is not None and start < stop:
            stop = min(stop, offset_at(cluster, queue, limits.time_ms_max + skew_ms + 1, ends, group))
        return QueueRange(queue, start, stop)


class RocketmqPushdownReader(RocketmqReader):
    """A batch reader with filter pushdown. Spark uses one plan for all queries of a `load()`, so this reader
    is used only if the option pushFilters is true: then a `load()` has one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Reduce the reading by these filters. Returns those that Spark must apply again."""
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
    """The parts of the range before the first or after the last message of the queue."""
    before = QueueRange(wanted.queue, wanted.start, min(wanted.stop, ends.min_offset))
    behind = QueueRange(wanted.queue, max(wanted.start, ends.max_offset), wanted.stop)
    return [part for part in (before, behind) if len(part)]
