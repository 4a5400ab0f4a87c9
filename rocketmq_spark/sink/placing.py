"""Which queue a row goes to: a rule that a retried task repeats exactly. Pure.

A row with keys goes to the queue that their CRC-32 names, so that equal keys keep their order; one without
goes by its number in its partition, RUN rows to each queue in turn. The list of queues is fixed when the job
begins.
"""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rocketmq_spark.client.queues import MessageQueue

RUN: Final = 64
"""Rows without keys that go to one queue before the next one's turn."""


@dataclass(frozen=True)
class Placement:
    """A topic's writable queues, sorted."""

    topic: str
    queues: tuple[MessageQueue, ...]
    _narrowed: dict[tuple[str | None, int | None], Sequence[MessageQueue]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def place(
        self, partition: int, row: int, keys: str | None, broker_name: str | None, queue_id: int | None
    ) -> MessageQueue:
        """Raises LookupError when the row names a broker or queue that the topic does not have."""
        queues: Sequence[MessageQueue] = self.queues
        if broker_name is not None or queue_id is not None:
            queues = self._named(broker_name, queue_id)
        number = zlib.crc32(keys.encode()) if keys else partition + row // RUN
        return queues[number % len(queues)]

    def _named(self, broker_name: str | None, queue_id: int | None) -> Sequence[MessageQueue]:
        found = self._narrowed.get((broker_name, queue_id))
        if found is None:
            found = [
                queue
                for queue in self.queues
                if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
            ]
            if not found:
                raise LookupError(_no_such_queue(self, broker_name, queue_id))
            self._narrowed[broker_name, queue_id] = found
        return found

    @property
    def suffix(self) -> str:
        """What tells a writer's sequences apart: of two topics, and of two lists of queues that spread rows
        over brokers in two ways. A row that goes to another broker when its task is tried again may then come
        twice; with one sequence it could be dropped as another one's repeat.
        """
        brokers = {queue.broker_name for queue in self.queues}
        text = self.topic if len(brokers) == 1 else f"{self.topic} {' '.join(map(str, self.queues))}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _no_such_queue(placement: Placement, broker_name: str | None, queue_id: int | None) -> str:
    named = "" if broker_name is None else f" of broker {broker_name}"
    which = "queue" if queue_id is None else f"queue {queue_id}"
    queues = ", ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in placement.queues[:20])
    return f"topic {placement.topic} has no writable {which}{named}; it has {queues}"
