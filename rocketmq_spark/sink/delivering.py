"""Gathers a partition's messages in batches and sends them: in numbered streams, or to queues."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.client.send_commands import (
    HEAD_BYTES,
    WriterPlace,
    batch_command,
    encode_message,
    sequenced_command,
    single_command,
)
from rocketmq_spark.client.sending import Request, Sender, now_ms
from rocketmq_spark.sink.placing import Placement
from rocketmq_spark.sink.rows import OutRow
from rocketmq_spark.sink_options import BATCH_MESSAGES_MAX, SinkOptions


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """Who writes: the writer, its batch of rows, and the partition of it."""

    writer_id: str
    batch_id: int
    partition: int


class Delivering(Protocol):
    """A way to deliver."""

    def add(self, placement: Placement, queue: MessageQueue, row: OutRow) -> None: ...

    def finish(self) -> None:
        """Send what is gathered."""


@dataclass(slots=True)
class _Gathered:
    """Encoded messages that go in one request."""

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


class SequencedDelivering:
    """Exactly once: the rows that go to one broker are one stream, in their order, with a number each."""

    def __init__(self, sender: Sender, options: SinkOptions, place: TaskPlace) -> None:
        self._sender = sender
        self._options = options
        self._place = place
        self._gathered: dict[tuple[str, str], _Gathered] = {}
        self._next: dict[tuple[str, str], int] = {}
        self._suffixes: dict[str, str] = {}

    def add(self, placement: Placement, queue: MessageQueue, row: OutRow) -> None:
        stream = (placement.topic, queue.broker_name)
        gathered = self._gathered.get(stream)
        if gathered is None:
            gathered = self._gathered[stream] = _Gathered()
            self._next[stream] = 0
            self._suffixes[placement.topic] = placement.suffix
        message = encode_message(row.body, row.properties, row.flag, queue.queue_id)
        if not gathered.has_room(len(message), self._options.batch_bytes):
            self._send(stream)
            gathered = self._gathered[stream]
        gathered.add(message, row.row)

    def finish(self) -> None:
        for stream in self._gathered:
            self._send(stream)

    def _send(self, stream: tuple[str, str]) -> None:
        gathered, self._gathered[stream] = self._gathered[stream], _Gathered()
        count = len(gathered.messages)
        if not count:
            return
        topic, broker_name = stream
        place = WriterPlace(
            f"{self._place.writer_id}.{self._suffixes[topic]}",
            self._place.partition,
            self._place.batch_id,
            self._next[stream],
        )
        command = sequenced_command(
            self._options.producer_group, topic, broker_name, place, gathered.messages, now_ms()
        )
        self._next[stream] += count
        what = gathered.what(f"topic {topic}", self._place.partition)
        self._sender.send(broker_name, Request(command, count, what))


class PlainDelivering:
    """At least once: a batch for each queue; what is delayed goes alone, since a batch cannot be."""

    def __init__(
        self, sender: Sender, options: SinkOptions, partition: int, unique_key: Callable[[int], str]
    ) -> None:
        self._sender = sender
        self._options = options
        self._partition = partition
        self._unique_key = unique_key
        self._gathered: dict[MessageQueue, _Gathered] = {}
        self._gathered_bytes = 0

    def add(self, placement: Placement, queue: MessageQueue, row: OutRow) -> None:
        if row.is_delayed:
            self._send_alone(queue, row)
            return
        gathered = self._gathered.setdefault(queue, _Gathered())
        size_bytes = HEAD_BYTES + len(row.body) + len(row.properties)
        if not gathered.has_room(size_bytes, self._options.batch_bytes):
            self._send(queue)
            gathered = self._gathered[queue]
        elif self._gathered_bytes + size_bytes > self._options.window_bytes:
            self.finish()
            gathered = self._gathered[queue]
        gathered.add(encode_message(row.body, row.properties, row.flag), row.row)
        self._gathered_bytes += size_bytes

    def finish(self) -> None:
        for queue in self._gathered:
            self._send(queue)

    def _send_alone(self, queue: MessageQueue, row: OutRow) -> None:
        command = single_command(
            self._options.producer_group, queue, row.body, row.properties, row.flag, now_ms()
        )
        what = f"row {row.row} of partition {self._partition} to {queue}"
        self._sender.send(queue.broker_name, Request(command, 1, what))

    def _send(self, queue: MessageQueue) -> None:
        gathered, self._gathered[queue] = self._gathered[queue], _Gathered()
        if not gathered.messages:
            return
        self._gathered_bytes -= gathered.size_bytes
        key = self._unique_key(gathered.first_row)
        command = batch_command(self._options.producer_group, queue, gathered.messages, key, now_ms())
        request = Request(command, len(gathered.messages), gathered.what(queue, self._partition))
        self._sender.send(queue.broker_name, request)
