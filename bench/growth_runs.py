"""How cost grows: each function starts its own clusters, and returns the figures of one question."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.load import Where, prepare
from bench.processes import UsageMeter
from bench.scenarios import count_stored
from bench.sides import LedgerMQ
from ledgermq.load.cluster import ask
from ledgermq.load.run import SERIES_S, Load, LoadResult, Run

MIB = 1 << 20
GIB = 1 << 30
CAUGHT_UP_BYTES = 8 * MIB
"""A follower at this distance (or less) of a leader under load has caught up: the rest is in flight."""
_POLL_S = 0.25
_CATCH_UP_LIMIT_S = 600.0
Say = Callable[[str], None]


@contextmanager
def cluster(folder: Path | None, nodes: int = 3) -> Iterator[LedgerMQ]:
    """Three nodes, durability persisted, in a folder that is removed afterwards."""
    with TemporaryDirectory(prefix="bench-", dir=folder) as own:
        side = LedgerMQ(Path(own), nodes=nodes)
        try:
            side.start()
            yield side
        finally:
            side.stop()


class Background:
    """A load that runs until it is told to stop."""

    def __init__(self, side: LedgerMQ, topic: str, load: Load) -> None:
        where = Where(side.namesrv, topic)
        self.run = Run(replace(load, seconds=24 * 3600.0, warmup_s=0.0), prepare(where), where.targets)
        self.result: LoadResult | None = None
        self._thread = threading.Thread(target=self._measure)
        self._thread.start()

    def _measure(self) -> None:
        self.result = self.run.measure()

    def stop(self) -> LoadResult:
        self.run.end_now()
        self._thread.join()
        assert self.result is not None
        return self.result


def rate_between(series: list[int], from_s: float, to_s: float) -> float:
    """Messages a second in the whole steps of a series between two times since its start."""
    first, last = -int(-from_s // SERIES_S), int(to_s / SERIES_S)
    steps = series[first:last]
    return sum(steps) / (len(steps) * SERIES_S) if steps else 0.0


def status(side: LedgerMQ, node_id: str) -> dict[str, Any]:
    """The runtime information of a node; empty while it does not answer."""
    address = side.address(node_id)
    return ask(side.namesrv, lambda cluster: cluster.node_status(address))


def end_position(side: LedgerMQ, node_id: str) -> int:
    return int(status(side, node_id).get("endPosition", 0))


def wait_position(side: LedgerMQ, node_id: str, position: int, say: Say, what: str) -> None:
    while (now := end_position(side, node_id)) < position:
        say(f"{what}: {now / GIB:.2f} of {position / GIB:.2f} GiB")
        time.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Spread:
    """One case: over how many topics, queues and connections a load is spread."""

    name: str
    topics: int = 1
    queues: int = 8
    connections: int = 1


SPREADS = (
    Spread("one topic"),
    Spread("500 connections", connections=500),
    Spread("1,000 topics", topics=1000, queues=1),
    Spread("10,000 queues", topics=1000, queues=10),
    Spread("1,000 topics, 10,000 queues, 500 connections", topics=1000, queues=10, connections=500),
)


def spread(load: Load, rounds: int, folder: Path | None, say: Say) -> dict[str, Any]:
    """Throughput of the same load over few and over many topics, queues and connections."""
    found: dict[str, list[dict[str, Any]]] = {case.name: [] for case in SPREADS}
    for number in range(rounds):
        for case in SPREADS:
            with cluster(folder) as side:
                say(f"round {number + 1} of {rounds}: {case.name}: making topics")
                where = Where(side.namesrv, "Spread", case.topics, case.queues)
                address = prepare(where)
                say(f"round {number + 1} of {rounds}: {case.name}: load")
                own = replace(load, connections=case.connections)
                with UsageMeter(side.nodes()) as meter:
                    result = Run(own, address, where.targets).measure()
                leader_s = meter.usage[side.leader()].cpu_s
            own_us = round(leader_s * 1e6 / max(1, result.acknowledged), 1)
            found[case.name].append(result.as_json() | {"leader_us": own_us})
    medians = medians_of(found, "per_second")
    base = medians[SPREADS[0].name]
    falls = {name: round((1 - value / base) * 100, 1) for name, value in medians.items() if base}
    leader_us = medians_of(found, "leader_us")
    return {"per_second": medians, "fall_percent": falls, "leader_us": leader_us, "runs": found}


def medians_of(found: dict[str, list[dict[str, Any]]], figure: str) -> dict[str, float]:
    return {name: statistics.median(one[figure] for one in runs) for name, runs in found.items()}


def restart(gib: list[float], size: int, nodes: int, folder: Path | None, say: Say) -> dict[str, Any]:
    """Seconds from start to writable, after an orderly stop and after kill -9, by the size of the log."""
    found = []
    with cluster(folder, nodes) as side:
        for goal in gib:
            load = Background(side, "Restart", Load(in_flight=512, connections=4, size=size))
            try:
                wait_position(side, side.leader(), int(goal * GIB), say, "writing the log")
            finally:
                load.stop()
            length = end_position(side, side.leader())
            say(f"{length / GIB:.2f} GiB: stop and start")
            side.stop()
            orderly_s = side.start()
            say(f"{length / GIB:.2f} GiB: kill -9 and start")
            for process in side.nodes().values():
                process.kill()
            side.stop()
            killed_s = side.start()
            found.append(
                {
                    "log_gib": round(length / GIB, 2),
                    "nodes": nodes,
                    "body_bytes": size,
                    "after_stop_s": round(orderly_s, 2),
                    "after_kill_s": round(killed_s, 2),
                }
            )
    return {"restarts": found}


def catch_up(missed_gib: float, load: Load, before_s: float, folder: Path | None, say: Say) -> dict[str, Any]:
    """A follower is killed, and started again once it lacks `missed_gib`; the load never stops."""
    with cluster(folder) as side:
        disk_mb_s = disk_speed(folder)
        leader = side.leader()
        follower = next(node for node in side.nodes() if node != leader)
        say("all three nodes under load")
        background = Background(side, "CatchUp", load)
        time.sleep(2.0)
        marks = {"warm": background.run.elapsed_s}
        time.sleep(before_s)
        marks["killed"] = background.run.elapsed_s
        side.nodes()[follower].kill()
        missed_from = end_position(side, leader)
        wait_position(side, leader, missed_from + int(missed_gib * GIB), say, "the follower is away")
        marks["started"] = background.run.elapsed_s
        side.start_node(follower)
        samples = _follow(side, leader, follower, background.run, say)
        marks["caught_up"] = background.run.elapsed_s
        time.sleep(before_s / 2)
        marks["end"] = background.run.elapsed_s
        result = background.stop()
        stored = count_stored(side.namesrv, "CatchUp", result.acknowledged)
    return _catch_up_figures(result.series, marks, samples) | stored | {"disk_mb_s": disk_mb_s}


def _follow(side: LedgerMQ, leader: str, follower: str, run: Run, say: Say) -> list[tuple[float, int, int]]:
    """Time since the start of the load, log end of follower and leader, until the follower has caught up."""
    samples: list[tuple[float, int, int]] = []
    limit_s = time.monotonic() + _CATCH_UP_LIMIT_S
    while True:
        try:
            own, ahead = end_position(side, follower), end_position(side, leader)
        except (OSError, ValueError):
            own, ahead = 0, 0
        if own and ahead:
            samples.append((round(run.elapsed_s, 2), own, ahead))
            say(f"the follower is {(ahead - own) / MIB:.0f} MiB behind")
            if ahead - own <= CAUGHT_UP_BYTES:
                return samples
        if time.monotonic() > limit_s:
            raise SystemExit(f"The follower did not catch up within {_CATCH_UP_LIMIT_S:g} s.")
        time.sleep(_POLL_S)


def _catch_up_figures(
    series: list[int], marks: dict[str, float], samples: list[tuple[float, int, int]]
) -> dict[str, Any]:
    phases = {
        "before": rate_between(series, marks["warm"], marks["killed"]),
        "away": rate_between(series, marks["killed"], marks["started"]),
        "catching_up": rate_between(series, marks["started"], marks["caught_up"]),
        "after": rate_between(series, marks["caught_up"], marks["end"]),
    }
    (first_s, first, _), (last_s, last, _) = samples[0], samples[-1]
    fall = (1 - phases["catching_up"] / phases["before"]) * 100 if phases["before"] else None
    return {
        "caught_up_after_s": round(marks["caught_up"] - marks["started"], 2),
        "mb_per_second": round((last - first) / 1e6 / max(_POLL_S, last_s - first_s), 1),
        "leader_fall_percent": None if fall is None else round(fall, 1),
        "per_second": {name: round(value, 1) for name, value in phases.items()},
        "marks_s": {name: round(value, 2) for name, value in marks.items()},
        "samples": samples,
        "series": series,
    }


def disk_speed(folder: Path | None, total_bytes: int = 2 * GIB) -> float:
    """MB/s of one file written from its beginning to its end and then synced; the better of two."""
    block = os.urandom(MIB)
    speeds = []
    with TemporaryDirectory(prefix="bench-", dir=folder) as own:
        for number in range(2):
            began_s = time.perf_counter()
            with (Path(own) / f"{number}").open("wb", buffering=0) as file:
                for _ in range(total_bytes // MIB):
                    file.write(block)
                os.fdatasync(file.fileno())
            speeds.append(total_bytes / 1e6 / (time.perf_counter() - began_s))
    return round(max(speeds), 1)


def bodies(load: Load, rounds: int, folder: Path | None, say: Say) -> dict[str, Any]:
    """Large bodies: growth of the logs of all nodes together, compared with the disk's sequential speed."""
    cases = {
        "16 KiB": replace(load, size=16 * 1024, in_flight=256, connections=2),
        "1 MiB": replace(load, size=MIB, in_flight=16, connections=2),
    }
    say("the disk's sequential speed")
    disk_mb_s = disk_speed(folder)
    found: dict[str, Any] = {}
    for name, own in cases.items():
        runs = []
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}: {name}")
            with cluster(folder) as side:
                where = Where(side.namesrv, "Bodies")
                run = Run(own, prepare(where), where.targets)
                result = run.measure()
                elapsed_s = run.elapsed_s
                written = sum(end_position(side, node) for node in side.nodes())
            speeds = {"body_mb_s": round(result.per_second * own.size / 1e6, 1)}
            speeds["all_nodes_mb_s"] = round(written / 1e6 / elapsed_s, 1)
            runs.append(result.as_json() | speeds)
        found[name] = {
            figure: statistics.median(one[figure] for one in runs)
            for figure in ("body_mb_s", "all_nodes_mb_s")
        }
        found[name] |= {"share_of_disk": round(found[name]["all_nodes_mb_s"] / disk_mb_s, 3), "runs": runs}
    return {"disk_mb_s": disk_mb_s, "bodies": found}


def soak(load: Load, folder: Path | None, say: Say) -> dict[str, Any]:
    """Memory of the nodes, second by second, under a steady load."""
    with cluster(folder) as side:
        where = Where(side.namesrv, "Soak")
        run = Run(
            load, prepare(where), where.targets, lambda share: say(f"{share:.0%} of {load.seconds:g} s")
        )
        with UsageMeter(side.nodes(), interval_s=1.0) as meter:
            result = run.measure()
        stored = count_stored(side.namesrv, "Soak", result.acknowledged)
    memory = {name: _growth(usage.series_mb) for name, usage in meter.usage.items()}
    cpu = {name: round(usage.cpu_s, 1) for name, usage in meter.usage.items()}
    return {"memory": memory, "cpu_s": cpu, "load": result.as_json()} | stored


def _growth(series_mb: list[float]) -> dict[str, Any]:
    """The growth between the end of the warm-up, a fifth of the time, and the end."""
    warm = series_mb[len(series_mb) // 5 :]
    slope = statistics.linear_regression(range(len(warm)), warm).slope if len(warm) > 1 else 0.0
    return {
        "warm_mb": warm[0],
        "end_mb": warm[-1],
        "peak_mb": max(series_mb),
        "mb_per_minute": round(slope * 60, 3),
        "series_mb": series_mb,
    }
