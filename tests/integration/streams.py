"""A producer that never pauses and a reader of whole topics, both over our own remoting client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from commitlog.record import Record, decode_record, record_size
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.route import TopicRoute, parse_topic_route

SEND_TIMEOUT_S = 2.0
RETRY_PAUSE_S = 0.02
SUBSCRIPTION_GIVEN = 4  # the pull's sysFlag bit: its header brings the subscription, no heartbeat is needed
PULL_MESSAGES = 32
READER_GROUP = "ReadTopic"
READ_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the answer to a successful send said of the message."""

    body: bytes
    number: int
    queue: int
    offset: int
    at_s: float


async def find_route(client: RemotingClient, namesrv: str, topic: str) -> TopicRoute | None:
    """Where the topic is, None when the name server does not know it."""
    request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic})
    answer = await client.invoke(namesrv, request)
    return parse_topic_route(answer.body) if answer.code == ResponseCode.SUCCESS else None


async def find_broker(client: RemotingClient, namesrv: str, topic: str = "TBW102") -> str | None:
    """The address that takes messages for the topic, None while the name server knows none."""
    route = await find_route(client, namesrv, topic)
    return route.broker_datas[0].master_addr if route is not None and route.broker_datas else None


class Stream:
    """One closed-loop producer a queue. Each message is sent once only, so none may be stored twice."""

    def __init__(self, namesrv: str, topic: str, queues: int) -> None:
        self.namesrv = namesrv
        self.topic = topic
        self.queues = queues
        self.acknowledged: list[Acknowledged] = []
        self.errors = 0
        self._is_stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._client: RemotingClient | None = None

    async def start(self) -> None:
        self._client = RemotingClient()
        self._tasks = [asyncio.create_task(self._run(queue)) for queue in range(self.queues)]

    async def stop(self) -> None:
        """Let every producer finish the message it is at. Raises what a producer raised."""
        self._is_stopped = True
        await asyncio.gather(*self._tasks)
        assert self._client is not None
        await self._client.close()

    async def wait_acknowledged(self, more: int, limit_s: float = 30.0) -> None:
        """Return when so many more sends are acknowledged than now."""
        wanted = len(self.acknowledged) + more
        async with asyncio.timeout(limit_s):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _run(self, queue: int) -> None:
        assert self._client is not None
        broker: str | None = None
        number = 0
        while not self._is_stopped:
            try:
                broker = broker or await find_broker(self._client, self.namesrv)
                is_stored = broker is not None and await self._send(broker, queue, number)
            except RemotingError:
                is_stored = False
            if not is_stored:
                self.errors += 1
                broker = None
                await asyncio.sleep(RETRY_PAUSE_S)
            number += 1

    async def _send(self, broker: str, queue: int, number: int) -> bool:
        assert self._client is not None
        body = b"queue %d, message %d" % (queue, number)
        ext = {
            "a": "Stream",
            "b": self.topic,
            "c": "TBW102",
            "d": str(self.queues),
            "e": str(queue),
            "f": "0",
        }
        ext |= {"g": str(time.time_ns() // 1_000_000), "h": "0", "j": "0", "k": "false", "m": "false"}
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=body)
        answer = await self._client.invoke(broker, request, SEND_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            return False
        stored_queue, offset = int(answer.ext_fields["queueId"]), int(answer.ext_fields["queueOffset"])
        self.acknowledged.append(Acknowledged(body, number, stored_queue, offset, time.time()))
        return True


async def read_topic(
    namesrv: str, topic: str, acknowledged: Sequence[Acknowledged] = ()
) -> dict[int, list[Record]]:
    """Every message of the topic, queue by queue from its first offset to its last, as READER_GROUP.

    A message is acknowledged when the disks of a majority have it; the leader shows it to consumers when its
    own disk is among them, perhaps a moment later. So what was acknowledged is waited for, READ_LIMIT_S at
    most.
    """
    ends: dict[int, int] = {}
    for sent in acknowledged:
        ends[sent.queue] = max(ends.get(sent.queue, 0), sent.offset + 1)
    client = RemotingClient()
    try:
        route = await find_route(client, namesrv, topic)
        assert route is not None, f"the name server does not know {topic}"
        broker = route.broker_datas[0].master_addr
        assert broker is not None, f"no broker takes messages for {topic}"
        queues = range(route.queue_datas[0].read_queue_nums)
        return {
            queue: await _read_queue(client, broker, topic, queue, ends.get(queue, 0)) for queue in queues
        }
    finally:
        await client.close()


async def read_all(namesrv: str, topic: str) -> list[Record]:
    """Every message of the topic, of all groups that have it."""
    client = RemotingClient()
    try:
        route = await find_route(client, namesrv, topic)
        assert route is not None, f"the name server does not know {topic}"
        leaders = {broker.broker_name: broker.master_addr for broker in route.broker_datas}
        records: list[Record] = []
        for each in route.queue_datas:
            leader = leaders[each.broker_name]
            assert leader is not None, f"{each.broker_name} has no leader"
            for queue in range(each.read_queue_nums):
                records += await _read_queue(client, leader, topic, queue, 0)
        return records
    finally:
        await client.close()


async def _read_queue(client: RemotingClient, broker: str, topic: str, queue: int, end: int) -> list[Record]:
    records: list[Record] = []
    offset = 0
    deadline_s = time.monotonic() + READ_LIMIT_S
    while True:
        ext = {"consumerGroup": READER_GROUP, "topic": topic, "queueId": str(queue)}
        ext |= {"queueOffset": str(offset), "maxMsgNums": str(PULL_MESSAGES), "commitOffset": "0"}
        ext |= {"sysFlag": str(SUBSCRIPTION_GIVEN), "suspendTimeoutMillis": "0", "subscription": "*"}
        ext |= {"subVersion": "0", "expressionType": "TAG"}
        answer = await client.invoke(broker, RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=ext))
        if answer.code != ResponseCode.SUCCESS:
            assert offset == int(answer.ext_fields["maxOffset"]), answer
            if offset >= end or time.monotonic() > deadline_s:
                return records
            await asyncio.sleep(RETRY_PAUSE_S)
            continue
        records += split_records(answer.body)
        offset = int(answer.ext_fields["nextBeginOffset"])


def split_records(data: bytes) -> list[Record]:
    """The records of a pull's answer, which stand back to back."""
    records = []
    start = 0
    while start < len(data):
        records.append(decode_record(data, start, check_crc=True))
        start += record_size(data, start)
    return records
