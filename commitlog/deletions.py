"""Records that delete topics: a topic's queues hold only what stands in the log behind the last of these.

Such a record is a change of the replicated state (broker/state). It names the topics in the property
LEDGERMQ_DELETED as well, so that a log knows them without reading the change. No client can write one: none
may send to that system topic. What was written before there was this property deletes no message.

The leader gives out queue offsets before anything is committed. So it begins a deleted topic's queues at 0 in
the step that appends the record, and every node empties them where it meets the record on its way through the
log: both go by the record's place in the log, and by nothing else.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from commitlog.entry import Buffer
from commitlog.record import CorruptRecordError, Message, decode_record, get_property

STATE_TOPIC: Final = "rmq_sys_LEDGERMQ_STATE"
"""The only topic whose records can delete topics."""
PROPERTY_DELETED: Final = b"LEDGERMQ_DELETED"
"""The names of the topics, with SEPARATOR between them."""
SEPARATOR: Final = ","
NAMES_BYTES_MAX: Final = 16 * 1024
"""What the names in one record come to at most: a record has less than 32 KiB of properties."""

Deletion = tuple[int, str]
"""The position of the record, and the topic."""


def stamp(message: Message, topics: Sequence[str]) -> None:
    """Make the message a record that deletes these topics."""
    assert message.topic == STATE_TOPIC, message.topic
    assert not any(SEPARATOR in topic for topic in topics), topics
    names = SEPARATOR.join(topics).encode()
    assert len(names) <= NAMES_BYTES_MAX, f"{len(names)} bytes of names"
    message.properties = b"%b\x01%b\x02%b" % (PROPERTY_DELETED, names, message.properties)


def topics_deleted_by(properties: bytes) -> list[str]:
    """What a record with these properties deletes, if it is one of STATE_TOPIC."""
    names = get_property(properties, PROPERTY_DELETED)
    return [] if not names else names.decode(errors="replace").split(SEPARATOR)


def deletions_in(data: Buffer, position: int, places: Sequence[tuple[int, int]]) -> Iterator[Deletion]:
    """What the records of STATE_TOPIC at these places, (position, size), delete, in their order; `data` is
    the part of the log that stands at `position`.
    """
    view = memoryview(data)
    for at, size in places:
        raw = bytes(view[at - position : at - position + size])
        if PROPERTY_DELETED not in raw:
            continue  # nearly all: offsets that consumers commit
        try:
            record = decode_record(raw)
        except CorruptRecordError:
            continue
        for topic in topics_deleted_by(record.properties):
            yield at, topic
