"""Header blocks, compiled and in Python: the same fields, the same table, or left to Python."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpc_endpoint.http2 import connection
from grpc_endpoint.http2.connection import is_malformed
from grpc_endpoint.http2.hpack import _CODE_LENGTHS, STATIC, TABLE_BYTES, Decoder, Field, HpackError
from native import _remoting

LIST_MAX = 2_000
NAMES = st.sampled_from(
    [
        ":method",
        ":path",
        ":scheme",
        ":authority",
        ":status",
        "te",
        "x-mq-request-id",
        "x_y",
        "X-Y",
        "upgrade",
        "",
    ]
)
VALUES = st.one_of(
    st.sampled_from(["POST", "http", "/a", "trailers", "5S", "a" * 3_000, "a\nb", "\0", "ä", "\x7f"]),
    st.text(st.characters(max_codepoint=255), max_size=40),
)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
PLAIN: list[Field] = [
    *((":method", "POST"), (":scheme", "http"), (":path", "/x.Y/Send"), (":authority", "here:8081")),
    *(("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "2999876u")),
    ("x-mq-request-id", "0b1c2d3e-8f90-4a5b-9c8d-7e6f50413223"),
]


def packed(blocks: list[list[Field]], is_huffman: bool) -> list[bytes]:
    """As one connection sends them."""
    encoder = hpack.Encoder()
    return [
        encoder.encode(
            [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields], is_huffman
        )
        for fields in blocks
    ]


class Both:
    """Two decoders of one connection."""

    def __init__(self) -> None:
        self._compiled, self._python = Decoder(LIST_MAX), Decoder(LIST_MAX)

    def agree_about(self, block: bytes) -> bool:
        """Whether the block could be read."""
        found: list[object] = []
        for decode in (self._compiled.decode, self._python._decode):
            try:
                found.append(decode(block))
            except HpackError as error:
                found.append(str(error))
        assert found[0] == found[1]
        if isinstance(found[0], str):
            return False
        assert self._compiled._entries == self._python._entries
        assert self._compiled._bytes == self._python._bytes
        return True


@given(st.lists(FIELDS, min_size=1, max_size=6), st.booleans())
@example([PLAIN, PLAIN], True)
def test_blocks_of_one_connection_give_the_same(blocks: list[list[Field]], is_huffman: bool) -> None:
    both = Both()
    for block in packed(blocks, is_huffman):
        assert both.agree_about(block)


@given(st.lists(FIELDS, min_size=1, max_size=3), st.integers(0, 400), st.binary(max_size=8), st.booleans())
def test_damaged_blocks_are_refused_alike(
    blocks: list[list[Field]], place: int, damage: bytes, is_cut: bool
) -> None:
    both = Both()
    *whole, last = packed([*blocks, PLAIN], is_huffman=True)
    for block in whole:
        both.agree_about(block)
    both.agree_about(last[:place] + damage + (b"" if is_cut else last[place + len(damage) :]))


@given(st.lists(st.binary(max_size=60), max_size=4))
@example([b"\xff\xff\xff\xff\x7f"])
@example([b"\xff\x80\x80\x80\x80\x00", b"\x7f\xff\xff\xff\x7f"])
@example([b"\x40\x81\xff\x01a"])
@example([b"\x40\x84\xff\xff\xff\xff\x01a"])
@example([b"\x3f\x01", b"\x40\x01a\x01b\x20", b"\xbe"])
def test_any_bytes_are_read_or_refused_alike(blocks: list[bytes]) -> None:
    both = Both()
    for block in blocks:
        if not both.agree_about(block):
            return


def test_a_block_that_python_has_to_read_leaves_the_table_as_it_was() -> None:
    reader = _remoting.FieldReader(_CODE_LENGTHS, STATIC)
    entries = [("a", "b")]
    assert reader.read(b"\x40\x01c\x01d\x20", entries, 34, TABLE_BYTES, LIST_MAX) is None
    assert reader.read(b"\x40\x01c\x01d\x80", entries, 34, 40, LIST_MAX) is None
    assert entries == [("a", "b")]


def test_an_evicted_entry_is_none() -> None:
    reader = _remoting.FieldReader(_CODE_LENGTHS, STATIC)
    entries = [("a", "b")]
    assert reader.read(b"\x40\x01c\x01d\xbf", entries, 34, TABLE_BYTES, LIST_MAX) == (
        [("c", "d"), ("a", "b")],
        68,
    )
    assert reader.read(b"\x40\x01e\x01f\xc0", entries, 68, 68, LIST_MAX) is None


def test_ordinary_requests_are_not_left_to_python() -> None:
    reader = _remoting.FieldReader(_CODE_LENGTHS, STATIC)
    entries: list[Field] = []
    size = 0
    for block in packed([PLAIN] * 3, is_huffman=True):
        found = reader.read(block, entries, size, TABLE_BYTES, LIST_MAX)
        assert found is not None
        fields, size = found
        assert fields == PLAIN
    assert _remoting.is_plain_request(PLAIN)


@given(st.lists(st.one_of(st.sampled_from(PLAIN), st.tuples(NAMES, VALUES)), max_size=12))
@example([*PLAIN, PLAIN[0]])
@example([*PLAIN[1:], PLAIN[0]])
@example(PLAIN[1:])
def test_what_is_plain_is_well_formed(fields: list[Field]) -> None:
    assert not (_remoting.is_plain_request(fields) and connection._is_malformed(fields))
    assert is_malformed(fields) == connection._is_malformed(fields)


@pytest.mark.parametrize(
    "wrong", [(), ("block",), (b"", [1], 0, 0, 0), (b"", (), 0, 0, 0), (b"", [], "", 0, 0)]
)
def test_wrong_arguments_are_refused(wrong: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        _remoting.FieldReader(_CODE_LENGTHS, STATIC).read(*wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("lengths", [b"", bytes(257), bytes([8]) * 257])
def test_only_a_canonical_code_is_taken(lengths: bytes) -> None:
    with pytest.raises(ValueError, match="canonical"):
        _remoting.FieldReader(lengths, STATIC)
