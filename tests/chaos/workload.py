"""Our own clients under faults: they send, pull and commit without pause, and write a history of it all.

Each message is sent once. A producer's outcome is `fail` only where nothing can have been stored: no
connection was made, or the broker said at once that it does not take messages.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field, replace

from commitlog.record import Record
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ConnectFailedError, PendingRequestsFullError, RemotingError
from tests.histories.files import HistoryWriter
from tests.histories.operations import Assign, Commit, Drain, Fetch, Outcome, Poll, Queue, Seek, Send
from tests.integration.streams import find_broker, split_records

REQUEST_LIMIT_S = 2.0
READ_LIMIT_S = 60.0
PAUSE_S = 0.02
PULL_MESSAGES = 32
SUSPEND = 2
SUBSCRIPTION_GIVEN = 4
SUSPEND_MS = 500
GROUP = "ChaosReaders"
POLLS_OF_A_LIFE = 150
"""On average a consumer is started again after so many polls."""
POLLS_PER_COMMIT = 10
SENDS_PER_KEPT = 50
LOOKED_FOR_MAX = 40
NO_END_MS = (1 << 63) - 1
QUIET_CODES = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


def now_us() -> int:
    """The history's clock: Unix time, as the drivers' reports have it, too."""
    return time.time_ns() // 1000


@dataclass(slots=True)
class Workload:
    """Producers, one consumer a queue, and the reading of everything at the end."""

    namesrv: str
    topic: str
    history: HistoryWriter
    rng: random.Random
    queues: int = 4
    producers: int = 4
    acknowledged: int = 0
    acknowledged_at_s: float = 0.0
    """When the last acknowledgement came (Unix time)."""
    unsure: int = 0
    refused: int = 0
    read: int = 0
    kept: list[str] = field(default_factory=list)
    """Some of what was acknowledged, from the first to the last."""
    moved: list[str] = field(default_factory=list)
    """What brokers said of offsets that they do not have (any more)."""
    _client: RemotingClient | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_stopping: bool = False
    _broker: str | None = None

    async def start(self) -> None:
        """Create the topic by a first message, then start all clients."""
        self._client = RemotingClient()
        first = Producer(self, "first", 0)
        async with asyncio.timeout(30.0):
            while not self.acknowledged:
                await first.send_next()
        for number in range(self.producers):
            producer = Producer(self, f"p{number}", number % self.queues)
            self._tasks.append(asyncio.create_task(producer.run()))
        for queue_id in range(self.queues):
            consumer = Consumer(self, Queue(self.topic, queue_id))
            self._tasks.append(asyncio.create_task(consumer.run()))

    async def stop(self) -> None:
        """All clients finish their current operation. Raises the error of a client's task."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """After a failure, too."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    async def wait_acknowledged(self, more: int, limit_s: float = 60.0) -> None:
        """Return when so many more sends are acknowledged than now."""
        wanted = self.acknowledged + more
        end_s = time.monotonic() + limit_s
        while self.acknowledged < wanted:
            self.check()
            missing = wanted - self.acknowledged
            assert time.monotonic() < end_s, f"{missing} of {more} sends got no answer in {limit_s:g} s"
            await asyncio.sleep(PAUSE_S)

    def check(self) -> None:
        """Raises what a task raised."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def find_broker(self) -> str | None:
        assert self._client is not None
        if self._broker is None:
            try:
                self._broker = await find_broker(self._client, self.namesrv)
            except RemotingError:
                return None
        return self._broker

    async def invoke(self, request: RemotingCommand) -> RemotingCommand:
        """Ask the broker that the name server names. Raises RemotingError; the next one asks it again."""
        assert self._client is not None
        broker = await self.find_broker()
        if broker is None:
            raise ConnectFailedError("the name server names no broker")
        try:
            return await self._client.invoke(broker, request, REQUEST_LIMIT_S)
        except RemotingError:
            self.forget_broker()
            raise

    def forget_broker(self) -> None:
        self._broker = None

    async def drain(self) -> None:
        """Read every queue from its first message to its last, and the group's offsets. All that was
        acknowledged must be there, so this is for the time after the last send: a message is in its queue
        only a moment after its acknowledgement, when the leader has dispatched it.
        """
        for queue_id in range(self.queues):
            await Consumer(self, Queue(self.topic, queue_id), "drain").drain()

    async def read_all(self) -> None:
        """Read every queue from its first message to what is its last one by then."""
        for queue_id in range(self.queues):
            await Consumer(self, Queue(self.topic, queue_id), "reader").read_to_end()

    async def find_by_keys(self, limit_s: float = 60.0) -> None:
        """Look for some messages by their keys. Raises AssertionError when one is not found for long."""
        end_s = time.monotonic() + limit_s
        for value in self.kept[:: len(self.kept) // LOOKED_FOR_MAX + 1]:
            while value not in await self._found(value):
                assert time.monotonic() < end_s, f"{value} is not found by its key"
                await asyncio.sleep(PAUSE_S)

    async def _found(self, key: str) -> set[str]:
        ext = {"topic": self.topic, "key": key, "maxNum": "8"}
        ext |= {"beginTimestamp": "0", "endTimestamp": str(NO_END_MS)}
        try:
            answer = await self.invoke(RemotingCommand(RequestCode.QUERY_MESSAGE, ext_fields=ext))
        except RemotingError:
            return set()
        if answer.code != ResponseCode.SUCCESS:
            return set()
        return {bytes(record.body).decode() for record in split_records(answer.body)}


class Producer:
    """Sends one message after the other to one queue."""

    def __init__(self, load: Workload, name: str, queue_id: int) -> None:
        self._load = load
        self._name = name
        self._queue = Queue(load.topic, queue_id)
        self._numbers = itertools.count()

    async def run(self) -> None:
        while not self._load.is_stopping:
            if not await self.send_next():
                await asyncio.sleep(PAUSE_S)

    async def send_next(self) -> bool:
        value = f"{self._name}-{next(self._numbers)}"
        load = self._load
        send = Send(self._name, now_us(), None, Outcome.INFO, (value,))
        begun = load.history.begin(send)
        outcome, offsets = await self._ask(value)
        queue = self._queue if offsets else None
        done = replace(send, completed=now_us(), outcome=outcome, queue=queue, offsets=offsets)
        load.history.end(begun, done)
        load.unsure += outcome is Outcome.INFO
        load.refused += outcome is Outcome.FAIL
        if outcome is Outcome.OK:
            if load.acknowledged % SENDS_PER_KEPT == 0:
                load.kept.append(value)
            load.acknowledged += 1
            load.acknowledged_at_s = done.invoked / 1e6
        return outcome is Outcome.OK

    async def _ask(self, value: str) -> tuple[Outcome, tuple[int, ...]]:
        load = self._load
        ext = {"a": "Chaos", "b": load.topic, "c": "TBW102", "d": str(load.queues)}
        ext |= {"e": str(self._queue.queue_id), "f": "0", "g": str(now_us() // 1000), "h": "0"}
        ext |= {"i": f"KEYS\x01{value}\x02", "j": "0", "k": "false", "m": "false"}
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=ext, body=value.encode())
        try:
            answer = await load.invoke(request)
        except (ConnectFailedError, PendingRequestsFullError):
            return Outcome.FAIL, ()
        except RemotingError:
            return Outcome.INFO, ()
        if answer.code == ResponseCode.SUCCESS:
            assert int(answer.ext_fields["queueId"]) == self._queue.queue_id, answer
            return Outcome.OK, (int(answer.ext_fields["queueOffset"]),)
        load.forget_broker()
        is_refused = answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        return Outcome.FAIL if is_refused else Outcome.INFO, ()


class Consumer:
    """Reads one queue and commits how far it is; now and then it starts again at the group's offset."""

    def __init__(self, load: Workload, queue: Queue, name: str = "c") -> None:
        self._load = load
        self._queue = queue
        self._name = f"{name}{queue.queue_id}"
        self._ext = {"consumerGroup": GROUP, "topic": queue.topic, "queueId": str(queue.queue_id)}

    async def run(self) -> None:
        while not self._load.is_stopping:
            offset = await self._begin()
            if offset is not None:
                await self._live(offset)

    async def _begin(self) -> int | None:
        self._load.history.write(Assign(self._name, now_us(), (self._queue,)))
        offset = await self._fetch()
        if offset is None:
            await asyncio.sleep(PAUSE_S)
            return None
        self._load.history.write(Seek(self._name, now_us(), self._queue, offset))
        return offset

    async def _live(self, offset: int) -> None:
        load = self._load
        for poll in itertools.count(1):
            if load.is_stopping or load.rng.random() < 1 / POLLS_OF_A_LIFE:
                return
            found = await self.poll(offset, SUSPEND_MS)
            if found is None:
                await asyncio.sleep(PAUSE_S)
                continue
            load.read += found[0] - offset
            offset = found[0]
            if poll % POLLS_PER_COMMIT == 0:
                await self._commit(offset)

    async def poll(self, start: int, suspend_ms: int) -> tuple[int, int] | None:
        """The next offset to ask for, and where the queue ends; None without a usable answer."""
        load, begun = self._load, now_us()
        ext = self._ext | {"queueOffset": str(start), "maxMsgNums": str(PULL_MESSAGES), "commitOffset": "0"}
        ext |= {"sysFlag": str(SUBSCRIPTION_GIVEN | SUSPEND), "suspendTimeoutMillis": str(suspend_ms)}
        ext |= {"subscription": "*", "subVersion": "0", "expressionType": "TAG"}
        try:
            answer = await load.invoke(RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=ext))
        except RemotingError:
            return None
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            load.moved.append(f"{self._name} asked for {start} of {self._queue}: {answer.ext_fields}")
        if answer.code != ResponseCode.SUCCESS and answer.code not in QUIET_CODES:
            load.forget_broker()
            return None
        records: list[Record] = split_records(answer.body) if answer.code == ResponseCode.SUCCESS else []
        messages = tuple((record.queue_offset, bytes(record.body).decode()) for record in records)
        next_offset = int(answer.ext_fields["nextBeginOffset"])
        poll = Poll(self._name, begun, now_us(), Outcome.OK, self._queue, start, messages, next_offset)
        load.history.write(poll)
        return next_offset, int(answer.ext_fields["maxOffset"])

    async def _fetch(self) -> int | None:
        """The group's offset, 0 when it has none; None without an answer."""
        begun = now_us()
        try:
            answer = await self._load.invoke(
                RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=dict(self._ext))
            )
        except RemotingError:
            return None
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND):
            self._load.forget_broker()
            return None
        found = int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else None
        fetch = Fetch(self._name, begun, now_us(), Outcome.OK, GROUP, self._queue, found)
        self._load.history.write(fetch)
        return found or 0

    async def _commit(self, offset: int) -> None:
        load = self._load
        commit = Commit(self._name, now_us(), None, Outcome.INFO, GROUP, self._queue, offset)
        number = load.history.begin(commit)
        outcome = Outcome.INFO
        ext = self._ext | {"commitOffset": str(offset)}
        try:
            answer = await load.invoke(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=ext))
            if answer.code == ResponseCode.SUCCESS:
                outcome = Outcome.OK
        except RemotingError:
            pass
        load.history.end(number, replace(commit, completed=now_us(), outcome=outcome))

    async def read_to_end(self) -> int:
        """Read the whole queue; returns its end. Raises AssertionError when the broker gives no answer for
        long.
        """
        load, begun = self._load, now_us()
        load.history.write(Assign(self._name, begun, (self._queue,)))
        load.history.write(Seek(self._name, begun, self._queue, 0))
        offset, end, end_s = 0, -1, time.monotonic() + READ_LIMIT_S
        while offset != end:
            assert time.monotonic() < end_s, f"{self._queue} could not be read to its end, from {offset}"
            found = await self.poll(offset, 0)
            if found is None:
                await asyncio.sleep(PAUSE_S)
                continue
            offset, end = found
        return end

    async def drain(self) -> None:
        """Read the whole queue, and the group's offset. Raises AssertionError as `read_to_end` does."""
        load, begun, end_s = self._load, now_us(), time.monotonic() + READ_LIMIT_S
        end = await self.read_to_end()
        load.history.write(Drain(self._name, begun, now_us(), self._queue, 0, end))
        while await self._fetch() is None:
            assert time.monotonic() < end_s, f"no node answers with the group's offset of {self._queue}"
            await asyncio.sleep(PAUSE_S)
