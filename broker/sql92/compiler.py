"""From the grammar's rules to conditions: the actions of broker.sql92.syntax.

What RocketMQ refuses when a consumer subscribes is refused here, and what it only finds out when it looks at
a message is found out then. Sources: LogicExpression, UnaryExpression, ConstantExpression and
ComparisonExpression.
"""

from collections.abc import Callable, Sequence

from lark import Token, Transformer, v_args

from broker.filters import FilterError
from broker.sql92 import comparisons
from broker.sql92.comparisons import GREATER, GREATER_OR_EQUAL, LESS, LESS_OR_EQUAL
from broker.sql92.numbers import INTEGER_MAX, LONG_MAX
from broker.sql92.operands import (
    Condition,
    Kind,
    Operand,
    as_condition,
    condition,
    constant,
    depth_over,
    property_of,
)
from broker.sql92.syntax import SqlParser, text_of


class SqlCompiler:
    """Makes conditions of expressions."""

    def __init__(self) -> None:
        self._parser = SqlParser(_Actions())

    def compile(self, expression: str) -> tuple[Condition, int]:
        """The condition, and where in the text it ends: RocketMQ ignores the rest. Raises FilterError.

        The condition raises EvaluationError where RocketMQ's has no value either.
        """
        operand, end = self._parser.parse(expression)
        return as_condition(operand), end


@v_args(inline=True)
class _Actions(Transformer[Token, Operand]):
    """One method for each rule of the grammar, with what its parts became."""

    def string(self, literal: Token) -> Operand:
        return constant(Kind.TEXT, text_of(literal))

    def decimal(self, literal: Token) -> Operand:
        """An int when it fits, else a long; a sign is no part of it, so that -2**63 cannot be written."""
        number = int(literal.rstrip("lL")) if len(literal) <= len(str(LONG_MAX)) + 1 else LONG_MAX + 1
        if number > LONG_MAX:
            raise FilterError(f"{literal[:30]} is above {LONG_MAX}")
        return constant(Kind.INTEGER if number <= INTEGER_MAX else Kind.LONG, number)

    def floating(self, literal: Token) -> Operand:
        """Zero is refused: RocketMQ asks for Double.MIN_VALUE at least."""
        number = float(literal)
        if number == 0.0 or number == float("inf"):
            raise FilterError(f"{literal[:30]} is beyond what a double can be")
        return constant(Kind.DOUBLE, number)

    def true(self) -> Operand:
        return constant(Kind.BOOLEAN, True)

    def false(self) -> Operand:
        return constant(Kind.BOOLEAN, False)

    def null(self) -> Operand:
        return constant(Kind.NONE, None)

    def property(self, name: Token) -> Operand:
        return property_of(name)

    def negative(self, operand: Operand) -> Operand:
        """A property is a text, and so has no negative, even if it is a number."""
        if operand.kind.is_number:
            assert isinstance(operand.value, int | float)
            return constant(operand.kind, -operand.value, is_constant=False)
        evaluate = operand.evaluate

        def evaluate_only(properties: bytes) -> None:
            evaluate(properties)

        return Operand(Kind.NONE, evaluate_only, depth=depth_over(operand))

    def not_(self, operand: Operand) -> Operand:
        return condition(_inverse(as_condition(operand)), operand)

    def all_of(self, *operands: Operand) -> Operand:
        return condition(_until(False, operands), *operands)

    def any_of(self, *operands: Operand) -> Operand:
        return condition(_until(True, operands), *operands)

    def equal(self, left: Operand, right: Operand) -> Operand:
        return comparisons.equal(left, right)

    def not_equal(self, left: Operand, right: Operand) -> Operand:
        return self.not_(comparisons.equal(left, right))

    def is_null(self, operand: Operand) -> Operand:
        return comparisons.is_null(operand)

    def is_not_null(self, operand: Operand) -> Operand:
        return self.not_(comparisons.is_null(operand))

    def greater(self, left: Operand, right: Operand) -> Operand:
        return comparisons.ordered(GREATER, left, right)

    def greater_or_equal(self, left: Operand, right: Operand) -> Operand:
        return comparisons.ordered(GREATER_OR_EQUAL, left, right)

    def less(self, left: Operand, right: Operand) -> Operand:
        return comparisons.ordered(LESS, left, right)

    def less_or_equal(self, left: Operand, right: Operand) -> Operand:
        return comparisons.ordered(LESS_OR_EQUAL, left, right)

    def between(self, operand: Operand, low: Operand, high: Operand) -> Operand:
        comparisons.check_bounds(low, high)
        return self.all_of(self.greater_or_equal(operand, low), self.less_or_equal(operand, high))

    def not_between(self, operand: Operand, low: Operand, high: Operand) -> Operand:
        return self.any_of(self.less(operand, low), self.greater(operand, high))

    def contains(self, operand: Operand, literal: Token) -> Operand:
        return _text_condition(operand, literal, str.__contains__, True)

    def not_contains(self, operand: Operand, literal: Token) -> Operand:
        return _text_condition(operand, literal, str.__contains__, False)

    def starts_with(self, operand: Operand, literal: Token) -> Operand:
        return _text_condition(operand, literal, str.startswith, True)

    def not_starts_with(self, operand: Operand, literal: Token) -> Operand:
        return _text_condition(operand, literal, str.startswith, False)

    def ends_with(self, operand: Operand, literal: Token) -> Operand:
        return _text_condition(operand, literal, str.endswith, True)

    def not_ends_with(self, operand: Operand, literal: Token) -> Operand:
        return _text_condition(operand, literal, str.endswith, False)

    def strings(self, *literals: Token) -> frozenset[str]:
        return frozenset(map(text_of, literals))

    def in_(self, operand: Operand, texts: frozenset[str]) -> Operand:
        return _membership(operand, texts, True)

    def not_in(self, operand: Operand, texts: frozenset[str]) -> Operand:
        return _membership(operand, texts, False)


def _inverse(decide: Condition) -> Condition:
    def evaluate(properties: bytes) -> bool | None:
        decided = decide(properties)
        return None if decided is None else not decided

    return evaluate


def _until(deciding: bool, operands: Sequence[Operand]) -> Condition:
    """AND, which ends at the first part that is false, or OR, which ends at the first true one. Else it is
    unknown when a part is. What stands behind the end is not evaluated, and cannot fail.
    """
    conditions = tuple(map(as_condition, operands))

    def evaluate(properties: bytes) -> bool | None:
        is_known = True
        for decide in conditions:
            decided = decide(properties)
            if decided is deciding:
                return deciding
            if decided is None:
                is_known = False
        return not deciding if is_known else None

    return evaluate


def _text_condition(
    operand: Operand, literal: str, test: Callable[[str, str], bool], wanted: bool
) -> Operand:
    """CONTAINS and its like, and their opposites. Both are false for what is no text or missing, and for an
    empty literal.
    """
    text, evaluate = text_of(literal), operand.evaluate

    def decide(properties: bytes) -> bool:
        value = evaluate(properties)
        return isinstance(value, str) and test(value, text) is wanted

    return condition(decide if text else _never, operand)


def _never(properties: bytes) -> bool:
    return False


def _membership(operand: Operand, texts: frozenset[str], wanted: bool) -> Operand:
    if operand.kind is not Kind.PROPERTY:
        raise FilterError("only a property can be IN a list")
    evaluate = operand.evaluate

    def decide(properties: bytes) -> bool | None:
        value = evaluate(properties)
        return None if value is None else (value in texts) is wanted

    return condition(decide, operand)
