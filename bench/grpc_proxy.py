"""The gRPC endpoint beside RocketMQ's proxy, before our nodes and Java's, under the stock Java client.

usage: python -m bench.grpc_proxy [--seconds 8] [--warmup 60] [--sides own proxy java] [--rounds 1]
                                  [--drain 10000] [--save NAME]

The sides run one after the other, in every other round in reverse. Each load is warmed up by 64 threads for
`--warmup` seconds, which warms client, endpoint and nodes alike. Only the ratios of one run count.

Needs what `bench/get_rivals.sh java` fetches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench import stock_java
from bench.grpc_endpoint import start_endpoint
from bench.processes import END, WARM, Usage, UsageMeter, end_on_signals, free_base
from bench.results_file import ROOT, machine, save
from bench.rivals import ROCKETMQ_VERSION, JavaDLedger, class_path, start_proxy
from bench.sides import LedgerMQ, RemotingSide
from bench.summary import Measured, failed, values
from bench.text_table import number, text_table
from ledgermq.errors import UserError
from ledgermq.load.cluster import ask
from ledgermq.messaging import messaging_client
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError

CLIENT = "rocketmq-client-java 5.2.0"
LIBRARIES = "lib-grpc"
FRONT = "front"
"""The process that gRPC clients connect to: the endpoint or the proxy."""
QUEUES = 8
GROUP = "bench_drain"
SLOWEST_PER_S = 50
"""A side that sends or drains fewer messages a second fails."""
DRAIN = "drain"
LOADS: dict[str, dict[str, int]] = {
    "1 thread": {"threads": 1},
    "64 threads": {"threads": 64},
    "1,000 in flight": {"in_flight": 1_000},
}
FIGURES = ("per_second", "p50_ms", "p99_ms", "front_us", "nodes_us", "front_mb", "node_mb")
"""Messages a second (of the drain: received and acknowledged), latency (of the drain: of an acknowledgement),
CPU time of a message in the front and in all nodes together (µs), the most resident memory of the front and
of any node (MB).
"""
AIMS = {
    ("1 thread", "per_second"): "≥ 400",
    ("64 threads", "per_second"): "≥ 4,000",
    ("64 threads", "p99_ms"): "≤ 40",
    ("1,000 in flight", "per_second"): "≥ 10,000",
} | {(load, "front_mb"): "≤ 150" for load in (*LOADS, DRAIN)}
"""Of `own`."""
FAILURES = (SystemExit, UserError, RemotingError, subprocess.SubprocessError, OSError)
"""Errors that end only one load of one side; the others continue."""
Front = Callable[[RemotingSide, int], psutil.Process]


def own_front(side: RemotingSide, port: int) -> psutil.Process:
    return start_endpoint(side, ROOT, "endpoint", port)


def proxy_front(side: RemotingSide, port: int) -> psutil.Process:
    return start_proxy(side, port, port + 1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Nodes, and what stands before them; `front` starts it on a port."""

    title: str
    nodes: Callable[[Path], RemotingSide]
    front: Front


PROXY = f"RocketMQ's proxy {ROCKETMQ_VERSION}, cluster mode"
SIDES = {
    "own": Pair("LedgerMQ's endpoint, LedgerMQ, 3 nodes", LedgerMQ, own_front),
    "proxy": Pair(f"{PROXY}, LedgerMQ, 3 nodes", LedgerMQ, proxy_front),
    "java": Pair(f"{PROXY}, RocketMQ (Java), DLedger, 3 nodes", JavaDLedger, proxy_front),
}


class Comparison:
    """What was measured so far, in the form of bench/summary.py."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._machine = machine()
        self._about: dict[str, dict[str, str]] = {}
        self.measured: list[Measured] = []

    def run(self) -> None:
        for round_number in range(self._arguments.rounds):
            sides = self._arguments.sides
            for name in sides if round_number % 2 == 0 else sides[::-1]:
                self._run_side(round_number, name)
                if self._arguments.save:
                    self._write()

    def _run_side(self, round_number: int, name: str) -> None:
        pair = SIDES[name]
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            side = pair.nodes(Path(folder))
            self._about[name] = {
                "title": pair.title,
                "version": side.version,
                "durability": side.durability,
            }
            try:
                side.start()
                port = free_base((0, 1))
                front = pair.front(side, port)
                for load in (*LOADS, DRAIN):
                    self._take(round_number, name, load, self._try(side, front, port, load))
            except FAILURES as error:
                self._take(round_number, name, "start", {"failed": str(error)})
            finally:
                side.stop()

    def _try(self, side: RemotingSide, front: psutil.Process, port: int, load: str) -> dict[str, Any]:
        topic = f"Bench{''.join(filter(str.isalnum, load))}"
        common = {"endpoint": f"127.0.0.1:{port}", "topic": topic, "size": self._arguments.size}
        common |= {"warmup_s": self._arguments.warmup, "tls": str(self._arguments.tls).lower()}
        try:
            leader = ask(side.namesrv, lambda cluster: cluster.make_topic(topic, QUEUES))
            asyncio.run(make_group(leader))
            with UsageMeter(side.nodes() | {FRONT: front}) as meter:
                figures = self._load(load, common, meter)
        except FAILURES as error:
            side.processes.require_alive()
            return {"failed": str(error)}
        return figures | used(meter.usage, figures["messages"])

    def _load(self, load: str, common: dict[str, Any], meter: UsageMeter) -> dict[str, Any]:
        marks = {WARM: meter.begin, END: meter.end}
        if load == DRAIN:
            count = self._arguments.drain
            # Sends and drains while it warms up; the last round may begin just before that ends.
            limit_s = common["warmup_s"] + 4 * count / SLOWEST_PER_S
            return stock_java.run(
                "GrpcDrain", common | {"count": count, "group": GROUP}, limit_s, marks, LIBRARIES
            )
        seconds = self._arguments.seconds
        options = common | LOADS[load] | {"seconds": seconds}
        return stock_java.run("GrpcLoad", options, common["warmup_s"] + seconds, marks, LIBRARIES)

    def _take(self, round_number: int, side: str, load: str, figures: dict[str, Any]) -> None:
        self.measured.append({"round": round_number, "side": side, "scenario": load, "figures": figures})
        shown = {name: figures[name] for name in (*FIGURES, "errors", "failed") if name in figures}
        print(f"round {round_number + 1}, {side}, {load}: {json.dumps(shown)}", flush=True)

    def _write(self) -> None:
        """Save after every side, so that an interrupted run keeps its measurements."""
        load = vars(self._arguments) | {"client": CLIENT}
        result = {"sides": self._about, "measured": self.measured, "ratios": ratios(self.measured)}
        save(self._arguments.save, load, result, self._machine)


async def make_group(leader: str) -> None:
    """RocketMQ's proxy refuses consumers of a group that the broker does not know. Raises: UserError."""
    client = messaging_client()
    body = json.dumps({"groupName": GROUP}).encode()
    request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    try:
        answer = await client.invoke(leader, request)
    finally:
        await client.close()
    if answer.code != ResponseCode.SUCCESS:
        raise UserError(f"the group {GROUP} cannot be made: code {answer.code}: {answer.remark}.")


def used(usage: Mapping[str, Usage], messages: int) -> dict[str, float]:
    """The figures of processes: `usage` of each node and of the front."""
    front, nodes = usage[FRONT], [one for name, one in usage.items() if name != FRONT]
    return {
        "front_us": round(front.cpu_s / max(1, messages) * 1e6, 1),
        "nodes_us": round(sum(one.cpu_s for one in nodes) / max(1, messages) * 1e6, 1),
        "front_mb": round(front.peak_resident_mb, 1),
        "node_mb": round(max(one.peak_resident_mb for one in nodes), 1),
    }


def medians(measured: Sequence[Measured], load: str, figure: str) -> dict[str, float]:
    """The figure of each side that has it."""
    found = {side: values(measured, load, side, figure).values() for side in SIDES}
    return {side: statistics.median(each) for side, each in found.items() if each}


def ratios(measured: Sequence[Measured]) -> dict[str, dict[str, dict[str, float]]]:
    """load -> figure -> rival -> the median of `own` ÷ the rival's."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for load in (*LOADS, DRAIN):
        for figure in FIGURES:
            sides = medians(measured, load, figure)
            own = sides.pop("own", None)
            pairs = {
                side: round(own / value, 3) for side, value in sides.items() if value and own is not None
            }
            if pairs:
                found.setdefault(load, {})[figure] = pairs
    return found


def table(measured: Sequence[Measured]) -> str:
    of_own = ratios(measured)
    rows = []
    for load in (*LOADS, DRAIN):
        for figure in FIGURES:
            sides = medians(measured, load, figure)
            pairs = of_own.get(load, {}).get(figure, {})
            row = [number(sides[side]) if side in sides else "" for side in SIDES]
            row += [number(pairs[rival]) if rival in pairs else "" for rival in ("proxy", "java")]
            rows.append([load, figure, *row, AIMS.get((load, figure), "")])
    return text_table(("load", "figure", *SIDES, "own ÷ proxy", "own ÷ java", "aim of own"), rows)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--warmup", type=float, default=60)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--size", type=int, default=1_024)
    parser.add_argument("--drain", type=int, default=10_000, metavar="COUNT", help="messages of the drain")
    parser.add_argument("--tls", action="store_true", help="the client speaks TLS")
    parser.add_argument("--save", metavar="NAME", help="writes bench/results/NAME.json")
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse_arguments()
    end_on_signals()
    class_path(LIBRARIES)
    comparison = Comparison(arguments)
    comparison.run()
    print(table(comparison.measured))
    sys.exit(1 if failed(comparison.measured) else 0)


if __name__ == "__main__":
    main()
