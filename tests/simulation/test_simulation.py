"""Seeded runs of whole clusters: no invariant breaks under faults, and all is well soon after they stop.

Repeat a seed with `python -m tests.simulation SEED --trace`. New seeds of all worlds are what
`python -m tests.campaign` is for. See docs/testing.md.
"""

from collections.abc import Iterable

import pytest

from tests.simulation.options import Family
from tests.simulation.seeds import known_seeds, run_many, run_one
from tests.support.long_runs import is_long_run
from tests.support.repeated_runs import traces_of

BASE_SEEDS = 300 if is_long_run() else 20


def check(seeds: Iterable[int], family: Family = Family.SOUND) -> None:
    """Runs the seeds; fails with one line for each that broke."""
    outcomes = list(run_many(seeds, 1, family))
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)
    summaries = [outcome.summary for outcome in outcomes if outcome.summary is not None]
    assert sum(summary.acknowledged for summary in summaries) > 0, "no run acknowledged anything"


@pytest.mark.parametrize("seed", known_seeds())
def test_known_seed_holds(seed: int) -> None:
    outcome = run_one(seed)
    if outcome.failure is not None:
        pytest.fail(outcome.failure, pytrace=False)


def test_base_seeds_hold() -> None:
    check(range(BASE_SEEDS))


def test_base_seeds_hold_while_disks_are_damaged() -> None:
    check(range(BASE_SEEDS), Family.DAMAGE)


def test_base_seeds_hold_while_members_change() -> None:
    check(range(BASE_SEEDS), Family.MEMBERS)


def test_seed_run_again_in_another_process_gives_the_same_run() -> None:
    """Nothing outside the seed decides a run, the order of hash tables included."""
    assert len(traces_of("tests.simulation", 7)) == 1
