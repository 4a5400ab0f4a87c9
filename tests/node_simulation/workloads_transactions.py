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

from commitlog.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK, decode_record, format_properties
from ledgermq.client.consumer import decode_records
from ledgermq.client.errors import ClientError
from ledgermq.client.routes import RouteTable
from remoting.client import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.errors import RemotingError
from remoting.headers import EndTransactionRequestHeader, SendMessageRequestHeader
from tests.histories.operations import Queue
from tests.node_simulation.clients import History, body_of, value_of
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options, draw_options
from tests.node_simulation.workload import NAME_SERVER, Workload, ask, ask_offset
from tests.node_simulation.workloads import pull_header
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
    "transaction_check_interval_ms": 700,
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
        self._taken: Counter[str] = Counter()
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

    def _missing(self) -> set[str]:
        """A value whose preparing was acknowledged has to be decided, and to be there if it is committed."""
        return {value for value in self.prepared if self.decisions.get(value) != TRANSACTION_ROLLBACK} - set(
            self._taken
        )

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
        client = RemotingClient()
        client.on_request(partial(self._checked, client))
        routes = RouteTable(client, NAME_SERVER)
        rng = process.environment.rng
        senders = (self._send_on(client, routes, rng) for _ in range(self.options.senders))
        await asyncio.gather(self._beat(name, client, routes), *senders)
        return 0

    async def _beat(self, name: str, client: RemotingClient, routes: RouteTable) -> None:
        body = orjson.dumps({"clientID": name, "producerDataSet": [{"groupName": GROUP}]})
        while True:
            address = await _leader(routes)
            if address is not None:
                await _invoke(client, address, RemotingCommand(RequestCode.HEART_BEAT, body=body))
            routes.forget(TOPIC)
            await asyncio.sleep(HEARTBEAT_S)

    async def _send_on(self, client: RemotingClient, routes: RouteTable, rng: random.Random) -> None:
        options = self.options
        while True:
            await asyncio.sleep(rng.random() * 2 * options.interval_ms / 1_000)
            address = None if self.is_stopping else await _leader(routes)
            if address is None:
                continue
            self._in_flight += 1
            try:
                await self._transact(client, routes, address, rng)
            finally:
                self._in_flight -= 1

    async def _transact(
        self, client: RemotingClient, routes: RouteTable, address: str, rng: random.Random
    ) -> None:
        options = self.options
        self._values += 1
        value = f"v{self._values}"
        answer = await _invoke(client, address, self._half(value, rng))
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return
        self.prepared.add(value)
        await asyncio.sleep(rng.random() * options.pause_max_ms / 1_000)
        how = self._decide(value)
        if rng.random() >= options.silence_probability:
            await self._end(client, routes, answer, how)
            if rng.random() < options.repeat_probability:
                await self._end(client, routes, answer, how)

    def _half(self, value: str, rng: random.Random) -> RemotingCommand:
        header = SendMessageRequestHeader(
            producer_group=GROUP,
            topic=TOPIC,
            default_topic="TBW102",
            default_topic_queue_nums=self._queues,
            queue_id=rng.randrange(self._queues),
            sys_flag=PREPARED,
            born_timestamp_ms=self.history.now // 1_000,
            properties=format_properties({"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": value}).decode(),
        )
        body = body_of(value, rng.randint(0, self.options.body_bytes_max))
        return RemotingCommand(RequestCode.SEND_MESSAGE, ext_fields=header.ext_fields(), body=body)

    async def _end(self, client: RemotingClient, routes: RouteTable, half: RemotingCommand, how: int) -> None:
        """To whoever leads now, by what the answer to the half message said."""
        address = await _leader(routes)
        if address is None:
            return
        queue_offset = int(half.ext_fields["queueOffset"])
        position = int(half.ext_fields["msgId"][16:], 16)
        header = EndTransactionRequestHeader(GROUP, queue_offset, position, how)
        await _invoke(
            client, address, RemotingCommand(RequestCode.END_TRANSACTION, ext_fields=header.ext_fields())
        )

    def _checked(self, client: RemotingClient, request: RemotingCommand, connection: Connection) -> None:
        """39: what nobody decided on, since the answer to its half message was lost, is decided now."""
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
        """Reads the topic over and over, so that the run can wait for what is missing."""
        client = RemotingClient()
        routes = RouteTable(client, NAME_SERVER)
        ends: Counter[int] = Counter()
        while True:
            await asyncio.sleep(0.3)
            routes.forget(TOPIC)
            address = await _leader(routes)
            for queue_id in range(self._queues) if address is not None else ():
                command = RemotingCommand(
                    RequestCode.PULL_MESSAGE,
                    ext_fields=pull_header(Queue(TOPIC, queue_id), ends[queue_id]).ext_fields(),
                )
                answer = await _invoke(client, address or "", command)
                if answer is not None and answer.code == ResponseCode.SUCCESS:
                    self._take(answer.body)
                    ends[queue_id] = int(answer.ext_fields["nextBeginOffset"])

    def _take(self, data: bytes) -> None:
        for record in decode_records(data):
            value = value_of(record.body)
            self._taken[value] += 1
            decision = self.decisions.get(value)
            require(decision == TRANSACTION_COMMIT, value, "is delivered, and was decided as", decision)

    async def read_back(self, process: Process, address: str) -> int:
        """Everything that was committed is there once, and nothing else is there."""
        client = RemotingClient()
        self._taken.clear()
        for queue_id in range(self._queues):
            queue = Queue(TOPIC, queue_id)
            at = await ask_offset(client, address, RequestCode.GET_MIN_OFFSET, queue)
            end = await ask_offset(client, address, RequestCode.GET_MAX_OFFSET, queue)
            while at < end:
                answer = await ask(client, address, RequestCode.PULL_MESSAGE, pull_header(queue, at))
                self._take(answer.body)
                at = int(answer.ext_fields["nextBeginOffset"])
        await client.close()
        repeated = sorted(value for value, count in self._taken.items() if count > 1)
        require(not repeated, "delivered more than once:", repeated)
        require(not self._missing(), "committed and not delivered:", sorted(self._missing()))
        return 0


async def _leader(routes: RouteTable) -> str | None:
    try:
        queues = await routes.publish_queues(TOPIC)
    except ClientError:
        return None
    return queues[0].address if queues else None


async def _invoke(client: RemotingClient, address: str, command: RemotingCommand) -> RemotingCommand | None:
    try:
        return await client.invoke(address, command, TIMEOUT_S)
    except RemotingError:
        return None


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
