"""Several replication groups beside as many of RocketMQ's DLedger brokers, both warm: what a producer
notices when the leader of one dies, how much all take together, and what memory they need.

* `gaps`: rounds of `kill -9` on the leader of the last group, with the stock Java producer at its default
  settings (two retries, 3 s, routes each 30 s): failed sends, and the longest time between two that succeed.
* `throughput`: the stock Java producer under load; after it the memory of one node of each group, so of one
  machine.

usage: python -m bench.groups gaps|throughput [--groups 1 2 3] [--sides ledgermq …] [--rounds 5] [--save NAME]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from bench.processes import end_on_signals
from bench.results_file import ROOT, save
from bench.rivals import JavaDLedger
from bench.sides import LedgerMQ, RemotingSide
from bench.stock_java import produce
from ledgermq.load.cluster import ask
from ledgermq.load.run import Load, Run
from ledgermq.local.cluster import write_files
from ledgermq.local.plan import ClusterPlan, NodePlan
from ledgermq.local.processes import PYTHON_MODULE, namesrv_command
from ledgermq.messaging import messaging_client
from remoting.client.routes import leaders_of
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.route import DEFAULT_TOPIC
from tests.integration.client_runs import finish, java_driver, read_report
from tests.integration.waiting import wait_for

SENDS_BETWEEN = 300
WINDOW_LIMIT_S = 45.0
"""A stock producer asks for routes each 30 s."""
CALM_S = 3.0
SETTLE_S = 16.0
"""Until the returned node has its log, and leads again where it is preferred."""
LIMIT_S = 60.0
SIZE = 1024
DEFAULTS = {"poll_ms": 30_000, "retries": 2, "timeout_ms": 3_000}
"""Of DefaultMQProducer."""


class OneProcess(LedgerMQ):
    """The same nodes, with those of one machine in one process."""

    name = "ledgermq-one-process"
    title = "LedgerMQ, 3 nodes, all groups of a machine in one process"

    def launch(self) -> float:
        plan = ClusterPlan(
            self.data, self._node_count, self._base, self._base + 10, 0, {"durability": self._mode}, False, 0,
            group_count=self._group_count,
        )  # fmt: skip
        self.data.mkdir(parents=True)
        write_files(plan)
        for namesrv in plan.namesrvs:
            self.processes.spawn(namesrv.name, namesrv_command(plan, namesrv).argv, {"PYTHONPATH": str(ROOT)})
        began_s = time.monotonic()
        rows: list[dict[str, Any]] = []
        for machine in range(self._node_count):
            nodes = [group.nodes[machine] for group in plan.groups]
            argv = (*PYTHON_MODULE, "bench.groups", "serve", *(str(node.config_file) for node in nodes))
            pid = self.processes.spawn(f"machine-{machine}", argv, {"PYTHONPATH": str(ROOT)}).pid
            rows += [self._row(plan, node, pid) for node in nodes]
        self._ready = {"nodes": rows}
        return began_s

    @staticmethod
    def _row(plan: ClusterPlan, node: NodePlan, pid: int) -> dict[str, Any]:
        return {
            "id": node.id,
            "group": plan.group_of(node).name,
            "pid": pid,
            "remoting": node.remoting_address,
        }


def serve(configs: Sequence[str]) -> int:
    """All these brokers on one event loop, until SIGTERM."""
    import signal

    from broker.__main__ import serve_until
    from broker.app import Broker
    from broker.config import load_config
    from remoting.loop import run

    async def serve_all() -> int:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        brokers = [Broker(load_config(Path(config), [])) for config in configs]
        codes = await asyncio.gather(*(serve_until(broker, stop) for broker in brokers))
        await asyncio.gather(*(broker.stop() for broker in brokers))
        return max(codes)

    return run(serve_all())


Side = Callable[[Path, int], RemotingSide]
SIDES: dict[str, Side] = {
    "ledgermq": lambda folder, groups: LedgerMQ(folder, groups=groups),
    "ledgermq-one-process": lambda folder, groups: OneProcess(folder, groups=groups),
    "java-dledger": lambda folder, groups: JavaDLedger(folder, groups),
}


def leaders(side: RemotingSide) -> dict[str, str]:
    """Broker name -> where its leader serves clients, as the name server has it."""
    route = ask(side.namesrv, lambda cluster: cluster.route(DEFAULT_TOPIC))
    return dict(leaders_of(route.broker_datas)) if route else {}


def start(side: RemotingSide, groups: int) -> None:
    side.start()
    wait_for(f"{groups} leaders", lambda: len(leaders(side)) == groups, LIMIT_S)


def warm_up(side: RemotingSide, topic: str, warm_s: float) -> None:
    """Java's brokers compile what they run often: all groups get load first."""
    produce(
        {
            "namesrv": side.namesrv,
            "topic": topic,
            "threads": 32,
            "size": SIZE,
            "seconds": 5,
            "warmup_s": warm_s,
        }
    )


def kill_leader(side: RemotingSide) -> str:
    """Of the last group; which node it was."""
    leading = leaders(side)
    address = leading[max(leading)]
    node = side.node_at(int(address.rpartition(":")[2]))
    if isinstance(side, LedgerMQ):
        side.nodes()[node].kill()
    else:
        side.processes.kill(node)
    return node


def one_kill(side: RemotingSide, out: Path) -> dict[str, float]:
    """A kill under the running producer, to the end of what it notices. The node runs again at the end."""
    sent = len(read_report(out))
    wait_for("sends", lambda: len(read_report(out)) >= sent + SENDS_BETWEEN, LIMIT_S)
    killed_ms = time.time() * 1000
    node = kill_leader(side)
    end_s = time.monotonic() + WINDOW_LIMIT_S
    while time.monotonic() < end_s:
        time.sleep(CALM_S)
        since = [row for row in read_report(out) if row["at_ms"] >= killed_ms]
        late = [row for row in since if row["at_ms"] > time.time() * 1000 - CALM_S * 1000]
        if late and all(row["status"] == "SEND_OK" for row in late):
            break
    assert isinstance(side, LedgerMQ | JavaDLedger)
    side.start_node(node)
    time.sleep(SETTLE_S)
    rows = [row for row in read_report(out) if row["at_ms"] >= killed_ms - 500]
    good = [row["at_ms"] for row in rows if row["status"] == "SEND_OK"]
    failed = sum(row["status"] != "SEND_OK" for row in rows)
    return {"failed": failed, "gap_ms": max(later - earlier for earlier, later in pairwise(good))}


def gaps(name: str, groups: int, rounds: int, warm_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        side = SIDES[name](home / "side", groups)
        out, stop = home / "sends.jsonl", home / "stop"
        try:
            start(side, groups)
            warm_up(side, "BenchGaps", warm_s)
            driver = java_driver("5.5.0", home)
            given = {
                "namesrv": side.namesrv,
                "topic": "BenchGaps",
                "group": "BenchGapsP",
                "out": out,
                "stop": stop,
            }
            producer = driver.start(["stream", *(f"{k}={v}" for k, v in {**given, **DEFAULTS}.items())], out)
            try:
                found = [shown(f"{name} {groups}", one_kill(side, out)) for _ in range(rounds)]
            finally:
                stop.touch()
                finish(producer, out)
        finally:
            side.stop()
    gap_ms = [each["gap_ms"] for each in found]
    return {
        "failed": sum(each["failed"] for each in found),
        "gap_ms": {"median": statistics.median(gap_ms), "max": max(gap_ms)},
        "rounds": found,
    }


def shown(what: str, figures: dict[str, float]) -> dict[str, float]:
    print(what, figures, flush=True)
    return figures


LOADS = ({"threads": 64}, {"in_flight": 2000})
OWN_LOADS = (64, 2000)
"""Sends in flight of the lean load generator, over all groups: it leaves the processors to the brokers."""
QUEUES = 8


def throughput(name: str, groups: int, rounds: int, warm_s: float, *, is_lean: bool) -> dict[str, Any]:
    """Acknowledged messages a second of each load, the median of the rounds; and what the processes need."""
    with tempfile.TemporaryDirectory() as folder:
        side = SIDES[name](Path(folder) / "side", groups)
        try:
            start(side, groups)
            time.sleep(SETTLE_S)  # each group's preferred leader takes over
            make_topic(side, "BenchGroups")
            warm_up(side, "BenchGroups", warm_s)
            common = {
                "namesrv": side.namesrv,
                "topic": "BenchGroups",
                "size": SIZE,
                "seconds": 8,
                "warmup_s": 3,
            }
            found: dict[str, Any] = {}
            for load in () if is_lean else LOADS:
                runs = [produce({**common, **load})["per_second"] for _ in range(rounds)]
                kind = " ".join(f"{key} {value}" for key, value in load.items())
                found[kind] = {"per_s": statistics.median(runs), "rounds": runs}
                print(name, groups, kind, found[kind], flush=True)
            for in_flight in OWN_LOADS:
                runs = [own_load(side, "BenchGroups", in_flight) for _ in range(rounds)]
                found[f"own {in_flight}"] = {"per_s": statistics.median(runs), "rounds": runs}
                print(name, groups, f"own {in_flight}", found[f"own {in_flight}"], flush=True)
            found["memory"] = memory(side)
            print(name, groups, found["memory"], flush=True)
        finally:
            side.stop()
    return found


def own_load(side: RemotingSide, topic: str, in_flight: int) -> float:
    """Acknowledged messages a second, over all groups, of one generator for each group."""
    addresses = sorted(leaders(side).values())
    load = Load(in_flight=in_flight // len(addresses), size=SIZE, seconds=8, warmup_s=3)
    with ProcessPoolExecutor(len(addresses), get_context("spawn")) as generators:
        runs = [generators.submit(load_at, address, topic, load) for address in addresses]
        return round(sum(each.result() for each in runs), 1)


def load_at(address: str, topic: str, load: Load) -> float:
    """Acknowledged messages a second at one leader."""
    host, _, port = address.rpartition(":")
    targets = [(topic, queue) for queue in range(QUEUES)]
    return Run(load, (host, int(port)), targets).measure().per_second


def make_topic(side: RemotingSide, topic: str) -> None:
    """In every group: one that a first send makes may be in one of them only."""
    fields = CreateTopicRequestHeader(topic, DEFAULT_TOPIC, QUEUES, QUEUES).ext_fields()

    async def make(addresses: Sequence[str]) -> set[int]:
        client = messaging_client()
        request = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
        try:
            return {(await client.invoke(address, request)).code for address in addresses}
        finally:
            await client.close()

    codes = asyncio.run(make(list(leaders(side).values())))
    assert codes == {ResponseCode.SUCCESS}, codes


def memory(side: RemotingSide) -> dict[str, float]:
    """Of the nodes of one machine (the first of each group), in MB: what is theirs alone, and their part of
    what they share.
    """
    nodes = side.nodes()
    first = [node for node in nodes if node.rpartition("-")[2] == "n0" or node in ("n10", "n20", "n30")]
    processes = {nodes[node].pid: nodes[node] for node in first}
    full = [process.memory_full_info() for process in processes.values()]
    return {
        "processes": len(full),
        "pss_mb": round(sum(each.pss for each in full) / 1e6, 1),
        "private_mb": round(sum(each.uss for each in full) / 1e6, 1),
    }


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(sys.argv[2:]))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("what", choices=("gaps", "throughput"))
    parser.add_argument("--groups", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--sides", nargs="*", default=["ledgermq", "java-dledger"], choices=SIDES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=float, default=25, metavar="SECONDS", help="of load before")
    parser.add_argument("--lean", action="store_true", help="throughput without the stock Java client")
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    loads = [round(value, 2) for value in os.getloadavg()]
    measure = gaps if arguments.what == "gaps" else partial(throughput, is_lean=arguments.lean)
    result: dict[str, Any] = {}
    for groups in arguments.groups:
        for name in arguments.sides:
            result.setdefault(name, {})[str(groups)] = measure(name, groups, arguments.rounds, arguments.warm)
    if arguments.save:
        load = {
            "what": arguments.what,
            "rounds": arguments.rounds,
            "nodes": 3,
            "size": SIZE,
            "cpus": psutil.cpu_count(),
        }
        print(save(arguments.save, load | {"load_before_start": loads}, result))


if __name__ == "__main__":
    main()
