"""The catalogue names tests that are there, every scenario once, and the page says what it says."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.golden.runner import scripts_in
from tests.scenarios.catalogue import CATALOGUE, render, scenarios
from tests.scenarios.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "golden" / "dledger"


@cache
def collected(path: str) -> frozenset[str]:
    """The node ids that pytest finds in a file, without parameters but for the golden traces."""
    file = Path(path)
    if not (ROOT / file).is_file() or not file.name.startswith("test_"):
        return frozenset()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = {function.name for function in functions if function.name.startswith("test_")}
    if "test_dledger_trace" in names:
        names |= {f"test_dledger_trace[{script.stem}]" for script in scripts_in(TRACES)}
    return frozenset(f"{path}::{name}" for name in names)


@pytest.mark.parametrize("scenario", list(scenarios()), ids=lambda scenario: scenario.name)
def test_scenario_has_tests_that_are_collected(scenario: Scenario) -> None:
    missing = [test for test in scenario.tests if test not in collected(test.partition("::")[0])]
    assert missing == []
    assert len(set(scenario.tests)) == len(scenario.tests)


@pytest.mark.parametrize("scenario", list(scenarios()), ids=lambda scenario: scenario.name)
def test_scenario_says_what_it_is_and_is_held_or_waits_for_a_feature(scenario: Scenario) -> None:
    assert scenario.title
    assert scenario.holds
    assert scenario.known_from
    assert scenario.tests or scenario.waits_for


def test_names_are_unique_and_s1_to_s20_are_all_there() -> None:
    names = Counter(scenario.name for scenario in scenarios())
    assert set(names.values()) == {1}
    assert [scenario.name for scenario in CATALOGUE[0].scenarios] == [f"S{number}" for number in range(1, 21)]


def test_tests_named_after_a_scenario_are_in_the_catalogue_under_it() -> None:
    """`test_s13_…` holds S13."""
    paths = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    named = re.compile(r"::test_(s\d+|dl\d+|rmq\d+)_")
    found = {test: match[1] for path in paths for test in collected(path) if (match := named.search(test))}
    assert len(found) > 30
    listed = {scenario.name: scenario.tests for scenario in scenarios()}
    assert [test for test, name in found.items() if test not in listed.get(full_name(name), ())] == []


def full_name(short: str) -> str:
    """A scenario's name by what stands for it in names of tests."""
    return short.upper() if short[0] == "s" else short.replace("dl", "dledger#").replace("rmq", "rocketmq#")


def test_missing_test_would_be_noticed() -> None:
    assert collected("tests/unit/test_absent.py") == frozenset()
    here = collected("tests/scenarios/test_catalogue.py")
    assert f"tests/scenarios/test_catalogue.py::{test_missing_test_would_be_noticed.__name__}" in here
    assert "tests/scenarios/test_catalogue.py::collected" not in here


def test_page_is_what_the_catalogue_says() -> None:
    """Otherwise: python -m tests.scenarios > docs/scenarios.md."""
    assert (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8") == render()
