"""Queues of topics: where they begin and end, and where a consumer group stands in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from rocketmq_spark.errors import RequestRefusedError

if TYPE_CHECKING:
    from rocketmq_spark.client.cluster import Cluster


@dataclass(frozen=True, order=True, slots=True)
class MessageQueue:
    """One queue of one topic on one broker (a group of nodes of one name)."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}:{self.queue_id}"


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """`min_offset` is the first message that is kept, `max_offset` the number the next one gets."""

    min_offset: int
    max_offset: int


NO_TIMESTAMP: Final = -1


def min_offset(cluster: Cluster, queue: MessageQueue) -> int:
    """The offset of the first message that is kept."""
    return _ask_number(cluster, queue, _queue_command(RequestCode.GET_MIN_OFFSET, queue), "offset")


def max_offset(cluster: Cluster, queue: MessageQueue) -> int:
    """The offset that the next message gets, by what is committed."""
    return _ask_number(cluster, queue, _queue_command(RequestCode.GET_MAX_OFFSET, queue), "offset")


def bounds(cluster: Cluster, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
    """Both ends of many queues, asked for in bulk.

    Raises:
        RequestRefusedError, ClusterUnavailableError: naming the queue or the broker.
    """
    asked: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        asked.setdefault(queue.broker_name, []).append(queue)
    found = {}
    for broker_name, of_broker in asked.items():
        # The end is asked for first: retention may move the beginning on meanwhile, never beyond the end.
        ends = _ask_many(cluster, broker_name, of_broker, RequestCode.GET_MAX_OFFSET)
        starts = _ask_many(cluster, broker_name, of_broker, RequestCode.GET_MIN_OFFSET)
        for queue, first, end in zip(of_broker, starts, ends, strict=True):
            found[queue] = QueueBounds(min(max(first, 0), end), end)
    return found


def earliest_time_ms(cluster: Cluster, queue: MessageQueue) -> int:
    """The store time of the first message that is kept, NO_TIMESTAMP without one."""
    command = _queue_command(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
    return _ask_number(cluster, queue, command, "timestamp")


def search_offset(cluster: Cluster, queue: MessageQueue, timestamp_ms: int, boundary: str = "LOWER") -> int:
    """The broker's own answer to "which offset at this store time?".

    LOWER means the first message at or after it. RocketMQ 4 knows no boundary and names the nearest message
    instead; `rocketmq_spark.client.times.offset_at` corrects that.
    """
    command = _queue_command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue)
    command.ext_fields |= {"timestamp": str(timestamp_ms), "boundaryType": boundary}
    return _ask_number(cluster, queue, command, "offset")


def consumer_offset(cluster: Cluster, group: str, queue: MessageQueue) -> int | None:
    """What the group committed for the queue, None when nothing."""
    command = _queue_command(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    command.ext_fields |= {"consumerGroup": group, "setZeroIfNotFound": "false"}
    answer = cluster.invoke_leader(queue.broker_name, lambda: command)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return _number(answer, "offset", f"the offset of group {group} in {queue}")


def commit_consumer_offset(cluster: Cluster, group: str, queue: MessageQueue, offset: int) -> None:
    """Store the group's offset: the number of the next message that it wants."""
    command = _queue_command(RequestCode.UPDATE_CONSUMER_OFFSET, queue)
    command.ext_fields |= {"consumerGroup": group, "commitOffset": str(offset)}
    answer = cluster.invoke_leader(queue.broker_name, lambda: command)
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefusedError(f"committing {offset} of {queue} for {group}", answer.code, answer.remark)


def _queue_command(code: RequestCode, queue: MessageQueue) -> RemotingCommand:
    return RemotingCommand(code, ext_fields={"topic": queue.topic, "queueId": str(queue.queue_id)})


def _ask_number(cluster: Cluster, queue: MessageQueue, command: RemotingCommand, field: str) -> int:
    answer = cluster.invoke_leader(queue.broker_name, lambda: command)
    return _number(answer, field, f"{RequestCode(command.code).name} of {queue}")


def _ask_many(
    cluster: Cluster, broker_name: str, queues: Sequence[MessageQueue], code: RequestCode
) -> list[int]:
    answers = cluster.invoke_leader_many(broker_name, [_queue_command(code, queue) for queue in queues])
    return [
        _number(answer, "offset", f"{code.name} of {queue}")
        for answer, queue in zip(answers, queues, strict=True)
    ]


def _number(answer: RemotingCommand, field: str, what: str) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefusedError(what, answer.code, answer.remark)
    try:
        return int(answer.ext_fields[field])
    except (KeyError, ValueError):
        raise RequestRefusedError(what, answer.code, f"the answer's {field} is unreadable") from None
