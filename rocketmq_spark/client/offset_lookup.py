"""Offsets by time: the first message of a queue stored at a time or later, exactly, with every kind of
broker.

LedgerMQ and RocketMQ 5 answer a search by time with that message. RocketMQ 4 answers with the nearest one, or
with the last when all are older. The broker's answer is therefore only the start of the search, and the store
times of the messages near it decide. Store times rise in a queue, except that the clock of a new leader may
be a little behind the old one's.

`offset_at` searches one queue. `offsets_at` searches many: it requests all answers together, then the
messages on both sides of each answer. It searches a queue alone only if these do not confirm the answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from commitlog.record import decode_record
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.cluster import Cluster, QueueBounds, by_broker
from rocketmq_spark.client.pulling import DEFAULT_GROUP, PullStatus, pull, pull_command, pull_result
from rocketmq_spark.client.queue_offsets import search_offset


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
    """Store time of the message at the offset, in ms; of the next message if none has this offset; None when
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
    """The first of low … high-1 that is late, else `high`. All after a late one must be late, too.

    The search begins at `guess` and doubles its steps: a right guess costs two requests.
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


AT_ONCE: Final = 16
"""Maximum of answers in memory at a time: each has one whole message of any size."""


def offsets_at(
    cluster: Cluster,
    times_ms: Mapping[MessageQueue, int],
    found: Mapping[MessageQueue, QueueBounds],
    group: str = DEFAULT_GROUP,
) -> dict[MessageQueue, int]:
    """For each queue of `found`, the offset of the first message stored at its time or later; the queue's end
    when there is none.

    Raises:
        RequestRefusedError, ClusterUnavailableError: naming the queue or the broker.
    """
    offsets = {queue: ends.max_offset for queue, ends in found.items() if ends.min_offset >= ends.max_offset}
    guesses = _guesses(cluster, [queue for queue in found if queue not in offsets], times_ms, found)
    places = [
        (queue, offset)
        for queue, guess in guesses.items()
        for offset in (guess - 1, guess)
        if found[queue].min_offset <= offset < found[queue].max_offset
    ]
    stored_ms = _store_times(cluster, places, group)
    offsets |= {
        queue: guess
        for queue, guess in guesses.items()
        if _is_right(queue, guess, times_ms[queue], found[queue], stored_ms)
    }
    for queue, ends in found.items():
        if queue not in offsets:
            offsets[queue] = offset_at(cluster, queue, times_ms[queue], ends, group)
    return offsets


def _is_right(
    queue: MessageQueue,
    guess: int,
    time_ms: int,
    ends: QueueBounds,
    stored_ms: Mapping[tuple[MessageQueue, int], int],
) -> bool:
    """Whether the message at `guess` is late and the one before it is not, where such messages exist."""
    at, before = stored_ms.get((queue, guess)), stored_ms.get((queue, guess - 1))
    is_late = guess == ends.max_offset or (at is not None and at >= time_ms)
    is_first = guess == ends.min_offset or (before is not None and before < time_ms)
    return is_late and is_first


def _guesses(
    cluster: Cluster,
    queues: Sequence[MessageQueue],
    times_ms: Mapping[MessageQueue, int],
    found: Mapping[MessageQueue, QueueBounds],
) -> dict[MessageQueue, int]:
    """The answers of the brokers, limited to the queues' bounds; without unreadable answers."""
    guesses = {}
    for broker_name, asked in by_broker(queues).items():
        commands = [_search_command(queue, times_ms[queue]) for queue in asked]
        answers = cluster.invoke_leader_many(broker_name, commands)
        for queue, answer in zip(asked, answers, strict=True):
            text = answer.ext_fields.get("offset", "")
            if answer.code == ResponseCode.SUCCESS and text.removeprefix("-").isdecimal():
                guesses[queue] = min(max(int(text), found[queue].min_offset), found[queue].max_offset)
    return guesses


def _store_times(
    cluster: Cluster, places: Iterable[tuple[MessageQueue, int]], group: str
) -> dict[tuple[MessageQueue, int], int]:
    """Store times in ms of the messages at these offsets, of those that exist."""
    by_name: dict[str, list[tuple[MessageQueue, int]]] = {}
    for queue, offset in places:
        by_name.setdefault(queue.broker_name, []).append((queue, offset))
    found = {}
    for broker_name, asked in by_name.items():
        for first in range(0, len(asked), AT_ONCE):
            some = asked[first : first + AT_ONCE]
            commands = [pull_command(queue, offset, count_max=1, group=group) for queue, offset in some]
            answers = cluster.invoke_leader_many(broker_name, commands)
            for (queue, offset), answer in zip(some, answers, strict=True):
                result = pull_result(answer, queue, offset)
                if result.status is PullStatus.FOUND:
                    found[queue, offset] = decode_record(result.data).store_timestamp_ms
    return found


def _search_command(queue: MessageQueue, time_ms: int) -> RemotingCommand:
    ext = {"topic": queue.topic, "queueId": str(queue.queue_id)}
    ext |= {"timestamp": str(time_ms), "boundaryType": "LOWER"}
    return RemotingCommand(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext_fields=ext)
