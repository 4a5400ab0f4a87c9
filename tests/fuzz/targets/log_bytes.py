"""What a log's files hold: records, entries, recovery's scans and the small files beside them."""

import struct
import zlib
from contextlib import suppress
from pathlib import Path

from commitlog.checkpoint import (
    Checkpoint,
    LogBegin,
    check_format,
    decode_checkpoint,
    decode_log_begin,
    encode_format,
    seal,
    unseal,
)
from commitlog.consume_queues import ConsumeQueueConfig, ConsumeQueues
from commitlog.dispatch import Dispatcher
from commitlog.entry import (
    BLANK_BYTES,
    HEADER_BYTES,
    UNIT_BYTES,
    blank,
    encode_entries,
    encode_units,
    entry_position,
    entry_starts,
    verify_entries,
    write_physical_offset,
)
from commitlog.entry_files import MARK_BYTES, SLOT_SPACING_BYTES, SyncMark, encode_slot
from commitlog.errors import CorruptLogError
from commitlog.record import (
    CorruptRecordError,
    Message,
    MessageIllegalError,
    decode_record,
    encode_record,
    format_properties,
    get_property,
    parse_properties,
)
from commitlog.recovery import (
    MORE,
    entry_head,
    filler,
    find_entry,
    find_record,
    leading_blank,
    scan_entries,
    scan_records,
)
from dledger.core.types import CorruptRangeError, EntryRange, Epoch
from remoting.record_layout import BORN_HOST_V6, STORE_HOST_V6
from tests.fuzz.target import Target
from tests.support.memory_fs import MemoryFs

POSITION = 4096
_PROPERTIES = b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02UNIQ_KEY\x010A00\x02DELAY\x013\x02"
_MESSAGES = (
    Message("TopicA", 3, b"body", _PROPERTIES, born_timestamp_ms=1_700_000_000_000),
    Message("T" * 200, 0, b"", sys_flag=4),
    Message(
        "SCHEDULE_TOPIC_XXXX",
        2,
        b"x" * 30,
        _PROPERTIES,
        sys_flag=BORN_HOST_V6 | STORE_HOST_V6,
        born_host=bytes(20),
        store_host=bytes(20),
    ),
)


def _records(position: int) -> list[bytes]:
    """The records as they stand in a plain log from `position` on."""
    records = []
    for message in _MESSAGES:
        record = bytearray(encode_record(message, 7, 1_700_000_000_001))
        struct.pack_into(">q", record, 28, position)
        position += len(record)
        records.append(bytes(record))
    return records


_RECORDS = _records(POSITION)
_BODIES = [encode_record(message, 7, 1_700_000_000_001) for message in _MESSAGES]
_ENTRIES, _UNITS, _ = encode_entries(_BODIES, 10, 3, POSITION, write_physical_offset)
_FILE_END = blank(100).ljust(100, b"\0")


def _check_record(data: bytes) -> None:
    for check_crc in (False, True):
        with suppress(CorruptRecordError):
            record = decode_record(data, 0, check_crc)
            assert len(record.body) + len(record.properties) < record.size <= len(data)
            message = Message(
                record.topic,
                record.queue_id,
                record.body,
                record.properties,
                record.flag,
                record.sys_flag,
                record.born_timestamp_ms,
                record.born_host,
                record.store_host,
                record.reconsume_times,
                record.prepared_transaction_offset,
            )
            again = decode_record(encode_record(message, record.queue_offset, record.store_timestamp_ms))
            again.size, again.body_crc = record.size, record.body_crc
            again.physical_offset = record.physical_offset
            assert again == record
    with suppress(CorruptRecordError):
        decode_record(data, len(data) // 2)


def _check_dispatch(data: bytes) -> None:
    starts = [] if len(data) < 91 else [0, max(0, len(data) // 2 - 91)]
    found = Dispatcher((1_000, 5_000)).parse(data, starts, POSITION, range(len(starts)))
    for request in found:
        assert request.position - POSITION in starts
        record = decode_record(data, request.position - POSITION)
        assert (request.topic, request.size) == (record.topic, record.size)


def _check_properties(data: bytes) -> None:
    properties = parse_properties(data)
    for name, value in properties.items():
        found = get_property(data, name.encode())
        is_text = "\ufffd" not in name + value
        assert not is_text or found == value.encode(), (name, value, found)
    with suppress(MessageIllegalError):
        assert parse_properties(format_properties(properties)) == properties


def _check_range(data: bytes) -> None:
    entries = EntryRange(10, 10 + len(_MESSAGES) - 1, 3, data)
    with suppress(CorruptRangeError):
        entry_position(data)
        verify_entries(entries)
        starts = entry_starts(data)
        assert len(starts) == len(_MESSAGES)
        assert len(encode_units(data)) == UNIT_BYTES * len(starts)
        bodies = [
            data[start + HEADER_BYTES : end]
            for start, end in zip(starts, [*starts[1:], len(data)], strict=True)
        ]
        again, units, _ = encode_entries(bodies, 10, 3, entry_position(data), None)
        assert units == encode_units(data)
        assert len(again) == len(data)


def _check_units(data: bytes) -> None:
    """Of a peer's bytes only once they are verified; even so it must end whatever they are."""
    with suppress(CorruptRangeError, struct.error):
        assert len(encode_units(data)) <= UNIT_BYTES * (len(data) // HEADER_BYTES + 1)


def _check_entry_scan(data: bytes) -> None:
    for room in (len(data), len(data) + 1000):
        scan = scan_entries(data, POSITION, 10, 2, room)
        assert 0 <= scan.size_bytes <= len(data)
        assert len(scan.units) == UNIT_BYTES * (scan.next_index - 10)
        if scan.stop == MORE:
            assert room > len(data)
            assert scan.bytes_needed > len(data) - scan.size_bytes
    for index_min in (0, 11):
        found = find_entry(data, POSITION, index_min)
        assert found is None or POSITION <= found <= POSITION + len(data) - HEADER_BYTES
    entry_head(data, POSITION)
    if len(data) >= BLANK_BYTES:
        leading_blank(data)


def _check_record_scan(data: bytes) -> None:
    for room in (len(data), len(data) + 1000):
        for flushed_position in (0, POSITION + len(data)):
            scan = scan_records(data, POSITION, room, flushed_position)
            assert 0 <= scan.size_bytes <= len(data)
            if scan.stop == MORE:
                assert room > len(data)
                assert scan.bytes_needed > len(data) - scan.size_bytes
    found = find_record(data, POSITION)
    assert found is None or POSITION <= found < POSITION + len(data)


def _check_checkpoint(data: bytes) -> None:
    checkpoint = decode_checkpoint(data)
    assert decode_checkpoint(checkpoint.encode()) == checkpoint


def _check_log_begin(data: bytes) -> None:
    for content in (data, _sealed(data)):
        begin = decode_log_begin(content)
        assert begin is None or decode_log_begin(begin.encode()) == begin


def _sealed(line: bytes) -> bytes:
    """With a checksum that fits, so that what is behind the checksum is reached too."""
    line = line.replace(b"\n", b" ")
    return b"%s\n%08x\n" % (line, zlib.crc32(line))


def _check_sealed(data: bytes) -> None:
    fields = unseal(data)
    assert fields is None or unseal(seal(fields)) == fields


def _check_format(data: bytes) -> None:
    with suppress(CorruptLogError):
        check_format(Path("format"), data, _FORMAT)


class _EmptyLog:
    min_position = 0

    def record_at(self, position: int) -> bytes | None:
        return None

    def store_timestamp_at(self, position: int) -> int | None:
        return None


def _check_queue_checkpoint(data: bytes) -> None:
    """A start with these bytes as the checkpoint, and queue files that know nothing of it."""
    for content in (data, _sealed(data)):
        fs = MemoryFs()
        root = Path("/store/consumequeue")
        fs.make_directory(root)
        fd = fs.open(root / ".checkpoint")
        fs.pwrite(fd, [content], 0)
        fs.close(fd)
        queues = ConsumeQueues(fs, Path("/store"), ConsumeQueueConfig(), _EmptyLog())
        applied = queues.load(1000, 1 << 30)
        assert applied.index <= 1000


def _check_sync_mark(data: bytes) -> None:
    fs, path = MemoryFs(), Path("/store/synced")
    fs.make_directory(path.parent)
    fd = fs.open(path)
    fs.pwrite(fd, [data], 0)
    fs.close(fd)
    mark = SyncMark(fs, path)
    mark.load()
    assert fs.size(fs.open(path)) == MARK_BYTES
    found = mark.end_index
    mark.raise_to(2**40)
    mark.lower_to(5)
    again = SyncMark(fs, path)
    again.load()
    assert again.end_index == min(max(found, 2**40), 5)


_SYNC_MARK = encode_slot(4, 9).ljust(SLOT_SPACING_BYTES, b"\0") + encode_slot(5, 12)
_FORMAT = encode_format("dledger", 1 << 30, 5 << 20)
_BEGIN = LogBegin(5, 640, (Epoch(1, 0), Epoch(3, 7))).encode()
_QUEUES = {"version": 1, "appliedIndex": 9, "appliedPosition": 4096, "queues": 0, "offsets": 0}
_QUEUE_CHECKPOINT = seal(_QUEUES)

TARGETS = (
    Target("record", _check_record, tuple(_RECORDS)),
    Target("dispatch", _check_dispatch, tuple(_RECORDS)),
    Target("properties", _check_properties, (_PROPERTIES, _PROPERTIES[:-1])),
    Target("entry_range", _check_range, (_ENTRIES,)),
    Target("entry_units", _check_units, (_ENTRIES,)),
    Target("entry_scan", _check_entry_scan, (_ENTRIES, _ENTRIES + _FILE_END)),
    Target(
        "record_scan", _check_record_scan, (b"".join(_RECORDS), _RECORDS[0] + filler(100).ljust(100, b"\0"))
    ),
    Target("checkpoint", _check_checkpoint, (Checkpoint(9, 7).encode(),)),
    Target("epochs_file", _check_log_begin, (_BEGIN, _BEGIN.partition(b"\n")[0])),
    Target("sync_mark", _check_sync_mark, (_SYNC_MARK, encode_slot(1, 3))),
    Target("sealed_file", _check_sealed, (_BEGIN,)),
    Target("format_file", _check_format, (_FORMAT,)),
    Target(
        "queue_checkpoint",
        _check_queue_checkpoint,
        (_QUEUE_CHECKPOINT, _QUEUE_CHECKPOINT.partition(b"\n")[0]),
    ),
)
