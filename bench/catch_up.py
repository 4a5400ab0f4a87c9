"""A machine is replaced: one node of three loses its disk and comes back empty, under several loads.

usage: python -m bench.catch_up [--gib 4] [--load idle 5000 full] [--in-flight 2000] [--shared] [--save NAME]

Writes bench/results/growth-NAME.json; growth-replaced.json and growth-replaced-large.json are on the page.
For each load: how fast the node gets the log, when it has applied it and can lead, and what producers get
meanwhile. Durability is `persisted` throughout.

--shared is for a disk that cannot hold three logs: the node is away while the log is written, and the other
two then have one copy of its full files, which never change.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from bench.growth_runs import Background, Say, cluster, status, wait_position
from bench.processes import cpu_time_s, end_on_signals
from bench.results_file import machine, save
from bench.sequential_disk import disk_speeds
from bench.sides import LedgerMQ
from ledgermq.load.cluster import ask
from ledgermq.load.run import Load
from remoting.codes import RequestCode
from tests.integration.wire import WireError, call

GIB = 1 << 30
NEAR_BYTES = 8 << 20
"""At this distance of a leader under load, or less, it has caught up: the rest is under way."""
POLL_S = 0.2
LIMIT_S = 1_200.0
IDLE, FULL = "idle", "full"
BASE_S = 8.0
"""How long producers are measured before and after."""


class Phases:
    """What producers get, and the CPU time of the nodes, from one mark to the next."""

    def __init__(self, nodes: dict[str, psutil.Process], load: Background | None) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._nodes = nodes
        self._load = load
        self._begin()

    def _begin(self) -> None:
        self._begun_s = time.monotonic()
        self._cpu_s = {name: _cpu_time_s(process) for name, process in self._nodes.items()}
        if self._load is not None:
            self._load.run.take_latencies()
            self._acknowledged = self._load.run.acknowledged

    def set_node(self, name: str, process: psutil.Process) -> None:
        """It was started again."""
        self._nodes[name], self._cpu_s[name] = process, 0.0

    def end(self, name: str) -> dict[str, Any]:
        """The phase that ends now has this name."""
        took_s = time.monotonic() - self._begun_s
        figures: dict[str, Any] = {"seconds": round(took_s, 2)}
        cores = {node: _cpu_time_s(one) - self._cpu_s[node] for node, one in self._nodes.items()}
        figures["cores"] = {node: round(value / took_s, 2) for node, value in cores.items() if value > 0}
        if self._load is not None:
            done = self._load.run.acknowledged - self._acknowledged
            figures["per_second"] = round(done / took_s, 1)
            figures |= self._load.run.take_latencies().summary_ms()
        self.found[name] = figures
        self._begin()
        return figures


def _cpu_time_s(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return cpu_time_s(process)
    return 0.0


def replace_machine(side: LedgerMQ, name: str, follower: str, load: Load | None, say: Say) -> dict[str, Any]:
    """The follower is killed, if it runs, and its disk emptied; then it is started again, and observed until
    it leads.
    """
    leader = side.leader()
    background = None if load is None else Background(side, "CatchUp", load)
    try:
        found = _replace(side, name, (leader, follower), background, say)
    finally:
        result = None if background is None else background.stop()
    if result is not None:
        found["errors"] = result.errors
    say(f"{name}: the new node takes over")
    return found | {"took_over_s": _take_over(side, leader, follower)}


def remove_machine(side: LedgerMQ, follower: str) -> None:
    """It is killed, and its disk emptied."""
    process = side.nodes()[follower]
    process.kill()
    process.wait()
    shutil.rmtree(side.data / follower / "store")


def share_full_files(side: LedgerMQ, leader: str, follower: str) -> None:
    """The follower's full files of the log become hard links to the leader's."""
    process = side.nodes()[follower]
    process.kill()
    process.wait()
    own, others = (side.data / node / "store" / f"dledger-{node}" / "data" for node in (follower, leader))
    for file in sorted(own.iterdir())[:-1]:
        file.unlink()
        file.hardlink_to(others / file.name)
    side.start_node(follower)
    end_s = time.monotonic() + 60
    while not ask(side.namesrv, lambda one: one.send("BenchFirst")):
        if time.monotonic() > end_s:
            raise SystemExit("No leader after the full files are shared.")
        time.sleep(0.1)


def _replace(
    side: LedgerMQ, name: str, pair: tuple[str, str], background: Background | None, say: Say
) -> dict[str, Any]:
    leader, follower = pair
    if background is not None:
        time.sleep(3.0)
    phases = Phases(side.nodes(), background)
    if follower in side.nodes():
        if background is not None:
            say(f"{name}: all three nodes")
            time.sleep(BASE_S)
            phases.end("before")
        remove_machine(side, follower)
    if background is not None:
        say(f"{name}: two nodes")
        time.sleep(BASE_S)
        phases.end("away")
    started_s = time.monotonic()
    side.start_node(follower)
    phases.set_node(follower, side.nodes()[follower])
    samples, applied_s = _follow(side, leader, follower, phases, say)
    if background is not None:
        say(f"{name}: all three nodes again")
        time.sleep(BASE_S)
        phases.end("after")
    return _figures(samples, started_s, applied_s) | {"phases": phases.found}


Sample = tuple[float, int, int, int]
"""When; log end of the new node and of the leader; entries that the new node has not applied."""


def _follow(
    side: LedgerMQ, leader: str, follower: str, phases: Phases, say: Say
) -> tuple[list[Sample], float]:
    """Samples until the new node has the log; and when it had applied it."""
    samples: list[Sample] = []
    is_near = False
    limit_s = time.monotonic() + LIMIT_S
    while time.monotonic() < limit_s:
        own, ahead = status(side, follower), status(side, leader)
        if own.get("endPosition") and ahead.get("endPosition"):
            left = own["endIndex"] - own["appliedIndex"]
            samples.append((time.monotonic(), own["endPosition"], ahead["endPosition"], left))
            lack = ahead["endPosition"] - own["endPosition"]
            say(f"lacks {lack / GIB:.2f} GiB, has {left} entries to apply")
            if not is_near and lack <= NEAR_BYTES:
                is_near = True
                phases.end("catching_up")
                near_count = len(samples)
            if is_near and left * 1024 <= NEAR_BYTES:
                phases.end("applying")
                return samples[:near_count], time.monotonic()
        time.sleep(POLL_S)
    raise SystemExit(f"The node did not catch up within {LIMIT_S:g} s.")


def _figures(samples: list[Sample], started_s: float, applied_s: float) -> dict[str, Any]:
    (first_s, first, _, _), (last_s, last, _, _) = samples[0], samples[-1]
    return {
        "gib": round(last / GIB, 2),
        "caught_up_after_s": round(last_s - started_s, 2),
        "applied_after_s": round(applied_s - started_s, 2),
        "mb_per_second": round((last - first) / 1e6 / max(POLL_S, last_s - first_s), 1),
        "samples": [
            (round(at - started_s, 2), *rest) for at, *rest in samples[:: max(1, len(samples) // 60)]
        ],
    }


def _take_over(side: LedgerMQ, leader: str, follower: str) -> float:
    """Seconds from asking the leader to hand over to the first message that the new node acknowledges. It
    refuses until it has heard that the node has its vote again.
    """
    begun_s = time.monotonic()
    while time.monotonic() < begun_s + 60:
        with suppress(WireError):
            call(side.address(leader), RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": follower})
        for _ in range(40):
            if ask(side.namesrv, lambda one: one.send("BenchFirst", side.address(follower))):
                return round(time.monotonic() - begun_s, 2)
            time.sleep(0.025)
    raise SystemExit(f"{follower} did not take over.")


def write_log(side: LedgerMQ, gib: float, is_shared: bool, say: Say) -> str | None:
    """The node that is away afterwards, which only a shared log has."""
    follower, other = _followers(side)
    if is_shared:
        remove_machine(side, follower)
    fill = Background(side, "CatchUp", Load(in_flight=2000))
    try:
        wait_position(side, side.leader(), int(gib * GIB), say, "writing the log")
    finally:
        fill.stop()
    if not is_shared:
        return None
    share_full_files(side, side.leader(), other)
    return follower


def _followers(side: LedgerMQ) -> list[str]:
    return sorted(node for node in side.nodes() if node != side.leader())


def run(
    gib: float, loads: list[str], in_flight: int, folder: Path | None, say: Say, *, is_shared: bool = False
) -> dict[str, Any]:
    say("the disk's sequential speed")
    found: dict[str, Any] = {"disk_mb_s": disk_speeds(folder), "runs": {}}
    with cluster(folder) as side:
        away = write_log(side, gib, is_shared, say)
        for name in loads:
            load = None if name == IDLE else Load(in_flight=in_flight)
            if load is not None and name != FULL:
                load = replace(load, rate=float(name))
            follower = away or _followers(side)[0]
            away = None
            found["runs"][name] = replace_machine(side, name, follower, load, say)
            found["runs"][name]["shares"] = _shares(found["runs"][name], found["disk_mb_s"])
            print(name, json.dumps({**found["runs"][name], "samples": 0}), file=sys.stderr, flush=True)
    return found


def _shares(one: dict[str, Any], disk_mb_s: dict[str, float]) -> dict[str, float]:
    """Of the disk's speed, and of the throughput that producers have while the node is away or all are up."""
    shares = {"of_disk": one["mb_per_second"] / max(disk_mb_s.values())}
    phases = one["phases"]
    for base in ("before", "away"):
        if base in phases:
            shares[f"of_{base}"] = phases["catching_up"]["per_second"] / phases[base]["per_second"]
    return {name: round(value, 3) for name, value in shares.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--gib", type=float, default=4.0, help="length of the log at the beginning")
    parser.add_argument(
        "--load", nargs="*", default=[IDLE, "5000", FULL], help="idle, full, or sends a second"
    )
    parser.add_argument("--in-flight", type=int, default=2000)
    parser.add_argument("--shared", action="store_true", help="two nodes share one copy of the log")
    parser.add_argument("--folder", type=Path, help="where the logs are written")
    parser.add_argument("--save", metavar="NAME", help="writes bench/results/growth-NAME.json")
    arguments = parser.parse_args()
    end_on_signals()
    measured_on = machine()
    say = _Saying()
    is_shared = arguments.shared
    result = run(
        arguments.gib, arguments.load, arguments.in_flight, arguments.folder, say, is_shared=is_shared
    )
    load = {"in_flight": arguments.in_flight, "size": Load().size, "gib": arguments.gib, "shared": is_shared}
    load["command"] = shlex.join(["python", "-m", "bench.catch_up", *sys.argv[1:]])
    load["durability"] = "persisted: on the disks (fdatasync) of a majority of the nodes"
    if arguments.save:
        print(save(f"growth-{arguments.save}", load, result, measured_on))


class _Saying:
    """Prints what is being done, at most once in three seconds."""

    def __init__(self) -> None:
        self._said_s = 0.0

    def __call__(self, text: str) -> None:
        if (now_s := time.monotonic()) - self._said_s >= 3:
            self._said_s = now_s
            print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
