"""Sends: a bounded window of requests in flight for each broker.

Unacknowledged sends are repeated in their order, to the new leader if there is one. So sends that carry a
writer's numbers never arrive with a gap, and all others arrive at least once. In one lane (a queue) only one
send is in flight: a broker may process sends in parallel, and a repeated one must not arrive after a later
one.
"""

import time
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from remoting.client.blocking import Connection
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from rocketmq_spark.client.cluster import BusyError, Cluster, NotLeaderError, check_leads
from rocketmq_spark.errors import DeliveryError, RequestRefusedError, RocketmqSparkError

WINDOW_MESSAGES_MAX: Final = 4_096
"""Messages sent to one broker and not acknowledged."""
# The broker bounds the appends of all its producers together, so one task must not use all of that bound.
SYSTEM_ERRORS_MAX: Final = 5
"""Answers with SYSTEM_ERROR and no temporary reason in the remark after which a send fails."""
GAPS_MAX: Final = 8
"""Maximum of refusals for a gap of the first unacknowledged send: an old leader that is cut off
from its group refuses for some seconds, until it notices. After more refusals the writer was really dropped.
"""

_NOT_STORED_SAFELY: Final = frozenset(
    {
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_FINAL: Final = frozenset(
    {
        ResponseCode.LEDGERMQ_SEQUENCE_GAP,
        ResponseCode.LEDGERMQ_SEQUENCE_OVER,
        ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS,
    }
)
DIFFERS_HINT: Final = (
    "Exactly-once requires that a batch has the same partitions and rows at every attempt. Restore what "
    "has changed since (number of cores or of partitions, minPartitions, how files are split) and restart. "
    "Where rows come in another order each time (after a shuffle), sort them within their partitions. "
    "Otherwise begin with a new checkpoint (or writerId): rows of this batch that are in the topic are "
    "then stored twice"
)
_PASSING: Final = ("not enough", "busy", "time out", "timeout", "not available", "stored")
"""Words in the remark of a SYSTEM_ERROR that show a temporary reason: such answers are not counted."""


@dataclass(slots=True, eq=False)
class Request:
    """One send. `what` names its messages in an error; `repeats` of them were stored by an earlier attempt.
    At most one request of a `lane` is in flight; None is no lane.
    """

    command: RemotingCommand
    count: int
    what: str
    lane: Hashable = None
    repeats: int = 0
    system_errors: int = 0
    gaps: int = 0

    @property
    def size_bytes(self) -> int:
        return len(self.command.body)


class BrokerSender:
    """The window of one broker. Not for use by several threads."""

    def __init__(self, cluster: Cluster, broker_name: str, window_bytes: int, deadline_s: float) -> None:
        self._cluster = cluster
        self._broker_name = broker_name
        self._window_bytes = window_bytes
        self._deadline_s = deadline_s
        self._connection: Connection | None = None
        self._waiting: deque[Request] = deque()
        self._behind: dict[Hashable, deque[Request]] = {}
        """For each lane with a request in `_waiting` or `_on_wire`: the later requests of the lane."""
        self._on_wire: dict[int, Request] = {}
        """Requests in flight by opaque, in send order; all of them come before the waiting ones."""
        self._bytes = 0
        self._messages = 0
        self.acknowledged = 0
        self.repeats = 0
        """Acknowledged messages that an earlier attempt had stored."""
        self.retries = 0

    def send(self, request: Request) -> None:
        """Send a request."""
        # Returns when the window has room again, perhaps before the acknowledgement. Raises as `flush`.
        if request.lane is not None and request.lane in self._behind:
            self._behind[request.lane].append(request)
        else:
            self._enqueue(request)
        self._bytes += request.size_bytes
        self._messages += request.count
        self._work(self._window_bytes, WINDOW_MESSAGES_MAX)

    def flush(self) -> None:
        """Wait until everything is acknowledged.

        Raises:
            ClusterUnavailableError: no node accepted a send in time; names the attempts.
            RequestRefusedError: a retry cannot succeed. DeliveryError: exactly once is not possible.
        """
        self._work(0, 0)

    # A retry is safe for sequenced sends: the broker drops the rows that it has. Other sends may be stored
    # twice. Memory is bounded: `send` waits here while more than the window is unacknowledged.
    def _work(self, bytes_max: int, messages_max: int) -> None:
        def attempt() -> None:
            self._attempt(bytes_max, messages_max)

        self._cluster.with_leader(self._broker_name, attempt, self._deadline_s)

    def _attempt(self, bytes_max: int, messages_max: int) -> None:
        """Send waiting requests and receive answers until at most this much is unacknowledged."""
        connection = self._cluster.leader_connection(self._broker_name)
        if connection is not self._connection:
            # Answers of the former connection are lost: its requests may be stored or not, and are sent again
            # first.
            self._requeue()
            self._connection = connection
        try:
            self._transmit(connection)
            while self._bytes > bytes_max or self._messages > messages_max:
                self._accept(connection.receive())
                self._transmit(connection)
        except (BusyError, NotLeaderError):
            self.retries += 1
            self._drain(connection)
            raise
        except RemotingError:
            self.retries += 1
            self._requeue()
            raise

    def _enqueue(self, request: Request) -> None:
        if request.lane is not None:
            self._behind.setdefault(request.lane, deque())
        self._waiting.append(request)

    def _transmit(self, connection: Connection) -> None:
        while self._waiting:
            request = self._waiting[0]
            # If `send` raises, the request is still the first one in `_waiting`: its order is not lost.
            opaque = connection.send(request.command)
            self._on_wire[opaque] = self._waiting.popleft()

    def _accept(self, answer: RemotingCommand) -> None:
        request = self._on_wire.get(answer.opaque)
        if request is None:
            return
        if answer.code != ResponseCode.SUCCESS:
            is_first = next(iter(self._on_wire)) == answer.opaque
            raise _failure(request, answer, is_first, self._broker_name)
        del self._on_wire[answer.opaque]
        self._acknowledge(request, answer)

    def _acknowledge(self, request: Request, answer: RemotingCommand) -> None:
        self._bytes -= request.size_bytes
        self._messages -= request.count
        request.repeats = int(answer.ext_fields.get("repeats", "0"))
        self.acknowledged += request.count
        self.repeats += request.repeats
        behind = self._behind.get(request.lane)
        if behind:
            self._enqueue(behind.popleft())
        elif behind is not None:
            del self._behind[request.lane]

    def _drain(self, connection: Connection) -> None:
        """After a refusal: wait for the answers to all requests in flight, because those sent after
        the refused one may be stored or not.
        """
        try:
            open_count = len(self._on_wire) - 1
            while open_count > 0:
                answer = connection.receive()
                request = self._on_wire.get(answer.opaque)
                open_count -= request is not None
                if request is not None and answer.code == ResponseCode.SUCCESS:
                    del self._on_wire[answer.opaque]
                    self._acknowledge(request, answer)
        finally:
            self._requeue()

    def _requeue(self) -> None:
        """Put requests without an acknowledgement back before the waiting ones, in their order."""
        self._waiting.extendleft(reversed(self._on_wire.values()))
        self._on_wire.clear()


class Sender:
    """The senders of all brokers. Each broker has a window of `window_bytes`."""

    def __init__(self, cluster: Cluster, window_bytes: int, deadline_s: float) -> None:
        self._cluster = cluster
        self._window_bytes = window_bytes
        self._deadline_s = deadline_s
        self._brokers: dict[str, BrokerSender] = {}

    @property
    def brokers(self) -> Mapping[str, BrokerSender]:
        return self._brokers

    def send(self, broker_name: str, request: Request) -> None:
        """As `BrokerSender.send`."""
        sender = self._brokers.get(broker_name)
        if sender is None:
            sender = BrokerSender(self._cluster, broker_name, self._window_bytes, self._deadline_s)
            self._brokers[broker_name] = sender
        sender.send(request)

    def flush(self) -> None:
        """As `BrokerSender.flush`, for all brokers."""
        for sender in self._brokers.values():
            sender.flush()


def now_ms() -> int:
    """Unix time in ms: the born time of a message that is sent now."""
    return time.time_ns() // 1_000_000


def _failure(
    request: Request, answer: RemotingCommand, is_first: bool, broker_name: str
) -> RocketmqSparkError:
    """The error for a refusal."""
    # BusyError: try the same node again; NotLeaderError: find the leader, then try again.
    code, remark = answer.code, answer.remark
    if code == ResponseCode.LEDGERMQ_SEQUENCE_GAP:
        request.gaps += is_first
        # A gap after an unanswered request is caused by that request: it says nothing about the
        # writer.
        if not is_first:
            return BusyError(f"code {code}, {remark}")
        if request.gaps < GAPS_MAX:
            return NotLeaderError(f"code {code}, {remark}")
    if code in _FINAL:
        return DeliveryError(_sequence_text(request, answer, broker_name))
    if code == ResponseCode.LEDGERMQ_WRITERS_FULL:
        return BusyError(f"WRITERS_FULL (code {code}), {remark}")
    if code in _NOT_STORED_SAFELY:
        return BusyError(f"code {code}, {remark}")
    try:
        check_leads(answer)
    except (BusyError, NotLeaderError) as error:
        return error
    if code == ResponseCode.SYSTEM_ERROR:
        request.system_errors += not any(word in (remark or "").lower() for word in _PASSING)
        if request.system_errors < SYSTEM_ERRORS_MAX:
            return NotLeaderError(f"code {code}, {remark}")
    return RequestRefusedError(f"sending {request.what} to broker {broker_name}", code, remark)


def _sequence_text(request: Request, answer: RemotingCommand, broker_name: str) -> str:
    text = f"broker {broker_name} refuses {request.what}: {answer.remark}. "
    if answer.code == ResponseCode.LEDGERMQ_SEQUENCE_OVER:
        return text + (
            "The checkpoint (or the writerId and batchId given) is older than what the topic holds; with a "
            "new checkpoint location the rows would be written again"
        )
    if answer.code == ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS:
        return text + DIFFERS_HINT
    return text + (
        "The broker does not have the numbers of this writer: it was idle too long, or a node of an older "
        "version was the leader meanwhile. Acknowledged rows are stored"
    )
