"""What delayed messages cost while they wait: memory, the time to start, and the time until another node
takes over, with none of them, with 20,000 at a delay level, and 100,000 timer messages for the next days.

For each: resident memory of every node (before and after they are sent, and after a start), the time from the
start of all processes until a message can be written (`start`), and kills of the leader, timed as in
bench.failover. At the end of the timers' part, how long after its time a message comes while the others wait.

usage: python -m bench.waiting [--delayed 20000] [--timers 100000] [--rounds 5] [--save waiting]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.failover import is_whole, kill_once, summary
from bench.processes import end_on_signals
from bench.results_file import save
from commitlog.record import Record, format_properties, get_property
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader
from tests.integration.cluster import Cluster
from tests.integration.streams import Stream, read_topic
from tests.integration.waiting import wait_for

STREAM_QUEUES = 4
IN_FLIGHT = 200
BODY = b"x" * 200
DAY_MS = 86_400_000
LAST_LEVEL = 18
PROBES = 20
LIMIT_S = 60.0
LOOK_S = 1.0

Properties = Callable[[int], dict[str, str]]


def delayed(number: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"D{number:09d}", "DELAY": str(LAST_LEVEL)}


def timed(number: int) -> dict[str, str]:
    """Spread over the next one to three days."""
    ahead_ms = DAY_MS + number * 7_919 % (2 * DAY_MS - 600_000)
    return {"UNIQ_KEY": f"T{number:09d}", "TIMER_DELAY_MS": str(ahead_ms)}


def probe(number: int) -> dict[str, str]:
    due_ms = int(time.time() * 1000) + 1_000 + 250 * number
    return {"UNIQ_KEY": f"P{number:09d}", "TIMER_DELIVER_MS": str(due_ms)}


async def fill(cluster: Cluster, topic: str, count: int, properties: Properties) -> None:
    """Send so many messages, a bounded number at a time. Raises RuntimeError for one that is refused."""
    client, address = RemotingClient(), cluster.address(cluster.wait_leader())
    numbers = iter(range(count))

    async def send_on() -> None:
        for number in numbers:
            header = SendMessageRequestHeader(
                producer_group="BenchWaiting",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=STREAM_QUEUES,
                queue_id=number % STREAM_QUEUES,
                sys_flag=0,
                born_timestamp_ms=int(time.time() * 1000),
                properties=format_properties(properties(number)).decode(),
            )
            request = RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=BODY)
            answer = await client.invoke(address, request, 10.0)
            if answer.code != ResponseCode.SUCCESS:
                raise RuntimeError(f"a message is refused: {answer.code} {answer.remark}")

    await asyncio.gather(*(send_on() for _ in range(min(IN_FLIGHT, count))))
    await client.close()


def memory_mib(cluster: Cluster) -> dict[str, float]:
    nodes = {name: each for name, each in cluster.processes().items() if name in cluster.nodes}
    return {name: round(each.memory_info().rss / 2**20, 1) for name, each in sorted(nodes.items())}


def timer_files(cluster: Cluster) -> int:
    """Bytes of one node's timer index."""
    folders = sorted(cluster.data.glob("n*/store/timer"))
    return sum(path.stat().st_size for path in folders[0].iterdir()) if folders else 0


async def measure(count: int, properties: Properties, rounds: int, *, is_probed: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        found: dict[str, Any] = {"waiting": count}
        try:
            await asyncio.to_thread(cluster.start)
            found["memory_before_mib"] = memory_mib(cluster)
            begun_s = time.monotonic()
            await fill(cluster, "BenchWaiting", count, properties)
            found["sent_in_s"] = round(time.monotonic() - begun_s, 2)
            found["memory_after_mib"] = memory_mib(cluster)
            await asyncio.to_thread(cluster.stop)
            begun_s = time.monotonic()
            await asyncio.to_thread(cluster.start)
            found["start_s"] = round(time.monotonic() - begun_s, 2)
            found["memory_after_start_mib"] = memory_mib(cluster)
            found["timer_index_bytes"] = timer_files(cluster)
            found["kills"] = await kills(cluster, rounds)
            if is_probed:
                found["late_ms"] = await lateness(cluster)
        finally:
            await asyncio.to_thread(cluster.stop)
    print(count, {name: value for name, value in found.items() if name != "kills"}, flush=True)
    return found


async def kills(cluster: Cluster, rounds: int) -> dict[str, Any]:
    await asyncio.to_thread(wait_for, "three nodes", lambda: is_whole(cluster), LIMIT_S)
    stream = Stream(cluster.namesrv, "BenchWaitingStream", STREAM_QUEUES)
    await stream.start()
    times = [await kill_once(cluster, stream) for _ in range(rounds)]
    await stream.stop()
    found = summary(times)
    print({name: value for name, value in found.items() if name != "rounds"}, flush=True)
    return found


async def lateness(cluster: Cluster) -> dict[str, float]:
    """How long after its time a message is stored in its topic: least, middle, most."""
    topic = "BenchWaitingProbes"
    await fill(cluster, topic, PROBES, probe)
    records: list[Record] = []
    end_s = time.monotonic() + LIMIT_S
    while len(records) < PROBES and time.monotonic() < end_s:
        await asyncio.sleep(LOOK_S)
        queues = await read_topic(cluster.namesrv, topic)
        records = [record for found in queues.values() for record in found]
    late = sorted(
        record.store_timestamp_ms - int(get_property(record.properties, b"TIMER_DELIVER_MS") or 0)
        for record in records
    )
    if len(late) != PROBES:
        raise RuntimeError(f"{len(late)} of {PROBES} messages came")
    return {"min": late[0], "median": statistics.median(late), "max": late[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--delayed", type=int, default=20_000, help="messages that wait at the last level")
    parser.add_argument("--timers", type=int, default=100_000, help="timer messages that wait")
    parser.add_argument("--rounds", type=int, default=5, help="kills of each part")
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    loads = [round(value, 2) for value in os.getloadavg()]
    result = {
        "none": asyncio.run(measure(0, delayed, arguments.rounds, is_probed=False)),
        "delayed": asyncio.run(measure(arguments.delayed, delayed, arguments.rounds, is_probed=False)),
        "timers": asyncio.run(measure(arguments.timers, timed, arguments.rounds, is_probed=True)),
    }
    if arguments.save:
        load = {"body_bytes": len(BODY), "nodes": 3, "load_before_start": loads}
        print(save(arguments.save, load, result))


if __name__ == "__main__":
    main()
