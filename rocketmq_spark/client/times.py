"""The first message stored at a time or later, exactly, whatever the broker's own search means.

LedgerMQ and RocketMQ 5 find that message. RocketMQ 4 finds the nearest one, or the last when all are older.
The broker's answer is therefore where the search begins, and store times of messages around it decide. They
rise in a queue, except that a new leader's clock may be a little behind the old one's.
"""

from collections.abc import Callable

from commitlog.record import decode_record
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import DEFAULT_GROUP, PullStatus, pull
from rocketmq_spark.client.queues import MessageQueue, QueueBounds, search_offset


def offset_at(
    cluster: Cluster, queue: MessageQueue, time_ms: int, bounds: QueueBounds, group: str = DEFAULT_GROUP
) -> int:
    """The offset of the first message stored at `time_ms` or later, the queue's end when there is none."""
    if bounds.min_offset >= bounds.max_offset:
        return bounds.max_offset
    guess = search_offset(cluster, queue, time_ms)

    def is_late(offset: int) -> bool:
        stored_ms = store_time_ms(cluster, queue, offset, group)
        return stored_ms is None or stored_ms >= time_ms

    return first_late(bounds.min_offset, bounds.max_offset, guess, is_late)


def store_time_ms(
    cluster: Cluster, queue: MessageQueue, offset: int, group: str = DEFAULT_GROUP
) -> int | None:
    """When the message at the offset was stored, or the next one where no message has the offset; None when
    there is none.
    """
    while True:
        result = pull(cluster, queue, offset, count_max=1, group=group)
        if result.status is PullStatus.FOUND:
            return decode_record(result.data).store_timestamp_ms
        if result.next_offset <= offset:
            return None
        offset = result.next_offset


def first_late(low: int, high: int, guess: int, is_late: Callable[[int], bool]) -> int:
    """The first of low … high-1 that is late, `high` when none; those behind a late one are late, too.

    Looks around `guess` first, in steps that double: a right guess costs two questions.
    """
    guess = min(max(guess, low), high)
    step = 1
    if guess < high and not is_late(guess):
        low = guess + 1
        while low < high and not is_late(min(low + step, high) - 1):
            low = min(low + step, high)
            step *= 2
        high = min(low + step, high) - 1 if low < high else high
    else:
        high = guess
        while low < high and is_late(max(high - step, low)):
            high = max(high - step, low)
            step *= 2
        low = max(high - step, low) + 1 if low < high else low
    while low < high:
        middle = (low + high) // 2
        if is_late(middle):
            high = middle
        else:
            low = middle + 1
    return low
