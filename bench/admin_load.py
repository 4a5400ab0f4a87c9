"""What users of the admin service cost a cluster on the same machine: throughput, and CPU of each process.

Ten pages are open (event streams), and one user opens lists and details once a second. They come and go
(ABBA) under one unbroken closed loop of sends, on the same cores as the admin process and themselves, who
elsewhere have cores of their own. Each stretch without them is paired with the one beside it with them; what
they cost is the median of the pairs' ratios, with a bootstrap interval.

usage: python -m bench.admin_load [--pairs 24] [--seconds 2.5] [--nice N] [--in-memory] [--save admin-load]

With the log in memory (`--in-memory`, Linux) CPU is all that bounds throughput: no disk's moods hide what a
process beside the brokers takes from them, nor do they look like it.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.admin_viewers import OFF, ON, PATHS
from bench.load import Where, prepare
from bench.processes import cpu_time_s
from bench.results_file import read, save
from ledgermq.load.run import SERIES_S, Load, Run
from tests.integration.cluster import Cluster

PAGES = 10
CLICKS_PER_S = 1.0
IN_FLIGHT = 64
SETTLED_AFTER_S = 2.0
WARMUP_S = 1.0
IDLE_PAIRS = 2
SKIPPED = 1
"""Of each stretch's half seconds, those in which the viewers come or go."""
SIDES = {"without": False, "with_viewers": True}
RESAMPLES = 5_000
INTERVAL = 0.95
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Plan:
    """`nice`: of the admin process, instead of what `ledgermq up` gave it; `size`: bytes of a message."""

    pairs: int
    seconds: float
    topics: int
    nice: int | None
    size: int
    in_memory: bool


class Viewers:
    """The process of the simulated viewers."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "bench.admin_viewers", "127.0.0.1", str(port)]
        command += ["--pages", str(PAGES), "--clicks-per-s", str(CLICKS_PER_S)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.process = psutil.Process(self._process.pid)

    def tell(self, word: str) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(word, file=stdin, flush=True)
        assert stdout.readline().strip() == word, "the viewers have stopped looking"

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass(slots=True)
class Stretches:
    """Periods with and without viewers, by the clock of a load, and the CPU cores that each process used."""

    viewers: Viewers
    processes: Mapping[str, psutil.Process]
    sides: Sequence[bool]
    seconds: float
    clock_s: Callable[[], float]
    cores: list[dict[str, float]] = field(default_factory=list)

    def run(self) -> None:
        """From the warm-up's end on."""
        self._wait_till(WARMUP_S)
        is_on = False
        for number, are_there in enumerate(self.sides):
            before, began_s = self._cpu_s(), time.monotonic()
            if are_there != is_on:
                self.viewers.tell(ON if are_there else OFF)
                is_on = are_there
            self._wait_till(WARMUP_S + (number + 1) * self.seconds)
            after, elapsed_s = self._cpu_s(), time.monotonic() - began_s
            self.cores.append({name: (after[name] - before[name]) / elapsed_s for name in after})
        if is_on:
            self.viewers.tell(OFF)

    def _wait_till(self, at_s: float) -> None:
        while (left_s := at_s - self.clock_s()) > 0:
            time.sleep(min(left_s, 0.1))

    def _cpu_s(self) -> dict[str, float]:
        return {name: cpu_time_s(process) for name, process in self.processes.items()}

    def rates(self, series: Sequence[int]) -> list[float]:
        """Messages a second of each stretch, but for its beginning; `series`: of each half second."""
        steps = round(self.seconds / SERIES_S)
        first = round(WARMUP_S / SERIES_S)
        found = []
        for number in range(len(self.sides)):
            part = series[first + number * steps + SKIPPED : first + (number + 1) * steps]
            found.append(sum(part) / (len(part) * SERIES_S))
        return found


def measure(plan: Plan) -> dict[str, Any]:
    """Both phases over one cluster."""
    with tempfile.TemporaryDirectory(dir=MEMORY if plan.in_memory else None) as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start(admin=True)
            admin = cluster.processes()["admin_api"]
            if plan.nice is not None:
                set_nice(admin, plan.nice)
            prepare(Where(cluster.namesrv, "Crowd", topics=plan.topics, queues=4))
            where = Where(cluster.namesrv)
            address = prepare(where)
            viewers = Viewers(cluster.admin_port)
            try:
                viewers.tell(ON)
                time.sleep(len(PATHS) / CLICKS_PER_S)  # a process makes some things at their first use
                viewers.tell(OFF)
                time.sleep(SETTLED_AFTER_S)
                idle = _idle(cluster, viewers, plan)
                producing = _producing(cluster, viewers, plan, Run(_load(plan), address, where.targets))
            finally:
                viewers.end()
            return {"admin_nice": int(admin.nice()), "nobody_produces": idle, "producing": producing}
        finally:
            cluster.stop()


def set_nice(process: psutil.Process, nice: int) -> None:
    """Also of its session, which `ledgermq up` gives each process of its own."""
    process.nice(nice)
    autogroup = Path(f"/proc/{process.pid}/autogroup")
    if autogroup.exists():
        autogroup.write_text(str(nice))


def _load(plan: Plan) -> Load:
    seconds = 2 * plan.pairs * plan.seconds
    return Load(in_flight=IN_FLIGHT, size=plan.size, seconds=seconds, warmup_s=WARMUP_S)


def _stretches(
    cluster: Cluster, viewers: Viewers, plan: Plan, pairs: int, clock_s: Callable[[], float]
) -> Stretches:
    sides = [
        side for number in range(pairs) for side in ((False, True) if number % 2 == 0 else (True, False))
    ]
    processes = {**cluster.processes(), "viewers": viewers.process}
    return Stretches(viewers, processes, sides, plan.seconds, clock_s)


def _idle(cluster: Cluster, viewers: Viewers, plan: Plan) -> dict[str, Any]:
    began_s = time.monotonic()
    stretches = _stretches(cluster, viewers, plan, IDLE_PAIRS, lambda: time.monotonic() - began_s)
    stretches.run()
    return _cores(cluster, stretches)


def _producing(cluster: Cluster, viewers: Viewers, plan: Plan, run: Run) -> dict[str, Any]:
    stretches = _stretches(cluster, viewers, plan, plan.pairs, lambda: run.elapsed_s)
    thread = threading.Thread(target=stretches.run)
    thread.start()
    result = run.measure()
    thread.join()
    rates = stretches.rates(result.series)
    found = _cores(cluster, stretches)
    ratios = ratios_of(stretches.sides, rates)
    for name, side in SIDES.items():
        own = [rate for rate, are_there in zip(rates, stretches.sides, strict=True) if are_there is side]
        found[name]["messages_per_s"] = round(statistics.median(own), 1)
    low, high = bootstrap(ratios)
    found["ratio"] = {
        "median": round(statistics.median(ratios), 4),
        "interval_95": [round(low, 4), round(high, 4)],
        "of_pairs": [None if math.isinf(ratio) else round(ratio, 4) for ratio in ratios],
    }
    return found


def _cores(cluster: Cluster, stretches: Stretches) -> dict[str, Any]:
    """Means: CPU time is counted in hundredths of a second."""
    found: dict[str, Any] = {}
    for name, side in SIDES.items():
        rows = [
            row for row, are_there in zip(stretches.cores, stretches.sides, strict=True) if are_there is side
        ]
        mean = {process: statistics.fmean(row[process] for row in rows) for process in rows[0]}
        found[name] = {
            "brokers_cores": round(sum(mean[node_id] for node_id in cluster.nodes), 4),
            "admin_cores": round(mean["admin_api"], 4),
            "viewers_cores": round(mean["viewers"], 4),
        }
    return found


def ratios_of(sides: Sequence[bool], rates: Sequence[float]) -> list[float]:
    """With viewers to without, of each pair; infinite where only the disk stalled through the latter."""
    found = []
    for at in range(0, len(rates), 2):
        pair = dict(zip(sides[at : at + 2], rates[at : at + 2], strict=True))
        if pair[False]:
            found.append(pair[True] / pair[False])
        else:
            found.append(math.inf if pair[True] else 1.0)
    return found


def bootstrap(values: Sequence[float], seed: int = 1) -> tuple[float, float]:
    """The bootstrap interval of the median: `values` are resampled with replacement."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    rest = round(RESAMPLES * (1 - INTERVAL) / 2)
    return medians[rest], medians[-rest - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=2.5, help="of a stretch, in halves")
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--nice", type=int, help="of the admin process (lowering it takes a privilege)")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message")
    parser.add_argument("--in-memory", action="store_true", help="keep the log in /dev/shm")
    parser.add_argument("--save", help="name of the file in bench/results; runs of other kinds in it stay")
    values: dict[str, Any] = vars(parser.parse_args())
    name: str | None = values.pop("save")
    plan = Plan(**values)
    result = measure(plan)
    nice = result.pop("admin_nice")
    for phase, found in result.items():
        for side, figures in found.items():
            print(f"{phase:16} {side:13}", *(f"{key} {value}" for key, value in figures.items()))
    if name:
        key = f"{'log_in_memory' if plan.in_memory else 'log_on_disk'}_admin_nice_{nice}"
        older = (read(name) or {}).get("result", {})
        kept = {run: figures for run, figures in older.items() if run.startswith("log_")}
        load = {"pages": PAGES, "clicks_per_s": CLICKS_PER_S, "in_flight": IN_FLIGHT, **values}
        print(save(name, load, {**kept, key: result}))


if __name__ == "__main__":
    main()
