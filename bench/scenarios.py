"""The measurements of a side: a scenario loads it, then the stored messages are counted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psutil

from bench import stock_java
from bench.processes import END, READY, WARM, Marks, Usage, UsageMeter, cpu_time_s, figures_of
from bench.rivals import rivals_folder
from bench.sides import RemotingSide, Side
from ledgermq.load.cluster import ask
from ledgermq.load.run import Load, Run
from ledgermq.messaging import tls_credentials

OWN_QUEUES = 8
ROUTE_POLL_MS = 1_000
SEND_TIMEOUT_MS = 1_000
IDLE_END_S = 60.0
COLD_WARMUP_S = 3.0
"""Of the one scenario that shows a side as it is just after its start."""
_NATS_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Times:
    """How long and how much; the same for every side of a run.

    `warmup_s`: each scenario goes on for so long with the load that it measures before anything counts.
    A Java broker gets several times faster in its first minute under a load.
    """

    seconds: float = 8.0
    warmup_s: float = 60.0
    drain_messages: int = 1_000_000
    latency_rate: int = 1_000
    idle_settle_s: float = 45.0
    idle_s: float = 30.0
    failover_s: float = 25.0
    pause_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """`run` gets the side, a topic of its own, the times, and the nodes' meter: it calls `begin` and `end`
    where what counts begins and ends. Its figures hold `acknowledged` if it sent, and the `messages` that
    count.
    """

    name: str
    title: str
    client: str
    sides: tuple[str, ...]
    run: Measure
    load_s: Callable[[Times], float]
    """About how long it takes, for the progress bar."""


Measure = Callable[[Side, str, Times, UsageMeter], dict[str, Any]]


def measure(scenario: Scenario, side: Side, topic: str, times: Times) -> dict[str, Any]:
    """Run the scenario with the nodes' memory and CPU time, then count what is stored."""
    os.sync()
    time.sleep(times.pause_s)
    with UsageMeter(side.nodes()) as meter:
        figures = scenario.run(side, topic, times, meter)
    figures |= _usage(meter.usage, figures.get("messages"))
    if isinstance(side, RemotingSide) and "acknowledged" in figures:
        figures |= count_stored(side.namesrv, topic, figures["acknowledged"])
    elif "stored" in figures:
        figures["lost"] = max(0, figures["acknowledged"] - figures["stored"])
    return figures


def count_stored(namesrv: str, topic: str, acknowledged: int) -> dict[str, int]:
    """Count by offsets, and by reading every message; `lost`: acknowledged messages missing in either."""
    stored = ask(namesrv, lambda cluster: cluster.stored_in_the_end(topic, acknowledged))
    read_back = ask(namesrv, lambda cluster: cluster.read_back(topic))
    return {"stored": stored, "read_back": read_back, "lost": max(0, acknowledged - min(stored, read_back))}


def _usage(usage: Mapping[str, Usage], messages: int | None) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "resident_mb": {name: round(one.peak_resident_mb, 1) for name, one in usage.items()},
        "private_mb": {name: round(one.peak_private_mb, 1) for name, one in usage.items()},
        "cpu_s": {name: round(one.cpu_s, 2) for name, one in usage.items()},
    }
    if messages:
        each = {name: one.cpu_s * 1e6 / messages for name, one in usage.items()}
        figures["node_us_per_message"] = {name: round(us, 1) for name, us in each.items()}
        figures["all_nodes_us_per_message"] = round(sum(each.values()), 1)
    return figures


def _marks(meter: UsageMeter) -> Marks:
    return {WARM: meter.begin, END: meter.end}


@contextmanager
def _marked_by_time(meter: UsageMeter, times: Times) -> Iterator[None]:
    """For a load in this process, which counts from its start."""
    timers = [
        threading.Timer(times.warmup_s, meter.begin),
        threading.Timer(times.warmup_s + times.seconds, meter.end),
    ]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()


def java_producer(kind: str, count: int, size: int = 1024) -> Measure:
    def run(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
        options = {"namesrv": side.namesrv, "topic": topic, kind: count, "size": size}
        options |= {"seconds": times.seconds, "warmup_s": times.warmup_s}
        return stock_java.produce(options, _marks(meter))

    return run


def cold(measure: Measure) -> Measure:
    """The same without a warm-up."""

    def run(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
        return measure(side, topic, replace(times, warmup_s=COLD_WARMUP_S), meter)

    return run


def own_load(kind: str, count: int, size: int = 1024) -> Measure:
    """The side's own lean load program: the generator of this project, or that of bench/nats."""

    def run(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
        if not isinstance(side, RemotingSide):
            return _nats_load(side, topic, kind, count, size, times, meter)
        host, _, port = ask(side.namesrv, lambda cluster: cluster.make_topic(topic, OWN_QUEUES)).rpartition(
            ":"
        )
        load = Load(in_flight=count, size=size, seconds=times.seconds, warmup_s=times.warmup_s)
        targets = [(topic, queue) for queue in range(OWN_QUEUES)]
        load_run = Run(load, (host, int(port)), targets, tls=tls_credentials())
        with _marked_by_time(meter, times):
            return load_run.measure().as_json()

    return run


def _nats_load(
    side: Side, topic: str, kind: str, count: int, size: int, times: Times, meter: UsageMeter
) -> dict[str, Any]:
    command = [str(rivals_folder() / "nats-load"), "-servers", side.namesrv, "-stream", topic]
    command += ["-threads" if kind == "threads" else "-in-flight", str(count), "-size", str(size)]
    command += ["-seconds", str(times.seconds), "-warmup", str(times.warmup_s)]
    return figures_of(command, times.seconds + times.warmup_s + _NATS_LIMIT_S, _marks(meter))


def drain(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
    """The topic is drained again and again, by a new group each time, until client and brokers are warm."""
    count = times.drain_messages
    place = {"namesrv": side.namesrv, "topic": topic, "count": count}
    limit_s = 60 + count / 1_000
    filled = stock_java.run("Fill", place | {"size": 1024}, limit_s)
    options = place | {"idle_s": IDLE_END_S, "warmup_s": times.warmup_s}
    figures = stock_java.run("Drain", options, limit_s + times.warmup_s, _marks(meter))
    return figures | {"acknowledged": filled["acknowledged"], "missed": max(0, count - figures["messages"])}


def latency(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
    options = {"namesrv": side.namesrv, "topic": topic, "rate": times.latency_rate, "size": 1024}
    options |= {"seconds": times.seconds, "warmup_s": times.warmup_s}
    return stock_java.run("Latency", options, times.seconds + times.warmup_s, _marks(meter))


def idle(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
    """Percent of a core that each node uses without requests."""
    time.sleep(times.idle_settle_s)
    nodes = side.nodes()
    before_s = {name: cpu_time_s(process) for name, process in nodes.items()}
    time.sleep(times.idle_s)
    shares = {
        name: (cpu_time_s(process) - before_s[name]) / times.idle_s * 100 for name, process in nodes.items()
    }
    return {
        "idle_cpu_percent": {name: round(share, 2) for name, share in shares.items()},
        "idle_resident_mb": {
            name: round(process.memory_info().rss / 1e6, 1) for name, process in nodes.items()
        },
    }


def failover(side: Side, topic: str, times: Times, meter: UsageMeter) -> dict[str, Any]:
    """`kill -9` on the leader while one producer sends: the longest time between two acknowledgements."""
    assert isinstance(side, RemotingSide)
    killed: list[psutil.Process] = []

    def kill() -> None:
        leader = side.nodes()[side.leader()]
        leader.kill()
        killed.append(leader)

    options = {"namesrv": side.namesrv, "topic": topic, "route_poll_ms": ROUTE_POLL_MS, "size": 1024}
    options |= {"timeout_ms": SEND_TIMEOUT_MS, "seconds": times.failover_s, "warmup_s": times.warmup_s}
    figures = stock_java.run("Failover", options, times.failover_s + times.warmup_s, {READY: kill})
    if not killed:
        raise SystemExit(f"{side.title} took no 50 sends before the time of the failover was over.")
    return {name: figures[name] for name in ("gap_s", "recovered", "acknowledged", "errors")}


def _load_s(times: Times) -> float:
    return times.seconds + times.warmup_s + 8


JAVA = stock_java.CLIENT
OWN = "its own lean load program"
PAIR = ("ledgermq", "java-dledger")
SCENARIOS = (
    Scenario("idle", "idle", "none", PAIR, idle, lambda times: times.idle_settle_s + times.idle_s),
    Scenario(
        "cold64",
        f"cold: 64 threads sync, first load after the start, {COLD_WARMUP_S:g} s of warm-up",
        JAVA,
        (*PAIR, "java-single"),
        cold(java_producer("threads", 64)),
        lambda times: COLD_WARMUP_S + times.seconds + 8,
    ),
    Scenario(
        "sync64", "64 threads sync", JAVA, (*PAIR, "java-single"), java_producer("threads", 64), _load_s
    ),
    Scenario(
        "flight2000",
        "2,000 in flight",
        JAVA,
        (*PAIR, "java-single"),
        java_producer("in_flight", 2000),
        _load_s,
    ),
    Scenario(
        "flight2000-128",
        "2,000 in flight, 128 B",
        JAVA,
        PAIR,
        java_producer("in_flight", 2000, size=128),
        _load_s,
    ),
    Scenario("sync1", "1 thread sync", JAVA, PAIR, java_producer("threads", 1), _load_s),
    Scenario("own64", "64 sync, own load", OWN, ("ledgermq", "nats"), own_load("threads", 64), _load_s),
    Scenario(
        "own2000",
        "2,000 in flight, own load",
        OWN,
        ("ledgermq", "nats"),
        own_load("in_flight", 2000),
        _load_s,
    ),
    Scenario("latency", "send to push consumer", JAVA, PAIR, latency, _load_s),
    Scenario(
        "drain",
        "push consumer drains",
        JAVA,
        PAIR,
        drain,
        lambda times: times.warmup_s + 30 + times.drain_messages / 10_000,
    ),
    Scenario(
        "failover",
        "kill -9 of the leader",
        JAVA,
        PAIR,
        failover,
        lambda times: times.warmup_s + times.failover_s + 5,
    ),
)
"""In the order in which a side runs them: first idle, before any load; then the cold one; the kill is the
last.
"""
