"""Memory that is lent again once nobody looks at it."""

from __future__ import annotations

from rocketmq_spark.client.buffer_pool import ROUNDED_BYTES, BufferPool


def test_a_block_is_lent_again_when_no_view_is_left() -> None:
    memory = BufferPool(2)
    block = memory.acquire(10)
    block[:3] = b"one"
    part = block[1:2]
    del block
    other = memory.acquire(10)
    other[:3] = b"two"
    assert bytes(part) == b"n"
    del part
    again = memory.acquire(10)
    assert bytes(again[:3]) == b"one"
    assert bytes(other[:3]) == b"two"


def test_more_than_are_kept_are_lent_as_well() -> None:
    memory = BufferPool(1)
    blocks = [memory.acquire(5) for _ in range(3)]
    for number, block in enumerate(blocks):
        block[:1] = b"%d" % number
    assert [bytes(block[:1]) for block in blocks] == [b"0", b"1", b"2"]


def test_those_that_are_not_kept_take_no_more_than_was_asked_for() -> None:
    memory = BufferPool(2)
    blocks = [memory.acquire(200) for _ in range(1_000)]
    assert sum(map(len, blocks)) == 2 * ROUNDED_BYTES + 998 * 200


def test_a_block_that_is_too_small_gives_way() -> None:
    memory = BufferPool(1)
    assert [len(memory.acquire(size)) for size in (0, 1)] == [ROUNDED_BYTES] * 2
    large = memory.acquire(ROUNDED_BYTES + 1)
    assert len(large) == 2 * ROUNDED_BYTES
    large[:1] = b"x"
    del large
    assert bytes(memory.acquire(1)[:1]) == b"x"
