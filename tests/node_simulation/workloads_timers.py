"""The timer workload: senders of messages for times to come, some of which they recall; a reader that waits
for what is due.

Each value is sent once at most, so that it may be in the topic once at most.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from broker.timer.scheduling import PROPERTY_DELAY_MS, PROPERTY_ENQUEUE_MS, PROPERTY_OUT_MS
from commitlog.log_machine import CLOCK_STEP_MAX_MS
from commitlog.record import Record, get_property
from ledgermq.messaging import decode_records
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options, draw_options
from tests.node_simulation.topic_client import TopicClient
from tests.node_simulation.workload import Workload
from tests.simulation.invariants import require

GROUP = "timers"
TOPIC = "T0"
TIMEOUT_S = 1.0
PRECISION_MS = 100
TIMERS = {"timer_precision_ms": PRECISION_MS, "recall_message_enable": True}
ROLLING = {"timer_roll_window_slots": 4}
"""Everything further than this is written again on its way."""


@dataclass(frozen=True, slots=True)
class TimerOptions:
    """What a seed draws. Delays are from 0 to `delay_max_ms`."""

    senders: int = 6
    interval_ms: int = 60
    delay_max_ms: int = 2_000
    round_ms: int = 1
    """Times are multiples of it: with a coarse one, many messages are due at once."""
    recall_probability: float = 0.2
    body_bytes_max: int = 64


def draw_timer_options(seed: int) -> TimerOptions:
    """Always the same for a seed."""
    rng = random.Random(f"timer workload {seed}")
    return TimerOptions(
        senders=rng.choice((1, 4, 12)),
        interval_ms=rng.choice((20, 60, 200)),
        delay_max_ms=rng.choice((300, 1_500, 4_000)),
        round_ms=rng.choice((1, 1, 500)),
        recall_probability=rng.choice((0.0, 0.2, 0.6)),
        body_bytes_max=rng.choice((16, 200, 4_000)),
    )


class TimerWorkload:
    """See the module; the world's `Workload`. `recalled` has what was answered to be taken back."""

    def __init__(self, options: TimerOptions, history: History, queues: int) -> None:
        self.options = options
        self.history = history
        self.stored: set[str] = set()
        self.recalled: set[str] = set()
        self.is_stopping = False
        self._asked: set[str] = set()
        """To be recalled, with what success is not known."""
        self._queues = queues
        self._seen: Counter[str] = Counter()
        """By the client that watches."""
        self._values = 0
        self._in_flight = 0

    def programs(self) -> dict[str, Program]:
        return {"p0": self._produce, "c0": self._watch}

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_stopping and not self._in_flight and not self._missing()

    def _expected(self) -> set[str]:
        """Acknowledged messages without a request to recall them."""
        return self.stored - self._asked

    def _missing(self) -> set[str]:
        return self._expected() - set(self._seen)

    def count_acknowledged(self) -> int:
        """Timer messages, recalled ones too."""
        return len(self.stored)

    def describe(self) -> str:
        return f"{len(self.stored)} stored, missing {sorted(self._missing())[:3]}"

    def crashed(self, name: str) -> None:
        """What is stored is delivered without its sender."""

    # -- senders

    async def _produce(self, process: Process) -> int:
        client = self._client()
        rng = process.environment.rng
        senders = (self._send_on(client, rng) for _ in range(self.options.senders))
        await asyncio.gather(self._look_around(client), *senders)
        return 0

    async def _look_around(self, client: TopicClient) -> None:
        while True:
            client.forget_route()
            await asyncio.sleep(0.3)

    async def _send_on(self, client: TopicClient, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.random() * 2 * self.options.interval_ms / 1_000)
            address = await client.leader()
            if address is None or self.is_stopping:
                continue
            self._in_flight += 1
            try:
                await self._send(client, address, rng)
            finally:
                self._in_flight -= 1

    async def _send(self, client: TopicClient, address: str, rng: random.Random) -> None:
        options = self.options
        self._values += 1
        value = f"v{self._values}"
        delay_ms = rng.randint(0, options.delay_max_ms) // options.round_ms * options.round_ms
        properties = {"UNIQ_KEY": value, PROPERTY_DELAY_MS: str(delay_ms)}
        queue_id = rng.randrange(self._queues)
        body = body_of(value, rng.randint(0, options.body_bytes_max))
        message = client.message(queue_id, body, properties, self.history.now // 1_000)
        answer = await client.invoke(address, message)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self.stored.add(value)
        handle = answer.ext_fields.get("recallHandle")
        if handle is not None and rng.random() < options.recall_probability:
            await asyncio.sleep(rng.random() * options.delay_max_ms / 1_000)
            await self._recall(client, value, handle)

    async def _recall(self, client: TopicClient, value: str, handle: str) -> None:
        address = await client.leader()
        if address is None:
            return
        self._asked.add(value)
        ext = {"topic": TOPIC, "recallHandle": handle, "producerGroup": GROUP}
        answer = await client.invoke(address, RemotingCommand(RequestCode.RECALL_MESSAGE, ext_fields=ext))
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            require(value not in self._seen, value, "was recalled after it was delivered")
            self.recalled.add(value)

    # -- readers

    async def _watch(self, process: Process) -> int:
        await self._client().watch(partial(self._take, self._seen))

    def _take(self, seen: Counter[str], data: bytes) -> None:
        for record in decode_records(data):
            value = value_of(record.body)
            seen[value] += 1
            require(value not in self.recalled, value, "is delivered, and was recalled")
            _check_time(value, record)

    async def read_back(self, process: Process, address: str) -> int:
        """Everything that was stored is there once, and nothing that was recalled is there."""
        found: Counter[str] = Counter()
        await self._client().read_all(address, partial(self._take, found))
        repeated = sorted(value for value, count in found.items() if count > 1)
        require(not repeated, "delivered more than once:", repeated)
        missing = sorted(self._expected() - set(found))
        require(not missing, "stored and not delivered:", missing)
        return 0

    def _client(self) -> TopicClient:
        return TopicClient(TOPIC, self._queues, TIMEOUT_S)


def _check_time(value: str, record: Record) -> None:
    """By the clock of the leader that delivered it, unless that was far behind the one that stored it."""
    out_ms = get_property(record.properties, PROPERTY_OUT_MS.encode())
    stored_ms = int(get_property(record.properties, PROPERTY_ENQUEUE_MS.encode()) or 0)
    if out_ms is not None and stored_ms <= record.store_timestamp_ms + CLOCK_STEP_MAX_MS:
        late_ms = record.store_timestamp_ms - int(out_ms) - PRECISION_MS
        require(late_ms >= 0, value, "is delivered too early by", -late_ms)


def timer_options(seed: int) -> Options:
    """A seed's options, half of them with messages that are rolled. A log that takes one message at a time
    takes no timers.
    """
    options = draw_options(seed)
    config = {key: value for key, value in options.config.items() if key != "pending_appends_max"}
    rolling = ROLLING if seed % 2 else {}
    return replace(options, config={**config, **TIMERS, **rolling})


def timer_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=timer_workload)`."""
    return TimerWorkload(draw_timer_options(options.seed), history, options.workload.queues)
