"""A rolling upgrade from release 0.1.0 to this one under a stock Java producer, one node at a time,
leadership handed over first: the longest time between two acknowledgements, the times of the sends, errors.

The producer is RocketMQ's with its defaults, two retries among them. It asks for routes every 30 s by
default; another run asks every second. After a node of this release has handed leadership over the operator
waits that long before it is stopped; one of 0.1.0 is stopped at once, as docs/upgrading.md says.

usage: python -m bench.rolling_upgrade [--poll-ms 1000 30000] [--save rolling-upgrade]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.results_file import machine, save
from tests.integration.client_runs import finish, java_driver, read_report
from tests.integration.mixed_cluster import THIS, MixedCluster
from tests.integration.waiting import wait_for
from tests.support.releases import release

OLD = "0.1.0"
JAVA = "5.5.0"
TOPIC = "BenchUpgrade"
START_LIMIT_S = 60.0
STEADY_S = 5.0


async def measure(poll_ms: int) -> dict[str, Any]:
    """One upgrade of three nodes, and then the way back."""
    old = release(OLD)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = MixedCluster(folder / "cluster", [old] * 3, old)
        out, stop = folder / "sends.jsonl", folder / "stop"
        spans: dict[str, tuple[float, float]] = {}
        try:
            await cluster.start()
            options = {"namesrv": cluster.namesrv, "topic": TOPIC, "group": "Upgrade", "poll_ms": poll_ms}
            options |= {"retries": 2, "timeout_ms": 3000, "out": out, "stop": stop}
            arguments = ["stream", *(f"{key}={value}" for key, value in options.items())]
            producer = java_driver(JAVA, folder).start(arguments, out)
            await asyncio.to_thread(wait_for, "sends", lambda: len(read_report(out)) > 100, START_LIMIT_S)
            for direction, target in ((f"{OLD} to this release", THIS), (f"this release to {OLD}", old)):
                await asyncio.sleep(STEADY_S)
                began_ms = time.time() * 1000
                for node_id in await followers_first(cluster):
                    await cluster.replace(node_id, target, settle_s=poll_ms / 1000 + 1)
                await asyncio.sleep(poll_ms / 1000 + 1)  # until no route from before is in use
                spans[direction] = began_ms, time.time() * 1000
            stop.touch()
            rows = await asyncio.to_thread(finish, producer, out)
        finally:
            stop.touch()
            await cluster.stop()
    return {direction: figures(rows, *span) for direction, span in spans.items()}


async def followers_first(cluster: MixedCluster) -> list[str]:
    leader = await cluster.wait_leader()
    return [*(node_id for node_id in cluster.nodes if node_id != leader), leader]


def figures(rows: list[dict[str, Any]], began_ms: float, ended_ms: float) -> dict[str, Any]:
    """Of the sends that ended in this time, and of the seconds before it to compare with."""
    during = [row for row in rows if began_ms <= row["at_ms"] <= ended_ms]
    before = [row for row in rows if began_ms - STEADY_S * 1000 <= row["at_ms"] < began_ms]
    stored = [row for row in during if row["status"] == "SEND_OK"]
    times = [row["at_ms"] for row in stored]
    return {
        "seconds": round((ended_ms - began_ms) / 1000, 1),
        "acknowledged": len(stored),
        "errors": len(during) - len(stored),
        "first_error": next((row["error"] for row in during if row["status"] == "ERROR"), None),
        "longest_gap_ms": max(
            (later - earlier for earlier, later in itertools.pairwise(times)), default=None
        ),
        "p50_ms": percentile_ms(stored, 50),
        "p99_ms": percentile_ms(stored, 99),
        "p99_before_ms": percentile_ms([row for row in before if row["status"] == "SEND_OK"], 99),
    }


def percentile_ms(rows: list[dict[str, Any]], percent: int) -> float | None:
    """None without enough sends."""
    if len(rows) < 2:
        return None
    cuts = statistics.quantiles([row["took_us"] / 1000 for row in rows], n=100)
    return float(round(cuts[percent - 1], 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--poll-ms", type=int, nargs="*", default=[1000, 30_000])
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    measured_on = machine()
    results: dict[str, Any] = {}
    for poll_ms in arguments.poll_ms:
        name = f"routes every {poll_ms / 1000:g} s"
        results[name] = asyncio.run(measure(poll_ms))
        print(name, results[name], flush=True)
    if arguments.save:
        load = {"nodes": 3, "client": f"rocketmq-client {JAVA} (Java), two retries", "old": OLD}
        print(save(arguments.save, load, results, measured_on))


if __name__ == "__main__":
    main()
