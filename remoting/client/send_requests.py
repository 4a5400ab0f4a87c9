"""The requests that carry messages, as our clients send them: LedgerMQ's own sequenced send, RocketMQ's batch
send (320), and its send of one message (310), which is the only one that every broker can delay. Pure.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remoting.client.routes import DEFAULT_QUEUES_MAX, MessageQueue
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader, SequencedSendRequestHeader
from remoting.route import DEFAULT_TOPIC

PROPERTIES_BYTES_MAX: Final = 32_000
"""The format has room for 32,767 bytes; the broker adds some of its own."""

_HEAD: Final = struct.Struct(">iiiii")
_INT16: Final = struct.Struct(">h")
FLAG_TOO_LARGE: Final = "the flag {} does not fit into 32 bits"
HEAD_BYTES: Final = _HEAD.size + _INT16.size
_LETTERS: Final = "abcdefghijklmn"


@dataclass(frozen=True, slots=True)
class WriterPlace:
    """The numbers of a sequenced send's messages in the sequence of their writer: see
    `remoting.headers.send.SequencedSendRequestHeader`.
    """

    writer_id: str
    partition: int
    batch_id: int
    first: int
    digest: bytes = b""


def encode_message(body: bytes, properties: bytes, flag: int = 0, queue_id: int = 0) -> bytes:
    """One message of a batch. `queue_id` is for sequenced sends; other sends have 0 there.

    Raises ValueError for a flag beyond 32 bits.
    """
    size = HEAD_BYTES + len(body) + len(properties)
    try:
        head = _HEAD.pack(size, queue_id, 0, flag, len(body))
    except struct.error:
        raise ValueError(FLAG_TOO_LARGE.format(flag)) from None
    return b"%b%b%b%b" % (head, body, _INT16.pack(len(properties)), properties)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """NAME 0x01 VALUE 0x02 …; without empty ones. Raises ValueError for text with a separator."""
    pieces = [f"{name}\x01{value}\x02" for name, value in properties.items() if name and value]
    text = "".join(pieces)
    if text.count("\x01") != len(pieces) or text.count("\x02") != len(pieces):
        raise ValueError("the characters 1 and 2 separate properties and cannot be part of one")
    return text.encode()


def sequenced_command(
    group: str, topic: str, broker_name: str, place: WriterPlace, messages: Sequence[bytes], born_ms: int
) -> RemotingCommand:
    """Request 65003, which only LedgerMQ supports."""
    header = SequencedSendRequestHeader(
        producer_group=group,
        topic=topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=DEFAULT_QUEUES_MAX,
        sys_flag=0,
        writer_id=place.writer_id,
        partition=place.partition,
        batch_id=place.batch_id,
        sequence=place.first,
        born_timestamp_ms=born_ms,
        broker_name=broker_name,
        digest=place.digest.decode() or None,
    )
    return RemotingCommand(
        RequestCode.LEDGERMQ_SEND_SEQUENCED, ext_fields=header.ext_fields(), body=b"".join(messages)
    )


def batch_command(
    group: str, queue: MessageQueue, messages: Sequence[bytes], born_ms: int
) -> RemotingCommand:
    """Request 320: messages from `encode_message` for one queue. It has no properties of its own: RocketMQ 5
    would add them to each message, even a unique key.
    """
    header = _header(group, queue, "", 0, born_ms, is_batch=True)
    return RemotingCommand(
        RequestCode.SEND_BATCH_MESSAGE, ext_fields=by_letters(header), body=b"".join(messages)
    )


def single_command(
    group: str, queue: MessageQueue, body: bytes, properties: bytes, flag: int, born_ms: int
) -> RemotingCommand:
    """310: one message, delayed if its properties say so. Raises ValueError for a flag beyond 32 bits."""
    if not -(1 << 31) <= flag < 1 << 31:
        raise ValueError(FLAG_TOO_LARGE.format(flag))
    header = _header(group, queue, properties.decode(), flag, born_ms, is_batch=False)
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=by_letters(header), body=body)


def by_letters(header: SendMessageRequestHeader) -> dict[str, str]:
    """The header as 310 and 320 carry it (SendMessageRequestHeaderV2): a letter for each field."""
    named = header.ext_fields()
    fields = zip(_LETTERS, SendMessageRequestHeader._fields, strict=True)
    return {letter: named[field.wire_name] for letter, field in fields if field.wire_name in named}


def _header(
    group: str, queue: MessageQueue, properties: str, flag: int, born_ms: int, *, is_batch: bool
) -> SendMessageRequestHeader:
    return SendMessageRequestHeader(
        producer_group=group,
        topic=queue.topic,
        default_topic=DEFAULT_TOPIC,
        default_topic_queue_nums=DEFAULT_QUEUES_MAX,
        queue_id=queue.queue_id,
        sys_flag=0,
        born_timestamp_ms=born_ms,
        flag=flag,
        properties=properties,
        is_batch=is_batch,
        broker_name=queue.broker_name,
    )
