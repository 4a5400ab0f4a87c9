"""END_TRANSACTION (37): producers commit or roll back their transactions (EndTransactionProcessor).

All requests of one turn of the event loop are written to the log with one put. Clients send them oneway, or
ignore the answer: a request that cannot be accepted is lost, and the check of the transaction replaces it.
Requests are held, at most HELD_MAX, while this node still reads which transactions are open, while the log is
full, and until this node itself has every entry that a majority has acknowledged. A node that does not lead
forwards them to the leader: producers end a transaction at the node where they prepared it, and that node may
have lost the leadership since.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from broker.background import Spawn
from broker.config import BrokerConfig
from broker.leadership import Forwarder, Readiness
from broker.responses import put_error
from broker.state.topics import HALF_TOPIC
from broker.transactions.half import HALF_QUEUE_ID, producer_group_of
from broker.transactions.ledger import Decision, TransactionLedger
from broker.transactions.window import Ending
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import REQUEST_RETRY_MS
from commitlog.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    CorruptRecordError,
    Record,
    decode_record,
)
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.errors import HeaderError, RequestError
from remoting.headers.transactions import EndTransactionRequestHeader
from remoting.router import Batch, Router

HELD_MAX = 10_000
TURN_DECISIONS_MAX = 500
TURN_BYTES_MAX = 8 * 1024 * 1024
LEADER_PATIENCE_S = 2.0
"""An election has ended by then; a lost request is repeated by the next check."""
LEADER_TIMEOUT_S = 3.0
_ENDINGS = {TRANSACTION_COMMIT: Ending.COMMIT, TRANSACTION_ROLLBACK: Ending.ROLLBACK}


@dataclass(frozen=True, slots=True)
class _EndRequest:
    connection: Connection
    request: RemotingCommand
    header: EndTransactionRequestHeader


@dataclass(slots=True)
class _Turn:
    """Decisions that are written to the log with one put, and the requests for each."""

    decisions_max: int
    decisions: dict[int, Decision] = field(default_factory=dict)
    ends: list[_EndRequest] = field(default_factory=list)
    body_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.decisions) >= self.decisions_max or self.body_bytes >= TURN_BYTES_MAX


class EndTransactions:
    """Handles the END_TRANSACTION requests of one broker, and owns the held ones."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        router: Router,
        end_position: Callable[[], int | None],
        spawn: Spawn,
        readiness: Readiness,
        forwarder: Forwarder,
        ledger: TransactionLedger,
    ) -> None:
        self._router = router
        self._end_position = end_position
        self._spawn = spawn
        self._readiness = readiness
        self._log = log
        self._ledger = ledger
        self._forwarder = forwarder
        self._held: list[_EndRequest] = []
        self._early: list[_EndRequest] = []
        """Requests whose half messages are on the disks of a majority, but not on this node's yet: a leader
        with a slow disk commits with its followers.
        """
        self._retry: asyncio.TimerHandle | None = None
        self._turn_max = max(1, min(TURN_DECISIONS_MAX, config.pending_appends_max // 2))
        ledger.on_ready(self._on_ready)

    def handle(self, batches: Sequence[Batch]) -> None:
        """All requests of one loop turn."""
        for connection, requests in batches:
            for request in requests:
                try:
                    header = EndTransactionRequestHeader.parse(request.ext_fields)
                except HeaderError as error:
                    connection.warn_once("end transaction header", str(error))
                    self._answer(connection, request, ResponseCode.SYSTEM_ERROR, str(error))
                    continue
                self._accept(_EndRequest(connection, request, header))
        if self._retry is None:
            self._flush()

    async def start(self) -> None:
        """Nothing runs until the table is there."""

    async def stop(self) -> None:
        self._on_ready(False)

    def _accept(self, end: _EndRequest) -> None:
        if self._ledger.window is None and not self._ledger.is_loading:
            self._refuse([end], PutStatus.SERVICE_NOT_AVAILABLE)
        elif len(self._held) + len(self._early) >= HELD_MAX:
            self._refuse([end], PutStatus.OS_PAGE_CACHE_BUSY)
        else:
            self._held.append(end)

    def _on_ready(self, is_ready: bool) -> None:
        if is_ready:
            self._flush()
            return
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        held, self._held, self._early = self._held + self._early, [], []
        self._refuse(held, PutStatus.SERVICE_NOT_AVAILABLE)

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        """This node may have the half messages of early requests now."""
        self._log.remove_listener(self._on_dispatch)
        if self._early:
            self._held, self._early = self._held + self._early, []
            if self._retry is None:
                self._retry = asyncio.get_running_loop().call_later(0, self._flush)

    def _flush(self) -> None:
        """Write the held requests to the log, as many as it accepts."""
        self._retry = None
        while self._held and self._ledger.window is not None:
            turn = _Turn(self._turn_max)
            count = 0
            for end in self._held:
                count += 1
                self._decide_or_answer(end, turn)
                if turn.is_full:
                    break
            del self._held[:count]
            if not self._put(turn):
                return

    def _put(self, turn: _Turn) -> bool:
        """Return whether to continue with the other held requests."""
        if not turn.decisions:
            return True
        assert len(turn.decisions) <= len(turn.ends), f"{len(turn.decisions)} decisions without a request"
        status = self._ledger.end(list(turn.decisions.values()), partial(self._done, turn))
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            self._held[:0] = turn.ends  # in front again: requests end their transactions in order of arrival
            self._retry = asyncio.get_running_loop().call_later(REQUEST_RETRY_MS / 1000, self._flush)
            return False
        if status is PutStatus.MESSAGE_ILLEGAL and len(turn.decisions) > 1:
            # A put is accepted completely or not at all: one by one, only the illegal message is refused.
            for end in turn.ends:
                single = _Turn(1)
                self._decide_or_answer(end, single)
                self._put(single)
        elif status is not PutStatus.PUT_OK:
            self._refuse(turn.ends, status)
        return True

    def _decide_or_answer(self, end: _EndRequest, turn: _Turn) -> None:
        if self._log.max_position <= end.header.position < (self._end_position() or 0):
            self._early.append(end)
            self._log.add_listener(self._on_dispatch)
            return
        try:
            decision = self._decide(end.header, turn)
        except RequestError as error:
            end.connection.warn_once("end transaction", f"not ended: {error.remark}")
            self._answer(end.connection, end.request, error.code, error.remark)
            return
        if decision is None:
            self._answer(end.connection, end.request, ResponseCode.SUCCESS)
            return
        turn.decisions[decision.offset] = decision
        turn.ends.append(end)
        turn.body_bytes += len(decision.message.body) if decision.message is not None else 0

    def _decide(self, header: EndTransactionRequestHeader, turn: _Turn) -> Decision | None:
        """How the transaction ends; None when nothing is to be done. Raises RequestError."""
        if not header.commit_or_rollback:
            return None  # the producer does not know yet: it will be asked again
        ending = _ENDINGS.get(header.commit_or_rollback)
        if ending is None:
            raise _error(f"commitOrRollback {header.commit_or_rollback} means nothing")
        record = self._half_at(header)
        window = self._ledger.window
        assert window is not None, "END_TRANSACTION is handled only while the table is loaded"
        offset = record.queue_offset
        decided = turn.decisions.get(offset)
        known = decided.ending if decided is not None else window.ending(offset)
        if known is ending:
            return None
        if known is not None:
            raise _error(f"the transaction has ended already: {known.name}")
        try:
            return self._ledger.decision(record, ending)
        except ValueError as error:
            raise _error(str(error)) from error

    def _half_at(self, header: EndTransactionRequestHeader) -> Record:
        """The half message the request means, checked as checkPrepareMessage does. Raises RequestError."""
        try:
            data = self._log.record_at(header.position)
            record = decode_record(data) if data is not None else None
        except (CorruptRecordError, DamagedRecordError) as error:
            raise _error(f"the half message cannot be read: {error}") from error
        if record is None or (record.topic, record.queue_id) != (HALF_TOPIC, HALF_QUEUE_ID):
            raise _error("Find prepared transaction message failed")
        if producer_group_of(record) != header.producer_group:
            raise _error("The producer group wrong")
        if record.queue_offset != header.queue_offset:
            raise _error("The transaction state table offset wrong")
        return record

    def _done(self, turn: _Turn, status: PutStatus) -> None:
        if status is not PutStatus.PUT_OK:
            self._refuse(turn.ends, status)
            return
        for end in turn.ends:
            self._answer(end.connection, end.request, ResponseCode.SUCCESS)

    def _refuse(self, ends: Sequence[_EndRequest], status: PutStatus) -> None:
        if status is PutStatus.SERVICE_NOT_AVAILABLE and not self._log.is_writable():
            for each in ends:
                self._forward(each)
            return
        code, remark = put_error(status)
        for each in ends:
            self._answer(each.connection, each.request, code, remark)

    def _forward(self, end: _EndRequest) -> None:
        if self._forwarder.may_forward(end.request):
            self._spawn(self._ask_leader(end))
        else:
            self._refuse_as_follower(end)

    async def _ask_leader(self, end: _EndRequest) -> None:
        answer = await self._forwarder.ask_leader(end.request, LEADER_TIMEOUT_S, LEADER_PATIENCE_S)
        if answer is not None:
            self._answer(end.connection, end.request, answer.code, answer.remark or "")
        elif self._log.is_writable():
            self._accept(end)
            if self._retry is None:
                self._flush()
        else:
            self._refuse_as_follower(end)

    def _refuse_as_follower(self, end: _EndRequest) -> None:
        remark = self._readiness.leader_hint()
        self._answer(end.connection, end.request, ResponseCode.SLAVE_NOT_AVAILABLE, remark)

    def _answer(self, connection: Connection, request: RemotingCommand, code: int, remark: str = "") -> None:
        is_done = code == ResponseCode.SUCCESS
        answer = success_response(request) if is_done else error_response(request, code, remark)
        self._router.answer(request, connection, answer)


def _error(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
