"""All named scenarios and faults, and the page that shows them."""

from __future__ import annotations

from collections.abc import Iterator

from tests.scenarios.dledger_faults import REPLICATION_AND_DISK, SAFETY
from tests.scenarios.named import NAMED
from tests.scenarios.scenario import Scenario, Section
from tests.scenarios.successor_faults import SUCCESSOR

CATALOGUE = (
    Section("Scenarios", NAMED),
    Section("DLedger: what was lost or torn apart", SAFETY),
    Section("DLedger: what was stuck, and what filled the disk", REPLICATION_AND_DISK),
    Section("RocketMQ's controller: its successor's faults", SUCCESSOR),
)

INTRODUCTION = """\
# Scenarios and the tests that hold them

Histories that broke replicated logs, first DLedger's and RocketMQ's own, and what has to be true of each
here. A test is named by its file below `tests` and its name without `test_`; a name in brackets is a golden
trace. What a scenario waits for is a feature that LedgerMQ does not have yet.

This page is printed by `python -m tests.scenarios > docs/scenarios.md`; `tests/scenarios/test_catalogue.py`
checks that the page is what the catalogue says and that each test is there. dledger#N is a report in
`openmessaging/dledger`, rocketmq#N one in `apache/rocketmq`.
"""


def scenarios() -> Iterator[Scenario]:
    for section in CATALOGUE:
        yield from section.scenarios


def render() -> str:
    """The page `docs/scenarios.md`."""
    parts = [INTRODUCTION, _summary(tuple(scenarios()))]
    for section in CATALOGUE:
        parts.append(f"\n## {section.title}\n")
        parts += [_scenario(scenario) for scenario in section.scenarios]
    return "".join(parts)


def _summary(found: tuple[Scenario, ...]) -> str:
    without = [scenario.name for scenario in found if not scenario.tests]
    in_part = [scenario.name for scenario in found if scenario.tests and scenario.waits_for]
    return (
        f"\nOf {len(found)} scenarios {len(found) - len(without)} have tests.\n"
        f"Nothing is tested yet of {', '.join(without)}, and only a part is of {', '.join(in_part)}.\n"
    )


def _scenario(scenario: Scenario) -> str:
    lines = [
        f"\n### {scenario.name}\n",
        f"{scenario.title}.\n",
        f"* Must hold: {scenario.holds}.",
        f"* Known from: {'; '.join(scenario.known_from)}.",
    ]
    lines += [f"* `{path}`: {names}" for path, names in _by_file(scenario.tests).items()]
    lines += [f"* Waits for: {feature}." for feature in scenario.waits_for]
    return "\n".join(lines) + "\n"


def _by_file(tests: tuple[str, ...]) -> dict[str, str]:
    """The names of the tests, by the file they are in."""
    found: dict[str, list[str]] = {}
    for test in tests:
        path, _, name = test.partition("::")
        short = name.removeprefix("test_dledger_trace").removeprefix("test_")
        found.setdefault(path.removeprefix("tests/"), []).append(f"`{short}`")
    return {path: ", ".join(names) for path, names in found.items()}
