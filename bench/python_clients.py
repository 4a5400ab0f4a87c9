"""Clients for Python side by side against one LedgerMQ cluster: ours (asyncio, threads, numbered) and
rocketmq-client-python, which is a C++ library. Each runs in a process of its own, which measures its load.

usage: python -m bench.python_clients [--rounds 3] [--save python-clients]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.processes import end_on_signals
from bench.results_file import ROOT, save
from bench.sides import LedgerMQ

TOPIC: Final = "BenchClients"
SIZE: Final = 1024
WARM_S, SECONDS = 3.0, 8.0
LIMIT_S: Final = 120.0
STOCK: Final = ROOT / ".cache/rocketmq-client-python"
LOADS: Final = (1, 64, 2000)
FIGURES: Final = ("per_s", "client_us")
"""Acknowledged messages a second, and the client's processor time for each."""
THREADS_MAX: Final = 256
"""More threads than this measure the system's scheduler."""


class Count:
    """Acknowledged messages between the end of the warm-up and the end of the load."""

    def __init__(self) -> None:
        self._begin_s = time.perf_counter() + WARM_S
        self.end_s = self._begin_s + SECONDS
        self.done = 0
        self._cpu_s: float | None = None

    def add(self) -> bool:
        """One is acknowledged; whether to go on."""
        now_s = time.perf_counter()
        if now_s >= self._begin_s:
            if self._cpu_s is None:
                self._cpu_s = time.process_time()
            self.done += now_s < self.end_s
        return now_s < self.end_s

    def result(self) -> dict[str, float]:
        cpu_s = time.process_time() - (self._cpu_s or 0.0)
        return {
            "per_s": round(self.done / SECONDS, 1),
            "client_us": round(cpu_s / max(1, self.done) * 1e6, 1),
        }


def run_asyncio(namesrv: str, in_flight: int, *, idempotent: bool) -> dict[str, float]:
    from ledgermq.client import Message, Producer

    async def load() -> dict[str, float]:
        body, count = bytes(SIZE), Count()
        async with Producer(namesrv, idempotent=idempotent) as producer:

            async def send() -> None:
                while True:
                    await producer.send(Message(TOPIC, body))
                    if not count.add():
                        return

            async with asyncio.TaskGroup() as senders:
                for _ in range(in_flight):
                    senders.create_task(send())
        return count.result()

    return asyncio.run(load())


def run_threads(send: Callable[[], object], threads: int) -> dict[str, float]:
    count, lock = Count(), threading.Lock()

    def sender() -> None:
        is_going_on = True
        while is_going_on:
            send()
            with lock:
                is_going_on = count.add()

    send()  # alone: of many first sends to one topic the stock client lets some fail
    workers = [threading.Thread(target=sender) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return count.result()


def run_blocking(namesrv: str, threads: int) -> dict[str, float]:
    from ledgermq.client import Message
    from ledgermq.client.blocking import Producer

    body = bytes(SIZE)
    with Producer(namesrv) as producer:
        return run_threads(lambda: producer.send(Message(TOPIC, body)), threads)


def run_stock(namesrv: str, threads: int) -> dict[str, float]:
    from rocketmq.client import Message, Producer

    producer = Producer("BenchStock")
    producer.set_name_server_address(namesrv)
    producer.start()
    body = bytes(b"x" * SIZE)

    def send() -> None:
        message = Message(TOPIC)
        message.set_body(body)
        producer.send_sync(message)

    return run_threads(send, threads)


PROGRAMS: Final[dict[str, Callable[[str, int], dict[str, float]]]] = {
    "ledgermq.client": lambda namesrv, count: run_asyncio(namesrv, count, idempotent=False),
    "ledgermq.client, idempotent": lambda namesrv, count: run_asyncio(namesrv, count, idempotent=True),
    "ledgermq.client.blocking": run_blocking,
    "rocketmq-client-python": run_stock,
}
BLOCKING: Final = ("ledgermq.client.blocking", "rocketmq-client-python")


def measured(name: str, namesrv: str, count: int, folder: Path) -> dict[str, float]:
    """What a process of its own has measured."""
    path = os.pathsep.join([str(ROOT), str(STOCK)])
    environment = os.environ | {"PYTHONPATH": path, "ROCKETMQ_CLIENT_LOG_DIR": str(folder)}
    out = folder / "out.json"
    command = [sys.executable, "-m", "bench.python_clients", "run", name, namesrv, str(count), str(out)]
    subprocess.run(command, check=True, timeout=LIMIT_S, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL)
    found: dict[str, float] = json.loads(out.read_text())
    return found


def compare(rounds: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        side = LedgerMQ(folder / "side")
        try:
            side.start()
            for count in LOADS:
                programs = [each for each in PROGRAMS if count <= THREADS_MAX or each not in BLOCKING]
                runs: dict[str, list[dict[str, float]]] = {each: [] for each in programs}
                for _ in range(rounds):
                    for each in programs:
                        runs[each].append(measured(each, side.namesrv, count, folder))
                for each, found in runs.items():
                    row = {
                        key: statistics.median(run[key] for run in found) for key in ("per_s", "client_us")
                    }
                    result.setdefault(str(count), {})[each] = row
                    print(count, each, row, flush=True)
        finally:
            side.stop()
    return result


def main() -> None:
    if sys.argv[1:2] == ["run"]:
        name, namesrv, count, out = sys.argv[2:]
        Path(out).write_text(json.dumps(PROGRAMS[name](namesrv, int(count))))
        os._exit(0)  # the stock library's threads do not end
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    result = compare(arguments.rounds)
    if arguments.save:
        load = {"size": SIZE, "seconds": SECONDS, "warmup_s": WARM_S, "rounds": arguments.rounds, "nodes": 3}
        print(save(arguments.save, load, result))


if __name__ == "__main__":
    main()
