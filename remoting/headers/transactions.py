"""Typed headers of transactional messages. Pure.

`position` is a byte position in the log (`commitLogOffset` on the wire), `queue_offset` a message
number in a queue.
"""

from remoting.headers.fields import Int, Long, RequestHeader, request_header, wire_name


@request_header
class EndTransactionRequestHeader(RequestHeader):
    """Code 37. `commit_or_rollback`: 8 commit, 12 rollback, 0 unknown. Positions and offsets of the half
    message.
    """

    producer_group: str
    queue_offset: Long = wire_name("tranStateTableOffset")
    position: Long = wire_name("commitLogOffset")
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None
    topic: str | None = None


@request_header
class CheckTransactionStateRequestHeader(RequestHeader):
    """Code 39, from broker to producer."""

    queue_offset: Long = wire_name("tranStateTableOffset")
    position: Long = wire_name("commitLogOffset")
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


@request_header
class ResumeCheckHalfMessageRequestHeader(RequestHeader):
    """Code 323. `msg_id` is an offsetMsgId."""

    msg_id: str
    topic: str | None = None
