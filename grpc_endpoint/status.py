"""How calls end: the status in every answer, and what brokers' answers and failures become in it."""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from grpc_endpoint.messaging_pb2 import Code, Status
from remoting.codes import ResponseCode

_CODES: Final[Mapping[int, Code]] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.NO_MESSAGE: Code.INVALID_RECEIPT_HANDLE,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
}
"""What is not here is INTERNAL_SERVER_ERROR."""
_REMARK_CHARS_MAX: Final = 2_000

logger = logging.getLogger(__name__)


class StatusError(Exception):
    """The call ends with this status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class StreamRefusedError(Exception):
    """A client's stream of commands cannot go on; the text is for the client's log."""


_OK: Final = Status(code=Code.OK, message="OK")


def ok() -> Status:
    """The one of all calls, which each answer copies: not to be changed."""
    return _OK


def status_of(error: BaseException) -> Status:
    """The status of a call that failed so; what is not our own error is logged, and its text not shown."""
    if isinstance(error, StatusError):
        return Status(code=error.code, message=error.message)
    logger.error("a call failed", exc_info=error)
    return Status(code=Code.INTERNAL_SERVER_ERROR, message=f"internal error ({type(error).__name__})")


def refused(code: int, remark: str | None) -> StatusError:
    """What a broker's answer with this code becomes."""
    message = (remark or f"the broker answered {code}")[:_REMARK_CHARS_MAX]
    return StatusError(_CODES.get(code, Code.INTERNAL_SERVER_ERROR), message)


def refused_right(remark: str | None) -> StatusError:
    """What a broker's NO_PERMISSION becomes that is about the client's account (ResponseBuilder)."""
    return StatusError(Code.UNAUTHORIZED, refused(ResponseCode.NO_PERMISSION, remark).message)


def combined(statuses: Iterable[Status], if_none: str) -> Status:
    """The status of an answer with a status for each entry: that of all of them, or MULTIPLE_RESULTS."""
    codes = {each.code for each in statuses}
    if not codes:
        return Status(code=Code.INTERNAL_SERVER_ERROR, message=if_none)
    if codes == {Code.OK}:
        return _OK
    code = Code.MULTIPLE_RESULTS if len(codes) > 1 else codes.pop()
    return Status(code=code, message=Code.Name(code))
