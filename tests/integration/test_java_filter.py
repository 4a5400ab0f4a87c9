"""RocketMQ's own filter (rocketmq-filter 5.5.0) beside ours: the table of answers, and random expressions."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from broker.sql92.compiler import SqlCompiler
from tests.integration.client_runs import CACHE, JAVAC, QUICK_JVM, ROOT, need
from tests.support.sql92_answers import answer_of, table
from tests.support.sql92_expressions import Expressions

pytestmark = pytest.mark.integration
JARS = CACHE / "java/filter-5.5.0"
CLASSES = CACHE / "java/filter-5.5.0-classes"
SOURCE = ROOT / "tests/integration/java/filter/Evaluate.java"
SEEDS = range(5)
EXPRESSIONS_PER_SEED = 2_000
LIMIT_S = 120.0
Asked = Sequence[tuple[str, Mapping[str, str]]]


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    is_there = JARS.is_dir() and shutil.which("java") is not None and shutil.which("javac") is not None
    need("java", is_there, "it needs a JDK of 17 or newer and Maven; scripts/test then puts it in .cache")
    CLASSES.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [*JAVAC, "-d", str(CLASSES), "-cp", f"{JARS}/*", str(SOURCE)],
        check=True,
        timeout=LIMIT_S,
    )


def rocketmqs_answers(asked: Asked) -> list[str]:
    lines = ["\t".join(map(_encoded, (expression, *sum(given.items(), ())))) for expression, given in asked]
    done = subprocess.run(
        ["java", "-Xmx256m", *QUICK_JVM, "-cp", f"{CLASSES}:{JARS}/*", "Evaluate"],
        input="".join(f"{line}\n" for line in lines).encode(),
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    return done.stdout.decode().split()


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_table_holds_what_rocketmq_answers() -> None:
    cases = table()
    answers = rocketmqs_answers([(case.expression, case.properties) for case in cases])
    assert answers == [case.answer for case in cases]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_expressions_get_rocketmqs_answers(seed: int) -> None:
    asked = drawn(Random(seed))
    answers = rocketmqs_answers(asked)
    compiler = SqlCompiler()
    ours = [answer_of(compiler, *each) for each in asked]
    wrong = [(*each, his, own) for each, his, own in zip(asked, answers, ours, strict=True) if his != own]
    assert wrong == [], f"{len(wrong)} of {len(asked)}"
    assert min(Counter(answers).values()) > len(asked) // 50, "hardly any of one kind: a weak test"


def drawn(random: Random) -> list[tuple[str, dict[str, str]]]:
    """Mostly sensible expressions, some wild, some damaged; each with two sets of properties."""
    asked = []
    for number in range(EXPRESSIONS_PER_SEED):
        draw = Expressions(random, 0.6 if number % 4 == 0 else 0.98)
        expression = draw.damaged() if number % 5 == 0 else draw.expression()
        asked += [(expression, draw.properties()) for _ in range(2)]
    return asked
