"""Parses committed records for consume queues and other derived indexes, many records in one batch.

A record of the state topic can delete topics: a topic's queues hold only the messages behind the last of
these. Such a record is a change of the replicated state (broker/state). It names the topics in the property
LEDGERMQ_DELETED as well, so that the log knows them without decoding the change. No client can write one:
clients may not send to that system topic. A record written before this property existed deletes nothing.

The leader assigns queue offsets before anything is committed. So it begins a deleted topic's queues at 0 in
the step that appends the record, and every node empties them when it dispatches the record. Both depend only
on the record's place in the log, so all nodes agree.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, overload

import native
from commitlog.consume_queue import UNIT
from commitlog.entry import HEADER_BYTES, Buffer, entry_starts
from commitlog.record import (
    PROPERTY_DELAY,
    PROPERTY_TAGS,
    CorruptRecordError,
    Message,
    Record,
    decode_record,
    get_property,
    tags_code,
)
from commitlog.sequences import SequenceRun, sequence_runs
from dledger.core.types import NO_INDEX
from remoting.record_layout import BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6, TOPIC_AT, fields_struct

STATE_TOPIC: Final = "rmq_sys_LEDGERMQ_STATE"
"""The only topic whose records can delete topics."""
PROPERTY_DELETED: Final = b"LEDGERMQ_DELETED"
"""The names of the topics, with SEPARATOR between them."""
SEPARATOR: Final = ","
NAMES_BYTES_MAX: Final = 16 * 1024
"""Bytes of the names in one record at most: a record has less than 32 KiB of properties."""

Deletion = tuple[int, str]
"""The position of the record, and the topic."""


def stamp_deletions(message: Message, topics: Sequence[str]) -> None:
    """Make the message a record that deletes these topics."""
    assert message.topic == STATE_TOPIC, message.topic
    assert not any(SEPARATOR in topic for topic in topics), topics
    names = SEPARATOR.join(topics).encode()
    assert len(names) <= NAMES_BYTES_MAX, f"{len(names)} bytes of names"
    message.properties = b"%b\x01%b\x02%b" % (PROPERTY_DELETED, names, message.properties)


def topics_deleted_by(properties: bytes) -> list[str]:
    """The topics that a record of STATE_TOPIC with these properties deletes."""
    names = get_property(properties, PROPERTY_DELETED)
    return [] if not names else names.decode(errors="replace").split(SEPARATOR)


def deletions_in(data: Buffer, position: int, places: Sequence[tuple[int, int]]) -> Iterator[Deletion]:
    """The topics that the records of STATE_TOPIC at these places, (position, size), delete, in log order;
    `data` is the part of the log that begins at `position`.
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


@dataclass(frozen=True, slots=True)
class Applied:
    """Up to which entry, and up to which position, the log was dispatched."""

    index: int = NO_INDEX
    position: int = 0


@dataclass(slots=True)
class RecordRange:
    """All committed records of one range of the log."""

    begin_index: int
    """The range begins with this entry, or with the log if that begins behind it."""
    last_index: int
    position: int
    """Where `data` begins in the log."""
    data: Buffer
    header_bytes: int = HEADER_BYTES
    """Of the entry around each record; 0: the records are back to back."""

    @property
    def end_position(self) -> int:
        """First byte behind the range."""
        return self.position + len(self.data)

    def starts(self) -> list[int]:
        """Where each record begins in `data`."""
        if self.header_bytes:
            return [start + self.header_bytes for start in entry_starts(self.data)]
        raw = bytes(self.data)
        starts = []
        at = 0
        while at < len(raw):
            starts.append(at)
            at += int.from_bytes(raw[at : at + 4], "big")
        return starts


@dataclass(slots=True)
class DispatchRequest:
    """One committed message, as the derived indexes and waiting pulls need it."""

    index: int
    """The entry's number in the replicated log; in a plain log, which has none, the position of the
    record's last byte."""
    topic: str
    queue_id: int
    queue_offset: int
    position: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    sys_flag: int


QueueRun = tuple[str, int, int, bytes]
"""Messages of one queue with offsets that follow each other: topic, queue id, the first one's offset, and the
units of its consume queue. A plain tuple: with thousands of queues there is one for nearly each message."""


class DispatchBatch(Sequence[DispatchRequest]):
    """Messages in log order. When they came as runs, the requests are made on the first access to one."""

    def __init__(
        self,
        count: int,
        last_index: int,
        runs: Sequence[QueueRun] | None,
        make: Callable[[], Sequence[DispatchRequest]],
        sequences: Sequence[SequenceRun] = (),
        records: RecordRange | None = None,
    ) -> None:
        self.last_index = last_index
        """Of the last message."""
        self.runs = runs
        """All messages by queue; None when they are of any kind and in no such order."""
        self.sequences = sequences
        """What writers numbered, in log order."""
        self.records = records
        """The records themselves; None in a batch without messages."""
        self.deletions: Sequence[Deletion] = ()
        """Topics that records of the batch delete, in log order."""
        self.message_count = count
        self._make = make
        self._made: Sequence[DispatchRequest] | None = None

    @staticmethod
    def of(
        requests: Sequence[DispatchRequest],
        sequences: Sequence[SequenceRun] = (),
        records: RecordRange | None = None,
        deletions: Sequence[Deletion] = (),
    ) -> "DispatchBatch":
        """A batch of messages of any kind."""
        last_index = requests[-1].index if requests else -1
        batch = DispatchBatch(len(requests), last_index, None, lambda: requests, sequences, records)
        batch.deletions = deletions
        return batch

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics of the messages."""
        if self.runs is not None:
            return frozenset([run[0] for run in self.runs])
        return frozenset([one.topic for one in self._all()])

    def record(self, request: DispatchRequest) -> Buffer:
        """The record of a message of this batch."""
        assert self.records is not None, "messages without their records"
        start = request.position - self.records.position
        return self.records.data[start : start + request.size]

    def __len__(self) -> int:
        return self.message_count

    def __iter__(self) -> Iterator[DispatchRequest]:
        return iter(self._all())

    @overload
    def __getitem__(self, at: int) -> DispatchRequest: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[DispatchRequest]: ...

    def __getitem__(self, at: int | slice) -> DispatchRequest | Sequence[DispatchRequest]:
        return self._all()[at]

    def _all(self) -> Sequence[DispatchRequest]:
        if self._made is None:
            self._made = self._make()
        return self._made


logger = logging.getLogger(__name__)

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
"""Where delayed messages wait; the tags code of one of these is the time it is due."""
TOPIC_FORBIDDEN: Final = frozenset("/\\\0")
NAMES_KNOWN_MAX: Final = 100_000
"""Topics and tags cached at most; then the cache is emptied: clients choose the tags."""

_FIELDS: Final = fields_struct(
    "size", "magic", "queue_id", "queue_offset", "sys_flag", "store_timestamp_ms", "body_bytes"
)
_TAGS_KEY: Final = PROPERTY_TAGS + b"\x01"
_TAGS_KEY_INSIDE: Final = b"\x02" + _TAGS_KEY
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_PARSE_UNITS: Final = native.function("_log", "parse_units")


def is_topic_name(topic: str) -> bool:
    """Whether a topic can name a directory: not empty, no separator, no leading dot, at most 255 bytes."""
    is_plain = bool(topic) and topic[0] != "." and TOPIC_FORBIDDEN.isdisjoint(topic)
    return is_plain and len(topic.encode(errors="replace")) <= 255


def deletions_of(requests: Sequence[DispatchRequest], data: Buffer, position: int) -> list[Deletion]:
    """The topics that these records delete; `data` is the part of the log that begins at `position`."""
    places = [(each.position, each.size) for each in requests if each.topic == STATE_TOPIC]
    return list(deletions_in(data, position, places)) if places else []


def _state_places(runs: Sequence[QueueRun]) -> list[tuple[int, int]]:
    return [
        (position, size)
        for topic, _, _, units in runs
        if topic == STATE_TOPIC
        for position, size, _ in UNIT.iter_unpack(units)
    ]


class Dispatcher:
    """Parses records. Topics and tags are cached, so that each is decoded once; not the topics that have
    rules of their own.
    """

    def __init__(self, delay_levels_ms: Sequence[int] = ()) -> None:
        self._delay_levels_ms = tuple(delay_levels_ms)
        self._topics: dict[bytes, str] = {}
        self._codes: dict[bytes, int] = {b"": 0}

    def parse_entries(self, data: Buffer, first_index: int, last_index: int, position: int) -> DispatchBatch:
        """The messages in verified entries that begin at `position` in the log."""

        def parse_each() -> list[DispatchRequest]:
            raw = bytes(data)
            starts = [start + HEADER_BYTES for start in entry_starts(raw)]
            return self.parse(raw, starts, position, range(first_index, last_index + 1))

        count = last_index - first_index + 1
        sequences = sequence_runs(data, first_index, last_index)
        records = RecordRange(first_index, last_index, position, data)
        if _PARSE_UNITS is not None:
            runs = _PARSE_UNITS(data, count, position, self._topics)
            if runs is not None:
                batch = DispatchBatch(count, last_index, runs, parse_each, sequences, records)
                if STATE_TOPIC in batch.topics:
                    batch.deletions = list(deletions_in(data, position, _state_places(runs)))
                return batch
        requests = parse_each()
        return DispatchBatch.of(requests, sequences, records, deletions_of(requests, data, position))

    def parse(
        self, data: bytes, starts: Sequence[int], position: int, indexes: Sequence[int]
    ) -> list[DispatchRequest]:
        """Requests for the records at data[start], where data[0] is at `position` in the log.

        Bytes that are not a record, or have an impossible topic, are logged and left out.
        """
        found = []
        fields_at = _FIELDS.unpack_from
        topics = self._topics
        codes = self._codes
        for start, index in zip(starts, indexes, strict=True):
            size, magic, queue_id, queue_offset, sys_flag, stored_ms, body_bytes = fields_at(data, start)
            topic_at = start + TOPIC_AT + body_bytes
            if magic != MAGIC_V1 or sys_flag & _HOSTS_V6 or body_bytes < 0 or topic_at > len(data):
                request = self._parse_other(data, start, position, index)
                if request is not None:
                    found.append(request)
                continue
            properties_at = topic_at + data[topic_at - 1] + 2
            topic = topics.get(data[topic_at : properties_at - 2])
            end = start + size
            properties_bytes = int.from_bytes(data[properties_at - 2 : properties_at], "big")
            is_whole = properties_at + properties_bytes == end <= len(data)
            if topic is None or not is_whole:
                request = self._parse_other(data, start, position, index)
                if request is not None:
                    found.append(request)
                continue
            tags_at = data.find(_TAGS_KEY, properties_at, end)
            code = 0
            if tags_at >= 0:
                tag_at = tags_at + 5
                tag_end = data.find(2, tag_at, end)
                tag = data[tag_at : tag_end if tag_end >= 0 else end]
                is_property = tags_at == properties_at or data[tags_at - 1] == 2
                if not is_property or data.find(_TAGS_KEY_INSIDE, tag_at, end) >= 0:
                    tag = get_property(data[properties_at:end], PROPERTY_TAGS) or b""
                known = codes.get(tag)
                code = self._cache_tag(tag) if known is None else known
            found.append(
                DispatchRequest(
                    index, topic, queue_id, queue_offset, position + start, size, code, stored_ms, sys_flag
                )
            )
        return found

    def _parse_other(self, data: bytes, start: int, position: int, index: int) -> DispatchRequest | None:
        """As `parse`, for one record of any kind; caches its topic, unless that has its own rules."""
        try:
            record = decode_record(data, start)
        except CorruptRecordError as error:
            logger.warning("entry %d, position %d: not a record: %s", index, position + start, error)
            return None
        if not is_topic_name(record.topic):
            logger.warning(
                "entry %d, position %d: impossible topic %r", index, position + start, record.topic
            )
            return None
        if len(self._topics) >= NAMES_KNOWN_MAX:
            self._topics.clear()
        topic = record.topic
        if topic != SCHEDULE_TOPIC:
            topic = self._topics.setdefault(topic.encode(), topic)
        return DispatchRequest(
            index,
            topic,
            record.queue_id,
            record.queue_offset,
            position + start,
            record.size,
            self._code_of(record),
            record.store_timestamp_ms,
            record.sys_flag,
        )

    def _code_of(self, record: Record) -> int:
        if record.topic == SCHEDULE_TOPIC and self._delay_levels_ms:
            level = get_property(record.properties, PROPERTY_DELAY)
            if level is not None and level.isdigit() and int(level) > 0:
                last = len(self._delay_levels_ms)
                return record.store_timestamp_ms + self._delay_levels_ms[min(int(level), last) - 1]
        return self._cache_tag(get_property(record.properties, PROPERTY_TAGS) or b"")

    def _cache_tag(self, tag: bytes) -> int:
        if len(self._codes) >= NAMES_KNOWN_MAX:
            self._codes.clear()
        code = self._codes[tag] = tags_code(tag.decode(errors="replace"))
        return code
