"""The parts of a SQL92 filter expression: what each stands for, and how it is evaluated over a message's
properties.

A property is always a text. So the kind of every operand is known when the expression is read, and evaluating
only does what is left: find the texts, read them as numbers, compare.

Numbers as RocketMQ's filter has them: Java's Integer, Long and Double, read from a property's text and
compared by Java's rules.

Comparisons by the rules of RocketMQ's ComparisonExpression.

Two values of different kinds meet as Java's filter has them meet: a text becomes a number of the other side's
kind (a text that is none: no value at all), whole numbers become the wider kind, a text beside TRUE or FALSE
is true when it says so.
"""

import enum
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from commitlog.record import get_property
from remoting.tag_filters import FilterError

DEPTH_MAX: Final = 200
"""How deep conditions may be nested: each level is one call more when a message is looked at."""

Value = str | bool | int | float | None
Properties = bytes | dict[bytes, bytes]
"""Of a record, as the log has them, or taken apart."""
Evaluate = Callable[[Properties], Value]
Condition = Callable[[Properties], bool | None]
"""None is SQL's third value, unknown."""


_WORDS_CHARS_MAX: Final = 60


class EvaluationError(Exception):
    """The expression has no value for these properties; Java's filter raises as well. The message is not
    wanted, whatever else the expression says.
    """


class Kind(enum.Enum):
    """What an operand's value is when it has one."""

    PROPERTY = enum.auto()
    """The text of a property; none when the message has no such property."""
    TEXT = enum.auto()
    INTEGER = enum.auto()
    LONG = enum.auto()
    DOUBLE = enum.auto()
    BOOLEAN = enum.auto()
    NONE = enum.auto()
    """Never a value: NULL, and the negative of what is no number."""

    @property
    def is_number(self) -> bool:
        return self in _NUMBERS

    @property
    def is_text(self) -> bool:
        return self is Kind.PROPERTY or self is Kind.TEXT


_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.LONG, Kind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Operand:
    """One part of an expression. `is_constant`: a literal, not one with a sign before it. `is_condition`: it
    may stand where something true or false is needed.
    """

    kind: Kind
    evaluate: Evaluate
    is_constant: bool = False
    is_condition: bool = False
    value: Value = None
    """Of a literal, with or without signs before it."""
    depth: int = 0


def constant(kind: Kind, value: Value, *, is_constant: bool = True) -> Operand:
    """A literal. The three that are neither number nor text are conditions."""
    is_condition = is_constant and kind in (Kind.BOOLEAN, Kind.NONE)
    return Operand(kind, lambda _: value, is_constant, is_condition, value)


def property_of(name: str) -> Operand:
    """The property of that name, case-sensitive."""
    key = name.encode()

    def evaluate(properties: Properties) -> str | None:
        found = properties.get(key) if isinstance(properties, dict) else get_property(properties, key)
        return None if found is None else found.decode(errors="replace")

    return Operand(Kind.PROPERTY, evaluate)


def condition(evaluate: Condition, *parts: Operand) -> Operand:
    """A condition over `parts`. Raises FilterError when the parts are nested too deep."""
    return Operand(Kind.BOOLEAN, evaluate, is_condition=True, depth=depth_over(*parts))


def depth_over(*parts: Operand) -> int:
    """The depth of something made of `parts`. Raises FilterError above DEPTH_MAX."""
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise FilterError(f"the expression is nested more than {DEPTH_MAX} deep")
    return depth


def as_condition(operand: Operand) -> Condition:
    """What decides by the operand. A property alone is never true: it is a text, or missing.

    Raises FilterError for what can be neither true nor false.
    """
    evaluate = operand.evaluate
    if operand.is_condition:
        return evaluate  # type: ignore[return-value]
    if operand.kind is Kind.PROPERTY:
        return lambda properties: None if evaluate(properties) is None else False
    raise FilterError(f"{words_of(operand)} is neither true nor false")


def words_of(operand: Operand) -> str:
    """A literal, cut short, for the text of an error."""
    return "a part of it" if operand.value is None else repr(operand.value)[:_WORDS_CHARS_MAX]


INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_LONG_DIGITS_MAX: Final = 19
_NUMBER_CHARS_MAX: Final = 16_384
_BASIC_PLANE_END: Final = 0x10000
_WHOLE: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_NAMED: Final = re.compile(r"[+-]?(?:NaN|Infinity)")
_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""What Java's String.trim takes away."""


class NotANumberError(ValueError):
    """Java's NumberFormatException: the text is no number of the kind."""


def integer_of(text: str) -> int:
    """Integer.valueOf. Raises NotANumberError."""
    return _whole(text, INTEGER_MAX)


def long_of(text: str) -> int:
    """Long.valueOf. Raises NotANumberError."""
    return _whole(text, LONG_MAX)


def double_of(text: str) -> float:
    """Double.valueOf: spaces around it, a suffix, hexadecimal digits, NaN and Infinity are fine. Raises
    NotANumberError.
    """
    if len(text) > _NUMBER_CHARS_MAX:  # Java reads it; here it would take too long
        raise NotANumberError
    trimmed = text.strip(_TRIMMED)
    if decimal := _DECIMAL.fullmatch(trimmed):
        return float(decimal[1])
    if hexadecimal := _HEXADECIMAL.fullmatch(trimmed):
        return _from_hexadecimal(hexadecimal[1])
    if _NAMED.fullmatch(trimmed):
        return float(trimmed)
    raise NotANumberError


def compare_whole(left: int, right: int) -> int:
    """Integer.compareTo and Long.compareTo: below, at or above 0."""
    return (left > right) - (left < right)


def compare_doubles(left: float, right: float) -> int:
    """Double.compareTo: NaN equals itself and is above all, and 0.0 is above -0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left else compare_whole(_sign(left), _sign(right))
    return compare_whole(math.isnan(left), math.isnan(right))


def _sign(zero: float) -> int:
    return int(math.copysign(1.0, zero))


def _whole(text: str, largest: int) -> int:
    """Decimal digits of any script, as Character.digit takes them, but one UTF-16 unit each."""
    if len(text) > _NUMBER_CHARS_MAX or not _WHOLE.fullmatch(text):
        raise NotANumberError
    if not text.isascii() and max(map(ord, text)) >= _BASIC_PLANE_END:
        raise NotANumberError
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _LONG_DIGITS_MAX:
        raise NotANumberError
    number = int(digits or "0")
    if text.startswith("-"):
        number = -number
    if not -largest - 1 <= number <= largest:
        raise NotANumberError
    return number


def _from_hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


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
    Kind.NONE: double_of,
}
"""How a text is read that is compared with a value of this kind. None has no value: nothing is read."""


def ordered(answer: Answer, left: Operand, right: Operand) -> Operand:
    """`left > right` and its like: numbers, or texts that are numbers. Raises FilterError for a text or a
    truth value in the expression itself.
    """
    _check_ordered(left)
    _check_ordered(right)
    evaluate_left, evaluate_right = left.evaluate, right.evaluate
    meet = _meeting(left.kind, right.kind)

    def evaluate(properties: Properties) -> bool | None:
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


def _equality(left: Evaluate, right: Evaluate, same: Callable[[Any, Any], bool]) -> Condition:
    """Not SQL's rule but RocketMQ's: two missing values are equal, and a value is not what is missing."""

    def evaluate(properties: Properties) -> bool | None:
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
        read, compare = _READERS[right], _comparing(right, right)
        return lambda one, other: compare(read(one), other)
    if right.is_text:
        read, compare = _READERS[left], _comparing(left, left)
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
