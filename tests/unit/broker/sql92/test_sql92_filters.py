"""Compiled filters are kept to a bound."""

from __future__ import annotations

import pytest

from broker.sql92.filters import SqlFilters
from remoting.tag_filters import FilterError


def test_an_expression_is_compiled_once() -> None:
    filters = SqlFilters()
    assert filters.filter_for("SQL92", "a = 5") is filters.filter_for("SQL92", "a = 5")
    assert len(filters) == 1


def test_a_refusal_is_kept_too_and_raised_anew() -> None:
    filters = SqlFilters()
    for _ in range(2):
        with pytest.raises(FilterError, match="ends too early"):
            filters.filter_for("SQL92", "a =")
    assert len(filters) == 1


def test_those_not_used_for_longest_make_room() -> None:
    filters = SqlFilters(expressions_max=2)
    first, second = filters.filter_for("SQL92", "a = 1"), filters.filter_for("SQL92", "a = 2")
    assert filters.filter_for("SQL92", "a = 1") is first
    filters.filter_for("SQL92", "a = 3")
    assert len(filters) == 2
    assert filters.filter_for("SQL92", "a = 1") is first
    assert filters.filter_for("SQL92", "a = 2") is not second


def test_the_text_kept_is_bounded_as_well() -> None:
    filters = SqlFilters(chars_max=100)
    for number in range(50):
        filters.filter_for("SQL92", f"a = {number:02}".replace(" 0", " "))
    assert len(filters) <= 100 // len("a = 0")
    long = "a = '" + "x" * 200 + "'"
    assert filters.filter_for("SQL92", long).expression == long
    assert len(filters) == 0


@pytest.mark.parametrize(
    ("kind", "expression"), [("SQL92", ""), ("SQL92", None), ("FOO", "a = 5"), (None, "a")]
)
def test_what_is_no_sql92_is_refused(kind: str | None, expression: str | None) -> None:
    with pytest.raises(FilterError):
        SqlFilters().filter_for(kind, expression)


def test_filters_of_one_expression_are_equal() -> None:
    assert SqlFilters().filter_for("SQL92", "a = 5") == SqlFilters().filter_for("SQL92", "a = 5")
