"""The parts of a SQL92 filter expression: what each stands for, and how it is evaluated over a message's
properties.

A property is always a text. So the kind of every operand is known when the expression is read, and evaluating
only does what is left: find the texts, read them as numbers, compare.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.filters import FilterError
from commitlog.record import get_property

DEPTH_MAX: Final = 200
"""How deep conditions may be nested: each level is one call more when a message is looked at."""

Value = str | bool | int | float | None
Evaluate = Callable[[bytes], Value]
"""From the properties of a record, as the log has them."""
Condition = Callable[[bytes], bool | None]
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
    """The property of that name, with upper and lower case told apart."""
    key = name.encode()

    def evaluate(properties: bytes) -> str | None:
        found = get_property(properties, key)
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
