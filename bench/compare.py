"""LedgerMQ and its rivals: each round starts every side, loads it, counts its stored messages, and stops it.

Every scenario warms its side up for a minute with the load that it then measures (`--warmup-s`). Only
`cold64` shows a side just after its start.

usage: python -m bench.compare [--rounds 3] [--scenario sync64 …] [--side ledgermq …] [--save all]

The rivals come by `bench/get_rivals.sh`. Absolute figures belong to one machine; the ratios of one run count.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from bench import scenarios
from bench.processes import end_on_signals
from bench.results_file import machine, save
from bench.rivals import JavaDLedger, JavaSingle, Nats, rivals_folder
from bench.scenarios import SCENARIOS, Scenario, Times
from bench.sides import LedgerMQ, LedgerMQWithTls, LedgerMQWithTlsForAll, Side
from bench.summary import START, Measured, failed, idle_aim, lost, ratios, summarize
from ledgermq.errors import UserError
from remoting.errors import RemotingError

SIDES: dict[str, type[Side]] = {side.name: side for side in (LedgerMQ, JavaDLedger, JavaSingle, Nats)}
SIDES_ON_REQUEST: dict[str, type[Side]] = {
    side.name: side for side in (LedgerMQWithTls, LedgerMQWithTlsForAll)
}
START_S = {"ledgermq": 5.0, "java-dledger": 30.0, "java-single": 15.0, "nats": 8.0}
"""About how long a start takes, for the progress bar."""
FREE_GIB = 60
"""The logs of one side's loads, three times over, until it is stopped."""


FAILURES = (SystemExit, UserError, RemotingError, subprocess.SubprocessError, OSError)
"""Errors that end only one scenario of one side; the others continue."""


class Comparison:
    """Sides in turn, the order reversed in every other round so that none is always first."""

    def __init__(self, arguments: argparse.Namespace, times: Times, progress: Progress) -> None:
        self._arguments = arguments
        self._times = times
        self._progress = progress
        self._machine = machine()
        self.about: dict[str, dict[str, str]] = {}
        self.measured: list[Measured] = []
        total_s = arguments.rounds * sum(self._side_s(name) for name in arguments.side)
        self._bar = progress.add_task("", total=total_s)

    def _side_s(self, name: str) -> float:
        start_s = START_S.get(name, START_S["ledgermq"])
        return start_s + sum(scenario.load_s(self._times) for scenario in self._scenarios(name))

    def _scenarios(self, side: str) -> list[Scenario]:
        wanted = self._arguments.scenario
        like = LedgerMQ.name if side in SIDES_ON_REQUEST else side
        return [one for one in SCENARIOS if like in one.sides and one.name in wanted]

    def run(self) -> None:
        for number in range(self._arguments.rounds):
            for name in self._arguments.side if number % 2 == 0 else self._arguments.side[::-1]:
                self._run_side(number, name)
                self._write()

    def _run_side(self, number: int, name: str) -> None:
        if not self._scenarios(name):
            return
        with tempfile.TemporaryDirectory(prefix="bench-", dir=self._arguments.folder) as folder:
            side = (SIDES | SIDES_ON_REQUEST)[name](Path(folder))
            self._tell(number, side, "starts")
            self.about[name] = {"title": side.title, "durability": side.durability, "version": side.version}
            try:
                self._take(number, name, START, {"seconds": round(side.start(), 3)})
                self._run_scenarios(number, side)
            except FAILURES as error:
                self._take(number, name, START, {"failed": str(error)})
            finally:
                side.stop()

    def _run_scenarios(self, number: int, side: Side) -> None:
        self._progress.advance(self._bar, START_S.get(side.name, START_S["ledgermq"]))
        for scenario in self._scenarios(side.name):
            self._tell(number, side, scenario.title)
            topic = f"Bench{scenario.name.replace('-', '')}"
            try:
                figures = scenarios.measure(scenario, side, topic, self._times)
            except FAILURES as error:
                figures = {"failed": str(error)}
            self._take(number, side.name, scenario.name, figures)
            self._progress.advance(self._bar, scenario.load_s(self._times))

    def _take(self, number: int, side: str, scenario: str, figures: dict[str, Any]) -> None:
        self.measured.append({"round": number, "side": side, "scenario": scenario, "figures": figures})
        shown = (
            "per_second",
            "p50_ms",
            "p99_ms",
            "all_nodes_us_per_message",
            "seconds",
            "gap_s",
            "idle_cpu_percent",
            "lost",
            "errors",
            "failed",
        )
        words = ", ".join(f"{name} {figures[name]}" for name in shown if figures.get(name) not in (None, {}))
        self._progress.console.print(
            f"round {number + 1}  {side:13} {scenario:15} {words}", highlight=False, soft_wrap=True
        )

    def _tell(self, number: int, side: Side, what: str) -> None:
        text = f"round {number + 1} of {self._arguments.rounds}: {side.title}: {what}"
        self._progress.update(self._bar, description=text)

    def _write(self) -> None:
        """Save after every side, so that an interrupted run keeps its measurements."""
        load = asdict(self._times) | {"rounds": self._arguments.rounds, "command": command(sys.argv[1:])}
        result = {
            "sides": self.about,
            "scenarios": {one.name: {"title": one.title, "client": one.client} for one in SCENARIOS},
            "ratios": ratios(self.measured),
            "idle": idle_aim(self.measured),
            "summary": summarize(self.measured),
            "measured": self.measured,
        }
        save(f"compare-{self._arguments.save}", load, result, self._machine)


def command(arguments: Sequence[str]) -> str:
    """The command to repeat it on another machine: without `--folder`, a path of this machine."""
    words = list(arguments)
    if "--folder" in words:
        at = words.index("--folder")
        del words[at : at + 2]
    return shlex.join(["python", "-m", "bench.compare", *words])


def show(measured: Sequence[Measured], about: dict[str, dict[str, str]], console: Console) -> None:
    table = Table(title="Ratios of the medians (least and most of the rounds)", title_justify="left")
    for name in ("scenario", "figure", "LedgerMQ", "rival", "its figure", "ratio", "aim", ""):
        table.add_column(name, justify="left" if name in ("scenario", "figure", "rival", "") else "right")
    for row in ratios(measured):
        table.add_row(
            *(row["scenario"], row["figure"], f"{row['ours']:,.4g}", row["rival"], f"{row['theirs']:,.4g}"),
            f"{row['ratio']:.3g} ({row['ratio_min']:.3g} to {row['ratio_max']:.3g})",
            *(row["aim"], "met" if row["met"] else "missed"),
        )
    console.print(table)
    if (idle := idle_aim(measured)) is not None:
        console.print(f"idle CPU of a node: {idle['ours']:.2f} % of a core, aim {idle['aim']}")
    for name, side in about.items():
        console.print(
            f"{name}: {side['version']}; acknowledged means {side['durability']}",
            highlight=False,
            soft_wrap=True,
        )
    for one in failed(measured):
        console.print(
            f"round {one['round'] + 1}, {one['side']}, {one['scenario']}: {one['figures']['failed']}"
        )
    console.print(f"acknowledged messages of LedgerMQ that were not there afterwards: {lost(measured)}")


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, Times]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scenario", nargs="*", choices=names, default=names, metavar="NAME", help=str(names)
    )
    parser.add_argument("--side", nargs="*", choices=[*SIDES, *SIDES_ON_REQUEST], default=list(SIDES))
    parser.add_argument(
        "--folder", type=Path, help="where the logs are written; the temporary folder if not set"
    )
    parser.add_argument(
        "--save", default="all", metavar="NAME", help="writes bench/results/compare-NAME.json"
    )
    for one in fields(Times):
        kind = int if one.type == "int" else float
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=kind, default=one.default)
    found = parser.parse_args(arguments)
    return found, Times(**{one.name: getattr(found, one.name) for one in fields(Times)})


def main() -> None:
    arguments, times = parse_arguments()
    end_on_signals()
    rivals_folder()
    free = shutil.disk_usage(arguments.folder or tempfile.gettempdir()).free
    if free < FREE_GIB << 30:
        raise SystemExit(
            f"{free >> 30} GiB are free where the logs go; {FREE_GIB} are needed (see --folder)."
        )
    console = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=1) as progress:
        comparison = Comparison(arguments, times, progress)
        comparison.run()
    show(comparison.measured, comparison.about, Console())
    sys.exit(1 if lost(comparison.measured) or failed(comparison.measured) else 0)


if __name__ == "__main__":
    main()
