"""CPU time of the leader, or of a follower, for each message, by step: n0 of a cluster of three leads.

usage: python -m bench.profile_leader [--node n1] [--in-flight 64 2000] [--size 1024] [--functions]
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from bench.results_file import ROOT, save
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for

NODE = "n0"
WARMUP_S = 4.0
SAMPLED_S = 6.0
LIMIT_S = 30.0
STEPS = {
    "read and decode frames": (
        *("remoting/connection.py", "remoting/command.py"),
        *("remoting/command_reader.py", "remoting/memory_limit.py"),
    ),
    "route requests": ("remoting/router.py", "remoting/router.py", "remoting/server.py"),
    "parse headers": ("remoting/headers/consume.py", "remoting/headers/fields.py"),
    "broker": ("broker/",),
    "lay out records": ("commitlog/record.py", "commitlog/entry.py", "commitlog/entry_store.py"),
    "log and queues": ("commitlog/",),
    "replication core": ("dledger/core/",),
    "replication driver and transport": ("dledger/",),
    "event loop": ("event loop",),
}
"""A module belongs to the first step one of whose prefixes it begins with."""


def step_of(module: str) -> str:
    return next((step for step, prefixes in STEPS.items() if module.startswith(prefixes)), "other")


def start_sampled(cluster: Cluster, out: Path, node: str) -> subprocess.Popen[bytes]:
    """Stop the node, start it again under the sampler, and wait till n0 leads."""
    cluster.kill(node, signal.SIGTERM)
    wait_for(f"{node} ends", lambda: not psutil.pid_exists(cluster.nodes[node].pid), LIMIT_S)
    config = cluster.data / node / "broker.toml"
    command = [sys.executable, "-m", "bench.profile_node", str(out), "--config", str(config)]
    with out.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    wait_for("n0 leads", lambda: cluster.leader() == NODE, LIMIT_S)
    return process


def sample(cluster: Cluster, process: subprocess.Popen[bytes], out: Path, load: list[str]) -> dict[str, Any]:
    """Run the load generator and sample the leader while it runs warm."""
    out.unlink(missing_ok=True)
    seconds = str(SAMPLED_S + 2)
    command = [sys.executable, "-m", "bench.load", "--namesrv", cluster.namesrv, "--seconds", seconds, *load]
    generator = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    time.sleep(WARMUP_S)
    node = psutil.Process(process.pid)
    first, cpu_s = end_index(cluster), sum(node.cpu_times()[:2])
    process.send_signal(signal.SIGUSR1)
    time.sleep(SAMPLED_S)
    process.send_signal(signal.SIGUSR2)
    last, cpu_s = end_index(cluster), sum(node.cpu_times()[:2]) - cpu_s
    wait_for("the samples", out.exists, LIMIT_S)
    output, _ = generator.communicate(timeout=LIMIT_S)
    return figures(json.loads(out.read_text()), last - first, cpu_s) | {"load": json.loads(output)}


def end_index(cluster: Cluster) -> int:
    status = cluster.status(NODE)
    assert status is not None
    return int(status["endIndex"])


def figures(samples: dict[str, Any], messages: int, cpu_s: float) -> dict[str, Any]:
    """µs per message: the CPU time of the process, divided in proportion to the samples."""
    total = sum(samples["modules"].values())
    per_sample_us = cpu_s * 1e6 / messages / total
    by_step: dict[str, float] = dict.fromkeys(STEPS, 0.0)
    for module, count in samples["modules"].items():
        step = step_of(module)
        by_step[step] = by_step.get(step, 0.0) + count * per_sample_us

    def times(counts: dict[str, int]) -> dict[str, float]:
        return {name: round(count * per_sample_us, 2) for name, count in counts.items()}

    return {
        "messages": messages,
        "us_per_message": round(cpu_s * 1e6 / messages, 2),
        "steps": {step: round(value, 2) for step, value in by_step.items()},
        "modules": times(samples["modules"]),
        "functions": times(samples["functions"]),
    }


def measure(in_flight: list[int], size: int, node: str = NODE) -> dict[str, Any]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = Cluster(folder)
        stack.callback(cluster.stop)
        cluster.start({"preferredLeaderId": NODE})
        out = folder / "samples.json"
        process = start_sampled(cluster, out, node)
        stack.callback(process.wait, LIMIT_S)
        stack.callback(process.terminate)
        loads = {str(count): ["--in-flight", str(count), "--size", str(size)] for count in in_flight}
        return {name: sample(cluster, process, out, load) for name, load in loads.items()}


def show(name: str, found: dict[str, Any], with_functions: bool) -> None:
    rate = found["load"]["per_second"]
    print(f"\n{name} in flight: {found['us_per_message']} µs of the node a message, {rate:.0f} messages/s")
    for step, value in found["steps"].items():
        print(f"  {value:8.2f}  {step}")
    for function, value in list(found["functions"].items())[: 30 if with_functions else 0]:
        print(f"      {value:8.2f}  {function}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--in-flight", type=int, nargs="*", default=[64, 2000])
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--node", default=NODE, help="n0 leads, the others follow")
    parser.add_argument("--functions", action="store_true", help="also show the dearest functions")
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    result = measure(arguments.in_flight, arguments.size, arguments.node)
    for name, found in result.items():
        show(name, found, arguments.functions)
    if arguments.save:
        print(save(arguments.save, {"in_flight": arguments.in_flight, "size": arguments.size}, result))


if __name__ == "__main__":
    main()
