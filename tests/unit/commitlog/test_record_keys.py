"""What a message can be found by."""

from __future__ import annotations

import zlib

import pytest

from commitlog.dispatch import RecordRange
from commitlog.entry import HEADER_BYTES, encode_entries, write_physical_offset
from commitlog.key_segment import NEVER, UNIT_BYTES, key_hash, key_units
from commitlog.record import TRANSACTION_ROLLBACK, Message, encode_record

POSITION = 7_000_000_000
"""Beyond what 32 bits hold."""


def stretch(*messages: Message, stored_ms: int = 5) -> RecordRange:
    records = [encode_record(message, number, stored_ms + number) for number, message in enumerate(messages)]
    data, _, _ = encode_entries(records, 3, 1, POSITION, write_physical_offset)
    return RecordRange(3, 2 + len(messages), POSITION, data)


def found(units: bytes) -> list[tuple[bytes, int]]:
    return [
        (units[at : at + 4], int.from_bytes(units[at + 4 : at + 8], "big"))
        for at in range(0, len(units), UNIT_BYTES)
    ]


def test_a_message_is_found_by_its_id_and_by_each_word_of_its_keys() -> None:
    message = Message(
        "T", 0, b"body", b"TAGS\x01a\x02KEYS\x01red  green \x02UNIQ_KEY\x01ID7\x02WAIT\x01true\x02"
    )
    units, earliest_ms, latest_ms = key_units(stretch(message))
    low = POSITION + HEADER_BYTES & 0xFFFFFFFF
    assert found(units) == [(key_hash("T", key), low) for key in ("red", "green", "ID7")]
    assert (earliest_ms, latest_ms) == (5, 5)


def test_the_hash_is_the_crc_of_topic_and_key() -> None:
    assert key_hash("Topic", "key") == zlib.crc32(b"Topic#key").to_bytes(4, "big")


def test_times_are_those_of_the_records_that_have_a_key() -> None:
    keyed = Message("T", 0, b"", b"KEYS\x01k\x02")
    bare = Message("T", 0, b"", b"TAGS\x01KEYS\x02NOT_KEYS\x01k\x02KEYS\x01 \x02KEYS\x01\x02UNIQ_KEY\x01\x02")
    units, earliest_ms, latest_ms = key_units(stretch(bare, keyed, keyed, bare))
    assert len(found(units)) == 2
    assert (earliest_ms, latest_ms) == (6, 7)
    assert key_units(stretch(bare, bare)) == (b"", *NEVER)


def test_what_was_rolled_back_is_not_found() -> None:
    message = Message("T", 0, b"", b"KEYS\x01k\x02", sys_flag=TRANSACTION_ROLLBACK)
    assert key_units(stretch(message)) == (b"", *NEVER)


@pytest.mark.parametrize("topic", ["T" * 200, "标签"])
def test_unusual_topics_are_found_too(topic: str) -> None:
    (unit,) = found(key_units(stretch(Message(topic, 0, b"", "KEYS\x01schlüssel\x02".encode())))[0])
    assert unit[0] == key_hash(topic, "schlüssel")


def test_records_without_entries_around_them_are_read_too() -> None:
    records = [encode_record(Message("T", 0, b"x" * n, b"KEYS\x01k\x02"), n, 9) for n in (3, 0, 70)]
    units, _, _ = key_units(RecordRange(0, 9, 100, b"".join(records), header_bytes=0))
    sizes = [len(record) for record in records]
    assert [low for _, low in found(units)] == [100, 100 + sizes[0], 100 + sizes[0] + sizes[1]]
