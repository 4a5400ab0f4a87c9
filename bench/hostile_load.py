"""Whether hostile clients take the leadership from a node: 100 connections that do their worst
(bench/hostile_attackers.py) against a default cluster of three nodes, while a producer sends one message
after the other. Changes of leader and term are counted; the longest time between two acknowledgements, how
late the event loops of the nodes were, and their memory are measured.

usage: python -m bench.hostile_load [--minutes 10] [--connections 100] [--save hostile-load]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.results_file import machine, save
from remoting.codes import RequestCode, ResponseCode
from tests.fuzz.held.samples import send_ext
from tests.integration.cluster import Cluster
from tests.integration.wire import Wire, WireError

SAMPLE_S = 0.5
SEND_PAUSE_S = 0.02
ANSWER_LIMIT_S = 10.0
_BUCKET = re.compile(r'ledgermq_event_loop_delay_seconds_bucket\{.*?le="([^"]+)".*?\} ([0-9.e+]+)')


@dataclass(slots=True)
class Observed:
    """`loop_delay_s`: by node, the bounds of the histogram between which the latest callback was."""

    seconds: float = 0.0
    leader_changes: int = 0
    terms: list[int] = field(default_factory=list)
    acknowledged: int = 0
    refused: int = 0
    broken: int = 0
    longest_gap_s: float = 0.0
    peak_mib: dict[str, int] = field(default_factory=dict)
    loop_delay_s: dict[str, str] = field(default_factory=dict)
    load_average: list[float] = field(default_factory=list)


class Producer:
    """Sends one message after the other to the leader, on a thread of its own."""

    def __init__(self, cluster: Cluster, observed: Observed) -> None:
        self._cluster = cluster
        self._observed = observed
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._last_s = time.monotonic()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._gap()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with suppress(OSError, WireError, AssertionError, TimeoutError):
                self._send_to(self._cluster.wait_leader())
            self._observed.broken += 0 if self._is_over.is_set() else 1

    def _send_to(self, leader: str) -> None:
        with Wire(self._cluster.address(leader), ANSWER_LIMIT_S) as wire:
            while not self._is_over.is_set():
                answer = wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext("WellBehaved"), b"hello")
                if answer.code == 0:
                    self._observed.acknowledged += 1
                    self._gap()
                else:
                    self._observed.refused += 1
                    if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                        return  # another node leads
                self._is_over.wait(SEND_PAUSE_S)

    def _gap(self) -> None:
        now_s = time.monotonic()
        self._observed.longest_gap_s = max(self._observed.longest_gap_s, round(now_s - self._last_s, 3))
        self._last_s = now_s


def observe(cluster: Cluster, connections: int, seconds: float) -> Observed:
    observed = Observed(load_average=[round(each, 1) for each in os.getloadavg()])
    leader = cluster.wait_leader()
    nodes = [node.remoting for node in cluster.nodes.values()]
    command = [sys.executable, "-m", "bench.hostile_attackers", cluster.namesrv, *nodes]
    command += ["--connections", str(connections), "--seconds", str(seconds)]
    begun_s = time.monotonic()
    with Producer(cluster, observed), subprocess.Popen(command) as attackers:
        try:
            while time.monotonic() < begun_s + seconds and attackers.poll() is None:
                leader = _sample(cluster, observed, leader)
                time.sleep(SAMPLE_S)
        finally:
            attackers.terminate()
    observed.seconds = round(time.monotonic() - begun_s, 1)
    observed.load_average += [round(each, 1) for each in os.getloadavg()]
    for node_id, node in cluster.nodes.items():
        observed.loop_delay_s[node_id] = latest(node.metrics)
    return observed


def _sample(cluster: Cluster, observed: Observed, leader: str) -> str:
    """The leader now."""
    for name, process in cluster.processes().items():
        with suppress(psutil.Error):
            mib = process.memory_info().rss >> 20
            observed.peak_mib[name] = max(mib, observed.peak_mib.get(name, 0))
    for node_id, status in cluster.statuses().items():
        if status["term"] not in observed.terms:
            observed.terms.append(status["term"])
        if status["isWritable"] and node_id != leader:
            observed.leader_changes += 1
            leader = node_id
    return leader


def latest(metrics: str) -> str:
    """Between which bounds of the histogram the latest callback of the loop was."""
    with urllib.request.urlopen(metrics, timeout=10) as answer:
        rows = _BUCKET.findall(answer.read().decode())
    found, below, least = "unknown", 0.0, "0"
    for bound, number in rows:
        if float(number) > below:
            found = f"{least} to {bound}"
        below, least = float(number), bound
    return found


def measure(minutes: float, connections: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start({"enablePropertyFilter": "true"}, admin=True)
            return asdict(observe(cluster, connections, minutes * 60))
        finally:
            cluster.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Hostile clients against a cluster of three nodes.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--save", metavar="NAME", help="write bench/results/NAME.json")
    options = parser.parse_args()
    measured_on = machine()
    result = measure(options.minutes, options.connections)
    print(result)
    if options.save:
        load = {"minutes": options.minutes, "connections": options.connections, "nodes": 3}
        print(save(options.save, load, result, measured_on))


if __name__ == "__main__":
    main()
