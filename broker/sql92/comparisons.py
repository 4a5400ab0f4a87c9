"""Comparisons by the rules of RocketMQ's ComparisonExpression.

Two values of different kinds meet as Java's filter has them meet: a text becomes a number of the other side's
kind (a text that is none: no value at all), whole numbers become the wider kind, a text beside TRUE or FALSE
is true when it says so.
"""

import operator
from collections.abc import Callable
from typing import Any, Final

from broker.filters import FilterError
from broker.sql92.numbers import (
    NotANumberError,
    compare_doubles,
    compare_whole,
    double_of,
    integer_of,
    long_of,
)
from broker.sql92.operands import Evaluate, EvaluationError, Kind, Operand, condition, words_of

Answer = Callable[[int, int], bool]
"""operator.gt and its like: the second argument is 0."""
_Convert = Callable[[Any], Any]
_Meet = Callable[[Any, Any], int]
"""How two values that are there compare: below, at or above 0. Raises NotANumberError."""
_Same = Callable[[Any, Any], bool]

GREATER: Final[Answer] = operator.gt
GREATER_OR_EQUAL: Final[Answer] = operator.ge
LESS: Final[Answer] = operator.lt
LESS_OR_EQUAL: Final[Answer] = operator.le
_READERS: Final[dict[Kind, _Convert]] = {
    Kind.INTEGER: integer_of,
    Kind.LONG: long_of,
    Kind.DOUBLE: double_of,
}


def ordered(answer: Answer, left: Operand, right: Operand) -> Operand:
    """`left > right` and its like: numbers, or texts that are numbers. Raises FilterError for a text or a
    truth value in the expression itself.
    """
    _check_ordered(left)
    _check_ordered(right)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate
    meet = _meeting(left.kind, right.kind)

    def evaluate(properties: bytes) -> bool | None:
        one = evaluate_left(properties)
        if one is None:
            return None
        other = evaluate_right(properties)
        if other is None:
            return None
        try:
            return answer(meet(one, other), 0)
        except NotANumberError:
            raise EvaluationError from None

    return condition(evaluate, left, right)


def check_bounds(low: Operand, high: Operand) -> None:
    """Check the bounds of a BETWEEN. Raises FilterError for literals that no value can be between."""
    are_literals = low.is_constant and high.is_constant and low.kind.is_number and high.kind.is_number
    if are_literals and _meeting(high.kind, low.kind)(high.value, low.value) < 0:
        raise FilterError(f"nothing is between {words_of(low)} and {words_of(high)}")


def equal(left: Operand, right: Operand) -> Operand:
    """`left = right`. Raises FilterError for NULL on either side, and for TRUE or FALSE before another
    literal.
    """
    for operand in (left, right):
        if operand.is_constant and operand.kind is Kind.NONE:
            raise FilterError("NULL is compared by IS and IS NOT only")
    if left.is_constant and right.is_constant and left.is_condition and not right.is_condition:
        raise FilterError(f"{words_of(left)} cannot be compared with {words_of(right)}")
    return condition(_equality(left.evaluate, right.evaluate, _sameness(left.kind, right.kind)), left, right)


def is_null(operand: Operand) -> Operand:
    """`operand IS NULL`."""
    evaluate = operand.evaluate
    return condition(lambda properties: evaluate(properties) is None, operand)


def _equality(
    left: Evaluate, right: Evaluate, same: Callable[[Any, Any], bool]
) -> Callable[[bytes], bool | None]:
    """Not SQL's rule but RocketMQ's: two missing values are equal, and a value is not what is missing."""

    def evaluate(properties: bytes) -> bool | None:
        one = left(properties)
        other = right(properties)
        if one is None:
            return True if other is None else None
        if other is None:
            return False
        try:
            return same(one, other)
        except NotANumberError:
            raise EvaluationError from None

    return evaluate


def _check_ordered(operand: Operand) -> None:
    if operand.is_condition or (operand.is_constant and not operand.kind.is_number):
        raise FilterError("only numbers and properties can be greater or less")


def _meeting(left: Kind, right: Kind) -> _Meet:
    """How values of two kinds that may be ordered compare."""
    if left.is_text and right.is_text:
        return lambda one, other: compare_doubles(double_of(one), double_of(other))
    if left.is_text:
        read, compare = _READERS.get(right, _no_number), _comparing(right, right)
        return lambda one, other: compare(read(one), other)
    if right.is_text:
        read, compare = _READERS.get(left, _no_number), _comparing(left, left)
        return lambda one, other: compare(one, read(other))
    return _comparing(left, right)


def _comparing(left: Kind, right: Kind) -> _Meet:
    if Kind.DOUBLE in (left, right):
        return lambda one, other: compare_doubles(float(one), float(other))
    return compare_whole


def _sameness(left: Kind, right: Kind) -> _Same:
    if left is Kind.BOOLEAN and right.is_text:
        return _cast_error
    if left.is_text and right is Kind.BOOLEAN:
        return lambda one, other: (one.lower() == "true") is other
    if left is right is Kind.BOOLEAN or (left.is_text and right.is_text):
        return operator.eq
    if Kind.BOOLEAN in (left, right):
        return lambda one, other: False
    meet = _meeting(left, right)
    return lambda one, other: meet(one, other) == 0


def _cast_error(one: Any, other: Any) -> bool:
    """`TRUE = a`: RocketMQ's broker casts the wrong side, and fails at every message that has an a."""
    raise EvaluationError


def _no_number(text: str) -> int:
    raise NotANumberError
