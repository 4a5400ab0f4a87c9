"""Rounds of `kill -9` on the leader under load: how long until a new one takes messages.

Three times a round, all from the kill: until the engine of the new leader says it leads (`elected`), until
that node takes writes (`writable`: its own first entry is committed and applied), and until a producer that
asks the name server after each failed send gets its next acknowledgement (`acknowledged`).

usage: python -m bench.failover [--rounds 10] [--save failover]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.results_file import save
from tests.integration.cluster import Cluster
from tests.integration.streams import Stream
from tests.integration.waiting import wait_for

QUEUES = 8
SENDS_BETWEEN_KILLS = 500
LIMIT_S = 60.0
ON_THE_WAY_S = 0.02
"""An answer of the dead leader may still be read that long after the kill."""


def new_leader(cluster: Cluster, dead: str) -> tuple[str, float] | None:
    """The writable leader that is not the dead node, and the time at which this was seen (Unix, s)."""
    for node_id in cluster.nodes:
        status = cluster.status(node_id) if node_id != dead else None
        if status is not None and status["isWritable"]:
            return node_id, time.time()
    return None


def elected_s(cluster: Cluster, leader: str) -> float:
    """When the engine of `leader` says it became the leader (Unix, s)."""
    status = cluster.status(leader)
    assert status is not None
    won = [election["atMs"] for election in status["elections"] if election["leaderId"] == leader]
    return float(won[-1]) / 1000


def is_whole(cluster: Cluster) -> bool:
    """Whether all nodes follow one leader again."""
    statuses = cluster.statuses()
    leaders = {(status["term"], status["leaderId"]) for status in statuses.values()}
    return len(statuses) == len(cluster.nodes) and len(leaders) == 1 and cluster.leader() is not None


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
    times_s = {"elected": elected, "writable": seen_s, "acknowledged": first_s}
    return {f"{name}_ms": round((at_s - killed_s) * 1000) for name, at_s in times_s.items()}


async def measure(rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            await asyncio.to_thread(cluster.start)
            stream = Stream(cluster.namesrv, "BenchFailover", QUEUES)
            await stream.start()
            found = []
            for _ in range(rounds):
                found.append(await kill_once(cluster, stream))
                print(found[-1], flush=True)
            await stream.stop()
        finally:
            await asyncio.to_thread(cluster.stop)
    summary = {
        name: {"median": statistics.median(values), "max": max(values)}
        for name in found[0]
        for values in [[times[name] for times in found]]
    }
    return {"rounds": found, **summary}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    result = asyncio.run(measure(arguments.rounds))
    print({name: value for name, value in result.items() if name != "rounds"})
    if arguments.save:
        load = {"rounds": arguments.rounds, "producers": QUEUES, "nodes": 3}
        print(save(arguments.save, load, result))


if __name__ == "__main__":
    main()
