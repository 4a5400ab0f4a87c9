"""Pins that prevent the deletion of old log files: records that are still needed, such as messages that wait
for delivery.
"""

from collections.abc import Callable, Iterable

from commitlog.consume_queues import ConsumeQueues

RetentionPin = Callable[[], int | None]
"""The position of the earliest record that is still needed; None for none. It depends only on what all nodes
share, the replicated state and the queues: every node must delete the same files.
"""


def earliest_pin(pins: Iterable[RetentionPin]) -> int | None:
    """The position of the earliest record that must stay; None when none must."""
    return min((position for pin in pins if (position := pin()) is not None), default=None)


def position_at(queues: ConsumeQueues, topic: str, queue_id: int, offset: int) -> int | None:
    """Position of the first message of the queue at `offset` or after it; None when there is none."""
    queue = queues.get(topic, queue_id)
    units = queue.units(max(offset, queue.min_offset), 1) if queue is not None else []
    return units[0][0] if units else None
