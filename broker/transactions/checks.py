"""Asks producers about transactions that stay open (TransactionalMessageServiceImpl.check,
AbstractTransactionalMessageCheckListener), on the leader only.

At each transactionCheckInterval one round reads the open transactions that are older than transactionTimeOut,
or than the time that their own messages ask for. Each is counted as checked in the log, then one producer of
its group is sent CHECK_TRANSACTION_STATE (39), and answers with an END_TRANSACTION. A transaction that was
checked transactionCheckMax times, or is older than fileReservedTime, is discarded: its message is moved to
TRANS_CHECK_MAX_TIME_TOPIC. By RESUME_CHECK_HALF_MESSAGE (323) an operator makes such a message a half message
again, which is checked from the start.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection, ClientRegistry
from broker.leadership import Readiness
from broker.responses import put_answer, put_error
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import CHECK_MAX_TIME_TOPIC, TopicConfig
from broker.transactions.half import check_body, immunity_ms, producer_group_of, resumed
from broker.transactions.ledger import Decision, TransactionLedger
from broker.transactions.window import Ending
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import is_ahead
from commitlog.record import Record, decode_record, get_property, offset_msg_id
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from remoting.headers.transactions import (
    CheckTransactionStateRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from remoting.router import Router

BATCH_MAX = 64
BATCH_BYTES_MAX = 512 * 1024
BATCH_PAUSE_S = 0.02
"""Between two batches of a round."""
REUNION_MS = 65_000
"""So long after a node became the leader it may not know all producers yet: they send it a heartbeat each 30
s, once they have heard of it, for which they ask each 30 s.
"""
HOUR_MS = 3_600_000
MESSAGE_ID_CHARS = (32, 56)
"""Of an offsetMsgId with an IPv4 or an IPv6 host."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Batch:
    """What is to be done for some of the open transactions."""

    to_ask: list[tuple[Record, int, ClientConnection | None]] = field(default_factory=list)
    """Half message, number of this check, and the producer's connection to send it to, if any."""
    discarded: list[Record] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    size: int = 0
    size_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.size >= BATCH_MAX or self.size_bytes >= BATCH_BYTES_MAX


class TransactionChecks:
    """The rounds of one broker; none runs without the table."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        clients: ClientRegistry,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
        ledger: TransactionLedger,
    ) -> None:
        self._state = state
        self._clients = clients
        self._clock = clock
        self._ledger = ledger
        self._config = config
        self._is_changed = asyncio.Event()
        self._now_ms = now_ms
        self._ready_since_ms = 0
        self._turns: dict[str, int] = {}
        self._rounds: asyncio.Task[None] | None = None
        ledger.on_ready(self._on_ready)
        state.on_settings_changed(self._is_changed.set)

    async def start(self) -> None:
        """The rounds begin when the table is there."""

    async def stop(self) -> None:
        self._on_ready(False)

    def _on_ready(self, is_ready: bool) -> None:
        if self._rounds is not None:
            self._rounds.cancel()
            self._rounds = None
        if is_ready:
            self._ready_since_ms = self._now_ms()
            self._rounds = asyncio.get_running_loop().create_task(self._keep_checking(), name="checks")

    async def _keep_checking(self) -> None:
        config = self._config
        await self._pause(lambda: min(config.transaction_check_ms, config.transaction_timeout_ms))
        while True:
            await self.run_round()
            await self._pause(lambda: config.transaction_check_ms)

    async def _pause(self, pause_ms: Callable[[], int]) -> None:
        """Wait so long; a change of the settings counts from the pause's start."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while (left_s := start_s + pause_ms() / 1000 - loop.time()) > 0:
            self._is_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._is_changed.wait()

    async def run_round(self) -> None:
        """Check every open transaction that is due, once."""
        window = self._ledger.window
        if window is None or not window.open_count:
            self._ledger.snapshot()
            return
        halves = window.open_halves()
        while self._ledger.window is window:
            batch = _Batch()
            is_over = self._gather(halves, batch)
            if not await self._carry_out(batch) or is_over:
                break
            await asyncio.sleep(BATCH_PAUSE_S)
        if self._ledger.window is window:
            self._ledger.snapshot()

    def _gather(self, halves: Iterator[tuple[int, int]], batch: _Batch) -> bool:
        """Fill the batch; return whether all due transactions were read."""
        now_ms, timeout_ms = self._clock(), self._config.transaction_timeout_ms
        for offset, checks in halves:
            try:
                record = self._ledger.half(offset)
            except DamagedRecordError:
                continue  # it is being repaired
            batch.size += 1
            if record is None:
                batch.lost.append(offset)
            else:
                own_ms = immunity_ms(record, timeout_ms)
                age_ms = now_ms - record.store_timestamp_ms
                is_young = age_ms < (timeout_ms if own_ms is None else own_ms)
                is_young = is_young and not is_ahead(record.store_timestamp_ms, now_ms)
                if is_young and own_ms is None:
                    return True  # half messages are in order of their store time: those behind it are younger
                if not is_young:
                    self._judge(record, checks, age_ms, batch)
            if batch.is_full:
                return False
        return True

    def _judge(self, record: Record, checks: int, age_ms: int, batch: _Batch) -> None:
        batch.size_bytes += record.size
        reserved_ms = self._config.file_reserved_hours * HOUR_MS
        if checks >= self._config.transaction_check_max or age_ms > reserved_ms:
            batch.discarded.append(record)
            return
        producer = self._producer(producer_group_of(record))
        if producer is not None or self._now_ms() - self._ready_since_ms >= REUNION_MS:
            batch.to_ask.append((record, checks + 1, producer))

    def _producer(self, group: str) -> ClientConnection | None:
        """One connection after the other of those that the group's producers have."""
        members = self._clients.producer_groups.get(group, {}).values()
        connections = [member.client.connection for member in members]
        usable = [each for each in connections if each.is_open and not each.is_congested]
        if not usable:
            return None
        turn = self._turns[group] = self._turns.get(group, -1) + 1
        return usable[turn % len(usable)]

    async def _carry_out(self, batch: _Batch) -> bool:
        """Return whether the log accepted every record."""
        if batch.to_ask:
            # Counted before the producers are asked: a new leader never counts fewer checks than were sent.
            status = self._ledger.check([record.queue_offset for record, _, _ in batch.to_ask])
            if status is not PutStatus.PUT_OK:
                return False
            for record, checks, producer in batch.to_ask:
                self._ask(record, checks, producer)
        for offset in batch.lost:
            logger.warning("the half message %d cannot be read any more; its transaction ends", offset)
            if not self._end(Decision(offset, Ending.LOST)):
                return False
        return not batch.discarded or await self._discard(batch.discarded)

    def _ask(self, record: Record, checks: int, producer: ClientConnection | None) -> None:
        if producer is None:
            return
        unique_key = (get_property(record.properties, b"UNIQ_KEY") or b"").decode(errors="replace")
        try:
            body = check_body(record, checks)
        except ValueError as error:
            logger.error("%s", error)
            return
        header = CheckTransactionStateRequestHeader(
            queue_offset=record.queue_offset,
            position=record.physical_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=offset_msg_id(record.store_host, record.physical_offset),
        )
        producer.send_oneway(
            RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext_fields=header.ext_fields(), body=body)
        )

    async def _discard(self, records: list[Record]) -> bool:
        try:
            await self._state.ensure_topic_config(TopicConfig(CHECK_MAX_TIME_TOPIC, 1, 1))
        except StateChangeError as error:
            logger.warning("nothing can be put aside now, without %s: %s", CHECK_MAX_TIME_TOPIC, error)
            return True
        for record in records:
            logger.warning(
                "the transaction of the half message %d of %s was checked in vain: put aside in %s",
                record.queue_offset,
                producer_group_of(record),
                CHECK_MAX_TIME_TOPIC,
            )
            if not self._end(self._ledger.decision(record, Ending.DISCARD)):
                return False
        return True

    def _end(self, decision: Decision) -> bool:
        """End a transaction, unless it has ended meanwhile; return whether the log accepted the record."""
        window = self._ledger.window
        if window is None or not window.is_open(decision.offset):
            return window is not None
        status = self._ledger.end([decision])
        if status is PutStatus.MESSAGE_ILLEGAL:
            logger.error("the half message %d cannot be put aside; its transaction ends", decision.offset)
            status = self._ledger.end([Decision(decision.offset, Ending.LOST)])
        return status is PutStatus.PUT_OK


class ResumeProcessor:
    """Makes half messages again."""

    def __init__(
        self,
        log: MessageLog,
        router: Router,
        store_host: bytes,
        readiness: Readiness,
    ) -> None:
        self._log = log
        self._router = router
        self._store_host = store_host
        self._readiness = readiness

    def handle(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand | None:
        """323: `msgId` is the offsetMsgId of a message of TRANS_CHECK_MAX_TIME_TOPIC."""
        header = ResumeCheckHalfMessageRequestHeader.parse(request.ext_fields)
        self._readiness.check()
        data = self._log.record_at(_position_of(header.msg_id))
        record = decode_record(data) if data is not None else None
        if record is None or record.topic != CHECK_MAX_TIME_TOPIC:
            remark = f"no message of {CHECK_MAX_TIME_TOPIC} has the id {header.msg_id[:64]}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        message = resumed(record, self._store_host)
        result = self._log.put([message], partial(self._answer, request, connection))
        if result.status is not PutStatus.PUT_OK:
            raise RequestError(*put_error(result.status))
        return None

    def _answer(self, request: RemotingCommand, connection: ClientConnection, status: PutStatus) -> None:
        self._router.answer(request, connection, put_answer(request, status))


def _position_of(message_id: str) -> int:
    try:
        if len(message_id) not in MESSAGE_ID_CHARS:
            raise ValueError
        return int.from_bytes(bytes.fromhex(message_id)[-8:], "big")
    except ValueError:
        remark = f"{message_id[:64]!r} is no offsetMsgId"
        raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from None
