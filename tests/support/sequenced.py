"""Sequenced sends as the pipeline's sink makes them."""

import struct
from collections.abc import Sequence

from commitlog.record import Message
from commitlog.sequences import SEQUENCED, place_of
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.headers.send import SequencedSendRequestHeader

_HEAD = struct.Struct(">iiiii")


def batch_body(
    bodies: Sequence[bytes], properties: bytes = b"UNIQ_KEY\x01k\x02", flag: int = 3, queue_id: int = 1
) -> bytes:
    """The body of a sequenced send."""
    parts = []
    for body in bodies:
        size = _HEAD.size + len(body) + 2 + len(properties)
        parts += [
            _HEAD.pack(size, queue_id, 0, flag, len(body)),
            body,
            struct.pack(">h", len(properties)),
            properties,
        ]
    return b"".join(parts)


def sequenced_header(sequence: int = 0, **changes: object) -> SequencedSendRequestHeader:
    """Of writer `w`, partition 0, batch 1, to topic `t`."""
    fields: dict[str, object] = {
        "producer_group": "p",
        "topic": "t",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "sys_flag": 0,
        "writer_id": "w",
        "partition": 0,
        "batch_id": 1,
        "born_timestamp_ms": 5,
        **changes,
    }
    return SequencedSendRequestHeader(sequence=sequence, **fields)  # type: ignore[arg-type]


def sequenced_send(
    sequence: int,
    bodies: Sequence[bytes],
    opaque: int = 1,
    properties: bytes = b"UNIQ_KEY\x01k\x02",
    queue_id: int = 1,
    **changes: object,
) -> RemotingCommand:
    header = sequenced_header(sequence, **changes)
    return RemotingCommand(
        RequestCode.LEDGERMQ_SEND_SEQUENCED,
        opaque,
        ext_fields=header.ext_fields(),
        body=batch_body(bodies, properties, queue_id=queue_id),
    )


def numbers_of(messages: Sequence[Message]) -> list[int]:
    """The numbers of messages that are all sequenced."""
    found = [place_of(message.properties) for message in messages]
    assert all(message.prepared_transaction_offset == SEQUENCED for message in messages)
    return [one[2] for one in found if one is not None]
