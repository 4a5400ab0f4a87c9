"""RocketMQ's answers to a table of SQL92 expressions: everyday ones, those at which its grammar and its types
have an edge, and some drawn at random. tests/integration/test_java_filter.py asks RocketMQ itself.
"""

from __future__ import annotations

import pytest

from broker.sql92.compiler import SqlCompiler
from tests.support.sql92_answers import Case, answer_of, table

CASES = table()


@pytest.fixture(scope="module")
def compiler() -> SqlCompiler:
    return SqlCompiler()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.expression[:40])
def test_the_answer_is_rocketmqs(compiler: SqlCompiler, case: Case) -> None:
    assert answer_of(compiler, case.expression, case.properties) == case.answer


def test_the_table_holds_every_kind_of_answer() -> None:
    """Otherwise it would show less than it seems to."""
    found = {case.answer for case in CASES}
    assert found == {"refused", "error", "true", "false", "null"}
    assert len(CASES) > 400
