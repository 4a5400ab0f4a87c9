"""The timer parts of a broker over a log in memory, with a clock and a timer in the test's hand, and senders
of timer messages.
"""

import asyncio
from pathlib import Path

from broker.send.feature import make_send_processor
from broker.state.changes import PutTopic
from broker.state.topics import TopicConfig
from broker.timer.admission import TimerLimits
from broker.timer.feature import make_recall_processor, make_timers
from broker.timer.records import Deliveries, read_deliveries
from broker.timer.scheduling import TIMER_TOPIC
from commitlog.record import Message, decode_record
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.command_reader import CommandReader
from remoting.errors import RequestError
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.send_bench import send_request

SECOND = 1_000
HOUR = 3_600 * SECOND


class TimerBench:
    """A node. `at` moves its clock and lets its timer fire."""

    def __init__(self, tmp_path: Path, log: FakeLog, parts: BrokerParts) -> None:
        self.tmp_path = tmp_path
        self.log = log
        self.parts = parts
        self.now_ms = NOW_MS
        parts.clock = lambda: self.now_ms
        self.journal, self.recalls, self.delivery = make_timers(parts.core)
        room = TimerLimits(parts.config, self.journal.index)
        self.recall_processor = make_recall_processor(parts.core, self.recalls)
        self.sends = make_send_processor(parts.core, may_time=room.may_time)
        self.sender = FakeConnection()
        self._keys = 0

    async def start(self) -> None:
        await self.journal.start()
        await self.delivery.start()
        await self.settle()

    async def stop(self) -> None:
        """As a node that is stopped; what it knows is on its disk."""
        await self.delivery.stop()
        await self.journal.stop()

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    async def send(self, body: bytes = b"hello", /, **properties: object) -> RemotingCommand:
        """The answer to a message with these properties."""
        self._keys += 1
        named = {"UNIQ_KEY": f"K{self._keys}", **properties}
        text = "".join(f"{name}\x01{value}\x02" for name, value in named.items())
        return await self.answer(send_request("t", body, 1, properties=text, queue_id=2))

    def put(self, request: RemotingCommand) -> None:
        """Its answer is among the sender's when it comes."""
        received = CommandReader().feed(encode_command(request))
        self.sends.handle([(self.sender.as_connection, received.commands)])

    async def answer(self, request: RemotingCommand) -> RemotingCommand:
        self.put(request)
        await self.settle()
        (answer,) = self.sender.take_answers()
        return answer

    async def recall(self, handle: str, topic: str = "t") -> int:
        """The answer's code."""
        try:
            self.ask_to_recall(handle, topic)
        except RequestError as error:
            return error.code
        await self.settle()
        (answer,) = self.sender.take_answers()
        return answer.code

    def ask_to_recall(self, handle: str, topic: str = "t") -> None:
        """Its answer is among the sender's when it comes."""
        ext = {"topic": topic, "recallHandle": handle, "producerGroup": "p"}
        request = RemotingCommand(RequestCode.RECALL_MESSAGE, 9, ext_fields=ext)
        self.recall_processor.handle(request, self.sender.as_connection)

    async def at(self, offset_ms: int) -> list[bytes]:
        """Bodies delivered when it is so many ms after the start."""
        self.now_ms = self.log.now_ms = NOW_MS + offset_ms
        before = len(self.delivered)
        self.delivery.deliver_due()
        await self.settle()
        return [message.body for message in self.messages[before:]]

    @property
    def messages(self) -> list[Message]:
        """What consumers of the real topic find in the log."""
        return [message for message in self.log.messages if message.topic == "t"]

    @property
    def delivered(self) -> list[bytes]:
        return [message.body for message in self.messages]

    @property
    def waiting(self) -> int:
        return self.journal.index.pending.count

    @property
    def timer_ms(self) -> int | None:
        """When the timer fires, after the start."""
        due_ms = self.delivery._timer.due_ms
        return None if due_ms is None else due_ms - NOW_MS

    @property
    def deliveries(self) -> list[Deliveries]:
        queue = self.log.queues.get(TIMER_TOPIC, 0)
        units = queue.units(0, queue.max_offset) if queue is not None else []
        found = [read_deliveries(decode_record(self.log.read(*unit[:2]))) for unit in units]
        return [each for each in found if each is not None]

    async def next_leader(
        self, log: FakeLog | None = None, tmp_path: Path | None = None, **values: object
    ) -> "TimerBench":
        """The node that takes over with what is committed; with this node's folder, or with its own."""
        self.log.set_writable(False)
        await self.stop()
        if log is None:
            log = self.log.reopened()
            log.put_calls = list(self.log.put_calls)
        folder = tmp_path or self.tmp_path
        parts = make_parts(folder, log, FakeEngine(), **values)
        await log.start()
        bench = TimerBench(folder, log, parts)
        bench.now_ms = self.now_ms
        log.now_ms = self.now_ms
        bench._keys = self._keys
        log.set_writable(True)
        await bench.start()
        return bench


async def make_timer_bench(tmp_path: Path, **values: object) -> TimerBench:
    """The writable leader of a group that has the topic `t` with 4 queues."""
    log = FakeLog()
    parts = make_parts(tmp_path, log, FakeEngine(), **values)
    await parts.state.propose(PutTopic(TopicConfig("t", 4, 4)))
    bench = TimerBench(tmp_path, log, parts)
    await bench.start()
    return bench
