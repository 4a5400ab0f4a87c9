"""Reads queues as a pop would, without fetching messages: PEEK_MESSAGE (200052), NOTIFICATION (200054), and
POLLING_INFO (200055) (PeekMessageProcessor, NotificationProcessor, PollingInfoProcessor).
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.consume.filters import MessageFilter
from broker.consume.queue_reader import QueueReader, ReadMetrics, ReadStatus, transfer_limits
from broker.leadership import Readiness
from broker.pop.checks import MESSAGES_MAX, PopChecks
from broker.pop.fetch import ANSWER_BYTES_MAX
from broker.pop.ledger import PopLedger
from broker.pop.long_polling import Held, PopLongPolling
from broker.pop.ops import GroupQueueKey
from broker.pop.service import BEING_REPAIRED, POLL_TIME_MAX_MS, PopService
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState, StateChangeError
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.pop import (
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
)
from remoting.router import Handlers, Router
from remoting.tag_filters import MATCH_ALL
from remoting.topic_names import RETRY_PREFIX

FILTERED_MAX = 64
"""A notification looks at tags only while fewer messages wait (maxMessageFilterNumForNotification)."""


@dataclass(slots=True)
class _Notice:
    request: RemotingCommand
    connection: ClientConnection
    header: NotificationRequestHeader
    filter: MessageFilter


class PopPeeks:
    """Handles the requests of one broker; holds notifications until a message arrives."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        router: Router,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
        reads: ReadMetrics,
        ledger: PopLedger,
        service: PopService,
        readiness: Readiness,
        checks: PopChecks,
    ) -> None:
        self._router = router
        self._clock = clock
        self._now_ms = now_ms
        self._log = log
        self._state = state
        self._ledger = ledger
        self._service = service
        self._readiness = readiness
        self._checks = checks
        self._reader = QueueReader(log, transfer_limits(config, log), reads)
        self._long_polling: PopLongPolling[_Notice] = PopLongPolling(
            log, self._serve, self._time_out, lambda: None, now_ms
        )
        ledger.on_ready(self._on_ready)

    def handlers(self) -> Handlers:
        return {
            RequestCode.PEEK_MESSAGE: self.peek,
            RequestCode.NOTIFICATION: self.notify,
            RequestCode.POLLING_INFO: self.polling_info,
        }

    def connection_closed(self, connection: Connection) -> None:
        self._long_polling.waits.drop_connection(connection.connection_id)

    async def start(self) -> None:
        """Nothing runs until the first notification waits."""

    async def stop(self) -> None:
        self._long_polling.stop()

    async def peek(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """200052: the messages that a pop would get, without handing them out."""
        header = PeekMessageRequestHeader.parse(request.ext_fields)
        await self._check(header.consumer_group, header.topic, header.queue_id)
        if not 0 < header.max_msg_nums <= MESSAGES_MAX:
            remark = f"{header.max_msg_nums} messages are not between 1 and {MESSAGES_MAX}"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        bodies: list[bytes] = []
        count = rest = 0
        room = ANSWER_BYTES_MAX
        keys = self._service.fetcher.queue_keys(header.consumer_group, header.topic, header.queue_id, False)
        for key in keys:
            start, end = self._unread(key)
            rest += max(end - start, 0)
            if start >= end or count >= header.max_msg_nums or room <= 0:
                continue
            fetched, body = self._read(key, start, header.max_msg_nums - count, room)
            bodies.append(body)
            count += fetched
            room -= len(body)
        code = ResponseCode.SUCCESS if count else ResponseCode.PULL_NOT_FOUND
        remark = "FOUND" if count else "NO_MESSAGE_IN_QUEUE"
        ext = {"popTime": str(self._clock()), "restNum": str(rest)}
        ext |= {"invisibleTime": "0", "reviveQid": "0"}
        return success_response(request, ext, b"".join(bodies), remark, code)

    async def notify(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand | None:
        """200054: whether a pop would get a message, at the latest after `pollTime`."""
        header = NotificationRequestHeader.parse(request.ext_fields)
        await self._check(header.consumer_group, header.topic, header.queue_id)
        notice = _Notice(request, connection, header, self._checks.filter_of(header))
        if self._has_message(notice):
            return _notification(request, has_message=True)
        if header.poll_time_ms <= 0:
            return _notification(request)
        held = Held(
            header.consumer_group,
            header.topic,
            max(header.queue_id, -1),
            connection.connection_id,
            notice,
        )
        if not self._long_polling.hold(held, min(header.poll_time_ms, POLL_TIME_MAX_MS)):
            return _notification(request, polling_full=True)
        return None

    async def polling_info(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """200055: how many pops wait at a queue."""
        header = PollingInfoRequestHeader.parse(request.ext_fields)
        self._checks.place(await self._group(header.consumer_group), header.topic, header.queue_id)
        waits = self._service.long_polling.waits
        count = waits.count(header.consumer_group, header.topic, max(header.queue_id, -1))
        return success_response(request, {"pollingNum": str(count)})

    async def _check(self, group: str, topic: str, queue_id: int) -> None:
        """Only the leader knows what is in flight. Raises RequestError."""
        if self._ledger.table is None and not await self._readiness.wait():
            raise self._readiness.refusal()
        config = await self._group(group)
        self._checks.place(config, topic, queue_id)
        if self._ledger.table is None:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "messages in flight are being loaded; try again")

    async def _group(self, name: str) -> SubscriptionGroupConfig:
        try:
            group = await self._state.ensure_group(name)
        except StateChangeError:
            group = None
        if group is None:
            remark = f"subscription group [{name}] does not exist"
            raise RequestError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
        return group

    def _unread(self, key: GroupQueueKey) -> tuple[int, int]:
        """From which offset to which a pop of the queue would read."""
        queue = self._log.queues.get(key.topic, key.queue_id)
        if queue is None:
            return 0, 0
        return max(self._service.fetcher.next_offset(key, queue), queue.min_offset), queue.max_offset

    def _read(self, key: GroupQueueKey, start: int, most: int, room: int) -> tuple[int, bytes]:
        try:
            result = self._reader.read(key.topic, key.queue_id, start, MATCH_ALL, most, room)
        except DamagedRecordError:
            raise RequestError(ResponseCode.SYSTEM_BUSY, BEING_REPAIRED) from None
        return (result.count, result.body) if result.status is ReadStatus.FOUND else (0, b"")

    def _has_message(self, notice: _Notice) -> bool:
        header = notice.header
        now_ms = self._now_ms()
        keys = self._service.fetcher.queue_keys(header.consumer_group, header.topic, header.queue_id, False)
        for key in keys:
            group_queue = self._ledger.group_queue(key)
            order = group_queue.order if group_queue is not None else None
            if header.order and order is not None and order.pending:
                if order.is_same_attempt(header.attempt_id) or order.free_at_ms(now_ms) <= now_ms:
                    return True
                continue
            if self._is_wanted(key, notice.filter):
                return True
        return False

    def _is_wanted(self, key: GroupQueueKey, wanted: MessageFilter) -> bool:
        """Whether a pop of the queue would get something, as far as that is seen by tags."""
        start, end = self._unread(key)
        codes = None if key.topic.startswith(RETRY_PREFIX) else wanted.codes
        if start >= end or codes is None or end - start >= FILTERED_MAX:
            return start < end
        queue = self._log.queues.get(key.topic, key.queue_id)
        assert queue is not None, f"{key} has messages from {start} to {end} and no queue"
        try:
            return any(code in codes for _, size, code in queue.units(start, FILTERED_MAX) if size)
        except DamagedRecordError:
            return True  # the pop that follows is answered with the damage

    def _serve(self, notice: _Notice) -> bool:
        if not notice.connection.is_open:
            return True
        if not self._has_message(notice):
            return False
        self._answer(notice, has_message=True)
        return True

    def _time_out(self, notice: _Notice) -> None:
        if notice.connection.is_open:
            self._answer(notice, has_message=False)

    def _answer(self, notice: _Notice, *, has_message: bool) -> None:
        answer = _notification(notice.request, has_message=has_message)
        self._router.answer(notice.request, notice.connection, answer)

    def _on_ready(self, is_ready: bool) -> None:
        if not is_ready:
            self._long_polling.end_all(self._time_out)


def _notification(
    request: RemotingCommand, *, has_message: bool = False, polling_full: bool = False
) -> RemotingCommand:
    ext = {"hasMsg": str(has_message).lower(), "pollingFull": str(polling_full).lower()}
    return success_response(request, ext)
