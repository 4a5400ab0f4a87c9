"""Runs many seeds, in several processes when asked, and tells a failure in one line."""

import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.simulation.options import Family
from tests.simulation.world import Summary, run_seed
from tests.support.seed_limit import seed_limit

REGRESSIONS = Path(__file__).with_name("regressions.txt")
SEEDS_PER_TASK = 10


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """How one seed ended: a summary, or one line about the failure."""

    seed: int
    summary: Summary | None
    failure: str | None


def describe_failure(seed: int, error: BaseException, family: Family = Family.SOUND) -> str:
    """One line: what broke, and the command that repeats it."""
    text = " ".join(str(error).split())
    command = f"python -m tests.simulation {seed} --family {family} --trace"
    return f"seed {seed}: {type(error).__name__}: {text[:400]} ({command})"


def run_one(seed: int, family: Family = Family.SOUND) -> SeedOutcome:
    """Runs a seed; whatever it raises becomes its failure."""
    try:
        with seed_limit():
            return SeedOutcome(seed, run_seed(seed, family=family), None)
    except Exception as error:  # noqa: BLE001 (a run may break in any way; each is a finding)
        return SeedOutcome(seed, None, describe_failure(seed, error, family))


def run_many(
    seeds: Iterable[int], processes: int = 1, family: Family = Family.SOUND
) -> Iterator[SeedOutcome]:
    """The outcomes, in the order of the seeds."""
    run = partial(run_one, family=family)
    if processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(run, seeds, chunksize=SEEDS_PER_TASK)


def known_seeds() -> list[int]:
    """The seeds of regressions.txt: one a line, `#` begins a remark."""
    lines = (line.partition("#")[0].strip() for line in REGRESSIONS.read_text().splitlines())
    return [int(line) for line in lines if line]
