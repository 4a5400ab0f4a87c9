"""What many topics cost: the time to start, memory, the time until another node takes over, and until a
consumer group that reads all of them has rebalanced its queues.

A rebalance has two times, both from the heartbeat of a second member: until the first member is notified
(NOTIFY_CONSUMER_IDS_CHANGED), and until both have sent the requests that a stock client sends then: for each
topic the members of the group, and the offset of each queue assigned to them.

usage: python -m bench.many_topics [--topics 2000] [--queues 8] [--rounds 5] [--save many-topics]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from bench.processes import end_on_signals
from bench.results_file import save
from bench.waiting import kills, memory_mib
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.headers.admin import CreateTopicRequestHeader
from remoting.headers.consume import QueryConsumerOffsetRequestHeader
from remoting.headers.fields import RequestHeader
from remoting.headers.send import SendMessageRequestHeader
from tests.integration.cluster import Cluster

GROUP = "BenchManyTopics"
IN_FLIGHT = 64
LIMIT_S = 60.0
BEAT_S = 0.2


def topic_names(count: int) -> list[str]:
    return [f"BenchTopic{number:05d}" for number in range(count)]


class Asker:
    """Requests to one broker, a bounded number at a time."""

    def __init__(self, address: str) -> None:
        self.client = RemotingClient()
        self._address = address

    async def one(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        command = RemotingCommand(code, ext_fields=ext, body=body)
        return await self.client.invoke(self._address, command, LIMIT_S)

    async def all(self, code: RequestCode, headers: Iterable[RequestHeader], body: bytes = b"") -> None:
        """Raises RuntimeError for a request that is refused; the answer that no offset is known is not a
        refusal.
        """
        waiting = iter(headers)
        fine = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)

        async def ask_on() -> None:
            for header in waiting:
                answer = await self.one(code, header.ext_fields(), body)
                if answer.code not in fine:
                    raise RuntimeError(f"{code.name} is refused: {answer.code} {answer.remark}")

        await asyncio.gather(*(ask_on() for _ in range(IN_FLIGHT)))


class Member:
    """A consumer of the group that reads all topics, as its broker sees it."""

    def __init__(self, name: str, address: str, topics: list[str], queues: int) -> None:
        self.told = asyncio.Event()
        self._asker = Asker(address)
        self._asker.client.on_request(self._on_request)
        self._topics, self._queues = topics, queues
        self._heartbeat = orjson.dumps({"clientID": name, "consumerDataSet": [self._consumer_data()]})

    def _on_request(self, request: RemotingCommand, connection: Connection) -> None:
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self.told.set()

    def _consumer_data(self) -> dict[str, Any]:
        return {
            "groupName": GROUP,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [
                {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
                for topic in self._topics
            ],
        }

    async def beat(self) -> None:
        answer = await self._asker.one(RequestCode.HEART_BEAT, {}, self._heartbeat)
        if answer.code != ResponseCode.SUCCESS:
            raise RuntimeError(f"a heartbeat is refused: {answer.code} {answer.remark}")

    async def share(self, number: int) -> None:
        """Requests of a stock client before it pulls, for every other queue, since there are two members."""
        for _ in self._topics:
            await self._asker.one(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
        await self._asker.all(
            RequestCode.QUERY_CONSUMER_OFFSET,
            (
                QueryConsumerOffsetRequestHeader(GROUP, topic, queue_id)
                for topic in self._topics
                for queue_id in range(number, self._queues, 2)
            ),
        )

    async def close(self) -> None:
        await self._asker.client.close()


async def make_topics(address: str, topics: list[str], queues: int) -> float:
    """Create the topics, with a message in each queue; return the seconds that this took."""
    asker, begun_s = Asker(address), time.monotonic()
    await asker.all(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        (CreateTopicRequestHeader(topic, "TBW102", queues, queues) for topic in topics),
    )
    created_s = time.monotonic() - begun_s
    await asker.all(
        RequestCode.SEND_MESSAGE,
        (
            SendMessageRequestHeader(
                producer_group=GROUP,
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=queues,
                queue_id=queue_id,
                sys_flag=0,
                born_timestamp_ms=int(time.time() * 1000),
            )
            for topic in topics
            for queue_id in range(queues)
        ),
        b"x" * 100,
    )
    await asker.client.close()
    return round(created_s, 2)


async def sharing(address: str, topics: list[str], queues: int) -> dict[str, float]:
    """The two times in ms, see the module."""
    members = [Member(f"m{number}", address, topics, queues) for number in range(2)]
    await members[0].beat()
    await asyncio.sleep(BEAT_S)
    members[0].told.clear()
    begun_s = time.monotonic()
    await members[1].beat()
    async with asyncio.timeout(LIMIT_S):
        await members[0].told.wait()
    told_s = time.monotonic() - begun_s
    await asyncio.gather(*(member.share(number) for number, member in enumerate(members)))
    shared_s = time.monotonic() - begun_s
    for member in members:
        await member.close()
    return {"told_ms": round(1000 * told_s, 1), "shared_ms": round(1000 * shared_s, 1)}


async def measure(count: int, queues: int, rounds: int) -> dict[str, Any]:
    topics = topic_names(count)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        found: dict[str, Any] = {"topics": count, "queues": queues}
        try:
            await asyncio.to_thread(cluster.start)
            found["memory_before_mib"] = memory_mib(cluster)
            address = cluster.address(cluster.wait_leader())
            found["created_in_s"] = await make_topics(address, topics, queues)
            found["memory_after_mib"] = memory_mib(cluster)
            found["sharing"] = [await sharing(address, topics, queues) for _ in range(rounds)]
            await asyncio.to_thread(cluster.stop)
            begun_s = time.monotonic()
            await asyncio.to_thread(cluster.start)
            found["start_s"] = round(time.monotonic() - begun_s, 2)
            found["memory_after_start_mib"] = memory_mib(cluster)
            found["kills"] = await kills(cluster, rounds)
            address = cluster.address(cluster.wait_leader())
            found["sharing_after_kills"] = await sharing(address, topics, queues)
        finally:
            await asyncio.to_thread(cluster.stop)
    print({name: value for name, value in found.items() if name != "kills"}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--topics", type=int, default=2_000)
    parser.add_argument("--queues", type=int, default=8, help="of each topic")
    parser.add_argument("--rounds", type=int, default=5, help="kills, and second members that come")
    parser.add_argument("--save", help="name of the file in bench/results")
    arguments = parser.parse_args()
    end_on_signals()
    loads = [round(value, 2) for value in os.getloadavg()]
    result = {
        "none": asyncio.run(measure(1, arguments.queues, arguments.rounds)),
        "many": asyncio.run(measure(arguments.topics, arguments.queues, arguments.rounds)),
    }
    if arguments.save:
        print(save(arguments.save, {"nodes": 3, "load_before_start": loads}, result))


if __name__ == "__main__":
    main()
