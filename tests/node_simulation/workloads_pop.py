"""The POP workload: producers that send, consumers that pop, acknowledge, give up, hold back or forget what
they got, and one that does so in order.

Whatever is answered is remembered: a message of one place in the log is handed out once at most to those who
pop without order, and never after its acknowledgement was answered; who pops in order gets nothing before all
that lies below was acknowledged, nothing again that was acknowledged with all before it in its batch, and
what follows the first that is missing without a gap, acknowledged or not. What was sent is acknowledged in
the end, by whatever copy of it.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from commitlog.record import Record
from ledgermq.messaging import decode_records
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)
from remoting.pop_receipts import pop_retry_topic
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options, draw_options
from tests.node_simulation.topic_client import TopicClient
from tests.node_simulation.workload import Workload
from tests.simulation.invariants import require

TOPIC = "T0"
GROUP = "poppers"
ORDER_GROUP = "in-order"
TIMEOUT_S = 3.0
POLL_MS = 1_000
ORDER_POLL_MS = 100
"""Who pops in order waits at one queue after the other, and must get through what is left in the end."""
PAUSE_S = 0.2
MAYBE_ACKED = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.SERVICE_NOT_AVAILABLE)
"""After any of these the message may never come again."""


class Place(NamedTuple):
    """Where a message lies, for one group."""

    group: str
    topic: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class PopOptions:
    """What a seed draws. Probabilities by message: to forget it, to give it up, to hold it back first."""

    producers: int = 2
    consumers: int = 2
    interval_ms: int = 100
    messages_max: int = 8
    invisible_ms: int = 1_500
    forget_probability: float = 0.1
    give_up_probability: float = 0.1
    hold_back_probability: float = 0.1
    body_bytes_max: int = 64


def draw_pop_options(seed: int) -> PopOptions:
    """Always the same for a seed."""
    rng = random.Random(f"pop workload {seed}")
    return PopOptions(
        producers=rng.choice((1, 2, 3)),
        consumers=rng.choice((1, 2, 4)),
        interval_ms=rng.choice((30, 100, 300)),
        messages_max=rng.choice((1, 4, 32)),
        invisible_ms=rng.choice((1_500, 4_000)),
        forget_probability=rng.choice((0.0, 0.1, 0.3)),
        give_up_probability=rng.choice((0.0, 0.2)),
        hold_back_probability=rng.choice((0.0, 0.2)),
        body_bytes_max=rng.choice((16, 200, 3_000)),
    )


class PopWorkload:
    """See the module; the world's `Workload`. `revived` counts copies that were popped."""

    def __init__(self, options: PopOptions, seed: int, history: History, queues: int) -> None:
        self.options = options
        self.history = history
        self.sent: set[str] = set()
        self.done: dict[str, set[str]] = {GROUP: set(), ORDER_GROUP: set()}
        """Values whose acknowledgement was answered, or not refused, by group."""
        self.popped: Counter[Place] = Counter()
        self.acked: dict[Place, int] = {}
        """When the acknowledgement was answered."""
        self.maybe_acked: set[Place] = set()
        self.unanswered: dict[Place, str] = {}
        """Values whose acknowledgement was sent. Those of a client that was killed stay: it may have come in
        time.
        """
        self.order_starts: dict[int, int] = {}
        """By queue, where who pops in order goes on: all before it was acknowledged, batch by batch."""
        self.again = 0
        """Messages in order that came again after their acknowledgement, for one before them had none."""
        self.revived = 0
        self.is_stopping = False
        self._queues = queues
        self._rng = random.Random(f"pop workload's choices {seed}")
        self._values = 0
        self._in_flight = 0

    def programs(self) -> dict[str, Program]:
        programs: dict[str, Program] = {
            f"p{number}": partial(self._produce, f"p{number}") for number in range(self.options.producers)
        }
        for number in range(self.options.consumers):
            programs[f"c{number}"] = self._consume
        programs["o0"] = self._consume_in_order
        return programs

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return (
            self.is_stopping and not self._in_flight and not any(self._missing(group) for group in self.done)
        )

    def _missing(self, group: str) -> set[str]:
        unanswered = {value for place, value in self.unanswered.items() if place.group == group}
        return self.sent - self.done[group] - unanswered

    def count_acknowledged(self) -> int:
        return len(self.sent)

    def describe(self) -> str:
        missing = {group: sorted(self._missing(group))[:3] for group in self.done}
        return f"{len(self.sent)} sent, {len(self.acked)} acknowledged, missing {missing}"

    def crashed(self, name: str) -> None:
        """What it had comes to another."""

    # -- producers

    async def _produce(self, name: str, process: Process) -> int:
        client = TopicClient(TOPIC, self._queues, TIMEOUT_S)
        rng = process.environment.rng
        while True:
            await asyncio.sleep(rng.random() * 2 * self.options.interval_ms / 1_000)
            address = await client.leader()
            if address is None or self.is_stopping:
                continue
            self._values += 1
            value = f"v{self._values}"
            self._in_flight += 1
            try:
                answer = await client.invoke(address, self._send(client, value, rng))
            finally:
                self._in_flight -= 1
            if answer is None or answer.code != ResponseCode.SUCCESS:
                client.forget_route()
            else:
                self.sent.add(value)

    def _send(self, client: TopicClient, value: str, rng: random.Random) -> RemotingCommand:
        queue_id = rng.randrange(self._queues)
        body = body_of(value, rng.randint(0, self.options.body_bytes_max))
        return client.message(queue_id, body, {"UNIQ_KEY": value}, self.history.now // 1_000)

    # -- consumers

    async def _consume(self, process: Process) -> int:
        client = TopicClient(TOPIC, self._queues, TIMEOUT_S)
        while True:
            address = await client.leader()
            if address is None:
                await asyncio.sleep(PAUSE_S)
                continue
            asked = self.history.now
            answer = await client.invoke(address, self._pop(GROUP, -1))
            if answer is None or answer.code != ResponseCode.SUCCESS:
                await self._pause(client, answer)
                continue
            found = []
            for record in decode_records(answer.body):
                place = Place(GROUP, record.topic, record.queue_id, record.queue_offset)
                self.popped[place] += 1
                require(self.popped[place] == 1, place, "is handed out", self.popped[place], "times")
                self._check_not_acked(place, asked)
                self.revived += record.topic != TOPIC
                found.append((place, record))
            await asyncio.gather(*(self._deal_with(client, *one, answer) for one in found))

    async def _consume_in_order(self, process: Process) -> int:
        client = TopicClient(TOPIC, self._queues, TIMEOUT_S)
        queue_id = 0
        while True:
            address = await client.leader()
            if address is None:
                await asyncio.sleep(PAUSE_S)
                continue
            queue_id = (queue_id + 1) % self._queues
            answer = await client.invoke(address, self._pop(ORDER_GROUP, queue_id))
            if answer is None or answer.code != ResponseCode.SUCCESS:
                await self._pause(client, answer)
                continue
            await self._take_in_order(client, answer)

    async def _take_in_order(self, client: TopicClient, answer: RemotingCommand) -> None:
        batch = [
            (Place(ORDER_GROUP, record.topic, record.queue_id, record.queue_offset), record)
            for record in decode_records(answer.body)
        ]
        first = batch[0][0]
        start = self.order_starts.get(first.queue_id, 0)
        require(first.offset >= start, first, "is handed out after its acknowledgement")
        offsets = [place.offset for place, _ in batch]
        whole = list(range(first.offset, first.offset + len(batch)))
        require(offsets == whole, "a gap behind", first, offsets)
        below = (first._replace(offset=offset) for offset in range(first.offset))
        open_below = [place for place in below if place not in self.acked and place not in self.maybe_acked]
        require(not open_below, "before", open_below[:1], "was acknowledged,", first, "is handed out")
        self.again += sum(place in self.acked for place, _ in batch)
        is_whole = True
        for place, record in batch:
            is_whole = await self._deal_with(client, place, record, answer) and is_whole
            if is_whole:
                self.order_starts[place.queue_id] = place.offset + 1

    def _check_not_acked(self, place: Place, asked: int) -> None:
        acked = self.acked.get(place)
        require(acked is None or acked >= asked, place, "is handed out after its acknowledgement")

    async def _deal_with(
        self,
        client: TopicClient,
        place: Place,
        record: Record,
        answer: RemotingCommand,
    ) -> bool:
        """Whether its acknowledgement was answered with success."""
        rng, options = self._rng, self.options
        calm = self.is_stopping
        choice = rng.random()
        times = [answer.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
        if not calm and choice < options.forget_probability:
            return False
        choice -= options.forget_probability
        if not calm and choice < options.give_up_probability:
            await self._change(client, place, times, rng.choice((0, 200)))
            return False
        choice -= options.give_up_probability
        if not calm and choice < options.hold_back_probability:
            changed = await self._change(client, place, times, 2 * options.invisible_ms)
            if changed is None:
                return False
            times = [changed.ext_fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
        return await self._ack(client, place, record, times)

    async def _ack(
        self,
        client: TopicClient,
        place: Place,
        record: Record,
        times: list[str],
    ) -> bool:
        """Whether it was answered with success."""
        header = AckMessageRequestHeader(
            place.group, place.topic, place.queue_id, _handle(place, times), place.offset
        )
        address = await client.leader()
        self.maybe_acked.add(place)
        if address is None:
            return False
        command = RemotingCommand(RequestCode.ACK_MESSAGE, ext_fields=header.ext_fields())
        self.unanswered[place] = value_of(record.body)
        answer = await client.invoke(address, command)
        del self.unanswered[place]
        is_acked = answer is not None and answer.code == ResponseCode.SUCCESS
        if is_acked:
            self.acked[place] = self.history.now
        if answer is None or answer.code in MAYBE_ACKED:
            self.done[place.group].add(value_of(record.body))
        return is_acked

    async def _change(
        self,
        client: TopicClient,
        place: Place,
        times: list[str],
        invisible_ms: int,
    ) -> RemotingCommand | None:
        """The answer; None when it was none of success."""
        header = ChangeInvisibleTimeRequestHeader(
            place.group, place.topic, place.queue_id, _handle(place, times), place.offset, invisible_ms
        )
        address = await client.leader()
        if address is None:
            return None
        command = RemotingCommand(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext_fields=header.ext_fields())
        answer = await client.invoke(address, command)
        return answer if answer is not None and answer.code == ResponseCode.SUCCESS else None

    def _pop(self, group: str, queue_id: int) -> RemotingCommand:
        header = PopMessageRequestHeader(
            consumer_group=group,
            topic=TOPIC,
            queue_id=queue_id,
            max_msg_nums=min(self.options.messages_max, 4 if group == ORDER_GROUP else 32),
            invisible_time_ms=self.options.invisible_ms,
            poll_time_ms=ORDER_POLL_MS if group == ORDER_GROUP else POLL_MS,
            exp_type="TAG",
            exp="*",
            order=group == ORDER_GROUP,
        )
        return RemotingCommand(RequestCode.POP_MESSAGE, ext_fields=header.ext_fields())

    @staticmethod
    async def _pause(client: TopicClient, answer: RemotingCommand | None) -> None:
        if answer is None or answer.code != ResponseCode.POLLING_TIMEOUT:
            client.forget_route()
            await asyncio.sleep(PAUSE_S)

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        for group in self.done:
            require(not self._missing(group), "never acknowledged by", group, sorted(self._missing(group)))
        return 0


def _handle(place: Place, times: list[str]) -> str:
    mark = "0" if place.topic == TOPIC else "1"
    require(place.topic in (TOPIC, pop_retry_topic(TOPIC, GROUP)), "popped from", place.topic)
    return " ".join([str(place.offset), *times, mark, "broker-a", str(place.queue_id), str(place.offset)])


def pop_options(seed: int) -> Options:
    """A seed's options."""
    return replace(draw_options(seed))


def pop_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=pop_workload)`."""
    drawn = draw_pop_options(options.seed)
    return PopWorkload(drawn, options.seed, history, options.workload.queues)
