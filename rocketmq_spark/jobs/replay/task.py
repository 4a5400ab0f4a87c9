"""A Spark task of a replay: reads its slices in order and sends them at its share of the rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rocketmq_spark.jobs.archive.files import FILE_COLUMNS, batches_of
from rocketmq_spark.jobs.archive.store import ArchiveStore, absolute
from rocketmq_spark.jobs.replay.plan import NO_FILE, Slice, Window
from rocketmq_spark.jobs.replay.rate_limit import Limiter, Rate, pieces

SENT_COLUMNS: Final = ("keys", "tags", "properties", "body")
QUEUE_COLUMN: Final = "queueId"
SENT_SCHEMA: Final = "keys string, tags string, properties map<string,string>, body binary"
SENT_QUEUE_SCHEMA: Final = f"{SENT_SCHEMA}, queueId int"
_NEEDED: Final = ("brokerName", "queueId", "queueOffset", "storeTimestamp", *SENT_COLUMNS)
_OFFSET_COLUMN: Final = list(FILE_COLUMNS).index("queueOffset")
"""Also its number in Parquet: only columns after it are nested."""

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ReplayTask:
    """Everything that the tasks of one batch need. Spark pickles it.

    `read_topic` reads a slice of a live topic; `parts` and `rates` are by the number of the task.
    """

    archive: str | None
    read_topic: Callable[[Slice], Batches] | None
    window: Window
    keep_queues: bool
    parts: Sequence[Sequence[Slice]]
    rates: Sequence[Rate]

    def run(self, numbers: Batches) -> Batches:
        """For `mapInArrow`: each row of the input is the number of a task."""
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from paced(self.rows(number), self.rates[number])

    def rows(self, number: int) -> Batches:
        """The rows that the task sends, before the rate limit."""
        columns = [*SENT_COLUMNS, QUEUE_COLUMN] if self.keep_queues else [*SENT_COLUMNS]
        for one in self.parts[number]:
            for batch in self._read(one):
                wanted = batch.filter(self._mask(batch, one))
                yield wanted.select(columns)

    def _read(self, one: Slice) -> Batches:
        if one.file == NO_FILE:
            assert self.read_topic is not None, f"no topic to read {one.queue} from"
            return self.read_topic(one)
        assert self.archive is not None, f"no archive to read {one.file} from"
        return read_file(ArchiveStore(absolute(self.archive)), one)

    def _mask(self, batch: pa.RecordBatch, one: Slice) -> pa.Array:
        offsets = batch.column("queueOffset")
        terms = [pc.greater_equal(offsets, one.first), pc.less_equal(offsets, one.last)]
        terms.append(pc.equal(batch.column("queueId"), one.queue_id))
        terms.append(pc.equal(batch.column("brokerName"), one.broker_name))
        times = pc.divide(batch.column("storeTimestamp").cast(pa.int64()), 1000)
        if self.window.start_ms is not None:
            terms.append(pc.greater_equal(times, self.window.start_ms))
        if self.window.end_ms is not None:
            terms.append(pc.less(times, self.window.end_ms))
        mask = terms[0]
        for term in terms[1:]:
            mask = pc.and_(mask, term)
        return mask


def read_file(store: ArchiveStore, one: Slice) -> Batches:
    """The row groups of a file that may hold rows of the slice."""
    with store.open(one.file) as data:
        parquet = pq.ParquetFile(data)
        groups = [
            at for at in range(parquet.num_row_groups) if _may_hold(parquet.metadata.row_group(at), one)
        ]
        yield from batches_of(parquet, _NEEDED, groups)


def paced(
    batches: Batches,
    rate: Rate,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Batches:
    """The rows in pieces; each is yielded when the rate allows it."""
    limiter = Limiter(rate, clock_s())
    for batch in batches:
        sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_pylist()
        start = 0
        for length in pieces(sizes, rate):
            wait_s = limiter.wait_s(length, sum(sizes[start : start + length]), clock_s())
            if wait_s > 0:
                sleep(wait_s)
            yield batch.slice(start, length)
            start += length


def topic_reader(task: Any) -> Callable[[Slice], Batches]:
    """A function that reads slices with the source's own task for ranges of queues."""
    return partial(_read_topic, task)


def _read_topic(task: Any, one: Slice) -> Batches:
    from remoting.client.routes import MessageQueue
    from rocketmq_spark.client.pulling import QueueRange
    from rocketmq_spark.source.reading import RangePartition

    wanted = QueueRange(MessageQueue(one.topic, one.broker_name, one.queue_id), one.first, one.last + 1)
    yield from task.read(RangePartition(wanted))


def _may_hold(group: Any, one: Slice) -> bool:
    statistics = group.column(_OFFSET_COLUMN).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    return bool(statistics.min <= one.last and statistics.max >= one.first)
