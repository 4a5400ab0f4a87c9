"""A lean load generator: so many sends in flight (closed loop), or so many a second (open loop).

In the open loop every send has a time at which it is due, and its latency counts from then: a stalled broker
cannot hide its stall by keeping the generator from sending (no coordinated omission).

usage: python -m bench.load --namesrv 127.0.0.1:9876 --in-flight 64 [--connections 1] [--rate 5000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import uvloop

from bench.percentiles import Latencies
from bench.results_file import save
from bench.send_protocol import FAILED, SendProtocol
from remoting.client import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.route import parse_topic_route

QUEUES = 8
TICK_S = 0.001
DRAIN_LIMIT_S = 10.0
CREATE_TRIES = 50


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent. `rate` 0 means closed loop; in the open loop `in_flight` is the bound that ends a run."""

    namesrv: str
    topic: str
    in_flight: int = 64
    connections: int = 1
    rate: float = 0.0
    size: int = 1024
    seconds: float = 8.0
    warmup_s: float = 3.0


class Run:
    """One run against one broker address."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._latencies = Latencies()
        self._errors: Counter[str] = Counter()
        self._protocols: list[SendProtocol] = []
        self._warm_s = 0.0
        self._end_s = 0.0
        self._overruns = 0

    async def measure(self, host: str, port: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        for _ in range(self._load.connections):
            _, protocol = await loop.create_connection(self._make_protocol, host, port)
            self._protocols.append(protocol)
        started_s = perf_counter()
        self._warm_s = started_s + self._load.warmup_s
        self._end_s = self._warm_s + self._load.seconds
        if self._load.rate:
            await self._send_at_rate(started_s)
        else:
            await self._keep_in_flight(started_s)
        await self._drain()
        return self._result()

    def _make_protocol(self) -> SendProtocol:
        return SendProtocol(self._load.topic, QUEUES, b"x" * self._load.size, self._take_answers)

    async def _keep_in_flight(self, now_s: float) -> None:
        share = math.ceil(self._load.in_flight / len(self._protocols))
        for protocol in self._protocols:
            protocol.send([now_s] * share)
        await asyncio.sleep(self._end_s - perf_counter())

    async def _send_at_rate(self, started_s: float) -> None:
        sent = 0
        while (now_s := perf_counter()) < self._end_s:
            due = int((now_s - started_s) * self._load.rate) - sent
            if sum(protocol.in_flight for protocol in self._protocols) + due > self._load.in_flight:
                self._overruns += 1
                due = 0  # they stay due, and count from their due time once they are sent
            starts = [started_s + (sent + i) / self._load.rate for i in range(due)]
            for number, protocol in enumerate(self._protocols):
                protocol.send(starts[number :: len(self._protocols)])
            sent += due
            await asyncio.sleep(TICK_S)

    def _take_answers(self, protocol: SendProtocol, starts: list[float]) -> None:
        now_s = perf_counter()
        for start_s in starts:
            if start_s != FAILED and self._warm_s <= start_s and now_s <= self._end_s:
                self._latencies.add(now_s - start_s)
        if not self._load.rate and now_s < self._end_s:
            protocol.send([now_s] * len(starts))

    async def _drain(self) -> None:
        limit_s = perf_counter() + DRAIN_LIMIT_S
        while any(protocol.in_flight for protocol in self._protocols) and perf_counter() < limit_s:
            await asyncio.sleep(TICK_S)
        for protocol in self._protocols:
            if protocol.in_flight:
                self._errors["no answer"] += protocol.in_flight
            protocol.close()
            await protocol.closed
            self._errors += protocol.errors

    def _result(self) -> dict[str, Any]:
        per_second = len(self._latencies) / self._load.seconds
        return {
            "messages": len(self._latencies),
            "per_second": round(per_second, 1),
            **self._latencies.summary_ms(),
            "errors": dict(self._errors),
            "overruns": self._overruns,
        }


async def _make_topic(client: RemotingClient, load: Load) -> str:
    """Create the topic by a first send; return the broker's address."""
    answer = None
    for _ in range(CREATE_TRIES):
        route = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "TBW102"})
        answer = await client.invoke(load.namesrv, route)
        brokers = parse_topic_route(answer.body).broker_datas if answer.code == ResponseCode.SUCCESS else ()
        address = next((broker.master_addr for broker in brokers), None)
        if address is not None:
            ext = {"a": "bench", "b": load.topic, "c": "TBW102", "d": str(QUEUES), "e": "0", "f": "0"}
            ext |= {"g": "0", "h": "0", "m": "false"}
            first = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=b"first")
            answer = await client.invoke(address, first)
            if answer.code == ResponseCode.SUCCESS:
                return address
        await asyncio.sleep(0.2)
    raise SystemExit(f"No message can be written to {load.topic}: {answer!r}")


async def run(load: Load) -> dict[str, Any]:
    """Measure one load and return its figures."""
    client = RemotingClient()
    try:
        host, _, port = (await _make_topic(client, load)).rpartition(":")
    finally:
        await client.close()
    return await Run(load).measure(host, int(port))


def parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Load, str | None]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--namesrv", default="127.0.0.1:9876")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--in-flight", "--threads", type=int, default=64, help="sends without an answer yet")
    parser.add_argument("--connections", type=int, default=1, help="the stock clients use one a broker")
    parser.add_argument("--rate", type=float, default=0.0, help="sends a second; 0: as fast as answers come")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--seconds", type=float, default=8.0, help="measured after the warm-up")
    parser.add_argument("--warmup", type=float, default=3.0, dest="warmup_s")
    parser.add_argument("--save", help="name of the file in bench/results")
    values = vars(parser.parse_args(arguments))
    name: str | None = values.pop("save")
    return Load(**values), name


def main() -> None:
    load, name = parse_arguments()
    result = uvloop.run(run(load))
    print(json.dumps(result))
    if name:
        print(save(name, asdict(load), result))


if __name__ == "__main__":
    main()
