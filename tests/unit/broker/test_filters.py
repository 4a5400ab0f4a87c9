import pytest

from remoting.tag_filters import (
    EXPRESSION_CHARS_MAX,
    MATCH_ALL,
    FilterError,
    is_tag_type,
    parse_tag_expression,
)


@pytest.mark.parametrize("expression", [None, "", "  ", "*", " * ", "TagA || *"])
def test_expressions_for_everything_match_any_code(expression: str | None) -> None:
    tag_filter = parse_tag_expression(expression)
    assert tag_filter is MATCH_ALL
    assert tag_filter.matches(0)
    assert tag_filter.matches(2598919)


def test_tags_are_trimmed_and_hashed_as_java_does() -> None:
    tag_filter = parse_tag_expression(" TagA||TagB || 标签 || TagA || ")
    assert tag_filter.tags == ("TagA", "TagB", "标签")
    assert tag_filter.codes == frozenset({2598919, 2598920, 857175})


def test_a_negative_hash_matches_the_sign_extended_unit() -> None:
    tag_filter = parse_tag_expression("polygenelubricants")
    assert tag_filter.matches(-(2**31))
    assert not tag_filter.matches(2**31)


def test_a_message_without_tag_is_not_wanted_by_a_tag_filter() -> None:
    assert not parse_tag_expression("TagA").matches(0)


@pytest.mark.parametrize("expression", ["||", " || || ", "A" * (EXPRESSION_CHARS_MAX + 1)])
def test_expressions_without_a_tag_or_too_long_are_refused(expression: str) -> None:
    with pytest.raises(FilterError):
        parse_tag_expression(expression)


def test_a_missing_or_empty_type_is_one_of_tags() -> None:
    assert is_tag_type(None)
    assert is_tag_type("")
    assert is_tag_type("TAG")
    assert not is_tag_type("SQL92")
