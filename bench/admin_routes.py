"""How long each list and detail of the admin service takes with many topics and groups: the first answer, and
the slowest later one. Each is requested alone, after the half second for which the service caches answers.

Of the topics a tenth are dead-letter topics. Every group has an offset in one topic, every queue a message.

usage: python -m bench.admin_routes [--topics 2000] [--groups 5000] [--rounds 3] [--save admin-routes]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import orjson

from bench.many_topics import IN_FLIGHT, LIMIT_S, Asker, make_topics
from bench.processes import end_on_signals
from bench.results_file import save
from remoting.codes import RequestCode
from remoting.headers.consume import UpdateConsumerOffsetRequestHeader
from tests.integration.cluster import Cluster

GROUP, TOPIC = "BenchGroup00000", "BenchTopic00000"
DEAD_LETTERS_SHARE = 10
QUEUES = 2
CACHE_S = 0.6
"""Longer than the service caches answers for all clients."""
SETTLE_S = 8.0
"""After so much was made brokers still tell the name server of it."""


def names(topics: int) -> list[str]:
    dead = topics // DEAD_LETTERS_SHARE
    letters = [f"%DLQ%BenchGroup{number:05d}" for number in range(dead)]
    return letters + [f"BenchTopic{number:05d}" for number in range(topics - dead)]


async def make_groups(address: str, count: int, topics: list[str]) -> None:
    asker = Asker(address)
    groups = [f"BenchGroup{number:05d}" for number in range(count)]
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await _some_at_once(asker.one(code, {}, orjson.dumps({"groupName": group})) for group in groups)
    plain = [topic for topic in topics if not topic.startswith("%")]
    offsets = (
        UpdateConsumerOffsetRequestHeader(group, plain[number % len(plain)], 0, 0)
        for number, group in enumerate(groups)
    )
    await asker.all(RequestCode.UPDATE_CONSUMER_OFFSET, offsets)
    await asker.client.close()


async def _some_at_once(asks: Iterable[Awaitable[object]]) -> None:
    waiting = iter(asks)
    while some := list(islice(waiting, IN_FLIGHT)):
        await asyncio.gather(*some)


def paths(address: str, broker_name: str, message_id: str) -> list[str]:
    topic, group = f"/topics/{TOPIC}", f"/consumer-groups/{GROUP}"
    return [
        "/cluster",
        "/doctor",
        "/topics",
        "/topics?pageSize=1000&sort=queues",
        "/topics?name=999",
        *(topic + part for part in ("", "/queues", "/stats", "/route")),
        "/consumer-groups",
        "/consumer-groups?pageSize=1000&sort=lag&descending=true",
        "/consumer-groups?name=999",
        *(group + part for part in ("", "/members", "/progress")),
        "/producer-groups",
        "/brokers",
        *(f"/brokers/{address}{part}" for part in ("", "/runtime", "/storage", "/config")),
        "/dlq",
        "/dlq?pageSize=1000",
        "/dlq/BenchGroup00000",
        "/dlq/BenchGroup00000/messages",
        f"/messages?topic={TOPIC}",
        f"/messages?topic={TOPIC}&key=none",
        *(f"/messages/{message_id}{part}?topic={TOPIC}" for part in ("", "/trace", "/track")),
        f"/replication/{broker_name}",
        "/name-server",
        "/history",
        "/audit",
    ]


def ask(api: httpx.Client, path: str) -> float:
    """Milliseconds. Asks again when told that it asks too much."""
    while True:
        begun_s = time.perf_counter()
        answer = api.get(path)
        took_ms = 1000 * (time.perf_counter() - begun_s)
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            answer.raise_for_status()
            return round(took_ms, 1)
        time.sleep(int(answer.headers["Retry-After"]))


def measure(topics: int, groups: int, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"topics": topics, "groups": groups, "rounds": rounds}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        try:
            cluster.start(admin=True)
            leader = cluster.wait_leader()
            address = cluster.address(leader)
            asyncio.run(make_topics(address, names(topics), QUEUES))
            asyncio.run(make_groups(address, groups, names(topics)))
            time.sleep(SETTLE_S)
            with httpx.Client(base_url=f"{cluster.admin}/api/v1", timeout=LIMIT_S) as api:
                window = api.get("/messages", params={"topic": TOPIC}).raise_for_status().json()
                message_id = window["items"][0]["id"]
                status = cluster.status(leader) or {}
                asked = paths(address, status["brokerName"], message_id)
                plain = {address: "ADDRESS", message_id: "MESSAGE_ID"}
                found["routes"] = {_named(path, plain): timed(api, path, rounds) for path in asked}
        finally:
            cluster.stop()
    return found


def _named(path: str, plain: dict[str, str]) -> str:
    for value, name in plain.items():
        path = path.replace(value, name)
    return path


def timed(api: httpx.Client, path: str, rounds: int) -> dict[str, float]:
    time.sleep(CACHE_S)
    first_ms = ask(api, path)
    later_ms = []
    for _ in range(rounds):
        time.sleep(CACHE_S)
        later_ms.append(ask(api, path))
    print(f"{first_ms:8.1f} {max(later_ms):8.1f} ms  {path}", flush=True)
    return {"first_ms": first_ms, "slowest_ms": max(later_ms)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--groups", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3, help="answers of each route after its first")
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    loads = [round(value, 2) for value in os.getloadavg()]
    found = measure(arguments.topics, arguments.groups, arguments.rounds)
    if arguments.save:
        print(save(arguments.save, {"nodes": 3, "load_before_start": loads}, found))


if __name__ == "__main__":
    main()
