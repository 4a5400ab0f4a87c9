"""The decoder against the examples of RFC 7541 and the library hpack; what a hostile block may cost."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpc_endpoint.http2.hpack import STATIC, Decoder, HpackError, encoded, huffman_decoded

LIST_MAX = 16 * 1024
REQUESTS = (
    # RFC 7541, C.4: three requests of one connection, with Huffman codes
    ("828684418cf1e3c2e5f23a6ba0ab90f4ff", {":authority": "www.example.com"}),
    ("828684be5886a8eb10649cbf", {":authority": "www.example.com", "cache-control": "no-cache"}),
    (
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        {":authority": "www.example.com", "custom-key": "custom-value"},
    ),
)
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=80)
NAME = st.sampled_from(["x-a", "x-b", "grpc-timeout", ":path", "user-agent", "x-mq-request-id"])
FIELDS = st.lists(st.tuples(NAME, TEXT, st.booleans()), max_size=12)


def test_the_static_table_is_the_protocols() -> None:
    known = [(name.decode(), value.decode()) for name, value in hpack.table.HeaderTable.STATIC_TABLE]
    assert list(STATIC[1:]) == known


def test_the_requests_of_the_protocols_examples() -> None:
    decoder = Decoder(LIST_MAX)
    for block, expected in REQUESTS:
        fields = decoder.decode(bytes.fromhex(block))
        assert fields is not None
        assert {name: value for name, value in fields if name in expected} == expected


@settings(max_examples=150, deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=6), st.booleans())
def test_it_reads_what_the_library_writes_with_one_table_for_all_blocks(
    blocks: list[list[tuple[str, str, bool]]], is_huffman: bool
) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(1 << 20)
    for number, fields in enumerate(blocks):
        if number == 2:
            encoder.header_table_size = 256
        sent = [
            (name.encode("latin-1"), value.encode("latin-1"), is_secret) for name, value, is_secret in fields
        ]
        block = encoder.encode([hpack.HeaderTuple(*each[:2]) for each in sent], huffman=is_huffman)
        assert decoder.decode(block) == [(name, value) for name, value, _ in fields]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(NAME, TEXT), max_size=8))
def test_the_library_reads_what_it_writes(fields: list[tuple[str, str]]) -> None:
    known = hpack.Decoder()
    found = known.decode(encoded(fields), raw=True)
    assert [(name.decode("latin-1"), value.decode("latin-1")) for name, value in found] == fields
    assert not known.header_table.dynamic_entries


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(block: bytes) -> None:
    decoder = Decoder(LIST_MAX)
    try:
        decoder.decode(block)
    except HpackError:
        return


@pytest.mark.parametrize(
    "block",
    [
        "80",  # index 0
        "be",  # the dynamic table is empty
        "ffffffffffff7f",  # an integer without end
        "0085",  # a text that is not there
        "0003666f",  # a text that is cut
        "8220",  # the table's size after a field
        "3fe2ff03",  # a table that is larger than allowed
        "0081000161",  # a Huffman text that ends within a code
        "0084ffffffff0161",  # EOS
        "0082ffff0161",  # more than 7 bits of padding
        "5f",  # an integer that is cut
    ],
)
def test_blocks_that_cannot_be_read(block: str) -> None:
    with pytest.raises(HpackError):
        Decoder(LIST_MAX).decode(bytes.fromhex(block))


def test_a_list_that_is_too_large_is_not_kept_but_the_table_is() -> None:
    decoder = Decoder(LIST_MAX)
    large = b"\x40\x01a\x7f\xa1\x1e" + b"x" * 4_000  # enters the table: 4,033 bytes
    assert decoder.decode(large) == [("a", "x" * 4_000)]
    assert decoder.decode(b"\xbe" * 20_000) is None, "a bomb: each byte stands for 4 KiB"
    assert decoder.decode(b"\xbe") == [("a", "x" * 4_000)]


def test_a_value_that_does_not_fit_empties_the_table() -> None:
    decoder = Decoder(1 << 20)
    decoder.decode(b"\x40\x01a\x01b")
    decoder.decode(b"\x40\x01a\x7f\x81\x3e" + b"x" * 8_064)
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")


def test_every_byte_has_its_code() -> None:
    known = hpack.Encoder()
    for byte in range(256):
        block = known.encode([(b"a", bytes([byte]))], huffman=True)
        value = block[block.index(b"\x81\x1f") + 2 :] if block[2:3] == b"\x1f" else block[3:]
        assert huffman_decoded(value[1:]) == chr(byte)
        known = hpack.Encoder()
