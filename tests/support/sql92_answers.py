"""What a SQL92 filter answers, in the words of tests/golden/sql92/answers.jsonl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.sql92.compiler import SqlCompiler
from broker.sql92.conditions import EvaluationError
from commitlog.record import format_properties
from remoting.tag_filters import FilterError

TABLE = Path(__file__).resolve().parents[1] / "golden/sql92/answers.jsonl"
_WORDS = {True: "true", False: "false", None: "null"}


@dataclass(frozen=True, slots=True)
class Case:
    """`answer`: refused (the expression), error (only for these properties), true, false or null."""

    expression: str
    properties: Mapping[str, str]
    answer: str


def table() -> list[Case]:
    """RocketMQ 5.4's own answers."""
    return [Case(*json.loads(line)) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def answer_of(compiler: SqlCompiler, expression: str, properties: Mapping[str, str]) -> str:
    try:
        condition, _ = compiler.compile(expression)
    except FilterError:
        return "refused"
    try:
        return _WORDS[condition(format_properties(properties))]
    except EvaluationError:
        return "error"
