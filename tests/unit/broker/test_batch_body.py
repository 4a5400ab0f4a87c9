"""Splitting batch bodies: RocketMQ's own bytes, and every way a body can be wrong."""

import struct

import pytest

from broker.send.admission import BatchBodyError, SubMessage, split_batch


def sub_message(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    size = 22 + len(body) + len(properties)
    head = struct.pack(">iiiii", size, 0, 0, flag, len(body))
    return head + body + struct.pack(">h", len(properties)) + properties


def test_the_published_example_is_read() -> None:
    data = bytes.fromhex("00000022000000000000000000000000000000026d31000a54414753015461674102")
    assert split_batch(data, 10) == [SubMessage(0, b"m1", b"TAGS\x01TagA\x02")]


def test_sub_messages_keep_their_order_flags_and_empty_bodies() -> None:
    data = sub_message(b"one", b"K\x01v\x02", 7) + sub_message(b"") + sub_message(b"three")
    assert split_batch(data, 3) == [
        SubMessage(7, b"one", b"K\x01v\x02"),
        SubMessage(0, b"", b""),
        SubMessage(0, b"three", b""),
    ]


def test_a_body_cut_at_any_byte_is_refused() -> None:
    data = sub_message(b"one", b"K\x01v\x02") + sub_message(b"two")
    first = len(sub_message(b"one", b"K\x01v\x02"))
    for length in set(range(len(data))) - {first}:
        with pytest.raises(BatchBodyError):
            split_batch(data[:length], 10)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">iiiii", -1, 0, 0, 0, 0) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, -1) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 2**31 - 1) + b"\0\0",
        struct.pack(">iiiii", 22, 0, 0, 0, 0) + b"\xff\xff",
        struct.pack(">iiiii", 23, 0, 0, 0, 0) + b"\0\0x",
    ],
)
def test_sizes_that_do_not_fit_are_refused(data: bytes) -> None:
    with pytest.raises(BatchBodyError):
        split_batch(data, 10)


def test_more_messages_than_the_bound_are_refused() -> None:
    with pytest.raises(BatchBodyError, match="more than 2 messages"):
        split_batch(sub_message(b"x") * 3, 2)
