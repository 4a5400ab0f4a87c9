"""Runs seeds by hand: `python -m tests.node_simulation 42 --trace`, or `... 0 --count 500 --processes 2`."""

import argparse
import gc
import sys
import time

from tests.node_simulation.options import draw_options, draw_stalling_options
from tests.node_simulation.seeds import describe_failure, run_many
from tests.node_simulation.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.node_simulation")
    parser.add_argument("seed", type=int, help="the seed, or the first of --count seeds")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0, help="begin no further seed after this time")
    parser.add_argument("--stalls", action="store_true", help="loops stand still too")
    parser.add_argument("--trace", action="store_true", help="print every step of the run")
    arguments = parser.parse_args()
    if arguments.trace:
        return trace(arguments.seed, arguments.stalls)
    end_s = time.monotonic() + arguments.seconds if arguments.seconds else None
    runs = failures = virtual_ms = 0
    begin_s = time.monotonic()
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    for outcome in run_many(seeds, arguments.processes, arguments.stalls):
        runs += 1
        if outcome.failure is not None:
            failures += 1
            print(outcome.failure, flush=True)
        elif outcome.summary is not None:
            virtual_ms += outcome.summary.virtual_ms
            if arguments.count == 1:
                print(outcome.summary)
        if end_s is not None and time.monotonic() > end_s:
            break
    elapsed_s = time.monotonic() - begin_s
    print(f"{failures} of {runs} seeds failed; {virtual_ms / 1_000:.0f} simulated s in {elapsed_s:.0f} s")
    return 1 if failures else 0


def trace(seed: int, is_stalling: bool) -> int:
    """Prints the options, every step, and how the run ended."""
    gc.disable()
    world = World((draw_stalling_options if is_stalling else draw_options)(seed), is_tracing=True)
    print(world.options)
    try:
        summary = world.run()
    except Exception as error:
        print("\n".join(world.lines))
        print(world.describe())
        print(describe_failure(seed, error, is_stalling))
        raise
    print("\n".join(world.lines))
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
