"""Inflating bodies, hostile ones too."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.records.columns import inflate

LIMIT = 10_000


@pytest.mark.parametrize("sys_flag", [0x1, 0x301])
def test_zlib(sys_flag: int) -> None:
    assert inflate(zlib.compress(b"x" * LIMIT), sys_flag, LIMIT) == b"x" * LIMIT


def test_empty_text() -> None:
    assert inflate(zlib.compress(b""), 1) == b""


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (zlib.compress(b"x" * (LIMIT + 1)), 0x1),
        (pa.compress(b"x" * (LIMIT + 1), "zstd", asbytes=True), 0x201),
    ],
)
def test_what_would_become_too_large_is_refused(body: bytes, sys_flag: int) -> None:
    with pytest.raises(CorruptDataError, match=f"larger than {LIMIT}"):
        inflate(body, sys_flag, LIMIT)


@pytest.mark.parametrize(
    ("body", "sys_flag", "problem"),
    [
        (b"junk", 0x1, "not zlib"),
        (zlib.compress(b"some text")[:-5], 0x1, "cut off"),
        (b"junk", 0x101, "not lz4"),
        (b"junk", 0x201, "not zstd"),
        (b"", 0x701, "compression 7, which is unknown"),
    ],
)
def test_damage_is_told(body: bytes, sys_flag: int, problem: str) -> None:
    with pytest.raises(CorruptDataError, match=problem):
        inflate(body, sys_flag)
