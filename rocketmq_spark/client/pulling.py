"""Pulls (request code 11) return the bytes of one queue's records. A broker returns committed records
only.

`pull` sends one request. `RangeReader` reads a range of a queue to its end, across changes of the leader,
with several pulls in flight on one connection. It cuts the range into slices of as many messages as one
answer is expected to hold. A slice whose answer is incomplete, because its bytes were too many, is completed
before the next one is handled; so the caller receives messages in the queue's order. When the connection or
the leader is lost, everything not yet returned to the caller is requested again.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from commitlog.entry import Buffer
from commitlog.record import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT
from remoting.client.blocking import Connection
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import OWN_LANGUAGE, RemotingCommand
from rocketmq_spark.client.buffer_pool import BufferPool
from rocketmq_spark.client.cluster import TOPIC_NOT_EXIST, Backoff, Cluster, check_leads
from rocketmq_spark.client.queue_offsets import max_offset, min_offset
from rocketmq_spark.errors import ClusterUnavailableError, DataLossError, RequestRefusedError

ALL_TAGS: Final = "*"
COUNT_MAX: Final = 1024
"""Messages of one pull; a Java broker returns at most 32."""
BYTES_MAX: Final = 512 * 1024
"""Bytes of one pull; a Java broker returns at most 256 KiB, or 64 KiB of messages that are not in memory."""
DEFAULT_GROUP: Final = "rocketmq-spark"
"""The consumer group of pulls without the option groupId: a pull must name one."""
# No offset is committed for it.
_SUBSCRIPTION_GIVEN = 4
_GONE_REMARKS = ("MESSAGE_WAS_REMOVING", "OFFSET_FOUND_NULL")


class PullStatus(Enum):
    """The outcome of a pull."""

    FOUND = "found"
    NO_NEW_MESSAGE = "no new message"
    """The offset is the queue's end."""
    NO_MATCH = "no match"
    """Nothing up to `next_offset` has one of the tags, or there are only holes."""
    OFFSET_ILLEGAL = "offset illegal"
    """The offset is before the queue's beginning or after its end; `next_offset` is the nearest valid one."""
    REMOVED = "removed"
    """Retention is deleting the messages at this moment."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """`data` holds whole records back to back; `next_offset` is the offset to continue at."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    data: Buffer = b""
    is_exact: bool = False
    """Whether `min_offset` is exact. A Java broker updates it some seconds after it has deleted a file, and
    until then skips the messages of that file without an error.
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
    """Read from `offset` on, from the current leader; without waiting for new messages.

    Raises:
        RequestRefusedError: the broker does not serve this queue to this group.
        ClusterUnavailableError: no leader answered before the deadline.
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
    """The request. `tags` is RocketMQ's expression `TagA || TagB`; brokers compare hashes only, so that
    messages with another tag may be among the answer.
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
    """Read the answer to a pull; `body` replaces the answer's own. Raises RequestRefusedError."""
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


IN_FLIGHT_MIN: Final = 2
IN_FLIGHT_MAX: Final = 16
"""Pulls in flight on one connection: the broker answers them while the task makes rows of the last answer."""
IN_FLIGHT_BYTES: Final = 2 * BYTES_MAX
"""Target for the bytes in flight: more pulls are in flight where a broker's answers are small (Java)."""
COUNT_START: Final = 32
"""Messages of the first pull: the limit of a Java broker."""
GAP_WAIT_S: Final = 12.0
"""A Java broker checks for deleted files every 10 s."""
NAMED_MAX: Final = 20
"""Maximum of queues or ranges that an error or a warning names."""
GAP_PAUSE_S: Final = 240.0
"""After a gap that was not explained within GAP_WAIT_S, the reader does not wait at gaps for this time: such
a queue may have many. The minimum offset is still requested at each of them.
"""

DENIED_S: Final = 5.0
"""A topic counts as deleted when its leader has answered so for this long: a leader that has just been
started or elected may not have loaded all topics yet.
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The messages of a queue from `start` to before `stop`."""

    queue: MessageQueue
    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.stop - 1} of {self.queue}"


@dataclass(frozen=True, slots=True)
class Pulled:
    """The records of one answer, or of several that follow each other, back to back.

    Their offsets are from `start` to before `stop`. is_exact: the node never skips a message without an
    error, so an offset without a record is one that no message has.
    """

    data: Buffer
    start: int
    stop: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How to read. tags: RocketMQ's expression, `*` for all; messages with other tags may be returned, too.

    fail_on_data_loss: whether messages that retention deleted raise DataLossError, or are skipped with a
    warning in the log.
    """

    tags: str = ALL_TAGS
    group: str = DEFAULT_GROUP
    fail_on_data_loss: bool = True


@dataclass(slots=True)
class _Slice:
    start: int
    stop: int
    opaque: int | None = None
    """None until it is requested."""
    answer: RemotingCommand | None = None
    body: Buffer = b""
    """The body of the answer."""


class RangeReader:
    """Reads one range of a queue. Iterating yields the bytes of the records, one item for each answer;
    `answers` also yields their offsets.
    """

    def __init__(
        self, cluster: Cluster, wanted: QueueRange, settings: ReadSettings, memory: BufferPool | None = None
    ) -> None:
        """memory: buffers for the answers in flight and for those that the caller still uses."""
        self._cluster = cluster
        self._memory = memory or BufferPool(IN_FLIGHT_MIN)
        self._wanted = wanted
        self._queue = wanted.queue
        self._settings = settings
        self._next = wanted.start
        """The first offset that was neither returned to the caller nor reported as lost."""
        self._slice_start = wanted.start
        self._count = COUNT_START
        self._count_max = COUNT_MAX
        self._limited_bytes = 0
        """Bytes of the answer that showed the broker's own limit, which `_count_max` then is; else 0."""
        # With a filter the number of messages in an answer is unknown: then one pull is in flight at a time.
        self._in_flight_max = IN_FLIGHT_MIN if settings.tags == ALL_TAGS else 1
        self._pending: deque[_Slice] = deque()
        self._stall: Backoff | None = None
        self._denial: Backoff | None = None
        self._is_filtered = settings.tags != ALL_TAGS
        self._gap_waited_s = -GAP_PAUSE_S

    def __iter__(self) -> Iterator[Buffer]:
        """Raises DataLossError, ClusterUnavailableError, RequestRefusedError."""
        return (answer.data for answer in self.answers())

    def answers(self) -> Iterator[Pulled]:
        """Raises DataLossError, ClusterUnavailableError, RequestRefusedError."""
        stop = self._wanted.stop
        while self._next < stop:
            # Every answer has its own deadline: a long range does not fail while it makes progress.
            try:
                result = self._cluster.with_leader(self._queue.broker_name, self._step)
            except RequestRefusedError as error:
                self._denied(error)
                continue
            data = self._advance(result)
            if data:
                is_exact = result.is_exact and not self._is_filtered
                yield Pulled(data, self._slice_start, self._next, is_exact)

    # A retry is safe: a pull changes nothing at the broker, and `_next` advances only when an answer is
    # returned to the caller or its messages are reported as lost. Memory is bounded by the number of pulls in
    # flight.
    def _step(self) -> PullResult:
        """The answer for the first slice. Raises the errors after which `Cluster.with_leader` tries again."""
        try:
            connection = self._cluster.leader_connection(self._queue.broker_name)
            self._fill(connection)
            answer, body = self._first_answer(connection)
            check_leads(answer)
        except BaseException:
            # Answers in flight may never come, or come from a node that is no longer the leader.
            self._pending.clear()
            raise
        return pull_result(answer, self._queue, self._next, body)

    def _fill(self, connection: Connection) -> None:
        """Keep as many slices in flight as allowed."""
        at = self._pending[-1].stop if self._pending else self._next
        while at < self._wanted.stop and len(self._pending) < self._in_flight_max:
            end = min(at + self._count, self._wanted.stop)
            self._pending.append(_Slice(at, end))
            at = end
        for piece in self._pending:
            if piece.opaque is None:
                piece.opaque = connection.send(self._command(piece))

    def _command(self, piece: _Slice) -> RemotingCommand:
        settings, count = self._settings, piece.stop - piece.start
        return pull_command(self._queue, piece.start, count, BYTES_MAX, settings.tags, settings.group)

    def _first_answer(self, connection: Connection) -> tuple[RemotingCommand, Buffer]:
        first = self._pending[0]
        while first.answer is None:
            answer, body = connection.receive_into(self._memory.acquire)
            # Answers come in any order; that of a cancelled pull matches no slice and is dropped.
            for piece in self._pending:
                if piece.opaque == answer.opaque:
                    piece.answer, piece.body = answer, body
        return first.answer, first.body

    def _advance(self, result: PullResult) -> Buffer:
        """Advance by one answer, and return its records."""
        is_passed = result.status in (PullStatus.FOUND, PullStatus.NO_MATCH)
        if is_passed and result.next_offset > self._next:
            self._explain_gap(result)
            self._slice_start = self._next
            self._move_on(result)
            return result.data
        self._recover(result)
        return b""

    def _denied(self, error: RequestRefusedError) -> None:
        """The leader does not know the topic: retry for DENIED_S, then report the range as lost."""
        # Raises other refusals.
        if error.code != TOPIC_NOT_EXIST:
            raise error
        self._pending.clear()
        self._cluster.forget_leader(self._queue.broker_name)
        if self._denial is None:
            self._denial = Backoff(f"reading {self._queue}", min(DENIED_S, self._cluster.deadline_s))
        try:
            self._denial.failed(str(error))
        except ClusterUnavailableError:
            self._lose(self._wanted.stop)

    def _move_on(self, result: PullResult) -> None:
        self._stall = self._denial = None
        piece = self._pending.popleft()
        self._next = result.next_offset
        if self._next > piece.stop:
            self._pending.clear()  # the pulls in flight would return some messages twice
        if self._next < piece.stop:
            self._pending.appendleft(_Slice(self._next, piece.stop))
            self._count = self._next - piece.start
            if _has_room(result):
                self._count_max, self._limited_bytes = self._count, len(result.data)
        elif _has_room(result):
            is_full = piece.stop - piece.start >= self._count_max
            if is_full and 2 * len(result.data) <= self._limited_bytes:
                self._count_max, self._limited_bytes = COUNT_MAX, 0  # the limit was one of bytes
            self._count = min(self._count * 2, self._count_max)
        if self._in_flight_max > 1 and result.data and self._count >= self._count_max:
            wanted = IN_FLIGHT_BYTES // len(result.data)
            self._in_flight_max = max(IN_FLIGHT_MIN, min(IN_FLIGHT_MAX, wanted))

    def _explain_gap(self, result: PullResult) -> None:
        """Offsets before an answer's first message may never have had a message, or it was in a file that was
        just deleted. The minimum offset shows this later. Messages left out by a filter cause the same gap.
        """
        first = result.first_offset
        if first is None or first <= self._next or result.is_exact or self._is_filtered:
            return
        wait_s = GAP_WAIT_S if time.monotonic() - self._gap_waited_s >= GAP_PAUSE_S else 0.0
        backoff = Backoff(f"the beginning of {self._queue}", wait_s)
        while (kept := min_offset(self._cluster, self._queue)) <= self._next:
            try:
                backoff.failed(f"is {kept}")
            except ClusterUnavailableError:
                if wait_s:
                    self._gap_waited_s = time.monotonic()
                return
        self._lose(min(kept, first, self._wanted.stop), kept)

    def _recover(self, result: PullResult) -> None:
        """The leader returned nothing at `_next`: find out from its answer whether this is data loss.

        The queue may end before the range does, though a leader reported the end of the range at planning: a
        node that has just been elected may have applied less for a moment.
        """
        self._pending.clear()
        queue, stop = self._queue, self._wanted.stop
        first, end = min_offset(self._cluster, queue), max_offset(self._cluster, queue)
        if first > self._next:
            self._lose(min(first, stop), first)
        elif result.status is PullStatus.REMOVED:
            self._lose(min(max(result.next_offset, self._next + 1), stop))
        else:
            self._wait(end)

    def _wait(self, end: int) -> None:
        if self._stall is None:
            self._stall = Backoff(f"reading {self._queue}", self._cluster.deadline_s)
        try:
            self._stall.failed(f"nothing at offset {self._next}, the queue ends at {end}")
        except ClusterUnavailableError:
            if end > self._next:
                raise
            self._lose(self._wanted.stop)

    def _lose(self, stop: int, kept: int | None = None) -> None:
        """kept: the queue's minimum offset, which may be after the range that is read here."""
        lost = QueueRange(self._queue, self._next, stop)
        report_lost([lost], self._settings.fail_on_data_loss, kept)
        self._next = stop


def report_lost(lost: Sequence[QueueRange], fails: bool, kept: int | None = None) -> None:
    """Warn of ranges that a query skips; `kept`: the minimum offset, if all are of one queue.

    Raises:
        DataLossError: instead of the warning, if `fails`.
    """
    text = named(lost)
    if not fails:
        _log.warning("%s are lost; failOnDataLoss is false, so the query continues without them", text)
        return
    begins = f" The queue begins at offset {kept} now." if kept is not None else ""
    raise DataLossError(
        f"{text} are not in the cluster any more: retention deleted them, or the topic was deleted or "
        f"created again.{begins} With failOnDataLoss=false a query continues without them."
    )


def _has_room(result: PullResult) -> bool:
    """Whether an answer of twice the size would be within BYTES_MAX."""
    return len(result.data) * 2 <= BYTES_MAX


def named(items: Sequence[object]) -> str:
    """The texts of the items, at most NAMED_MAX of them and the number of the others."""
    texts = [str(item) for item in items[:NAMED_MAX]]
    if len(items) > NAMED_MAX:
        texts.append(f"{len(items) - NAMED_MAX} more")
    return " and ".join(texts)
