"""The answer to a POP request: its records, each with the receipt handle that acknowledges it
(MQClientAPIImpl.processPopResponse). Pure.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.pop.names import MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2
from grpc_endpoint.handles import ReceiptHandle, mark_in
from grpc_endpoint.messaging_pb2 import Code, Message
from grpc_endpoint.properties import TAGS, message_of, unpack
from grpc_endpoint.status import StatusError
from remoting.command import RemotingCommand
from remoting.record import CorruptRecordError, Record, decode_records, parse_properties

_MARKS: Final = (MARK_NORMAL, MARK_RETRY, MARK_RETRY_V2)
_COUNT_OF_OFFSET: Final = "qo"


class Popped(NamedTuple):
    """One message that was handed out. `attempts`: how often it was before."""

    handle: ReceiptHandle
    message: Message
    tag: str
    attempts: int


def read_popped(answer: RemotingCommand, group: str, broker_name: str, *, in_order: bool) -> list[Popped]:
    """Raises StatusError for an answer that cannot be read."""
    ext = answer.ext_fields
    try:
        starts = _starts(ext.get("startOffsetInfo", ""))
        counts = _counts(ext.get("orderCountInfo", "")) if in_order else {}
        times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
        records = decode_records(answer.body)
        unpack(records)
        return [_popped(each, times, starts, counts, group, broker_name) for each in records]
    except (KeyError, ValueError, CorruptRecordError) as error:
        message = f"the broker's answer cannot be read: {error!r}"
        raise StatusError(Code.INTERNAL_SERVER_ERROR, message) from error


def _popped(
    record: Record,
    times: tuple[int, int, int],
    starts: Mapping[tuple[str, int], int],
    counts: Mapping[tuple[str, str], int],
    group: str,
    broker_name: str,
) -> Popped:
    mark, (popped_ms, invisible_ms, revive_queue_id) = mark_in(record.topic), times
    handle = ReceiptHandle(
        start_offset=starts[mark, record.queue_id],
        pop_time_ms=popped_ms,
        invisible_ms=invisible_ms,
        revive_queue_id=revive_queue_id,
        mark=mark,
        broker_name=broker_name,
        queue_id=record.queue_id,
        offset=record.queue_offset,
        position=record.physical_offset,
    )
    if counts:
        of_message = f"{_COUNT_OF_OFFSET}{record.queue_id}%{record.queue_offset}"
        count = counts.get((mark, of_message), counts.get((mark, str(record.queue_id)), 0))
        if count > 0:
            record.reconsume_times = count
    properties = parse_properties(record.properties)
    message = message_of(record, group, properties)
    system = message.system_properties
    system.receipt_handle = str(handle)
    system.invisible_duration.seconds, ms = divmod(invisible_ms, 1_000)
    system.invisible_duration.nanos = ms * 1_000_000
    return Popped(handle, message, properties.get(TAGS, ""), record.reconsume_times)


def _starts(text: str) -> dict[tuple[str, int], int]:
    """`MARK QUEUE OFFSET` of each queue, separated by semicolons."""
    starts = {}
    for part in filter(None, text.split(";")):
        mark, queue_id, start = part.split(" ")
        if mark not in _MARKS:
            raise ValueError(f"the mark {mark[:8]!r} is none of {', '.join(_MARKS)}")
        starts[mark, int(queue_id)] = int(start)
    return starts


def _counts(text: str) -> dict[tuple[str, str], int]:
    """`MARK qoQUEUE%OFFSET COUNT` of each message, and `MARK QUEUE COUNT` of each queue."""
    parts = (part.split(" ") for part in text.split(";") if part)
    return {(mark, place): int(count) for mark, place, count in parts}
