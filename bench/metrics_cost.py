"""What metrics cost a leader under load: the time of each added call, multiplied by the number of calls.

usage: python -m bench.metrics_cost [--in-flight 64 2000] [--seconds 8] [--save metrics-cost]

Two runs, with and without the calls, would differ by more than the cost of the calls. So each call is timed
alone, and the metrics themselves count the calls during a load on a real cluster.
"""

from __future__ import annotations

import argparse
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from timeit import repeat
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.load import Where, measure
from bench.results_file import save
from broker.monitoring.put_metrics import PutMetrics
from broker.send.turn import Turn
from commitlog.log import PutResult, PutStatus
from dledger.writer import WriteMetrics
from ledgermq.load.run import Load, LoadResult
from remoting.router import RequestCounts
from telemetry.histogram import Histogram
from tests.integration.cluster import Cluster

CALLS = 100_000
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one thing that is measured: what the calls take, and the counter that says how often."""

    us: float
    counter: str


def costs() -> dict[str, Cost]:
    """Per put: the clocks at its beginning and laying out, at its commit, and all histograms of it."""
    watch, writes, dispatch, counts = PutMetrics(500), WriteMetrics(), Histogram(), RequestCounts()
    turn = Turn(result=PutResult(PutStatus.PUT_OK, [], [], 0, 1, 1), body_bytes=64 * 1024)

    def put() -> None:
        turn.begun_s = perf_counter()
        turn.laid_out_s = perf_counter()
        watch.done(turn, perf_counter())

    def write() -> None:
        writes.written(0.0007, 64, 64 * 1024)

    def stretch() -> None:
        begun_s = perf_counter()
        dispatch.observe(perf_counter() - begun_s)

    def requests() -> None:
        counts.add(310, 64)

    return {
        "put": Cost(_us(put), "ledgermq_ack_seconds_count"),
        "write": Cost(_us(write), "ledgermq_fsync_seconds_count"),
        "dispatched stretch": Cost(_us(stretch), "ledgermq_dispatch_seconds_count"),
        "requests of a connection": Cost(_us(requests), "ledgermq_ack_seconds_count"),
    }


def _us(call: Any) -> float:
    return min(repeat(call, number=CALLS, repeat=ROUNDS)) / CALLS * 1e6


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=5) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name: sample.value for family in families for sample in family.samples if not sample.labels
    }


def run(cluster: Cluster, in_flight: int, seconds: float, of_calls: dict[str, Cost]) -> dict[str, Any]:
    """A load, and the counters and CPU time of the leader in that time, with the warm-up."""
    leader = cluster.nodes[cluster.wait_leader()]
    before = scrape(leader.metrics)
    load = Load(in_flight=in_flight, connections=1, rate=0.0, size=1024, seconds=seconds, warmup_s=2.0)
    result: LoadResult = measure(Where(cluster.namesrv), load)
    after = scrape(leader.metrics)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    cpu_s = grown["ledgermq_process_cpu_seconds_total"]
    puts, messages = (grown[f"ledgermq_put_batch_messages_{part}"] for part in ("count", "sum"))
    parts = {name: cost.us * grown[cost.counter] / 1e6 / cpu_s * 100 for name, cost in of_calls.items()}
    begun_s = perf_counter()
    scrape(leader.metrics)
    return {
        "per_second": result.as_json()["per_second"],
        "messages_a_put": round(messages / puts, 1),
        "percent_of_cpu": {name: round(value, 3) for name, value in parts.items()},
        "percent_of_cpu_in_all": round(sum(parts.values()), 3),
        "scrape_ms": round((perf_counter() - begun_s) * 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--in-flight", type=int, nargs="*", default=[64, 2000])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    of_calls = costs()
    for name, cost in of_calls.items():
        print(f"{cost.us:6.2f} µs for each {name}")
    result: dict[str, Any] = {"us": {name: round(cost.us, 3) for name, cost in of_calls.items()}}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start()
            for in_flight in arguments.in_flight:
                result[str(in_flight)] = found = run(cluster, in_flight, arguments.seconds, of_calls)
                print(in_flight, found)
        finally:
            cluster.stop()
    if arguments.save:
        print(save(arguments.save, {"in_flight": arguments.in_flight}, result))


if __name__ == "__main__":
    main()
