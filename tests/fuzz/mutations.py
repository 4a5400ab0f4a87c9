"""Hypothesis strategies for bytes that are nearly valid."""

import struct
from collections.abc import Sequence

from hypothesis import strategies as st

DATA_BYTES_MAX = 2_000
LENGTHS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""What a length field is worth lying about."""
WORDS = tuple(n.to_bytes(4, "big") for n in LENGTHS) + tuple(n.to_bytes(2, "big") for n in LENGTHS[:9])
LONGS = tuple(struct.pack(">q", n) for n in (-(2**63), -1, 0, 2**31, 2**32, 2**63 - 1))
TOKENS = tuple(b'{ } [ ] , : " null true -1 --1 1e999 9999999999999999999999999 "" \\ud800 || ='.split())
TOKENS = (*TOKENS, b"\xff", b"\x01", b"\x02", b"\n", b"\0")


def damaged(samples: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Plain bytes, or a sample after a few flips, cuts, splices and lies about lengths."""
    return st.binary(max_size=200) | _mutated(tuple(samples))


@st.composite
def _mutated(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data = draw(_changes(data, at, samples))[:DATA_BYTES_MAX]
    return data


def _changes(data: bytes, at: int, samples: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """One change at a place of the bytes."""
    before, after = data[:at], data[at:]
    return st.one_of(
        st.integers(0, 7).map(lambda bit: before + bytes([(after or b"\0")[0] ^ 1 << bit]) + after[1:]),
        st.integers(1, 16).map(lambda count: before + after[count:]),
        st.just(before),
        st.integers(1, 40).map(lambda count: before + after[:count] * 2 + after[count:]),
        st.sampled_from(WORDS + LONGS).map(lambda word: before + word + after[len(word) :]),
        st.sampled_from(TOKENS).map(lambda token: before + token + after),
        st.sampled_from(TOKENS).map(lambda token: before + token + after[len(token) :]),
        st.binary(min_size=1, max_size=8).map(lambda more: before + more + after),
        st.tuples(st.sampled_from(samples), st.integers(0, DATA_BYTES_MAX)).map(
            lambda other: before + other[0][other[1] % (len(other[0]) + 1) :]
        ),
    )
