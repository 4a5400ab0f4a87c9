"""The grammar of RocketMQ's SQL92 filters (SelectorParser.jj), read by lark.

RocketMQ's parser reads the longest expression that its text begins with and never looks at what follows the
token after it: `a = 5 garbage` is `a = 5`. It is so here, too: an expression that one broker takes may not be
refused by the other. What makes no token is refused, but for what is never looked at.

From the grammar's rules to conditions: the actions of broker.sql92.compiler.

What RocketMQ refuses when a consumer subscribes is refused here, and what it only finds out when it looks at
a message is found out then. Sources: LogicExpression, UnaryExpression, ConstantExpression and
ComparisonExpression.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from broker.sql92 import conditions as comparisons
from broker.sql92.conditions import (
    GREATER,
    GREATER_OR_EQUAL,
    INTEGER_MAX,
    LESS,
    LESS_OR_EQUAL,
    LONG_MAX,
    Condition,
    Kind,
    Operand,
    Properties,
    as_condition,
    condition,
    constant,
    depth_over,
    property_of,
)
from remoting.tag_filters import EXPRESSION_CHARS_MAX, FilterError

TOKENS_MAX: Final = 1_600
"""Of one expression: it is read on the event loop, up to ten microseconds a token."""
LISTED_PER_TOKEN: Final = 3
"""A text or a comma, of which a list may have thousands, takes a third of that."""
_LISTED: Final = frozenset({"STRING", "COMMA"})
_COMMENT_CHARS_MAX: Final = 1_000_000
"""Characters looked at for ends of comments that are not there: see `_check_open_comments`."""
_MINUS_SIGNS: Final = re.compile("--+")
_QUOTED_CHARS_MAX: Final = 40

GRAMMAR: Final = r"""
?start: any_of

?any_of: all_of
    | all_of ("or"i all_of)+                            -> any_of

?all_of: equality
    | equality ("and"i equality)+                       -> all_of

?equality: comparison
    | equality "=" comparison                           -> equal
    | equality "<>" comparison                          -> not_equal
    | equality "is"i "null"i                            -> is_null
    | equality "is"i "not"i "null"i                     -> is_not_null

?comparison: unary
    | comparison ">" unary                              -> greater
    | comparison ">=" unary                             -> greater_or_equal
    | comparison "<" unary                              -> less
    | comparison "<=" unary                             -> less_or_equal
    | comparison "contains"i STRING                     -> contains
    | comparison "not"i "contains"i STRING              -> not_contains
    | comparison "startswith"i STRING                   -> starts_with
    | comparison "not"i "startswith"i STRING            -> not_starts_with
    | comparison "endswith"i STRING                     -> ends_with
    | comparison "not"i "endswith"i STRING              -> not_ends_with
    | comparison "between"i unary "and"i unary          -> between
    | comparison "not"i "between"i unary "and"i unary   -> not_between
    | comparison "in"i strings                          -> in_
    | comparison "not"i "in"i strings                   -> not_in

strings: "(" STRING ("," STRING)* ")"

?unary: primary
    | "+" unary
    | "-" unary                                         -> negative
    | "not"i unary                                      -> not_

?primary: STRING                                        -> string
    | DECIMAL                                           -> decimal
    | FLOAT                                             -> floating
    | "true"i                                           -> true
    | "false"i                                          -> false
    | "null"i                                           -> null
    | ID                                                -> property
    | "(" any_of ")"

STRING: /'[^']*(?:''[^']*)*'/
FLOAT.2: /[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+/i
DECIMAL.1: /0|[1-9][0-9]*l?/i
ID: /[a-z_$][a-z0-9_$]*/i
SPACE: /[ \t\n\r\f]+/
LINE_COMMENT.2: /--[^\n\r]*(?:\r\n|\n|\r)/
BLOCK_COMMENT.2: /\/\*[^*]*\*+(?:[^*\/][^*]*\*+)*\//
%ignore SPACE
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""


class SqlParser:
    """Reads expressions, and has `actions` make something of every rule, from the leaves up."""

    def __init__(self, actions: Transformer[Token, Any]) -> None:
        self._lark = Lark(GRAMMAR, parser="lalr", lexer="basic", transformer=actions, g_regex_flags=re.ASCII)

    def parse(self, text: str) -> tuple[Any, int]:
        """What the actions made of the expression, and the position in the text after it. Raises FilterError
        whose text says what is wrong and where.
        """
        if len(text) > EXPRESSION_CHARS_MAX:
            raise FilterError(
                f"the expression has {len(text)} characters; {EXPRESSION_CHARS_MAX} are possible"
            )
        _check_open_comments(text)
        state = self._lark.parse_interactive(text)
        read: Token | None = None
        token: Token | None = None
        room = TOKENS_MAX * LISTED_PER_TOKEN
        try:
            for following in state.iter_parse():  # each is taken in at the next one's turn
                room -= 1 if following.type in _LISTED else LISTED_PER_TOKEN
                if room < 0:
                    raise FilterError(f"the expression has more than {TOKENS_MAX} words and signs")
                read, token = token, following
        except UnexpectedCharacters as error:
            raise FilterError(f"no word or sign begins at character {error.pos_in_stream}") from None
        except UnexpectedToken as error:
            return self._end(state.feed_eof, read, error.token)
        return self._end(state.feed_eof, token, None)

    def _end(
        self, feed_eof: Callable[[Token | None], Any], last: Token | None, strange: Token | None
    ) -> tuple[Any, int]:
        try:
            result = feed_eof(last)
        except UnexpectedToken:
            if strange is None:
                raise FilterError("the expression ends too early") from None
            shown = strange[:_QUOTED_CHARS_MAX]
            raise FilterError(f"{shown!r} cannot stand at character {strange.start_pos}") from None
        return result, 0 if last is None or last.end_pos is None else last.end_pos


def _check_open_comments(text: str) -> None:
    """Behind the end of the last line `--` is no comment but two minus signs. The lexer finds that out by
    reading to the end of the text, again for each of them, so many of them in a long text are refused.

    Raises FilterError.
    """
    line = text[max(text.rfind("\n"), text.rfind("\r")) + 1 :]
    pairs = sum(len(signs) - 1 for signs in _MINUS_SIGNS.findall(line))
    if pairs * len(line) > _COMMENT_CHARS_MAX:
        raise FilterError(f"the expression has {pairs} times -- in its last line of {len(line)} characters")


def text_of(literal: str) -> str:
    """The text that a string literal stands for."""
    return literal[1:-1].replace("''", "'")


class SqlCompiler:
    """Makes conditions of expressions."""

    def __init__(self) -> None:
        self._actions = _Actions()
        self._parser = SqlParser(self._actions)

    @property
    def lookups(self) -> int:
        """How often the expression compiled last names a property."""
        return self._actions.lookups

    def compile(self, expression: str) -> tuple[Condition, int]:
        """The condition, and where in the text it ends: RocketMQ ignores the rest. Raises FilterError.

        The condition raises EvaluationError where RocketMQ's has no value either.
        """
        self._actions.lookups = 0
        operand, end = self._parser.parse(expression)
        return as_condition(operand), end


@v_args(inline=True)
class _Actions(Transformer[Token, Operand]):
    """One method for each rule of the grammar, with what its parts became."""

    lookups = 0

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
        self.lookups += 1
        return property_of(name)

    def negative(self, operand: Operand) -> Operand:
        """A property is a text, and so has no negative, even if it is a number."""
        if operand.kind.is_number:
            assert isinstance(operand.value, int | float)
            return constant(operand.kind, -operand.value, is_constant=False)
        evaluate = operand.evaluate

        def evaluate_only(properties: Properties) -> None:
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
    def evaluate(properties: Properties) -> bool | None:
        decided = decide(properties)
        return None if decided is None else not decided

    return evaluate


def _until(deciding: bool, operands: Sequence[Operand]) -> Condition:
    """AND, which ends at the first part that is false, or OR, which ends at the first true one. Else it is
    unknown when a part is. What stands behind the end is not evaluated, and cannot fail.
    """
    conditions = tuple(map(as_condition, operands))

    def evaluate(properties: Properties) -> bool | None:
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

    def decide(properties: Properties) -> bool:
        value = evaluate(properties)
        return isinstance(value, str) and test(value, text) is wanted

    return condition(decide if text else _never, operand)


def _never(properties: Properties) -> bool:
    return False


def _membership(operand: Operand, texts: frozenset[str], wanted: bool) -> Operand:
    if operand.kind is not Kind.PROPERTY:
        raise FilterError("only a property can be IN a list")
    evaluate = operand.evaluate

    def decide(properties: Properties) -> bool | None:
        value = evaluate(properties)
        return None if value is None else (value in texts) is wanted

    return condition(decide, operand)
