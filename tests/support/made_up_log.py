"""Queues over a log that the test makes up."""

from collections.abc import Sequence
from pathlib import Path

from commitlog.consume_queue import ConsumeQueue
from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch import Applied, DispatchBatch, DispatchRequest
from commitlog.record import Message, encode_record
from tests.support.memory_fs import MemoryFs

STORE = Path("/store")
ROOT = STORE / "consumequeue"
SMALL = ConsumeQueueConfig(file_bytes=200, open_files_max=3)
STEP = 1000


class MadeUpLog:
    """Every multiple of 1000 is the position of a record that the test named."""

    def __init__(self) -> None:
        self.min_position = 0
        self.records: dict[int, bytes] = {}
        self.times_ms: dict[int, int] = {}

    @property
    def end_position(self) -> int:
        return max(self.records, default=-STEP) + STEP

    def record_at(self, position: int) -> bytes | None:
        return self.records.get(position)

    def store_timestamp_at(self, position: int) -> int | None:
        return self.times_ms.get(position)

    def request(self, topic: str, queue_id: int, queue_offset: int, sys_flag: int = 0) -> DispatchRequest:
        position = self.end_position
        data = encode_record(Message(topic, queue_id, b"", sys_flag=sys_flag), queue_offset, 5)
        self.records[position] = data
        self.times_ms[position] = position
        return DispatchRequest(
            position // STEP, topic, queue_id, queue_offset, position, len(data), 77, position, sys_flag
        )

    def applied(self) -> Applied:
        return Applied(self.end_position // STEP - 1, self.end_position)


def open_queues(fs: MemoryFs, log: MadeUpLog) -> tuple[ConsumeQueues, Applied]:
    queues = ConsumeQueues(fs, STORE, SMALL, log)
    return queues, queues.load(log.end_position // STEP - 1, log.end_position)


def flush(queues: ConsumeQueues, applied: Applied) -> None:
    writes = queues.take_writes(applied)
    if writes is not None:
        queues.write(writes)
        queues.written(writes)


def positions(queue: ConsumeQueue | None, start: int = 0, count: int = 10_000) -> list[int]:
    assert queue is not None
    return [position for position, _, _ in queue.units(start, count)]


def put(queues: ConsumeQueues, log: MadeUpLog, topic: str, queue_id: int, offsets: Sequence[int]) -> None:
    queues.put_all(DispatchBatch.of([log.request(topic, queue_id, offset) for offset in offsets]))
