"""What people who look at a cluster cost it: the brokers' CPU, and throughput on the same machine.

Ten pages are open (event streams), and their lists and details are asked for as often as the rate limit lets
them. Rounds with and without them alternate. First nobody produces: what the brokers then take is theirs.
Then a closed loop of sends runs beside it, on the same cores as the admin service and its viewers, which
elsewhere have cores of their own.

usage: python -m bench.admin_load [--rounds 3] [--seconds 4] [--topics 200] [--save admin-load]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.load import Where, prepare
from bench.processes import cpu_time_s
from bench.results_file import save
from ledgermq.load.run import Load, Run
from tests.integration.cluster import Cluster

PAGES = 10
ASKS_PER_S = 10
PATHS = ("/topics", "/consumer-groups", "/brokers", "/topics/Bench", "/topics/Bench/queues", "/history")
IN_FLIGHT = 64
WARMUP_S = 1.0
READY = "watching"


async def view(url: str) -> None:
    """Watches and asks until it is ended."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=10, limits=limits) as client:

        async def watch() -> None:
            async with client.stream("GET", "/cluster/events", timeout=None) as stream:
                async for _ in stream.aiter_bytes():
                    pass

        async def ask() -> None:
            for path in PATHS:
                await client.get(path)
            print(READY, flush=True)
            for path in cycle(PATHS):
                await client.get(path)
                await asyncio.sleep(1 / ASKS_PER_S)

        await asyncio.gather(ask(), *(watch() for _ in range(PAGES)))


@contextmanager
def viewers(url: str, *, are_there: bool) -> Iterator[psutil.Process | None]:
    """A process of viewers that has begun."""
    if not are_there:
        yield None
        return
    command = [sys.executable, "-m", "bench.admin_load", "--view", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def measure(rounds: int, seconds: float, topics: int) -> dict[str, Any]:
    """Medians of the rounds, without viewers and with them."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            prepare(Where(cluster.namesrv, "Crowd", topics=topics, queues=4))
            where = Where(cluster.namesrv)
            address = prepare(where)

            def produce() -> float:
                load = Load(in_flight=IN_FLIGHT, seconds=seconds, warmup_s=WARMUP_S)
                return Run(load, address, where.targets).measure().per_second

            def wait() -> float:
                time.sleep(seconds)
                return 0.0

            quiet = _alternate(cluster, wait, rounds)
            busy = _alternate(cluster, produce, rounds)
        finally:
            cluster.stop()
    return {"nobody_produces": quiet, "producing": busy}


def _alternate(cluster: Cluster, run: Callable[[], float], rounds: int) -> dict[str, Any]:
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(rounds):
        for are_there in (False, True):
            with viewers(cluster.admin, are_there=are_there) as seen:
                found[are_there].append(_one(cluster, run, seen))
    return {
        "without": _medians(found[False]),
        "with_viewers": _medians(found[True]),
    }


def _one(cluster: Cluster, run: Callable[[], float], seen: psutil.Process | None) -> dict[str, float]:
    processes = {**cluster.processes(), **({} if seen is None else {"viewers": seen})}
    before = {name: cpu_time_s(process) for name, process in processes.items()}
    began_s = time.monotonic()
    per_second = run()
    elapsed_s = time.monotonic() - began_s
    cpu = {name: (cpu_time_s(process) - before[name]) / elapsed_s for name, process in processes.items()}
    brokers = sum(cpu[node_id] for node_id in cluster.nodes)
    return {
        "messages_per_s": per_second,
        "brokers_cores": brokers,
        "brokers_us_per_message": brokers / per_second * 1e6 if per_second else 0.0,
        "admin_cores": cpu["admin_api"],
        "viewers_cores": cpu.get("viewers", 0.0),
    }


def _medians(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--topics", type=int, default=200)
    parser.add_argument("--save", help="name of the file in bench/results")
    parser.add_argument("--view", metavar="URL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.view:
        asyncio.run(view(arguments.view))
        return
    result = measure(arguments.rounds, arguments.seconds, arguments.topics)
    for phase, sides in result.items():
        for side, figures in sides.items():
            print(f"{phase:16} {side:13}", *(f"{key} {value:,.3f}" for key, value in figures.items()))
    if arguments.save:
        load = {"pages": PAGES, "asks_per_s": ASKS_PER_S, "in_flight": IN_FLIGHT, **vars(arguments)}
        print(save(arguments.save, load, result))


if __name__ == "__main__":
    main()
