"""Compressed bodies, made plain within a bound."""

from __future__ import annotations

import importlib
import zlib
from types import ModuleType

import lz4.frame
import pytest
import zstandard

from remoting.message_body import BodyError, compression_of, unpack_beginning, unpack_body

TEXT = b"Gr\xc3\xbc\xc3\x9fe " * 1000
PACKED = {
    0x001: zlib.compress(TEXT),
    0x101: lz4.frame.compress(TEXT),
    0x201: zstandard.compress(TEXT),
    0x301: zlib.compress(TEXT),
}


def test_kinds_are_named_as_sys_flag_says() -> None:
    named = [compression_of(flag) for flag in (0, 0x300, 0x1, 0x101, 0x201, 0x301, 0x401)]
    assert named == [None, None, "zlib", "lz4", "zstd", "zlib", "unknown (4)"]


def test_plain_body_is_left_alone() -> None:
    assert unpack_body(TEXT, 0x300, 1) is TEXT


@pytest.mark.parametrize("sys_flag", PACKED)
def test_every_kind_is_unpacked(sys_flag: int) -> None:
    assert unpack_body(PACKED[sys_flag], sys_flag, len(TEXT)) == TEXT


@pytest.mark.parametrize("sys_flag", PACKED)
def test_body_beyond_the_bound_is_refused(sys_flag: int) -> None:
    with pytest.raises(BodyError, match=f"larger than {len(TEXT) - 1} bytes"):
        unpack_body(PACKED[sys_flag], sys_flag, len(TEXT) - 1)


@pytest.mark.parametrize("sys_flag", [0, *PACKED])
def test_beginning_is_had_without_the_rest(sys_flag: int) -> None:
    body = PACKED.get(sys_flag, TEXT)
    assert unpack_beginning(body, sys_flag, 10) == TEXT[:10]
    assert unpack_beginning(body, sys_flag, len(TEXT) * 2) == TEXT


@pytest.mark.parametrize("sys_flag", PACKED)
def test_cut_body_is_refused(sys_flag: int) -> None:
    with pytest.raises(BodyError, match=r"cut off|cannot be unpacked"):
        unpack_body(PACKED[sys_flag][:-3], sys_flag, len(TEXT))


@pytest.mark.parametrize("sys_flag", PACKED)
def test_other_bytes_are_refused(sys_flag: int) -> None:
    with pytest.raises(BodyError, match="cannot be unpacked"):
        unpack_body(b"not compressed at all", sys_flag, 1000)


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(BodyError, match=r"unknown \(5\)"):
        unpack_body(b"", 0x501, 1000)


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without_lz4(name: str) -> ModuleType:
        if name.startswith("lz4"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without_lz4)
    with pytest.raises(BodyError, match="install the library lz4"):
        unpack_body(PACKED[0x101], 0x101, len(TEXT))
    assert unpack_body(PACKED[0x201], 0x201, len(TEXT)) == TEXT
