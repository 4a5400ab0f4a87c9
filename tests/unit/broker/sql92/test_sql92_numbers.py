"""Texts as Java's Integer.valueOf, Long.valueOf and Double.valueOf read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.sql92.conditions import (
    NotANumberError,
    compare_doubles,
    compare_whole,
    double_of,
    integer_of,
    long_of,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [("5", 5), ("+5", 5), ("-5", -5), ("007", 7), ("-0", 0), ("\u0665", 5), ("0" * 9_000 + "1", 1)],
)
def test_whole_numbers(text: str, number: int) -> None:
    assert integer_of(text) == long_of(text) == number


@pytest.mark.parametrize(
    "text", ["", "+", "-", " 5", "5 ", "5.0", "5l", "1_0", "0x5", "--5", "x", "\U0001d7d3", "1" * 20]
)
def test_what_is_no_whole_number(text: str) -> None:
    for read in (integer_of, long_of):
        with pytest.raises(NotANumberError):
            read(text)


@pytest.mark.parametrize(("read", "bits"), [(integer_of, 31), (long_of, 63)])
def test_whole_numbers_end_where_their_bits_do(read: type[int], bits: int) -> None:
    assert read(str(2**bits - 1)) == 2**bits - 1
    assert read(str(-(2**bits))) == -(2**bits)
    for beyond in (2**bits, -(2**bits) - 1):
        with pytest.raises(NotANumberError):
            read(str(beyond))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("5", 5.0), ("5.", 5.0), (".5", 0.5), (" 6\t", 6.0), ("6d", 6.0), ("6F", 6.0), ("1e3", 1000.0)],
        *[
            ("1E-2f", 0.01),
            ("1e400", math.inf),
            ("-1e400", -math.inf),
            ("1e-400", 0.0),
            ("Infinity", math.inf),
        ],
        *[("0x1p3", 8.0), ("-0X.8P1", -1.0), ("0x1p9999", math.inf), ("-0x1p9999d", -math.inf)],
    ],
)
def test_doubles(text: str, number: float) -> None:
    assert double_of(text) == number


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "e5", "5e", "0x10", "nan", "inf", "1_0", "\u0661", "\u00a05", "5l", "1dd", "1" * 16_385],
)
def test_what_is_no_double(text: str) -> None:
    with pytest.raises(NotANumberError):
        double_of(text)


def test_doubles_are_in_javas_order() -> None:
    order = [-math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    for left, one in enumerate(order):
        for right, other in enumerate(order):
            assert compare_doubles(one, other) == compare_whole(left, right), (one, other)


@given(st.floats())
def test_every_double_is_read_as_it_is_written(number: float) -> None:
    text = repr(number).replace("inf", "Infinity").replace("nan", "NaN")
    assert compare_doubles(double_of(text), number) == 0


@given(st.text(max_size=40))
def test_any_text_is_a_number_or_none(text: str) -> None:
    for read in (integer_of, long_of, double_of):
        try:
            assert isinstance(read(text), int | float)
        except NotANumberError:
            continue
