"""The laws of three-valued logic, on expressions drawn at random."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.sql92.compiler import SqlCompiler
from broker.sql92.filters import SqlFilters
from commitlog.record import format_properties
from remoting.tag_filters import FilterError
from tests.support.long_runs import examples
from tests.support.sql92_answers import answer_of
from tests.support.sql92_expressions import Expressions

COMPILER = SqlCompiler()
FILTERS = SqlFilters()
RANK = {"false": 0, "null": 1, "true": 2}
INVERSE = {"false": "true", "null": "null", "true": "false", "error": "error"}
drawn = st.randoms(use_true_random=False)
slowly = settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def conjunction(left: str, right: str) -> str:
    """False decides as soon as it is seen, an error too; else the lesser one."""
    if left in ("error", "false"):
        return left
    return right if right == "error" else min(left, right, key=RANK.__getitem__)


@slowly
@given(drawn)
def test_and_or_and_not_are_kleenes(random: Random) -> None:
    draw = Expressions(random, 1.0)
    left, right, properties = draw.condition(), draw.condition(), draw.properties()
    one, other, both, either, neither = (
        answer_of(COMPILER, expression, properties)
        for expression in (
            *(left, right, f"({left}) and ({right})", f"({left}) or ({right})"),
            f"not (({left}) or ({right}))",
        )
    )
    if "refused" in (one, other):
        assert {both, either, neither} == {"refused"}
        return
    assert both == conjunction(one, other)
    assert neither == conjunction(INVERSE[one], INVERSE[other])  # De Morgan
    assert either == INVERSE[neither]


@slowly
@given(drawn)
def test_between_is_two_comparisons(random: Random) -> None:
    draw = Expressions(random)
    properties = draw.properties()
    between = answer_of(COMPILER, "a between b and 7", properties)
    assert between == answer_of(COMPILER, "a >= b and a <= 7", properties)
    outside = answer_of(COMPILER, "a not between b and 7", properties)
    assert outside == answer_of(COMPILER, "a < b or a > 7", properties)


@slowly
@given(drawn, st.booleans())
def test_a_filter_never_raises(random: Random, is_damaged: bool) -> None:
    draw = Expressions(random, 0.8)
    try:
        wanted = FILTERS.filter_for("SQL92", draw.damaged() if is_damaged else draw.expression())
    except FilterError:
        return
    for _ in range(3):
        assert wanted.wants(format_properties(draw.properties())) in (True, False)


@slowly
@given(st.text(st.characters(codec="utf-8"), max_size=60), st.binary(max_size=60))
def test_neither_does_any_text_over_any_bytes(expression: str, properties: bytes) -> None:
    try:
        wanted = FILTERS.filter_for("SQL92", expression)
    except FilterError:
        return
    assert wanted.wants(properties) in (True, False)


@slowly
@given(drawn)
def test_spaces_and_the_case_of_words_make_no_difference(random: Random) -> None:
    draw = Expressions(random, 1.0)
    expression, properties = draw.condition(0), draw.properties()
    spaced = expression.replace(" ", " \t/* x */\r\n ").replace("between", "BeTween").replace("null", "Null")
    assert answer_of(COMPILER, spaced, properties) == answer_of(COMPILER, expression, properties)


@pytest.mark.parametrize("expression", ["a", "NULL", "a LIKE 'x'", "FALSE"])
def test_what_is_never_true_wants_nothing(expression: str) -> None:
    wanted = FILTERS.filter_for("SQL92", expression)
    some: tuple[dict[str, str], ...] = ({}, {"a": "true"}, {"a": "x"})
    assert not any(wanted.wants(format_properties(properties)) for properties in some)
