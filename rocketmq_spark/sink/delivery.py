"""Writes one partition, in a task of a batch write or a microbatch: collects its messages in requests and
sends them, either in numbered streams (exactly once) or to queues (at least once).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql.datasource import WriterCommitMessage

from commitlog.sequences import FIRST_DIGEST, NO_DIGEST, next_digest
from remoting.client.routes import MessageQueue
from remoting.client.send_requests import (
    HEAD_BYTES,
    WriterPlace,
    batch_command,
    encode_message,
    sequenced_command,
    single_command,
)
from rocketmq_spark.client.sending import Request, Sender, now_ms
from rocketmq_spark.sink.options import BATCH_MESSAGES_MAX, SinkOptions
from rocketmq_spark.sink.planning import Placement, Placements, SinkPlan
from rocketmq_spark.sink.rows import OutRow, RowError, RowReader


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """What identifies a task to the brokers: the writer id, the batch id and the partition number."""

    writer_id: str
    batch_id: int
    partition: int

    def writer_of(self, placement: Placement) -> str:
        """The writer id for the rows of one topic, as it is sent to brokers."""
        return f"{self.writer_id}.{placement.suffix}"


class Written(NamedTuple):
    """A numbered stream that a partition wrote. `rows`: its length; `digest`: the digest of all rows."""

    broker_name: str
    writer_id: str
    rows: int
    digest: bytes


class Delivering(Protocol):
    """Delivery of the rows of one partition: exactly once or at least once."""

    def add(self, placement: Placement, queue: MessageQueue, row: OutRow) -> None: ...

    def finish(self) -> None:
        """Hand all collected messages to the sender."""

    def written(self) -> Iterator[Written]:
        """The numbered streams that were sent; none with at-least-once delivery."""


@dataclass(slots=True)
class _Gathered:
    """Encoded messages of the next request."""

    messages: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    first_row: int = 0
    last_row: int = 0

    def has_room(self, size_bytes: int, bytes_max: int) -> bool:
        is_small = self.size_bytes + size_bytes <= bytes_max and len(self.messages) < BATCH_MESSAGES_MAX
        return is_small or not self.messages

    def add(self, message: bytes, row: int) -> None:
        if not self.messages:
            self.first_row = row
        self.messages.append(message)
        self.size_bytes += len(message)
        self.last_row = row

    def what(self, target: object, partition: int) -> str:
        return f"rows {self.first_row} to {self.last_row} of partition {partition} to {target}"


@dataclass(slots=True)
class _Stream:
    """The rows that go to one topic at one broker: how many were sent, the digest of these, and the digest of
    all rows.
    """

    writer_id: str
    sent_digest: bytes
    digest: bytes
    sent: int = 0
    gathered: _Gathered = field(default_factory=_Gathered)


class SequencedDelivering:
    """Exactly once: the rows for one topic at one broker are one stream."""

    # Each row has a number in it, from 0 in every batch, so that the broker recognises a row that is sent
    # again.

    def __init__(self, sender: Sender, options: SinkOptions, place: TaskPlace) -> None:
        self._sender = sender
        self._options = options
        self._place = place
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._gathered_bytes = 0

    def add(self, placement: Placement, queue: MessageQueue, row: OutRow) -> None:
        name = placement.topic, queue.broker_name
        stream = self._streams.get(name)
        if stream is None:
            start = FIRST_DIGEST if self._options.check_repeats else NO_DIGEST
            stream = self._streams[name] = _Stream(self._place.writer_of(placement), start, start)
        message = encode_message(row.body, row.properties, row.flag, queue.queue_id)
        if not stream.gathered.has_room(len(message), self._options.batch_bytes):
            self._send(name)
        elif self._gathered_bytes + len(message) > self._options.window_bytes:
            # Memory bound: a task with many topics has a request under construction for each of them.
            self.finish()
        stream.gathered.add(message, row.row)
        self._gathered_bytes += len(message)
        if stream.digest:
            stream.digest = next_digest(stream.digest, message)

    def finish(self) -> None:
        for name in self._streams:
            self._send(name)

    def written(self) -> Iterator[Written]:
        for (_, broker_name), stream in self._streams.items():
            yield Written(broker_name, stream.writer_id, stream.sent, stream.digest)

    def _send(self, name: tuple[str, str]) -> None:
        stream = self._streams[name]
        gathered, stream.gathered = stream.gathered, _Gathered()
        count = len(gathered.messages)
        if not count:
            return
        topic, broker_name = name
        task = self._place
        # `sent` and `sent_digest` describe the rows before this request. The broker compares both with its
        # log: so it drops rows that it has, and refuses a request that leaves a gap or follows other rows.
        place = WriterPlace(stream.writer_id, task.partition, task.batch_id, stream.sent, stream.sent_digest)
        command = sequenced_command(
            self._options.producer_group, topic, broker_name, place, gathered.messages, now_ms()
        )
        # A request keeps its number: if no acknowledgement comes, the sender sends the same request again.
        stream.sent += count
        stream.sent_digest = stream.digest
        self._gathered_bytes -= gathered.size_bytes
        self._sender.send(
            broker_name, Request(command, count, gathered.what(f"topic {topic}", task.partition))
        )


class PlainDelivering:
    """At least once: each request is a batch of messages for one queue. A delayed message is sent alone,
    because RocketMQ cannot delay a batch. A request to a queue waits for the acknowledgement of the one
    before it, so that rows keep their order; delayed messages are delivered in the order of their times.
    """

    def __init__(self, sender: Sender, options: SinkOptions, partition: int) -> None:
        self._sender = sender
        self._options = options
        self._partition = partition
        self._gathered: dict[MessageQueue, _Gathered] = {}
        self._gathered_bytes = 0

    def add(self, placement: Placement, queue: MessageQueue, row: OutRow) -> None:
        if row.is_delayed:
            self._send_alone(queue, row)
            return
        size_bytes = HEAD_BYTES + len(row.body) + len(row.properties)
        gathered = self._gathered.get(queue)
        if gathered is not None and not gathered.has_room(size_bytes, self._options.batch_bytes):
            self._send(queue)
        elif self._gathered_bytes + size_bytes > self._options.window_bytes:
            self.finish()
        gathered = self._gathered.setdefault(queue, _Gathered())
        gathered.add(encode_message(row.body, row.properties, row.flag), row.row)
        self._gathered_bytes += size_bytes

    def finish(self) -> None:
        for queue in list(self._gathered):
            self._send(queue)

    def written(self) -> Iterator[Written]:
        return iter(())

    def _send_alone(self, queue: MessageQueue, row: OutRow) -> None:
        command = single_command(
            self._options.producer_group, queue, row.body, row.properties, row.flag, now_ms()
        )
        what = f"row {row.row} of partition {self._partition} to {queue}"
        self._sender.send(queue.broker_name, Request(command, 1, what))

    def _send(self, queue: MessageQueue) -> None:
        gathered = self._gathered.pop(queue, None)
        if gathered is None or not gathered.messages:
            return
        self._gathered_bytes -= gathered.size_bytes
        command = batch_command(self._options.producer_group, queue, gathered.messages, now_ms())
        what = gathered.what(queue, self._partition)
        self._sender.send(queue.broker_name, Request(command, len(gathered.messages), what, queue))


if TYPE_CHECKING:
    from pyarrow import RecordBatch


@dataclass
class SinkCommit(WriterCommitMessage):
    """The commit message of a task. `rows`: acknowledged rows. `repeats`: those that an earlier attempt
    had written. `retries`: how often the task sent again. `written`: its numbered streams.
    """

    place: TaskPlace
    rows: int
    repeats: int
    retries: int
    written: tuple[Written, ...] = ()


def write_partition(plan: SinkPlan, place: TaskPlace, batches: "Iterable[RecordBatch]") -> SinkCommit:
    """Write all rows of a partition. Returns after every row is acknowledged.

    Raises:
        RowError: a row cannot be a message, or names a queue that does not exist. TopicNotFoundError.
        ClusterUnavailableError, RequestRefusedError, DeliveryError: as of `client.sending`.
    """
    options = plan.options
    with options.connection.cluster() as cluster:
        sender = Sender(cluster, options.window_bytes, options.send_timeout_s)
        reader = RowReader(plan.columns, place.partition, f"{place.writer_id}|{place.batch_id}")
        delivering: Delivering
        if plan.is_sequenced:
            delivering = SequencedDelivering(sender, options, place)
        else:
            delivering = PlainDelivering(sender, options, place.partition)
        placements = Placements(cluster, options)
        for batch in batches:
            _write_batch(plan, place.partition, reader, batch, placements, delivering)
        delivering.finish()
        # Spark commits the batch when all its tasks have returned, so nothing may be unacknowledged then.
        sender.flush()
        brokers = sender.brokers.values()
        return SinkCommit(
            place,
            sum(broker.acknowledged for broker in brokers),
            sum(broker.repeats for broker in brokers),
            sum(broker.retries for broker in brokers),
            tuple(delivering.written()),
        )


def _write_batch(
    plan: SinkPlan,
    partition: int,
    reader: RowReader,
    batch: "RecordBatch",
    placements: Placements,
    delivering: Delivering,
) -> None:
    fixed = plan.placement
    for row in reader.read(batch):
        placement = fixed
        if placement is None:
            if not row.topic:
                raise RowError(f"row {row.row} of partition {partition} has no topic")
            placement = placements.of(row.topic)
        try:
            queue = placement.place(partition, row.row, row.keys, row.broker_name, row.queue_id)
        except LookupError as error:
            raise RowError(f"row {row.row} of partition {partition}: {error.args[0]}") from None
        delivering.add(placement, queue, row)
