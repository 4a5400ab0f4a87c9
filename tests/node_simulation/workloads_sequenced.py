"""The sequenced workload: writers as a data pipeline has them, each batch of rows exactly once.

A writer has partitions that write side by side, several sends in flight. Tries of a partition are given up
and started again from its first row, cut in other pieces; a writer that is killed starts its batch again. At
the end the committed log must have every row of every batch once and in order, and every node's table of
writers must agree with that log.
"""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

from broker.state.state import ReplicatedState
from broker.state.writers import WriterTable
from commitlog.entry import HEADER_BYTES
from commitlog.record import Record, decode_record
from commitlog.sequences import FIRST_DIGEST, SEQUENCED, next_digest, place_of, writer_key
from remoting.client.aio import RemotingClient, RouteTable
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from tests.node_simulation.clients import History, RecordingClient
from tests.node_simulation.machine import Process, Program
from tests.node_simulation.options import Options
from tests.node_simulation.topic_client import NAME_SERVER, leader_of_all
from tests.node_simulation.workload import Workload
from tests.simulation.invariants import require
from tests.support.sequenced import batch_body, sequenced_header

TOPIC = "S"
WRITERS = {"w0": 1_000_000, "w1": 1_000_000, "w2": 1}
"""How many batches each writes at most: what one wrote long ago is to be remembered, too."""
PARTITIONS = 2
ROWS_MAX = 30
IN_FLIGHT_MAX = 4
SEND_ROWS_MAX = 5
"""Some seeds' brokers take no more at a time."""
TRY_TIMEOUT_S = 1.0
PAUSE_S = 0.05
_PASSING = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.LEDGERMQ_SEQUENCE_GAP,
)


@dataclass(slots=True)
class Checkpoint:
    """What a writer finds again when it was killed: the batch that is not done."""

    batch_id: int = 0
    is_idle: bool = True


class TryGivenUpError(Exception):
    """The task fails; it is started again."""


class SequencedWorkload:
    """See the module; the world's `Workload`."""

    def __init__(self, options: Options, history: History) -> None:
        self.history = history
        self.queues = options.workload.queues
        self.rows_max = min(SEND_ROWS_MAX, int(str(options.config.get("pending_appends_max", SEND_ROWS_MAX))))
        """Of a send: what the brokers of this world take at once."""
        self.writers = {name: Checkpoint() for name in WRITERS}
        self.is_stopping = False
        self.repeats = 0
        self.acknowledged: set[tuple[bytes, int, int]] = set()

    def programs(self) -> dict[str, Program]:
        return {name: partial(self._write_on, name) for name in self.writers}

    def stop(self) -> None:
        self.is_stopping = True

    def is_done(self) -> bool:
        return self.is_stopping and all(writer.is_idle for writer in self.writers.values())

    def count_acknowledged(self) -> int:
        """Rows."""
        return len(self.acknowledged)

    def describe(self) -> str:
        return f"{self.writers}, {self.repeats} repeats"

    def crashed(self, name: str) -> None: ...

    async def _write_on(self, name: str, process: Process) -> int:
        writer, rng = self.writers[name], process.environment.rng
        client = RecordingClient(self.history, name)
        while True:
            if writer.is_idle and (self.is_stopping or writer.batch_id >= WRITERS[name]):
                await asyncio.sleep(3_600)
                continue
            writer.is_idle = False
            tasks = (
                self._write(client, rng, name, writer.batch_id, partition) for partition in range(PARTITIONS)
            )
            await asyncio.gather(*tasks)
            writer.batch_id += 1
            writer.is_idle = True
            await asyncio.sleep(rng.random() * 0.3)

    async def _write(
        self, client: RemotingClient, rng: random.Random, name: str, batch_id: int, partition: int
    ) -> None:
        while True:
            try:
                await _Try(self, client, rng, name, batch_id, partition).run()
            except TryGivenUpError:
                await asyncio.sleep(rng.random() * 0.2)
            else:
                return

    # -- the end

    async def read_back(self, process: Process, address: str) -> int:
        """Once every node has applied all: one with a damaged entry waits until it is mended."""
        end_index = self.history.checker.commit_index
        while any(state.applied_index < end_index for _, state in self._states()):
            await asyncio.sleep(0.05)
        self.check()
        return 0

    def _states(self) -> Iterator[tuple[str, ReplicatedState]]:
        for machine in self.history.checker.machines.values():
            if machine.process is not None and machine.process.broker is not None:
                yield machine.name, machine.process.broker.core.state

    def check(self) -> None:
        """Every row once and in order in the committed log, and every table as the log says."""
        table = WriterTable()
        found: dict[bytes, list[tuple[int, int]]] = {}
        for index, record in enumerate(self._committed()):
            known = place_of(record.properties)
            if record.prepared_transaction_offset != SEQUENCED or known is None:
                continue
            key, batch_id, number, digest = known
            found.setdefault(key, []).append((batch_id, number))
            require(record.body == body_of(key, batch_id, number), key, "has another row at", known)
            require(
                digest == digests_of(key, batch_id, number + 1, self.queues)[-1], key, "has another digest"
            )
            table.apply((*known[:3], 1, index, record.store_timestamp_ms, digest), index - 1)
        for name, writer in self.writers.items():
            for partition in range(PARTITIONS):
                key = writer_key(name, partition)
                batches = range(writer.batch_id)
                expected = [(b, n) for b in batches for n in range(rows_of(name, b, partition))]
                require(found.get(key, []) == expected, key, "has", found.get(key, []), "for", expected)
        in_log = {(key, *place) for key, places in found.items() for place in places}
        require(self.acknowledged <= in_log, "acknowledged and lost", self.acknowledged - in_log)
        for name, state in self._states():
            own = list(state.writers.rows())
            require(own == list(table.rows()), name, "knows", own)

    def _committed(self) -> Iterator[Record]:
        for entry in self.history.checker.committed:
            yield decode_record(entry.data, HEADER_BYTES)


class _Try:
    """One try of one partition, from its first row."""

    def __init__(
        self,
        workload: SequencedWorkload,
        client: RemotingClient,
        rng: random.Random,
        name: str,
        batch_id: int,
        partition: int,
    ) -> None:
        self._workload = workload
        self._client = client
        self._routes = RouteTable(client, NAME_SERVER)
        self._rng = rng
        self._writer = name
        self._batch_id = batch_id
        self._partition = partition
        self._key = writer_key(name, partition)
        count = rows_of(name, batch_id, partition)
        cuts = [0]
        while cuts[-1] < count:
            cuts.append(min(count, cuts[-1] + rng.randint(1, workload.rows_max)))
        self._waiting = deque(pairwise(cuts))
        self._fails_at = rng.randint(1, 6) if rng.random() < 0.3 else 0

    async def run(self) -> None:
        rounds = 0
        while self._waiting:
            rounds += 1
            if rounds == self._fails_at:
                raise TryGivenUpError
            address = await self._leader()
            if address is None or not await self._send_some(address):
                await asyncio.sleep(PAUSE_S * (1 + self._rng.random()))

    async def _leader(self) -> str | None:
        try:
            return await leader_of_all(self._routes)
        except ClientError:
            return None

    async def _send_some(self, address: str) -> bool:
        """A few sends at once, in order; whether all of them were taken."""
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), IN_FLIGHT_MAX))]
        requests = (self._client.invoke(address, self._request(*rows), TRY_TIMEOUT_S) for rows in some)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        open_ones = []
        for (first, end), answer in zip(some, answers, strict=True):
            if isinstance(answer, RemotingError):
                open_ones.append((first, end))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.code == ResponseCode.SUCCESS:
                self._workload.repeats += int(answer.ext_fields["repeats"])
                self._workload.acknowledged.update((self._key, self._batch_id, n) for n in range(first, end))
            else:
                require(answer.code in _PASSING, self._key, "is refused:", answer)
                is_gap = answer.code == ResponseCode.LEDGERMQ_SEQUENCE_GAP
                require(bool(open_ones) or not is_gap, self._key, "is forgotten:", answer)
                open_ones.append((first, end))
        self._waiting.extendleft(reversed(open_ones))
        return not open_ones

    def _request(self, first: int, end: int) -> RemotingCommand:
        header = sequenced_header(
            first,
            topic=TOPIC,
            writer_id=self._writer,
            partition=self._partition,
            batch_id=self._batch_id,
            digest=digests_of(self._key, self._batch_id, first, self._workload.queues)[-1].decode(),
        )
        queues = self._workload.queues
        parts = (row_of(self._key, self._batch_id, number, queues) for number in range(first, end))
        return RemotingCommand(
            RequestCode.LEDGERMQ_SEND_SEQUENCED, ext_fields=header.ext_fields(), body=b"".join(parts)
        )


def rows_of(name: str, batch_id: int, partition: int) -> int:
    """How many rows a partition of a batch has; at every try the same."""
    return random.Random(f"{name} {batch_id} {partition}").randint(0, ROWS_MAX)


def body_of(key: bytes, batch_id: int, number: int) -> bytes:
    return b"%b %d %d" % (key, batch_id, number)


def row_of(key: bytes, batch_id: int, number: int, queues: int) -> bytes:
    """As it stands in a send."""
    return batch_body([body_of(key, batch_id, number)], b"", queue_id=number % queues)


@lru_cache(maxsize=4096)
def digests_of(key: bytes, batch_id: int, count: int, queues: int) -> list[bytes]:
    """Before the first row and behind each."""
    found = [FIRST_DIGEST]
    for number in range(count):
        found.append(next_digest(found[-1], row_of(key, batch_id, number, queues)))
    return found


def sequenced_workload(options: Options, history: History) -> Workload:
    """For `World(options, workload=sequenced_workload)`."""
    return SequencedWorkload(options, history)
