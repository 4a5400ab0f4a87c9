"""The grammar of RocketMQ's SQL92 filters (SelectorParser.jj), read by lark.

RocketMQ's parser reads the longest expression that its text begins with and never looks at what follows the
token after it: `a = 5 garbage` is `a = 5`. It is so here, too: an expression that one broker takes may not be
refused by the other. What makes no token is refused, but for what is never looked at.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from broker.filters import EXPRESSION_CHARS_MAX, FilterError

TOKENS_MAX: Final = 4_096
"""Of one expression: it is read on the event loop, a dozen microseconds a token."""
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
        state = self._lark.parse_interactive(text)
        read: Token | None = None
        token: Token | None = None
        try:
            for count, following in enumerate(state.iter_parse()):  # each is taken in at the next one's turn
                if count >= TOKENS_MAX:
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


def text_of(literal: str) -> str:
    """The text that a string literal stands for."""
    return literal[1:-1].replace("''", "'")
