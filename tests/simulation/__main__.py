"""Runs seeds by hand: `python -m tests.simulation 42 --trace`, or `... 0 --count 5000`."""

import argparse
import sys

from tests.simulation.options import Family, draw_of
from tests.simulation.seeds import describe_failure, run_many
from tests.simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seed", type=int, help="the seed, or the first of --count seeds")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--family", type=Family, choices=list(Family), default=Family.SOUND, help="what a seed draws besides"
    )
    parser.add_argument("--trace", action="store_true", help="print every step of the run")
    arguments = parser.parse_args()
    if arguments.trace:
        return trace(arguments.seed, arguments.family)
    failures = 0
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    for outcome in run_many(seeds, arguments.processes, arguments.family):
        if outcome.failure is not None:
            failures += 1
            print(outcome.failure, flush=True)
        elif arguments.count == 1:
            print(outcome.summary)
    print(f"{failures} of {arguments.count} seeds failed")
    return 1 if failures else 0


def trace(seed: int, family: Family) -> int:
    """Prints the options, every step, and how the run ended."""
    world = World(draw_of(family, seed), is_tracing=True)
    print(world.options)
    try:
        summary = world.run()
    except Exception as error:
        print("\n".join(world.checker.lines))
        print(world.describe())
        print(describe_failure(seed, error, family))
        raise
    print("\n".join(world.checker.lines))
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
