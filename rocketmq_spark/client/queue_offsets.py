"""Requests for the offsets of queues: where they begin and end, and what a consumer group has committed."""

from collections.abc import Iterable, Mapping

from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from rocketmq_spark.client.cluster import Cluster, QueueBounds, by_broker
from rocketmq_spark.errors import RequestRefusedError


def min_offset(cluster: Cluster, queue: MessageQueue) -> int:
    """The offset of the first stored message. Raises RequestRefusedError, ClusterUnavailableError."""
    return _ask_number(cluster, queue, _queue_command(RequestCode.GET_MIN_OFFSET, queue), "offset")


def max_offset(cluster: Cluster, queue: MessageQueue) -> int:
    """The offset after the last committed message. Raises as `min_offset`."""
    return _ask_number(cluster, queue, _queue_command(RequestCode.GET_MAX_OFFSET, queue), "offset")


def bounds(cluster: Cluster, queues: Iterable[MessageQueue]) -> dict[MessageQueue, QueueBounds]:
    """Both ends of many queues, requested in bulk.

    Raises:
        RequestRefusedError, ClusterUnavailableError: naming the queue or the broker.
    """
    wanted = list(queues)
    # The minimum offsets are read last: messages that retention deletes meanwhile must not count as present.
    ends = _ask_by_broker(cluster, wanted, RequestCode.GET_MAX_OFFSET)
    starts = _ask_by_broker(cluster, wanted, RequestCode.GET_MIN_OFFSET)
    return {queue: QueueBounds(min(max(starts[queue], 0), ends[queue]), ends[queue]) for queue in wanted}


def max_offsets(
    cluster: Cluster, queues: Iterable[MessageQueue], deadline_s: float | None = None
) -> dict[MessageQueue, int]:
    """The end offsets of many queues, requested in bulk. Raises as `bounds`."""
    return _ask_by_broker(cluster, queues, RequestCode.GET_MAX_OFFSET, deadline_s)


def min_offsets(cluster: Cluster, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
    """The minimum offsets of many queues, requested in bulk. Raises as `bounds`."""
    found = _ask_by_broker(cluster, queues, RequestCode.GET_MIN_OFFSET)
    return {queue: max(offset, 0) for queue, offset in found.items()}


def search_offset(cluster: Cluster, queue: MessageQueue, timestamp_ms: int, boundary: str = "LOWER") -> int:
    """The offset that the broker itself finds for a store time in ms.

    LOWER means the first message at or after it. RocketMQ 4 knows no boundary and names the nearest message
    instead; `rocketmq_spark.client.offset_lookup.offset_at` corrects that.
    """
    command = _queue_command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue)
    command.ext_fields |= {"timestamp": str(timestamp_ms), "boundaryType": boundary}
    return _ask_number(cluster, queue, command, "offset")


def consumer_offset(cluster: Cluster, group: str, queue: MessageQueue) -> int | None:
    """The committed offset of the group, None without one."""
    command = _queue_command(RequestCode.QUERY_CONSUMER_OFFSET, queue)
    command.ext_fields |= {"consumerGroup": group, "setZeroIfNotFound": "false"}
    answer = cluster.invoke_leader(queue.broker_name, lambda: command)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return _number(answer, "offset", f"the offset of group {group} in {queue}")


def commit_consumer_offsets(
    cluster: Cluster, group: str, offsets: Mapping[MessageQueue, int], deadline_s: float | None = None
) -> None:
    """Commit the group's offsets: for each queue that of the next message to consume. If the group does
    not exist, a pull makes the broker create it, as for a consumer, where brokers are allowed to.

    Raises:
        RequestRefusedError, ClusterUnavailableError: some offsets may be committed.
    """
    for broker_name, queues in by_broker(offsets).items():
        commands = [_commit_command(group, queue, offsets[queue]) for queue in queues]
        answers = cluster.invoke_leader_many(broker_name, commands, deadline_s)
        if any(answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST for answer in answers):
            _make_group(cluster, group, queues[0], deadline_s)
            answers = cluster.invoke_leader_many(broker_name, commands, deadline_s)
        for queue, answer in zip(queues, answers, strict=True):
            if answer.code != ResponseCode.SUCCESS:
                what = f"committing {offsets[queue]} of {queue} for group {group}"
                raise RequestRefusedError(what, answer.code, answer.remark)


def _commit_command(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    command = _queue_command(RequestCode.UPDATE_CONSUMER_OFFSET, queue)
    command.ext_fields |= {"consumerGroup": group, "commitOffset": str(offset)}
    return command


def _make_group(cluster: Cluster, group: str, queue: MessageQueue, deadline_s: float | None) -> None:
    pull = _queue_command(RequestCode.PULL_MESSAGE, queue)
    pull.ext_fields |= {"consumerGroup": group, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4"}
    pull.ext_fields |= {"commitOffset": "0", "suspendTimeoutMillis": "0"}
    pull.ext_fields |= {"subscription": "*", "subVersion": "0"}
    cluster.invoke_leader(queue.broker_name, lambda: pull, deadline_s)


def _queue_command(code: RequestCode, queue: MessageQueue) -> RemotingCommand:
    return RemotingCommand(code, ext_fields={"topic": queue.topic, "queueId": str(queue.queue_id)})


def _ask_number(cluster: Cluster, queue: MessageQueue, command: RemotingCommand, field: str) -> int:
    answer = cluster.invoke_leader(queue.broker_name, lambda: command)
    return _number(answer, field, f"{RequestCode(command.code).name} of {queue}")


def _ask_by_broker(
    cluster: Cluster, queues: Iterable[MessageQueue], code: RequestCode, deadline_s: float | None = None
) -> dict[MessageQueue, int]:
    found = {}
    for broker_name, asked in by_broker(queues).items():
        commands = [_queue_command(code, queue) for queue in asked]
        answers = cluster.invoke_leader_many(broker_name, commands, deadline_s)
        for queue, answer in zip(asked, answers, strict=True):
            found[queue] = _number(answer, "offset", f"{code.name} of {queue}")
    return found


def _number(answer: RemotingCommand, field: str, what: str) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise RequestRefusedError(what, answer.code, answer.remark)
    try:
        return int(answer.ext_fields[field])
    except (KeyError, ValueError):
        raise RequestRefusedError(what, answer.code, f"the answer's {field} is unreadable") from None
