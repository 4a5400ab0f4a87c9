"""Records for the tests of what reads many at once: any valid ones, and what the slow reader finds."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from commitlog.record import Message, Record, decode_record, encode_record, record_size
from remoting.record_layout import BORN_HOST_V6, STORE_HOST_V6

INT32 = st.integers(-(2**31), 2**31 - 1)
TIMES_MS = st.integers(0, 2**41)
NAMES = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "WAIT", "a", "number", "naïve", "TAG", "KEYS2"])
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=8)


@st.composite
def properties_bytes(draw: st.DrawFn) -> bytes:
    """Wire strings: names repeated, names and values empty, stray marks, bad UTF-8, no last mark."""
    pairs = draw(st.lists(st.tuples(NAMES | st.just(""), VALUES), max_size=6))
    pieces = [f"{name}\x01{value}".encode() for name, value in pairs]
    pieces += draw(
        st.lists(st.sampled_from([b"", b"junk", b"\x01", b"x\x01\xff\xfe", b"a\x01b\x01c"]), max_size=2)
    )
    end = b"\x02" if draw(st.booleans()) and pieces else b""
    return b"\x02".join(pieces) + end


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that can be stored: long topics, IPv6 hosts, empty and binary bodies."""
    v6 = draw(st.sampled_from([0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6]))
    return Message(
        topic=draw(st.sampled_from(["T", "Orders", "t" * 127, "t" * 128, "t" * 300])),
        queue_id=draw(st.integers(0, 7)),
        body=draw(st.binary(max_size=40)),
        properties=draw(properties_bytes()),
        flag=draw(INT32),
        sys_flag=v6 | draw(st.sampled_from([0, 2, 8])),
        born_timestamp_ms=draw(TIMES_MS),
        born_host=draw(st.binary(min_size=20, max_size=20) if v6 & BORN_HOST_V6 else _host_v4()),
        store_host=draw(st.binary(min_size=20, max_size=20) if v6 & STORE_HOST_V6 else _host_v4()),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(st.integers(0, 2**60)),
    )


def _host_v4() -> st.SearchStrategy[bytes]:
    return st.sampled_from(
        [bytes(8), b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", b"\x0a\x01\x02\x03\x00\x00\xff\xff"]
    )


def stored(found: Sequence[Message], first_offset: int = 0, first_time_ms: int = 1_000) -> bytes:
    """The messages as records back to back, with offsets, positions and store times in sequence."""
    data = bytearray()
    for number, message in enumerate(found):
        record = bytearray(encode_record(message, first_offset + number, first_time_ms + number))
        record[28:36] = (1_000 * number + 48).to_bytes(8, "big")
        data += record
    return bytes(data)


def plain(count: int, first_offset: int = 0, size: int = 10, tags: Sequence[str] = ()) -> bytes:
    """Records with the bodies `0`, `1` … from the offset on, padded; tagged in turn."""
    return stored(
        [
            Message(
                "T",
                0,
                str(first_offset + number).encode().ljust(size, b"."),
                f"TAGS\x01{tags[(first_offset + number) % len(tags)]}\x02".encode() if tags else b"",
            )
            for number in range(count)
        ],
        first_offset,
    )


def one_by_one(data: bytes) -> list[Record]:
    """The same records by the reader that takes one after the other."""
    found, at = [], 0
    while at < len(data):
        found.append(decode_record(data, at))
        at += record_size(data, at)
    return found
