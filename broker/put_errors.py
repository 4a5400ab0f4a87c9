"""What a client is answered when the log did not take its message: the one table from PutStatus to
ResponseCode.
"""

from collections.abc import Mapping

from commitlog.log import PutStatus
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, error_response, success_response

PUT_ERRORS: Mapping[PutStatus, tuple[ResponseCode, str]] = {
    PutStatus.SERVICE_NOT_AVAILABLE: (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: this node is not the writable leader, or its disk is full",
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (
        ResponseCode.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while: too many appends wait for a quorum",
    ),
    PutStatus.MESSAGE_ILLEGAL: (
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched",
    ),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (
        ResponseCode.SYSTEM_ERROR,
        "in-sync replicas not enough: no quorum acknowledged the message in time; it may still be stored",
    ),
    PutStatus.UNKNOWN_ERROR: (
        ResponseCode.SYSTEM_ERROR,
        "the leader changed before the message was committed; it may still be stored",
    ),
}


def put_error(status: PutStatus) -> tuple[ResponseCode, str]:
    """Code and remark for a status other than PUT_OK."""
    assert status is not PutStatus.PUT_OK, "PUT_OK is no error"
    return PUT_ERRORS[status]


def put_answer(
    request: RemotingCommand, status: PutStatus, ext_fields: dict[str, str] | None = None
) -> RemotingCommand:
    """The answer to a request whose message was put with this status; `ext_fields` for success."""
    if status is PutStatus.PUT_OK:
        return success_response(request, ext_fields)
    return error_response(request, *put_error(status))
