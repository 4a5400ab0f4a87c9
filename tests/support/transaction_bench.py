"""The transaction parts of a broker over a log in memory, with a clock in the test's hand, and producers that
prepare, end and are asked.
"""

import asyncio
from pathlib import Path

from broker.consume.clients import Client
from broker.consume.heartbeats import Heartbeat
from broker.send.feature import make_send_processor
from broker.state.changes import PutTopic
from broker.state.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TopicConfig
from broker.transactions.feature import make_checks, make_ends, make_ledger
from commitlog.record import Message, Record, decode_record
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, encode_command
from remoting.command_reader import CommandReader
from remoting.slices import finish
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.send_bench import send_request

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
SECOND = 1_000


class TransactionBench:
    """A node. `at` moves its clock."""

    def __init__(self, tmp_path: Path, log: FakeLog, parts: BrokerParts) -> None:
        self.tmp_path = tmp_path
        self.log = log
        self.parts = parts
        self.now_ms = NOW_MS
        self.wall_step_ms = 0
        """How far the wall clock was set ahead, or back."""
        parts.clock = lambda: self.now_ms + self.wall_step_ms
        parts.monotonic_ms = lambda: self.now_ms
        self.ledger = make_ledger(parts.core)
        self.ends = make_ends(parts.core, self.ledger)
        self.checks = make_checks(parts.core, self.ledger)
        self.sends = make_send_processor(parts.core, may_prepare=self.ledger.has_room)
        self.producer = FakeConnection()
        self._opaque = 0

    async def settle(self) -> None:
        for _ in range(40):
            await asyncio.sleep(0)

    def follow(self, leader_id: str | None = "n1", address: str | None = None) -> None:
        """Another node leads; clients find it at the address, if that is known."""
        engine = self.parts.engine
        assert isinstance(engine, FakeEngine)
        engine.leader_id = leader_id
        engine.client_addresses = {} if leader_id is None or address is None else {leader_id: address}
        self.log.set_writable(False)

    def at(self, offset_ms: int) -> None:
        """It is so long after the start."""
        self.now_ms = self.log.now_ms = NOW_MS + offset_ms

    def connect(self, group: str = "p", connection: FakeConnection | None = None) -> None:
        """A producer of the group has sent its heartbeat."""
        connection = connection or self.producer
        client = Client(f"c{connection.connection_id}", connection, "JAVA", 409)
        finish(self.parts.clients.beat(client, Heartbeat(client.client_id, (group,), ()), self.now_ms))

    async def prepare(self, body: bytes = b"hello", **changes: object) -> RemotingCommand:
        """The answer to a half message."""
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K{body.hex()}\x02TAGS\x01a\x02"
        properties += str(changes.pop("properties", ""))
        fields = {"sys_flag": 4, "queue_id": 2, **changes}
        request = send_request("t", body, 1, properties=properties, **fields)
        received = CommandReader().feed(encode_command(request))
        self.sends.handle([(self.producer.as_connection, received.commands)])
        await self.settle()
        (answer,) = self.producer.take_answers()
        return answer

    def end_request(self, half: RemotingCommand, how: int, **changes: object) -> RemotingCommand:
        """What a client sends, of what the answer to its half message said."""
        self._opaque += 1
        ext = {
            "producerGroup": "p",
            "tranStateTableOffset": half.ext_fields["queueOffset"],
            "commitLogOffset": str(int(half.ext_fields["msgId"][16:], 16)),
            "commitOrRollback": str(how),
            "msgId": half.ext_fields["transactionId"],
        }
        ext |= {name: str(value) for name, value in changes.items()}
        return RemotingCommand(RequestCode.END_TRANSACTION, self._opaque, ext_fields=ext)

    def send_end(self, *requests: RemotingCommand) -> None:
        """All in one turn of the loop."""
        self.ends.handle([(self.producer.as_connection, list(requests))])

    async def end(self, half: RemotingCommand, how: int, **changes: object) -> RemotingCommand:
        self.send_end(self.end_request(half, how, **changes))
        await self.settle()
        (answer,) = self.producer.take_answers()
        return answer

    async def run_round(self) -> list[Record]:
        """The half messages that the producer was asked about, as it reads them."""
        await self.checks.run_round()
        await self.settle()
        asked = self.producer.take_answers()
        assert all(each.code == RequestCode.CHECK_TRANSACTION_STATE and each.is_oneway for each in asked)
        return [decode_record(each.body, check_crc=True) for each in asked]

    def stored(self, topic: str) -> list[Message]:
        return [message for message in self.log.messages if message.topic == topic]

    @property
    def delivered(self) -> list[bytes]:
        """What consumers of the real topic find in the log."""
        return [each.body for each in self.stored("t")]

    @property
    def put_aside(self) -> list[bytes]:
        return [each.body for each in self.stored(CHECK_MAX_TIME_TOPIC)]

    @property
    def ops(self) -> list[Message]:
        return self.stored(OP_HALF_TOPIC)

    @property
    def halves(self) -> list[Message]:
        return self.stored(HALF_TOPIC)

    @property
    def open_count(self) -> int:
        assert self.ledger.window is not None
        return self.ledger.window.open_count

    async def next_leader(self, log: FakeLog | None = None, **values: object) -> "TransactionBench":
        """The node that takes over with what is committed."""
        self.log.set_writable(False)
        await self.settle()
        if log is None:
            log = self.log.reopened()
            log.put_calls = list(self.log.put_calls)
        parts = make_parts(self.tmp_path, log, FakeEngine(), **values)
        await log.start()
        bench = TransactionBench(self.tmp_path, log, parts)
        bench.now_ms = self.now_ms
        log.set_writable(True)
        await bench.settle()
        return bench


async def make_transaction_bench(tmp_path: Path, **values: object) -> TransactionBench:
    """The writable leader of a group that has the topic `t` with 4 queues."""
    log = FakeLog()
    parts = make_parts(tmp_path, log, FakeEngine(), **values)
    await parts.state.propose(PutTopic(TopicConfig("t", 4, 4)))
    bench = TransactionBench(tmp_path, log, parts)
    await bench.ledger.start()
    await bench.settle()
    return bench
