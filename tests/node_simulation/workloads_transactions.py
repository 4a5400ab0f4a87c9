"""The transaction workload: producers that prepare, decide, and say so once, twice, or not at all; a reader
that waits for what was committed.

A producer's decisions outlive it, as a database's do: a new life of the process answers checks by them. Each
value is prepared once at most, so that it may be in the topic once at most.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import orjson

from commitlog.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, decode_record
from ledgermq.messaging import decode_records
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.headers.transactions import EndTransactionRequestHeader
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options, draw_options
from tests.node_simulation.topic_client import TopicClient
from tests.node_simulation.workload import Workload
from tests.simulation.invariants import require

GROUP = "transactions"
TOPIC = "T0"
PREPARED = 4
UNKNOWN = 0
TIMEOUT_S = 1.0
HEARTBEAT_S = 0.5
ENOUGH_ROUNDS = 250
CHECKS = {
    "transaction_timeout_ms": 500,
    "transaction_check_ms": 700,
    "transaction_check_max": ENOUGH_ROUNDS,
}


@dataclass(frozen=True, slots=True)
class TransactionOptions:
    """What a seed draws. `silence_probability`: how often a producer keeps its decision to itself."""

    producers: int = 2
    senders: int = 3
    interval_ms: int = 100
    commit_probability: float = 0.6
    silence_probability: float = 0.3
    repeat_probability: float = 0.2
    pause_max_ms: int = 1_500
    body_bytes_max: int = 64


def draw_transaction_options(seed: int) -> TransactionOptions:
    """Always the same for a seed."""
    rng = random.Random(f"transaction workload {seed}")
    return TransactionOptions(
        producers=rng.choice((1, 2, 3)),
        senders=rng.choice((1, 3, 6)),
        interval_ms=rng.choice((50, 150, 400)),
        commit_probability=rng.choice((0.2, 0.6, 0.9)),
        silence_probability=rng.choice((0.0, 0.2, 0.8)),
        repeat_probability=rng.choice((0.0, 0.3, 1.0)),
        pause_max_ms=rng.choice((0, 300, 1_500)),
        body_bytes_max=rng.choice((16, 200, 4_000)),
    )


class TransactionWorkload:
    """See the module; the world's `Workload`. `decisions` has how each value was to end, once that is so."""

    def __init__(self, options: TransactionOptions, seed: int, history: History, queues: int) -> None:
        self.options = options
        self.history = history
        self.decisions: dict[str, int] = {}
        self.prepared: set[str] = set()
        self.asked = 0
        self.is_stopping = False
        self._queues = queues
        self._seen: Counter[str] = Counter()
        """By the client that watches."""
        self._rng = random.Random(f"transaction workload's decisions {seed}")
        self._values = 0
        self._in_flight = 0

    def programs(self) -> dict[str, Program]:
        programs: dict[str, Program] = {
            f"p{number}": partial(self._produce, f"p{number}") for number in range(self.options.producers)
        }
        programs["c0"] = self._watch
        return programs

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_stopping and not self._in_flight and not self._missing()

    def _expected(self) -> set[str]:
        """A value whose preparing was acknowledged has to be decided, and to be there if it is committed."""
        return {value for value in self.prepared if self.decisions.get(value) != TRANSACTION_ROLLBACK}

    def _missing(self) -> set[str]:
        return self._expected() - set(self._seen)

    def count_acknowledged(self) -> int:
        """Half messages, however they ended."""
        return len(self.prepared)

    def describe(self) -> str:
        return f"{len(self.prepared)} prepared, missing {sorted(self._missing())[:3]}"

    def crashed(self, name: str) -> None:
        """What it decided stands."""

    def _decide(self, value: str) -> int:
        """How a value ends: asked for often, decided once."""
        if value not in self.decisions:
            is_committed = self._rng.random() < self.options.commit_probability
            self.decisions[value] = TRANSACTION_COMMIT if is_committed else TRANSACTION_ROLLBACK
        return self.decisions[value]

    # -- producers

    async def _produce(self, name: str, process: Process) -> int:
        client = self._client()
        client.remoting.on_request(self._checked)
        rng = process.environment.rng
        senders = (self._send_on(client, rng) for _ in range(self.options.senders))
        await asyncio.gather(self._beat(name, client), *senders)
        return 0

    async def _beat(self, name: str, client: TopicClient) -> None:
        body = orjson.dumps({"clientID": name, "producerDataSet": [{"groupName": GROUP}]})
        while True:
            address = await client.leader()
            if address is not None:
                await client.invoke(address, RemotingCommand(RequestCode.HEART_BEAT, body=body))
            client.forget_route()
            await asyncio.sleep(HEARTBEAT_S)

    async def _send_on(self, client: TopicClient, rng: random.Random) -> None:
        options = self.options
        while True:
            await asyncio.sleep(rng.random() * 2 * options.interval_ms / 1_000)
            address = await client.leader()
            if address is None or self.is_stopping:
                continue
            self._in_flight += 1
            try:
                await self._transact(client, address, rng)
            finally:
                self._in_flight -= 1

    async def _transact(self, client: TopicClient, address: str, rng: random.Random) -> None:
        options = self.options
        self._values += 1
        value = f"v{self._values}"
        queue_id = rng.randrange(self._queues)
        body = body_of(value, rng.randint(0, options.body_bytes_max))
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": value}
        half = client.message(queue_id, body, properties, self.history.now // 1_000, PREPARED)
        answer = await client.invoke(address, half)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self.prepared.add(value)
        await asyncio.sleep(rng.random() * options.pause_max_ms / 1_000)
        how = self._decide(value)
        if rng.random() >= options.silence_probability:
            await _end(client, answer, how)
            if rng.random() < options.repeat_probability:
                await _end(client, answer, how)

    def _checked(self, request: RemotingCommand, connection: Connection) -> None:
        """39: decides a transaction that had no decision, since the answer to its half message was lost."""
        if request.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        self.asked += 1
        record = decode_record(request.body, check_crc=True)
        require(record.topic == TOPIC, "asked about a message of", record.topic)
        value = value_of(record.body)
        is_late = self._rng.random() < self.options.silence_probability / 2
        header = EndTransactionRequestHeader(
            GROUP,
            int(request.ext_fields["tranStateTableOffset"]),
            int(request.ext_fields["commitLogOffset"]),
            UNKNOWN if is_late else self._decide(value),
            from_transaction_check=True,
        )
        connection.send_oneway(RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=header.ext_fields()))

    # -- readers

    async def _watch(self, process: Process) -> int:
        await self._client().watch(partial(self._take, self._seen))

    def _take(self, seen: Counter[str], data: bytes) -> None:
        for record in decode_records(data):
            value = value_of(record.body)
            seen[value] += 1
            decision = self.decisions.get(value)
            require(decision == TRANSACTION_COMMIT, value, "is delivered, and was decided as", decision)

    async def read_back(self, process: Process, address: str) -> int:
        """Everything that was committed is there once, and nothing else is there."""
        found: Counter[str] = Counter()
        await self._client().read_all(address, partial(self._take, found))
        repeated = sorted(value for value, count in found.items() if count > 1)
        require(not repeated, "delivered more than once:", repeated)
        missing = sorted(self._expected() - set(found))
        require(not missing, "committed and not delivered:", missing)
        return 0

    def _client(self) -> TopicClient:
        return TopicClient(TOPIC, self._queues, TIMEOUT_S)


async def _end(client: TopicClient, half: RemotingCommand, how: int) -> None:
    """To the current leader, with the values of the answer to the half message."""
    address = await client.leader()
    if address is None:
        return
    queue_offset = int(half.ext_fields["queueOffset"])
    position = int(half.ext_fields["msgId"][16:], 16)
    header = EndTransactionRequestHeader(GROUP, queue_offset, position, how)
    await client.invoke(address, RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=header.ext_fields()))


def transaction_options(seed: int) -> Options:
    """A seed's options, with checks at short intervals. A log that takes few messages at a time takes no
    transactions at all.
    """
    options = draw_options(seed)
    config = {key: value for key, value in options.config.items() if key != "pending_appends_max"}
    return replace(options, config={**config, **CHECKS})


def transaction_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=transaction_workload)`."""
    drawn = draw_transaction_options(options.seed)
    return TransactionWorkload(drawn, options.seed, history, options.workload.queues)
