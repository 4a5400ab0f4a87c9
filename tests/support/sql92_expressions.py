"""Random SQL92 filter expressions and properties for them: mostly sensible ones, with the literals and values
at which Java's types and conversions part ways.
"""

from __future__ import annotations

from random import Random
from typing import TypeVar

T = TypeVar("T")
NAMES = ("a", "b", "c", "AbC", "_x", "$y")
VALUES = (
    *(
        "5",
        "-5",
        "0",
        "5.0",
        "x",
        "true",
        "TRUE",
        "false",
        "it's",
        "é",
        "axb",
        ".",
        " ",
        " 7 ",
        "+7",
        "007",
        "1_0",
    ),
    *(
        "2147483647",
        "2147483648",
        "-2147483648",
        "9223372036854775807",
        "9223372036854775808",
        "9007199254740993",
    ),
    *(
        "1e3",
        "1d",
        "1f",
        "5e",
        "1e400",
        "NaN",
        "Infinity",
        "-Infinity",
        "-0.0",
        "0.0",
        "\u0661",
        "\U0001d7d3",
    ),
    *("0x10", "0x1p3", "0x1p9999", "-0x1p9999"),
)
NUMBERS = (
    "5",
    "0",
    "7l",
    "5.0",
    "1e3",
    ".5",
    "5.",
    "2147483648",
    "9007199254740993",
    "-5",
    "- -3",
    "-.5",
    "+2",
)
TEXTS = ("'5'", "'x'", "''", "'true'", "'it''s'", "'é'", "'a'")
TRUTHS = ("TRUE", "False", "NULL")
STRANGE = ("07", "0x5", "1e400", "0.0", "1e-400", "5e", "9223372036854775808", "9007199254740992.0")
PIECES = (
    "'",
    "(",
    ")",
    ",",
    "-",
    "--",
    "/*",
    "*/",
    "not ",
    "and ",
    "is ",
    "=",
    "<",
    ">",
    "#",
    "e",
    "l",
    ".",
    "0",
    "\n",
)


class Expressions:
    """Draws expressions; `sense` is how often a condition is one that RocketMQ takes."""

    def __init__(self, random: Random, sense: float = 0.97) -> None:
        self._random = random
        self._sense = sense

    def expression(self, depth: int = 3) -> str:
        """Conditions with AND and OR between them."""
        words = [self._equality(depth)]
        for _ in range(self._pick(0, 0, 0, 1, 1, 2)):
            words += [self._pick(" and ", " or ", " AND ", " Or ", "\n/* x */and\t"), self._equality(depth)]
        return "".join(words)

    def damaged(self) -> str:
        """An expression with a few pieces cut out, put in or copied."""
        text = self.expression()
        for _ in range(self._random.randint(1, 3)):
            at = self._random.randrange(len(text) + 1)
            kind = self._random.randrange(3)
            if kind == 0:
                text = text[:at] + text[at + self._random.randint(1, 3) :]
            elif kind == 1:
                text = text[:at] + self._pick(*PIECES) + text[at:]
            else:
                other = self._random.randrange(len(text) + 1)
                text = text[:at] + text[other : other + 5] + text[at:]
        return text

    def properties(self) -> dict[str, str]:
        return {name: self._pick(*VALUES) for name in NAMES if self._random.random() < 0.7}

    def condition(self, depth: int = 2) -> str:
        """One condition that RocketMQ takes."""
        name, negation = self._pick(*NAMES), self._pick("", "not ")
        kind = self._random.random()
        if kind < 0.2:
            return f"{name} {self._order()} {self._pick(*NUMBERS, *NAMES)}"
        if kind < 0.3:
            return f"{self._pick(*NUMBERS)} {self._order()} {self._pick(*NUMBERS, *NAMES)}"
        if kind < 0.5:
            left = self._pick(*NUMBERS, *NAMES, *TEXTS)
            return f"{left} {self._pick('=', '<>')} {self._pick(*NUMBERS, *TEXTS, *NAMES, *TRUTHS[:2])}"
        if kind < 0.6:
            return (
                f"{name} {negation}between {self._pick('0', '-5', '1.5')} and {self._pick('7', '1e3', '99l')}"
            )
        if kind < 0.7:
            return f"{name} {negation}in ({self._list()})"
        if kind < 0.8:
            return f"{self._pick(*NAMES, *TEXTS)} {negation}{self._text_test()} {self._pick(*TEXTS)}"
        if kind < 0.88:
            return f"{self._pick(*NAMES, *NUMBERS)} is {negation}null"
        if kind < 0.92 or depth == 0:
            return self._pick(*TRUTHS, name)
        return f"{negation}({self.expression(depth - 1)})"

    def _equality(self, depth: int) -> str:
        if self._random.random() < self._sense:
            return self.condition(depth)
        text = self._comparison(depth)
        for _ in range(self._pick(0, 0, 1, 1, 2)):
            test = self._pick("= ", "<>", " = ", " is null", " is not null")
            text += test if test.endswith("null") else test + self._comparison(depth)
        return text

    def _comparison(self, depth: int) -> str:
        text = self._term(depth)
        for _ in range(self._pick(0, 1, 1, 1, 2)):
            kind, negation = self._random.random(), self._pick("", "", "not ")
            if kind < 0.4:
                text += f" {self._order()} {self._term(depth)}"
            elif kind < 0.6:
                text += f" {negation}{self._text_test()} {self._pick(*TEXTS, *NAMES)}"
            elif kind < 0.8:
                text += f" {negation}between {self._term(depth)} and {self._term(depth)}"
            else:
                text += f" {negation}in ({self._list()})"
        return text

    def _term(self, depth: int) -> str:
        kind = self._random.random()
        if kind < 0.45:
            return self._pick(*NAMES)
        if kind < 0.8:
            return self._pick(*NUMBERS, *TEXTS, *TRUTHS, *STRANGE)
        if kind < 0.93:
            return self._pick("+", "-", "- ", "not ") + self._term(depth)
        return f"({self.expression(depth - 1)})" if depth else self._pick(*NAMES)

    def _order(self) -> str:
        return self._pick(">", ">=", "<", "<=")

    def _text_test(self) -> str:
        return self._pick("contains", "startswith", "ENDSWITH")

    def _list(self) -> str:
        return ",".join(self._pick(*TEXTS) for _ in range(self._random.randint(1, 6)))

    def _pick(self, *choices: T) -> T:
        return self._random.choice(choices)
