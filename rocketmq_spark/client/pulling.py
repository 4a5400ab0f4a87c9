"""Pulls: stretches of one queue as the records' own bytes (code 11). A broker answers committed ones only."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlog.entry import Buffer
from commitlog.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT
from remoting.codes import RequestCode, ResponseCode
from remoting.command import OWN_LANGUAGE, RemotingCommand
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.errors import RequestRefusedError

ALL_TAGS: Final = "*"
COUNT_MAX: Final = 1024
"""Messages asked for at once; a Java broker gives 32 at most."""
BYTES_MAX: Final = 512 * 1024
"""Bytes asked for at once; a Java broker gives 256 KiB at most, 64 KiB of messages that are not in memory."""
DEFAULT_GROUP: Final = "rocketmq-spark"
"""Named in pulls, which must name a consumer group; nothing is committed for it."""
_SUBSCRIPTION_GIVEN = 4
_GONE_REMARKS = ("MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL")


class PullStatus(Enum):
    """What a pull found."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    """The offset is the queue's end."""
    NO_MATCH = "no match"
    """Nothing up to `next_offset` has one of the tags, or holes only stand there."""
    OFFSET_ILLEGAL = "offset illegal"
    """The offset is before the queue's beginning or behind its end; `next_offset` names the nearest."""
    REMOVED = "removed"
    """Retention is just taking the messages away."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """`data` holds whole records back to back; `next_offset` is where to go on."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: Buffer = b""
    is_exact: bool = False
    """Whether `min_offset` surely is what the node holds. A Java broker finds out some seconds after it has
    deleted a file, and until then passes over what was in it.
    """

    @property
    def first_offset(self) -> int | None:
        """The offset of the first record, None without one."""
        if len(self.data) < PHYSICAL_OFFSET_AT:
            return None
        return int.from_bytes(self.data[QUEUE_OFFSET_AT:PHYSICAL_OFFSET_AT], "big")


_STATUSES = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


def pull(
    cluster: Cluster,
    queue: MessageQueue,
    offset: int,
    count_max: int = COUNT_MAX,
    bytes_max: int = BYTES_MAX,
    tags: str = ALL_TAGS,
    group: str = DEFAULT_GROUP,
    deadline_s: float | None = None,
) -> PullResult:
    """Read from `offset` on, from whoever leads; without waiting for new messages.

    Raises:
        RequestRefusedError: the broker will not serve this queue to this group.
        ClusterUnavailableError: nobody led until the deadline.
    """
    answer = cluster.invoke_leader(
        queue.broker_name, lambda: pull_command(queue, offset, count_max, bytes_max, tags, group), deadline_s
    )
    return pull_result(answer, queue, offset)


def pull_command(
    queue: MessageQueue,
    offset: int,
    count_max: int = COUNT_MAX,
    bytes_max: int = BYTES_MAX,
    tags: str = ALL_TAGS,
    group: str = DEFAULT_GROUP,
) -> RemotingCommand:
    """The request. `tags` is RocketMQ's expression `TagA || TagB`; brokers compare hashes only, so that a
    message of another tag may come.
    """
    ext = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(count_max),
        "maxMsgBytes": str(bytes_max),
        "sysFlag": str(_SUBSCRIPTION_GIVEN),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": tags,
        "expressionType": "TAG",
        "subVersion": "0",
        "bname": queue.broker_name,
    }
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=ext)


def pull_result(
    answer: RemotingCommand, queue: MessageQueue, offset: int, body: Buffer | None = None
) -> PullResult:
    """Read the answer to a pull, whose body may be given besides. Raises RequestRefusedError."""
    status = _STATUSES.get(answer.code)
    what = f"pull of {queue} from {offset}"
    if status is None:
        raise RequestRefusedError(what, answer.code, answer.remark)
    if status is not PullStatus.FOUND and answer.remark in _GONE_REMARKS:
        status = PullStatus.REMOVED
    ext = answer.ext_fields
    try:
        next_offset = int(ext["nextBeginOffset"])
        first, end = int(ext["minOffset"]), int(ext["maxOffset"])
    except (KeyError, ValueError):
        raise RequestRefusedError(what, answer.code, f"unreadable offsets in {ext!r}") from None
    came = answer.body if body is None else body
    data = came if status is PullStatus.FOUND else b""
    return PullResult(status, next_offset, first, end, data, answer.language == OWN_LANGUAGE)
