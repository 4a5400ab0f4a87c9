"""The limits of waiting timer messages: timerPendingMax in all, timerCongestNumEachSlot of one time.

Also the request RECALL_MESSAGE (370), by which a sender cancels a waiting message (RecallMessageProcessor).
"""

import asyncio
from collections.abc import Callable
from functools import partial

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.monitoring.rates import RateMeter
from broker.readiness import Readiness
from broker.responses import put_answer
from broker.state.state import ReplicatedState
from broker.timer.delivery import TimerDelivery
from broker.timer.handles import HandleError, RecallHandle, decode_handle
from broker.timer.index import TimerIndex
from broker.timer.journal import TimerJournal
from broker.timer.recalls import Recall, Recalls
from commitlog.log import MessageLog, PutStatus
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, error_response
from remoting.errors import RequestError
from remoting.headers.send import RecallMessageRequestHeader
from remoting.router import Router

NO_LIMIT = (1 << 31) - 1
COUNTED_TIMES_MAX = 4_096


class TimerLimits:
    """Checked for each timer message before it is accepted. Messages that are not in the log yet are not
    counted in the total; for one delivery time they are counted from the first check of that time on.
    """

    def __init__(self, config: BrokerConfig, index: TimerIndex) -> None:
        self._index = index
        self._pending_max = config.timer_pending_max
        self._congest_max = config.timer_congest_num_each_slot
        self._counts: dict[int, int] = {}

    def may_time(self, out_ms: int) -> bool:
        if self._index.pending.count >= self._pending_max:
            return False
        if self._congest_max >= NO_LIMIT:
            return True
        count = self._counts.get(out_ms)
        if count is None:
            if len(self._counts) >= COUNTED_TIMES_MAX:
                self._counts.clear()
            count = self._index.count_at(out_ms)
        is_free = count < self._congest_max
        self._counts[out_ms] = count + is_free
        return is_free


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


def timer_figures(journal: TimerJournal, delivery: TimerDelivery, rates: RateMeter) -> dict[str, str]:
    """What mqadmin's brokerStatus and clusterList show of timers: how many s the first one is late, how many
    are in the queue and not placed yet, how many wait, and how many a second were placed and delivered.
    """
    now_s = asyncio.get_running_loop().time()
    placed, delivered = (rates.rates(counter, now_s)[0] for counter in (0, 1))
    return {
        "timerReadBehind": str(delivery.late_ms() // 1_000),
        "timerOffsetBehind": str(journal.behind),
        "timerCongestNum": str(journal.index.pending.count),
        "timerEnqueueTps": f"{placed:.2f}",
        "timerDequeueTps": f"{delivered:.2f}",
    }
