from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native import _log


@pytest.mark.parametrize("size", [*range(200), 1023, 1024, 1025, 65_537])
def test_every_length_gives_the_crc_of_zlib(size: int) -> None:
    data = bytes((at * 167 + 13) % 251 for at in range(size))
    assert _log.crc32(data) == zlib.crc32(data)


@given(st.binary(max_size=2000), st.integers(0, 16))
def test_unaligned_views_do_too(data: bytes, start: int) -> None:
    assert _log.crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])


def test_what_is_no_buffer_is_refused() -> None:
    with pytest.raises(TypeError):
        _log.crc32("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _log.crc32()  # type: ignore[call-arg]
