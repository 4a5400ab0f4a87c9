"""Seeded runs of whole nodes: no invariant breaks under faults, and all is well soon after they stop.

Repeat a seed with `python -m tests.node_simulation SEED --trace`. New seeds of all worlds are what
`python -m tests.campaign` is for. See docs/testing.md.
"""

from collections.abc import Iterable

import pytest

from tests.node_simulation.damage import KINDS
from tests.node_simulation.seeds import SeedOutcome, known_seeds, run_many, run_one
from tests.support.repeated_runs import traces_of

BASE_SEEDS = 6


def check(outcomes: Iterable[SeedOutcome]) -> dict[str, int]:
    """Fails with one line for each seed that broke; else the faults of all."""
    ended = list(outcomes)
    failures = [outcome.failure for outcome in ended if outcome.failure is not None]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    summaries = [outcome.summary for outcome in ended if outcome.summary is not None]
    assert sum(summary.acknowledged for summary in summaries) > 0, "no run acknowledged anything"
    faults: dict[str, int] = {}
    for summary in summaries:
        for kind, times in summary.faults.items():
            faults[kind] = faults.get(kind, 0) + times
    return faults


@pytest.mark.parametrize("seed", known_seeds())
def test_known_seed_holds(seed: int) -> None:
    check([run_one(seed)])


def test_base_seeds_hold() -> None:
    faults = check(run_many(range(BASE_SEEDS)))
    assert {"kill", "power failure"} <= faults.keys()
    assert {f"damage: {kind}" for kind in KINDS} & faults.keys(), "no disk was damaged"


def test_seed_run_again_in_another_process_gives_the_same_run() -> None:
    """Nothing outside the seed decides a run, the order of hash tables included."""
    assert len(traces_of("tests.node_simulation", 7)) == 1
