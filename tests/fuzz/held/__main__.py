"""`python -m tests.fuzz.held [--codes 34,103] [--seconds N] [--seed S] [--profile]`: for how long requests
hold an event loop.
"""

import argparse
import sys

from tests.fuzz.held.fuzzing import BOUND_MS, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.held", description="Fuzzes the CPU time of requests."
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="for each server (default %(default)s)")
    parser.add_argument("--codes", default="", help="only these request codes, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="show what took the time")
    options = parser.parse_args()
    codes = frozenset(map(int, options.codes.split(","))) if options.codes else None
    found = fuzz(options.seconds, options.seed, codes, shows_profile=options.profile, report=print)
    print(f"{len(found)} requests hold the loop for more than {BOUND_MS} ms")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
