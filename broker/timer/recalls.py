"""RECALL_MESSAGE (370): a sender cancels a message that waits for its time (RecallMessageProcessor).

The answer to a timer message has a handle for it (`remoting.recall_handle`). A recall is answered with
success only after the record that ends the waiting message is committed; the message is never delivered then.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.leadership import Readiness
from broker.responses import put_answer
from broker.state.state import ReplicatedState
from broker.store.redelivery import property_of
from broker.timer.journal import TimerJournal
from broker.timer.records import key_of
from broker.timer.scheduling import PROPERTY_REAL_TOPIC
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Record
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, error_response
from remoting.errors import RequestError
from remoting.headers.send import RecallMessageRequestHeader
from remoting.recall_handle import HandleError, RecallHandle, decode_handle
from remoting.router import Router

WAITING_MAX = 1_000
"""Recalls that wait for the deliveries before them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recall:
    """`named`: topic+UNIQ_KEY of a message that was due at `out_ms`, and is in the log before `end_position`.
    `answer` is called once: with the status of the put, or with None when no such message is waiting.
    """

    named: str
    out_ms: int
    end_position: int
    answer: Callable[[PutStatus | None], None]


class Recalls:
    """The recalls of one broker that are not answered yet."""

    def __init__(self, log: MessageLog, journal: TimerJournal, clock: Callable[[], int]) -> None:
        self._log = log
        self._journal = journal
        self._clock = clock
        self._waiting: deque[Recall] = deque()
        self._callbacks: list[Callable[[], None]] = []

    def on_recall(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def ask(self, recall: Recall) -> bool:
        """Whether there is room for it."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(recall)
        self._log.add_listener(self._on_dispatch)
        self._notify()
        return True

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        """The index may have reached the message that a recall is about."""
        if self._waiting:
            self._notify()
        else:
            self._log.remove_listener(self._on_dispatch)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()

    def _is_known(self, recall: Recall) -> bool:
        """Whether the index includes every message acknowledged before the recall. A leader with a slow disk
        can read committed entries later than its followers.
        """
        return self._log.max_position >= recall.end_position and not self._journal.behind

    def ready(self, most: int) -> Iterator[tuple[Recall, list[int]]]:
        """At most so many with what they are about; answers those that are about nothing."""
        while self._waiting and most and self._is_known(self._waiting[0]):
            recall = self._waiting.popleft()
            try:
                targets = self._all_targets(recall)
            except DamagedRecordError as error:
                logger.warning("a recall is refused: %s", error)
                recall.answer(PutStatus.OS_PAGE_CACHE_BUSY)
                continue
            if targets:
                most -= 1
                yield recall, targets
            else:
                recall.answer(None)

    def answer(self, recalls: Sequence[Recall], status: PutStatus) -> None:
        for recall in recalls:
            recall.answer(status)

    def refuse_all(self, status: PutStatus) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.answer(list(waiting), status)

    def targets(self, named: str, key: bytes, from_ms: int, until_ms: int) -> list[int]:
        """Offsets of the messages of these times that the text names. Raises DamagedRecordError."""
        found = []
        for row in self._journal.index.find(key, from_ms, until_ms):
            record = self._journal.record(row.offset)
            if record is not None and named == _name(record):
                found.append(row.offset)
        return found

    def _all_targets(self, recall: Recall) -> list[int]:
        """One for a far-away time waits at another one, at which it is rolled."""
        key, out_ms = key_of(recall.named), recall.out_ms
        found = self.targets(recall.named, key, out_ms, out_ms + 1)
        now_ms = self._clock()
        if not found and out_ms >= now_ms:
            found = self.targets(recall.named, key, 0, min(out_ms, now_ms + self._journal.roll_ms) + 1)
        return found


def _name(record: Record) -> str:
    return f"{property_of(record, PROPERTY_REAL_TOPIC)}+{property_of(record, 'UNIQ_KEY')}"


class RecallProcessor:
    """Handles the recall requests of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        router: Router,
        clock: Callable[[], int],
        end_position: Callable[[], int | None],
        readiness: Readiness,
        recalls: Recalls,
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._router = router
        self._end_position = end_position
        self._readiness = readiness
        self._clock = clock
        self._recalls = recalls

    def handle(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand | None:
        """370. Answered with success when the message will not be delivered any more."""
        if not self._config.recall_message_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        if not self._log.is_writable():
            hint = self._readiness.leader_hint()
            raise RequestError(ResponseCode.SLAVE_NOT_AVAILABLE, f"recall failed; {hint}")
        header = RecallMessageRequestHeader.parse(request.ext_fields)
        if header.topic not in self._state.topics:
            remark = f"recall failed, the topic[{header.topic[:127]}] not exist"
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, remark)
        handle = self._handle(header)
        named = f"{handle.topic}+{handle.unique_key}"
        answer = partial(self._answer, request, connection, handle.unique_key)
        precision_ms = self._config.timer_precision_ms
        out_ms = handle.time_ms // precision_ms * precision_ms
        if not self._recalls.ask(Recall(named, out_ms, self._end_position() or 0, answer)):
            raise RequestError(ResponseCode.SYSTEM_BUSY, "recall failed, too many wait")
        return None

    def _answer(
        self,
        request: RemotingCommand,
        connection: ClientConnection,
        unique_key: str,
        status: PutStatus | None,
    ) -> None:
        if status is None:
            remark = "recall failed, no such message waits: it is delivered, or was recalled"
            answer = error_response(request, ResponseCode.ILLEGAL_OPERATION, remark)
        else:
            answer = put_answer(request, status, {"msgId": unique_key})
        self._router.answer(request, connection, answer)

    def _handle(self, header: RecallMessageRequestHeader) -> RecallHandle:
        try:
            handle = decode_handle(header.recall_handle)
        except HandleError as error:
            raise _illegal(str(error)) from error
        config = self._config
        if handle.topic != header.topic:
            raise _illegal("recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise _illegal("recall failed, broker service not available")
        left_ms = handle.time_ms - self._clock()
        if not 0 < left_ms < config.timer_max_delay_s * 1_000:
            raise _illegal("recall failed, timestamp invalid")
        return handle


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.ILLEGAL_OPERATION, remark)
