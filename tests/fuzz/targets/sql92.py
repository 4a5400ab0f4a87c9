"""Expressions of consumers that filter by properties."""

from contextlib import suppress

import broker.sql92.compiler  # noqa: F401  # now, while a fuzzer looks into what is imported
from broker.sql92.filters import SqlFilters
from remoting.tag_filters import FilterError
from tests.fuzz.target import Target, check_words

_FILTERS = SqlFilters(expressions_max=1)
_PROPERTIES = (b"", b"a\x015\x02b\x01x\x02", b"a\x01\xff\x02c\x01-0.0\x02b\x01NaN")


def _check_expression(data: bytes) -> None:
    expression = data.decode(errors="replace")
    try:
        wanted = _FILTERS.filter_for("SQL92", expression)
    except FilterError as error:
        check_words(error)
        return
    assert 0 < wanted.end <= len(expression)
    for properties in (*_PROPERTIES, data):
        assert wanted.wants(properties) in (True, False)
    with suppress(FilterError):  # nested in one more bracket it may be too long
        again = _FILTERS.filter_for("SQL92", f"({expression[: wanted.end]}\n)")
        assert all(again.wants(each) is wanted.wants(each) for each in _PROPERTIES)


TARGETS = (
    Target(
        "sql92_expression",
        _check_expression,
        (
            b"a > 5 AND b IN ('x', 'it''s') OR c IS NOT NULL",
            b"not (a between -1 and 1.5e3) and b not contains 'x' -- why\n and TRUE <> (a = 0x1F)",
            b"/* c */ $a_1 startswith '\xc3\xa9' or a = 9223372036854775807L",
        ),
    ),
)
