"""`scripts/sim`: simulated clusters from seeds. One seed repeats one run; without a seed, new ones are drawn.

scripts/sim 772                    one seed, in the world it draws
scripts/sim 772 --world node --trace
scripts/sim --seconds 60           new seeds for a minute, then the table
"""

import argparse
import logging
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tests.campaign.scoreboard import Scoreboard
from tests.campaign.worlds import Run, World, run, trace
from tests.support.new_seeds import first_new_seed


def main() -> int:
    """Exit code 1 when a seed failed, or many of them did nothing."""
    parser = argparse.ArgumentParser(
        prog="scripts/sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seed", type=int, nargs="?", help="the seed, or the first of --count")
    parser.add_argument("--world", type=World, choices=list(World), help="instead of the one the seed draws")
    parser.add_argument("--count", type=int, default=1, help="so many seeds, from SEED on")
    parser.add_argument("--seconds", type=float, help="begin new seeds for so long")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print the options and every step")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the sums there, too")
    options = parser.parse_args()
    if options.seed is None and (options.seconds is None or options.trace):
        parser.error("a SEED to repeat, or --seconds for new ones")
    if options.trace:
        return print_trace(options.seed, options.world)
    logging.getLogger().addHandler(logging.NullHandler())  # what the nodes log is part of a trace only
    first = options.seed if options.seed is not None else first_new_seed()
    last = first + options.count if options.seconds is None else sys.maxsize
    begin_s = time.monotonic()
    outcomes = run_seeds(range(first, last), options.world, options.processes)
    scoreboard = watch(outcomes, options.seconds)
    show(scoreboard, time.monotonic() - begin_s, first, is_markdown=options.markdown)
    if options.json is not None:
        options.json.write_bytes(orjson.dumps(scoreboard.as_json(), option=orjson.OPT_INDENT_2))
    idle = scoreboard.idle()
    print(*idle, sep="\n", end="\n" if idle else "")
    return 1 if scoreboard.failures or idle else 0


def run_seeds(seeds: range, world: World | None, processes: int) -> Iterator[Run]:
    """The runs as they end."""
    one = partial(run, world=world)
    if processes == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(one, seeds)


def watch(outcomes: Iterator[Run], seconds: float | None) -> Scoreboard:
    """Add up the runs until they end or the time is over; failures are printed at once."""
    scoreboard = Scoreboard()
    end_s = None if seconds is None else time.monotonic() + seconds
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("the first seed")
        for outcome in outcomes:
            scoreboard.add(outcome)
            if outcome.failure is not None:
                progress.console.print(outcome.failure, soft_wrap=True, markup=False, highlight=False)
            progress.update(
                task,
                description=f"{scoreboard.seeds:,} seeds, {scoreboard.virtual_s / 3600:.1f} simulated hours, "
                f"{len(scoreboard.failures)} failed",
            )
            if end_s is not None and time.monotonic() >= end_s:
                break
    return scoreboard


def show(scoreboard: Scoreboard, real_s: float, first: int, *, is_markdown: bool) -> None:
    """The tables, and the speed."""
    console = Console()
    if is_markdown:
        console.print(scoreboard.markdown(), soft_wrap=True, markup=False, highlight=False)
    else:
        console.print(scoreboard.table())
        faults = ", ".join(f"{name} {count:,}" for name, count in scoreboard.faults().most_common() if count)
        console.print(f"faults: {faults}", highlight=False, markup=False)
    rate = scoreboard.virtual_s / real_s * 60
    console.print(
        f"seeds from {first} on; {rate:,.0f} simulated seconds in a real minute; "
        f"{len(scoreboard.failures)} seeds failed",
        highlight=False,
        soft_wrap=True,
    )


def print_trace(seed: int, world: World | None) -> int:
    lines, outcome = trace(seed, world)
    print("\n".join(lines))
    print(f"{outcome.world} seed {seed}: {outcome.failure or 'held'}")
    return 1 if outcome.failure else 0


if __name__ == "__main__":
    sys.exit(main())
