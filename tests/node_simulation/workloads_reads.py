"""The workload of reads by choice: senders, and readers that ask every node, leader or not, cut off or not.

A linearizable answer misses nothing that was acknowledged before its request was sent, and a held pull that
says that nothing came misses nothing that was acknowledged while it was held. An answer that says how old it
may be misses nothing that was acknowledged earlier than that.
"""

import asyncio
import random
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass

from broker.consume.read_choice import AGE_FIELD, MAX_AGE_FIELD, READ_FIELD
from ledgermq.messaging import decode_records
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.consume import PullMessageRequestHeader, QueueRequestHeader
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options
from tests.node_simulation.topic_client import HAS_SUBSCRIPTION, TopicClient
from tests.node_simulation.workload import Workload
from tests.simulation.invariants import require

TOPIC = "T0"
GROUP = "readers"
SEND_TIMEOUT_S = 0.5
READ_TIMEOUT_S = 4.0
MAY_BE_HELD = 2
HELD_MS = (60, 200, 800)
CLOCK_ERROR = 0.06
"""A machine's clock is at most so much faster or slower than the world's."""
EMPTY_ANSWERS = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_RETRY_IMMEDIATELY}
)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a seed draws. The greatest ages are between 0 and `age_max_ms`."""

    senders: int = 3
    send_interval_ms: int = 60
    readers: int = 3
    read_interval_ms: int = 40
    age_max_ms: int = 1_000


def draw_read_options(seed: int) -> ReadOptions:
    """Always the same for a seed."""
    rng = random.Random(f"read workload {seed}")
    return ReadOptions(
        senders=rng.choice((1, 3, 8)),
        send_interval_ms=rng.choice((20, 60, 200)),
        readers=rng.choice((2, 6)),
        read_interval_ms=rng.choice((10, 40, 100)),
        age_max_ms=rng.choice((100, 1_000, 5_000)),
    )


class Acknowledged:
    """Where each queue ended at the latest, by what its senders know, at each time of the run."""

    def __init__(self) -> None:
        self._times: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}

    def add(self, queue_id: int, offset: int, now_us: int) -> None:
        ends = self._ends.setdefault(queue_id, [])
        ends.append(max(offset + 1, ends[-1] if ends else 0))
        self._times.setdefault(queue_id, []).append(now_us)

    def end(self, queue_id: int, before_us: int) -> int:
        """The end by what was acknowledged before that time."""
        count = bisect_left(self._times.get(queue_id, []), before_us)
        return self._ends[queue_id][count - 1] if count else 0


class ReadWorkload:
    """See the module; the world's `Workload`. `counts`: the answers of each kind."""

    def __init__(self, options: ReadOptions, history: History, queues: int, nodes: int) -> None:
        self.options = options
        self.history = history
        self.acknowledged = Acknowledged()
        self.stored: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.is_stopping = False
        self._addresses = [f"10.0.0.{number + 1}:10911" for number in range(nodes)]
        self._queues = queues
        self._values = 0
        self._in_flight = 0
        self._confirmed_at_last = 0

    def programs(self) -> dict[str, Program]:
        return {"p0": self._produce, "r0": self._read, "r1": self._read}

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_stopping and not self._in_flight and self._confirmed_at_last > 0

    def count_acknowledged(self) -> int:
        return len(self.stored)

    def describe(self) -> str:
        return f"{len(self.stored)} stored, {dict(self.counts)}"

    def crashed(self, name: str) -> None:
        """Its operations in flight promise nothing."""

    def _client(self, timeout_s: float = READ_TIMEOUT_S) -> TopicClient:
        return TopicClient(TOPIC, self._queues, timeout_s)

    # -- senders

    async def _produce(self, process: Process) -> int:
        client = self._client(SEND_TIMEOUT_S)
        rng = process.environment.rng
        await asyncio.gather(*(self._send_on(client, rng) for _ in range(self.options.senders)))
        return 0

    async def _send_on(self, client: TopicClient, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.random() * 2 * self.options.send_interval_ms / 1_000)
            address = await client.leader()
            if address is None or self.is_stopping:
                client.forget_route()
                continue
            self._in_flight += 1
            try:
                await self._send(client, address, rng)
            finally:
                self._in_flight -= 1

    async def _send(self, client: TopicClient, address: str, rng: random.Random) -> None:
        self._values += 1
        value, queue_id = f"v{self._values}", rng.randrange(self._queues)
        message = client.message(queue_id, body_of(value, 20), {"UNIQ_KEY": value}, self.history.now // 1_000)
        answer = await client.invoke(address, message)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            client.forget_route()
            return
        self.stored.add(value)
        offset = int(answer.ext_fields["queueOffset"])
        self.acknowledged.add(queue_id, offset, self.history.now)

    # -- readers

    async def _read(self, process: Process) -> int:
        client = self._client()
        rng = process.environment.rng
        await asyncio.gather(*(self._read_on(client, rng) for _ in range(self.options.readers)))
        return 0

    async def _read_on(self, client: TopicClient, rng: random.Random) -> None:
        kinds = (self._max_offset, self._pull_last, self._pull_held, self._pull_aged, self._offset_aged)
        while True:
            await asyncio.sleep(rng.random() * 2 * self.options.read_interval_ms / 1_000)
            await rng.choice(kinds)(client, rng.choice(self._addresses), rng)

    async def _max_offset(self, client: TopicClient, address: str, rng: random.Random) -> None:
        queue_id = rng.randrange(self._queues)
        end = self.acknowledged.end(queue_id, self.history.now)
        answer = await client.invoke(address, _bounds(queue_id, {READ_FIELD: "linearizable"}))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        found = int(answer.ext_fields["offset"])
        require(found >= end, address, "says the queue ends at", found, "acknowledged", end)
        self._count("max offset")

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        self._confirmed_at_last += self.is_stopping

    async def _pull_last(self, client: TopicClient, address: str, rng: random.Random) -> None:
        """The last message that is known to be acknowledged is there."""
        queue_id = rng.randrange(self._queues)
        end = self.acknowledged.end(queue_id, self.history.now)
        if not end:
            return
        pull = _pull(queue_id, end - 1, {READ_FIELD: "linearizable"})
        answer = await client.invoke(address, pull)
        if answer is None or (answer.code != ResponseCode.SUCCESS and answer.code not in EMPTY_ANSWERS):
            return
        require(answer.code == ResponseCode.SUCCESS, address, "misses", end - 1, "with", answer.code)
        (first, *_) = decode_records(answer.body)
        require(first.queue_offset == end - 1, address, "shows", first.queue_offset, "at", end - 1)
        self._count("pull")

    async def _pull_held(self, client: TopicClient, address: str, rng: random.Random) -> None:
        """Nothing came: nothing was acknowledged while the pull was held."""
        queue_id = rng.randrange(self._queues)
        begun_us = self.history.now
        end = self.acknowledged.end(queue_id, begun_us)
        held_ms = rng.choice(HELD_MS)
        pull = _pull(queue_id, end, {READ_FIELD: "linearizable"}, held_ms)
        answer = await client.invoke(address, pull)
        if answer is None or answer.code not in EMPTY_ANSWERS:
            return
        require(answer.code == ResponseCode.PULL_NOT_FOUND, address, "moves a consumer:", answer.code)
        held_us = int(1_000 * held_ms * (1 - CLOCK_ERROR))
        known = self.acknowledged.end(queue_id, begun_us + held_us)
        require(known <= end, address, "held a pull at", end, "and says nothing came, acknowledged", known)
        self._count("held pull")

    async def _pull_aged(self, client: TopicClient, address: str, rng: random.Random) -> None:
        queue_id = rng.randrange(self._queues)
        age_max_ms = rng.randint(0, self.options.age_max_ms)
        asked_us = self.history.now
        answer = await client.invoke(address, _pull(queue_id, 0, {MAX_AGE_FIELD: str(age_max_ms)}))
        if answer is None or answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
            return
        self._check_age(address, queue_id, asked_us, answer, int(answer.ext_fields["maxOffset"]))

    async def _offset_aged(self, client: TopicClient, address: str, rng: random.Random) -> None:
        queue_id = rng.randrange(self._queues)
        asked_us = self.history.now
        answer = await client.invoke(address, _bounds(queue_id, {READ_FIELD: "follower"}))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        if AGE_FIELD not in answer.ext_fields:
            self.counts["unknown age"] += 1
            return
        self._check_age(address, queue_id, asked_us, answer, int(answer.ext_fields["offset"]))

    def _check_age(
        self, address: str, queue_id: int, asked_us: int, answer: RemotingCommand, end: int
    ) -> None:
        age_ms = int(answer.ext_fields[AGE_FIELD])
        as_of_us = asked_us - int(1_000 * (age_ms + 1) * (1 + CLOCK_ERROR))
        known = self.acknowledged.end(queue_id, as_of_us)
        require(end >= known, address, "is", age_ms, "ms old, ends at", end, "acknowledged before", known)
        self.counts["aged"] += 1

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        found: set[str] = set()

        def take(data: bytes) -> None:
            found.update(value_of(record.body) for record in decode_records(data))

        await self._client().read_all(address, take)
        missing = sorted(self.stored - found)
        require(not missing, "acknowledged and not there:", missing[:5])
        return 0


def _bounds(queue_id: int, fields: dict[str, str]) -> RemotingCommand:
    header = QueueRequestHeader(TOPIC, queue_id)
    return RemotingCommand(RequestCode.GET_MAX_OFFSET, ext_fields={**header.ext_fields(), **fields})


def _pull(queue_id: int, offset: int, fields: dict[str, str], held_ms: int = 0) -> RemotingCommand:
    header = PullMessageRequestHeader(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=HAS_SUBSCRIPTION | (MAY_BE_HELD if held_ms else 0),
        commit_offset=0,
        suspend_timeout_ms=held_ms,
        subscription="*",
    )
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields={**header.ext_fields(), **fields})


def read_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=read_workload)`."""
    drawn = draw_read_options(options.seed)
    return ReadWorkload(drawn, history, options.workload.queues, options.nodes)
