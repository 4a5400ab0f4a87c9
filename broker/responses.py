"""Answers that several processors share; the one table from PutStatus to ResponseCode for messages that the
log refused.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.record import CorruptRecordError, decode_record
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.errors import RequestError

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
    PutStatus.FORMAT_LEVEL_TOO_LOW: (
        ResponseCode.VERSION_NOT_SUPPORTED,
        "members of an older release could not read this change: raise the group's format level by "
        "`ledgermq upgrade-finish` first",
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


def json_answer(request: RemotingCommand, value: Any) -> RemotingCommand:
    """A success whose body is the value as JSON."""
    return success_response(request, body=orjson.dumps(value))


async def committed_answer(request: RemotingCommand, change: asyncio.Future[PutStatus]) -> RemotingCommand:
    """A success once the change is committed. Raises RequestError when it is not."""
    status = await change
    if status is not PutStatus.PUT_OK:
        code, remark = put_error(status)
        raise RequestError(code, remark)
    return success_response(request)


def invalid(remark: str) -> RequestError:
    return RequestError(ResponseCode.INVALID_PARAMETER, remark)


def message_queue(topic: str, broker_name: str, queue_id: int) -> dict[str, Any]:
    """RocketMQ's MessageQueue, the key of its per-queue tables."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def progress(log: MessageLog, topic: str, queue_id: int, offset: int | None) -> dict[str, Any]:
    """RocketMQ's OffsetWrapper: how far a group with this offset is in a queue."""
    queue = log.queues.get(topic, queue_id)
    return {
        "brokerOffset": 0 if queue is None else queue.max_offset,
        "consumerOffset": offset or 0,
        "lastTimestamp": store_timestamp_ms(log, topic, queue_id, offset - 1) if offset else 0,
        "pullOffset": offset or 0,
    }


def store_timestamp_ms(log: MessageLog, topic: str, queue_id: int, offset: int) -> int:
    """When the message at an offset was stored; 0 when it is not there, as RocketMQ's tables say it."""
    queue = log.queues.get(topic, queue_id)
    units = [] if queue is None else queue.units(offset, 1)
    if not units or units[0][1] <= 0:
        return 0
    try:
        data = log.record_at(units[0][0])
        return 0 if data is None else decode_record(data).store_timestamp_ms
    except (CorruptRecordError, DamagedRecordError):
        return 0
