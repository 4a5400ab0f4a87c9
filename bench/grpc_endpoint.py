"""The gRPC endpoint under RocketMQ's Go client, beside three nodes on this machine: sends, and receives of 32
messages that are acknowledged one by one.

usage: python -m bench.grpc_endpoint [--threads 1 64 1000] [--receive 64] [--tls] [--endpoint TREE NAME ...]
       [--save NAME]

Each endpoint is started from its own checkout (by default this one); all of them serve the same nodes, one
after the other, each warm. Where other work shares the machine only the CPU time of a call can be compared.

Needs Go.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.processes import end_on_signals, figures_of, free_base
from bench.results_file import ROOT, machine, save
from bench.sides import LedgerMQ, RemotingSide
from ledgermq.load.cluster import LoadCluster, ask

CLIENT = ROOT / ".cache/bench/go-grpc-client"
START_LIMIT_S = 60.0
DRAIN_LIMIT_S = 90.0
TOPIC = "BenchGrpc"


def build_client() -> None:
    """The client's driver as Go builds programs; that of the tests is not optimized."""
    source = ROOT / "tests/integration/go/grpc"
    subprocess.run(["go", "build", "-o", str(CLIENT), "."], cwd=source, check=True)


def cpu_s(process: psutil.Process) -> float:
    """What the process has used, with its threads."""
    times = process.cpu_times()
    return float(times.user + times.system)


def client_processes() -> list[psutil.Process]:
    """The load program that `figures_of` has started."""
    return [each for each in psutil.Process().children() if each.name().startswith(CLIENT.name[:15])]


def measure(
    side: LedgerMQ, port: int, endpoint: psutil.Process, action: str, load: dict[str, Any]
) -> dict[str, Any]:
    """Run the load; the client's figures, with the CPU time of a call in each kind of process (µs)."""
    nodes, leader = side.nodes(), side.leader()
    followers = [process for name, process in nodes.items() if name != leader]
    used: dict[str, float] = {}

    def mark() -> None:
        watched = {"endpoint": [endpoint], "nodes": list(nodes.values()), "leader": [nodes[leader]]}
        watched |= {"followers": followers, "client": client_processes()}
        for name, processes in watched.items():
            used[name] = sum(map(cpu_s, processes)) - used.get(name, 0.0)

    command = [str(CLIENT), action, f"endpoint=127.0.0.1:{port}", f"topic={TOPIC}", f"out={side.folder}/out"]
    command += [f"{name}={value}" for name, value in load.items()]
    figures = figures_of(command, START_LIMIT_S + DRAIN_LIMIT_S, {"WARM": mark, "END": mark})
    for name, seconds in used.items():
        figures[f"{name}_us_a_call"] = round(seconds / max(1, figures["sent"]) * 1e6)
    figures["endpoint_mb"] = round(endpoint.memory_info().rss / 1e6)
    return {name: round(value, 1) for name, value in figures.items()}


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def start_endpoint(side: RemotingSide, tree: Path, name: str, port: int) -> psutil.Process:
    command = [sys.executable, "-P", "-m", "grpc_endpoint", "--namesrv", side.namesrv, "--port", str(port)]
    process = psutil.Process(side.processes.spawn(f"grpc-{name}", command, {"PYTHONPATH": str(tree)}).pid)
    end_s = time.monotonic() + START_LIMIT_S
    while not listens(port):
        if not process.is_running() or time.monotonic() > end_s:
            raise SystemExit(f"the endpoint {name} does not listen")
        time.sleep(0.1)
    return process


def create_topic(side: LedgerMQ) -> None:
    async def send(cluster: LoadCluster) -> None:
        while not await cluster.send(TOPIC):
            pass

    ask(side.namesrv, send)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 64, 1_000])
    parser.add_argument("--receive", type=int, nargs="*", default=[64], help="goroutines that receive")
    parser.add_argument("--messages", type=int, default=20_000, help="that they receive")
    parser.add_argument("--tls", action="store_true", help="the client speaks TLS")
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--endpoint", nargs=2, action="append", metavar=("TREE", "NAME"))
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    build_client()
    measured_on = machine()
    load = {"size": arguments.size, "seconds": arguments.seconds, "warmup": arguments.warmup}
    load["tls"] = "true" if arguments.tls else "false"
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        side = LedgerMQ(Path(folder))
        try:
            side.start()
            create_topic(side)
            for tree, name in arguments.endpoint or [(str(ROOT), "present")]:
                port = free_base([0])
                endpoint = start_endpoint(side, Path(tree), name, port)
                for threads in arguments.threads:
                    found = measure(side, port, endpoint, "load", load | {"threads": threads})
                    results.setdefault(name, {})[f"{threads} threads"] = found
                    print(f"{name}, {threads} threads: {json.dumps(found)}", flush=True)
                for threads in arguments.receive:
                    group = {"group": f"{name}-{threads}", "count": arguments.messages}
                    found = measure(side, port, endpoint, "drain", load | group | {"threads": threads})
                    results.setdefault(name, {})[f"{threads} threads receive"] = found
                    print(f"{name}, {threads} threads that receive: {json.dumps(found)}", flush=True)
                endpoint.terminate()
                endpoint.wait(30)
        finally:
            side.stop()
    if arguments.save:
        print(save(arguments.save, load | {"client": "rocketmq-clients/golang 5.1.3"}, results, measured_on))


if __name__ == "__main__":
    main()
