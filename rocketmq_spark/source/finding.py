"""Where many queues are at a time: as `rocketmq_spark.client.times.offset_at` says for each, in bulk.

LedgerMQ and RocketMQ 5 answer right. So of all queues together that answer is asked for, and then the
messages on both sides of it, which prove it. Where they do not, the queue is searched by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from commitlog.record import decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import DEFAULT_GROUP, PullStatus, pull_command, pull_result
from rocketmq_spark.client.queues import MessageQueue, QueueBounds, by_broker
from rocketmq_spark.client.times import offset_at

AT_ONCE: Final = 16
"""So many answers are held at a time, each of a whole message, however large that is."""


def offsets_at(
    cluster: Cluster,
    times_ms: Mapping[MessageQueue, int],
    found: Mapping[MessageQueue, QueueBounds],
    group: str = DEFAULT_GROUP,
) -> dict[MessageQueue, int]:
    """The offset of the first message stored at its time or later, of each queue of `found`; the queue's end
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
    """Whether the message at the guess is late, and the one before it is not, as far as there are any."""
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
    """What the brokers answer, within the bounds; without those that answer nothing readable."""
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
    """When the messages at these places were stored, of those that are there."""
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
