"""Filters by SQL92 expressions, compiled once and kept while they are in use."""

from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from broker.consume.filters import PropertyFilter
from broker.sql92.conditions import Condition, EvaluationError
from remoting.tag_filters import EXPRESSION_TYPE_SQL92, FilterError

if TYPE_CHECKING:
    from broker.sql92.compiler import SqlCompiler

EXPRESSIONS_MAX: Final = 4_096
PLAIN_LOOKUPS_MAX: Final = 4
"""Of an expression that looks up properties one by one, which is slow for a message with thousands."""
CHARS_MAX: Final = 1024 * 1024
"""Of all expressions kept; what they are compiled to takes a few dozen times as much."""


@dataclass(frozen=True, slots=True)
class SqlFilter(PropertyFilter):
    """The wanted messages of one subscription, by their properties. A consume queue knows nothing of them:
    every message must be looked at.
    """

    expression: str
    condition: Condition = field(repr=False, compare=False)
    end: int
    """Where in the text the condition ends: as with RocketMQ the rest counts for nothing."""
    lookups: int = 0
    """How often it names a property."""

    def wants(self, properties: bytes) -> bool:
        """Whether the expression is true for these properties: not false, not unknown, not failing."""
        try:
            if self.lookups <= PLAIN_LOOKUPS_MAX:
                return self.condition(properties) is True
            return self.condition(_taken_apart(properties)) is True
        except EvaluationError:
            return False

    def work_us(self, properties: bytes) -> int:
        count = properties.count(b"\x01")
        if self.lookups <= PLAIN_LOOKUPS_MAX:
            return 2 + self.lookups * (1 + count // 4)
        return 2 + count // 3 + self.lookups * (1 + len(properties) // 2_000)


def _taken_apart(properties: bytes) -> dict[bytes, bytes]:
    """Of several of one name the last that is not empty counts, as `get_property` has it."""
    pairs = (piece.partition(b"\x01") for piece in properties.split(b"\x02"))
    return {name: value for name, _, value in pairs if value}


class SqlFilters:
    """The filters of all expressions in use; those not used for longest make room."""

    def __init__(self, expressions_max: int = EXPRESSIONS_MAX, chars_max: int = CHARS_MAX) -> None:
        self._expressions_max = expressions_max
        self._chars_max = chars_max
        self._chars = 0
        self._kept: OrderedDict[str, SqlFilter | FilterError] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def prepare(self) -> None:
        """Make the compiler now: that takes a tenth of a second, for which no request is to hold the loop."""
        assert self._compiler is not None

    def filter_for(self, expression_type: str | None, expression: str | None) -> SqlFilter:
        """The filter of an expression that is not one of tags. Raises FilterError; what was refused is not
        read again, either.
        """
        if expression_type != EXPRESSION_TYPE_SQL92:
            raise FilterError(f"there are no expressions of the type {str(expression_type)[:40]!r}")
        if not expression:
            raise FilterError("the expression is empty")
        found = self._kept.get(expression)
        if found is None:
            found = self._keep(expression, self._compile(expression))
        else:
            self._kept.move_to_end(expression)
        if isinstance(found, FilterError):
            raise FilterError(str(found))
        return found

    def _compile(self, expression: str) -> SqlFilter | FilterError:
        try:
            condition, end = self._compiler.compile(expression)
            lookups = self._compiler.lookups
        except FilterError as error:
            return error.with_traceback(None)
        return SqlFilter(expression, condition, end, lookups)

    def _keep(self, expression: str, found: SqlFilter | FilterError) -> SqlFilter | FilterError:
        self._kept[expression] = found
        self._chars += len(expression)
        while len(self._kept) > self._expressions_max or self._chars > self._chars_max:
            dropped, _ = self._kept.popitem(last=False)
            self._chars -= len(dropped)
        return found

    @cached_property
    def _compiler(self) -> "SqlCompiler":
        """The parser takes 11 MiB, and few brokers see an expression."""
        from broker.sql92.compiler import SqlCompiler

        return SqlCompiler()
