"""Bounds of expressions, where they end, and the words with which they are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.sql92.compiler import TOKENS_MAX, SqlCompiler
from broker.sql92.conditions import DEPTH_MAX
from commitlog.record import format_properties
from remoting.tag_filters import EXPRESSION_CHARS_MAX, FilterError
from tests.support.sql92_answers import answer_of

FIVE = format_properties({"a": "5"})


@pytest.fixture(scope="module")
def compiler() -> SqlCompiler:
    return SqlCompiler()


@pytest.mark.parametrize(
    ("expression", "rest"),
    [
        *[("a = 5", ""), ("a = 5 garbage #", " garbage #"), ("a = 5 )", " )"), ("a LIKE 'x'", " LIKE 'x'")],
        *[("a = 05", "5"), ("a = 0x5", "x5"), ("a = 5 -- end", " -- end"), ("a = 5 /* c */ ", " /* c */ ")],
    ],
)
def test_the_text_after_the_longest_expression_is_left(
    compiler: SqlCompiler, expression: str, rest: str
) -> None:
    _, end = compiler.compile(expression)
    assert expression[end:] == rest


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("", "the expression ends too early"),
        ("a = ", "the expression ends too early"),
        ("(a = 5", "the expression ends too early"),
        ("a = 5 #", "no word or sign begins at character 6"),
        ("(a = 5 b", "'b' cannot stand at character 7"),
        ("a = 'x", "no word or sign begins at character 4"),
        ("a > 'x'", "only numbers and properties can be greater or less"),
        ("a = NULL", "NULL is compared by IS and IS NOT only"),
        ("TRUE = 5", "True cannot be compared with 5"),
        ("a and 'x'", "'x' is neither true nor false"),
        ("-a", "a part of it is neither true nor false"),
        ("'a' in ('a')", "only a property can be IN a list"),
        ("a between 5 and 1", "nothing is between 5 and 1"),
        ("a = 9223372036854775808", "9223372036854775808 is above 9223372036854775807"),
        ("a = 0.0", "0.0 is beyond what a double can be"),
    ],
)
def test_a_refusal_says_what_is_wrong(compiler: SqlCompiler, expression: str, words: str) -> None:
    with pytest.raises(FilterError) as refused:
        compiler.compile(expression)
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("expression", "properties", "answer"),
    [
        ("TRUE = a", {"a": "true"}, "error"),
        ("TRUE = a", {"a": "5"}, "error"),
        ("TRUE = a", {}, "false"),
        ("a = TRUE", {"a": "true"}, "true"),
    ],
)
def test_a_truth_value_on_the_left_of_a_property_has_no_answer(
    compiler: SqlCompiler, expression: str, properties: dict[str, str], answer: str
) -> None:
    assert answer_of(compiler, expression, properties) == answer


@pytest.mark.parametrize(
    "expression",
    [
        "a = '" + "x" * EXPRESSION_CHARS_MAX + "'",
        "(" * TOKENS_MAX + "a = 5",
        "a = 5" + " or a = 5" * TOKENS_MAX,
        "a > " + "-" * 65_000,
        "'" + "x" * 10_000 + "'",
        "(a = 5 " + "b" * 10_000 + ")",
        "a = 1" + "0" * 10_000,
        "a = 1" + "0" * 10_000 + ".0",
        "'" + "x" * 10_000 + "' in ('x')",
        "TRUE = '" + "x" * 10_000 + "'",
    ],
    ids=lambda expression: expression[:20],
)
def test_what_is_too_long_is_refused_in_few_words(compiler: SqlCompiler, expression: str) -> None:
    with pytest.raises(FilterError) as refused:
        compiler.compile(expression)
    assert len(str(refused.value)) < 120


def test_signs_of_a_comment_without_an_end_are_two_minus_signs(compiler: SqlCompiler) -> None:
    assert answer_of(compiler, "a > --5", {"a": "6"}) == "true"
    assert answer_of(compiler, "-- a comment\na > --5", {"a": "6"}) == "true"
    assert answer_of(compiler, "-- a comment" + "-" * 20_000 + "\na > --5", {"a": "6"}) == "true"


DEEP: tuple[Callable[[int], str], ...] = (
    lambda depth: "not (" * depth + "a = 5" + ")" * depth,
    lambda depth: "not " * depth + "TRUE",
    lambda depth: "(a = 5 and " * depth + "a = 5" + ")" * depth,
    lambda depth: "a = 5" + " = TRUE" * depth,
    lambda depth: "a = 5" + " is null" * depth,
    lambda depth: "a" + " contains 'x'" * (depth + 1),
    lambda depth: "-" * (depth - 1) + "a = 5",
)


@pytest.mark.parametrize("deep", DEEP, ids=lambda deep: deep(1))
def test_conditions_are_nested_to_a_bound_and_can_be_evaluated_there(
    compiler: SqlCompiler, deep: Callable[[int], str]
) -> None:
    condition, _ = compiler.compile(deep(DEPTH_MAX - 2))
    assert condition(FIVE) in (True, False, None)
    with pytest.raises(FilterError, match="nested"):
        compiler.compile(deep(DEPTH_MAX + 1))


def test_brackets_and_long_rows_of_conditions_are_not_deep(compiler: SqlCompiler) -> None:
    condition, _ = compiler.compile("(" * 500 + "a = 5" + ")" * 500)
    assert condition(FIVE) is True
    condition, _ = compiler.compile("a = 6" + " or a = 6" * 350 + " or a = 5")
    assert condition(FIVE) is True
    condition, _ = compiler.compile("a in (" + ",".join(f"'{n}'" for n in range(2000)) + ")")
    assert condition(FIVE) is True


def test_of_two_values_of_a_property_the_last_one_counts(compiler: SqlCompiler) -> None:
    condition, _ = compiler.compile("a = 5")
    assert condition(b"a\x016\x02a\x015\x02") is True
    assert condition(b"a\x015\x02a\x016\x02") is False


def test_bytes_that_are_no_text_are_not_what_any_expression_names(compiler: SqlCompiler) -> None:
    condition, _ = compiler.compile("a is not null and a <> 'x'")
    assert condition(b"a\x01\xff\xfe\x02") is True
