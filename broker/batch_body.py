"""The body of a batch send: sub-messages back to back, each one a message of its own in the log.

    i32 size | i32 magic (0) | i32 body CRC (0) | i32 flag | i32 body length | body
    i16 properties length | properties

In a sequenced send the queue's id stands in the place of the magic.
Source: MessageDecoder.encodeMessage / decodeMessages. Pure.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_HEAD = struct.Struct(">iiiii")
_INT16 = struct.Struct(">h")
SUB_MESSAGE_BYTES_MIN = _HEAD.size + _INT16.size


class BatchBodyError(ValueError):
    """The body cannot be split into sub-messages; the text says where and why."""


@dataclass(frozen=True, slots=True)
class SubMessage:
    """`queue_id` means something in a sequenced send only."""

    flag: int
    body: bytes
    properties: bytes
    queue_id: int = 0


def split_batch(data: bytes, messages_max: int) -> list[SubMessage]:
    """The sub-messages of a batch, at least one. Raises BatchBodyError."""
    messages: list[SubMessage] = []
    start = 0
    while start < len(data):
        if len(messages) == messages_max:
            raise BatchBodyError(f"the batch holds more than {messages_max} messages")
        message, start = _read_one(data, start)
        messages.append(message)
    if not messages:
        raise BatchBodyError("the batch is empty")
    return messages


def sub_messages(data: bytes) -> Iterator[memoryview]:
    """The bytes of each sub-message of a body that `split_batch` took."""
    view, start = memoryview(data), 0
    while start < len(data):
        end = start + _HEAD.unpack_from(data, start)[0]
        yield view[start:end]
        start = end


def _read_one(data: bytes, start: int) -> tuple[SubMessage, int]:
    left = len(data) - start
    if left < SUB_MESSAGE_BYTES_MIN:
        raise BatchBodyError(f"{left} bytes at {start} are no sub-message")
    size, queue_id, _, flag, body_bytes = _HEAD.unpack_from(data, start)
    if not SUB_MESSAGE_BYTES_MIN <= size <= left:
        raise BatchBodyError(f"the sub-message at {start} says it has {size} bytes of {left}")
    if not 0 <= body_bytes <= size - SUB_MESSAGE_BYTES_MIN:
        raise BatchBodyError(f"the sub-message at {start} says its body has {body_bytes} bytes of {size}")
    body_at = start + _HEAD.size
    properties_at = body_at + body_bytes + _INT16.size
    (properties_bytes,) = _INT16.unpack_from(data, properties_at - _INT16.size)
    end = start + size
    if properties_at + properties_bytes != end:
        raise BatchBodyError(
            f"the sub-message at {start} has {properties_bytes} bytes of properties, not to its end"
        )
    body = data[body_at : body_at + body_bytes]
    return SubMessage(flag, body, data[properties_at:end], queue_id), end
