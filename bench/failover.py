"""Rounds of `kill -9` on the leader under load, and of planned transfers: how long until another takes over.

Three times a round, all from the kill or the request: until the engine of the new leader says it leads
(`elected`), until that node takes writes (`writable`: its own first entry is committed and applied), and
until a producer that asks the name server after each failed send gets its next acknowledgement, from the new
leader (`acknowledged`). Both durability modes, one after the other.

usage: python -m bench.failover [--rounds 30] [--transfers 10] [--durability persisted] [--save failover]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from bench.results_file import save
from remoting.codes import RequestCode
from tests.integration.cluster import Cluster
from tests.integration.streams import Stream
from tests.integration.waiting import wait_for
from tests.integration.wire import WireError, call

QUEUES = 8
SENDS_BETWEEN_KILLS = 500
LIMIT_S = 60.0
MODES = ("persisted", "replicated")
ON_THE_WAY_S = 0.02
"""An answer of the dead leader may still be read that long after the kill."""


def new_leader(cluster: Cluster, dead: str) -> tuple[str, float] | None:
    """The writable leader that is not the dead node, and when it was observed (Unix time in s)."""
    for node_id in cluster.nodes:
        status = cluster.status(node_id) if node_id != dead else None
        if status is not None and status["isWritable"]:
            return node_id, time.time()
    return None


def elected_s(cluster: Cluster, leader: str) -> float:
    """When `leader` was elected, as it reports it (Unix time in s)."""
    status = cluster.status(leader)
    assert status is not None
    won = [election["atMs"] for election in status["elections"] if election["leaderId"] == leader]
    return float(won[-1]) / 1000


def is_whole(cluster: Cluster) -> bool:
    """Whether all nodes follow one leader again."""
    statuses = cluster.statuses()
    leaders = {(status["term"], status["leaderId"]) for status in statuses.values()}
    return len(statuses) == len(cluster.nodes) and len(leaders) == 1 and cluster.leader() is not None


async def transfer_once(cluster: Cluster, stream: Stream) -> dict[str, float]:
    """One planned transfer to the next node."""
    await stream.wait_acknowledged(SENDS_BETWEEN_KILLS)
    old = await asyncio.to_thread(cluster.wait_leader)
    nodes = sorted(cluster.nodes)
    target = nodes[(nodes.index(old) + 1) % len(nodes)]
    begun_s = await asyncio.to_thread(ask_for_transfer, cluster, old, target)
    leader, seen_s = await asyncio.to_thread(
        wait_for, "another writable leader", lambda: new_leader(cluster, old), LIMIT_S
    )
    elected = await asyncio.to_thread(elected_s, cluster, leader)
    await stream.wait_acknowledged(SENDS_BETWEEN_KILLS)
    first_s = min(sent.at_s for sent in stream.acknowledged if sent.at_s > elected)
    await asyncio.to_thread(wait_for, "three nodes", lambda: is_whole(cluster), LIMIT_S)
    return since(begun_s, elected=elected, writable=seen_s, acknowledged=first_s)


def ask_for_transfer(cluster: Cluster, leader: str, target: str) -> float:
    """Retry until the leader begins the transfer; it refuses while the target lags. Return when (Unix s)."""

    def ask() -> float | None:
        begun_s = time.time()
        try:
            call(cluster.address(leader), RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": target})
        except WireError:
            return None
        return begun_s

    return wait_for(f"{leader} hands over to {target}", ask, LIMIT_S)


def since(begun_s: float, **times_s: float) -> dict[str, float]:
    return {f"{name}_ms": round((at_s - begun_s) * 1000) for name, at_s in times_s.items()}


async def kill_once(cluster: Cluster, stream: Stream) -> dict[str, float]:
    """One round; the killed node runs again at its end."""
    await stream.wait_acknowledged(SENDS_BETWEEN_KILLS)
    dead = await asyncio.to_thread(cluster.wait_leader)
    killed_s = time.time()
    cluster.kill(dead)
    leader, seen_s = await asyncio.to_thread(
        wait_for, "a new writable leader", lambda: new_leader(cluster, dead), LIMIT_S
    )
    await stream.wait_acknowledged(SENDS_BETWEEN_KILLS)
    after_s = killed_s + ON_THE_WAY_S
    first_s = min(sent.at_s for sent in stream.acknowledged if sent.at_s > after_s)
    elected = await asyncio.to_thread(elected_s, cluster, leader)
    await asyncio.to_thread(cluster.restart, dead)
    await asyncio.to_thread(wait_for, "three nodes", lambda: is_whole(cluster), LIMIT_S)
    return since(killed_s, elected=elected, writable=seen_s, acknowledged=first_s)


async def measure(durability: str, rounds: int, transfers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            await asyncio.to_thread(cluster.start, durability=durability)
            stream = Stream(cluster.namesrv, "BenchFailover", QUEUES)
            await stream.start()
            kills = [await shown(durability, "kill", kill_once(cluster, stream)) for _ in range(rounds)]
            handed = [
                await shown(durability, "transfer", transfer_once(cluster, stream)) for _ in range(transfers)
            ]
            await stream.stop()
        finally:
            await asyncio.to_thread(cluster.stop)
    return {"kills": summary(kills), "transfers": summary(handed)}


async def shown(durability: str, what: str, figures: Awaitable[dict[str, float]]) -> dict[str, float]:
    found = await figures
    print(durability, what, found, flush=True)
    return found


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Minimum, median, 99th percentile and maximum of each of the three times, and all rounds."""
    found: dict[str, Any] = {"rounds": rounds}
    for name in rounds[0] if rounds else ():
        values = sorted(times[name] for times in rounds)
        p99 = values[-(-len(values) * 99 // 100) - 1]
        found[name] = {"min": values[0], "median": statistics.median(values), "p99": p99, "max": values[-1]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=30, help="kills in each mode")
    parser.add_argument("--transfers", type=int, default=10, help="planned transfers in each mode")
    parser.add_argument("--durability", choices=MODES, help="one mode only")
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    modes = (arguments.durability,) if arguments.durability else MODES
    loads = [round(value, 2) for value in os.getloadavg()]
    result = {mode: asyncio.run(measure(mode, arguments.rounds, arguments.transfers)) for mode in modes}
    for mode, kinds in result.items():
        for kind, figures in kinds.items():
            print(mode, kind, {name: value for name, value in figures.items() if name != "rounds"})
    if arguments.save:
        load = {"kills": arguments.rounds, "transfers": arguments.transfers, "producers": QUEUES, "nodes": 3}
        print(save(arguments.save, load | {"load_before_start": loads}, result))


if __name__ == "__main__":
    main()
