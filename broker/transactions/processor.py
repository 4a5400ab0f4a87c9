"""Transactions: END_TRANSACTION (37), the checks of open ones, and RESUME_CHECK_HALF_MESSAGE (323), by which
an operator has one checked again that was put aside.
"""

from functools import partial

from broker.consume.clients import ClientConnection
from broker.readiness import Readiness
from broker.responses import put_answer, put_error
from broker.state.topics import CHECK_MAX_TIME_TOPIC
from broker.transactions.half import resumed
from commitlog.log import MessageLog, PutStatus
from commitlog.record import decode_record
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from remoting.headers.transactions import ResumeCheckHalfMessageRequestHeader
from remoting.router import Router

MESSAGE_ID_CHARS = (32, 56)
"""Of an offsetMsgId with an IPv4 or an IPv6 host."""


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
