"""Requests that a node hands on to the leader: sends, locks, and the ends of transactions."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from broker.leadership import FORWARD_BYTES_MAX, FORWARDS_MAX, MARK
from remoting.codes import RequestCode, ResponseCode
from remoting.command import ONEWAY_FLAG, RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.router import Router
from remoting.server import RemotingServer
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.support.polling import until
from tests.support.send_bench import Bench as SendBench
from tests.support.send_bench import send_request
from tests.support.transaction_bench import COMMIT, make_transaction_bench
from tests.unit.broker.consume_bench import make_bench, request

LIMIT_S = 5.0
CODES = (
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.END_TRANSACTION,
    RequestCode.SEND_MESSAGE,
)


class Leader:
    """The node that leads, over a real connection."""

    def __init__(self) -> None:
        self.requests: list[RemotingCommand] = []
        self.code = 0
        router = Router()
        for code in CODES:
            router.register(code, self._take)
        self.server = RemotingServer(router, "127.0.0.1", 0)

    def _take(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.requests.append(request)
        if self.code:
            return error_response(request, self.code, "the leader's words")
        return success_response(request, body=b'{"lockOKMQSet":[]}')

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    node = Leader()
    await node.server.start()
    yield node
    await node.server.stop()


def lock_request(code: int = RequestCode.LOCK_BATCH_MQ) -> RemotingCommand:
    queues = [{"brokerName": "broker-a", "queueId": 0, "topic": "t"}]
    return request(code, orjson.dumps({"clientId": "a", "consumerGroup": "g", "mqSet": queues}))


@pytest.mark.parametrize("code", [RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ])
async def test_a_follower_asks_the_leader_for_locks(tmp_path: Path, leader: Leader, code: int) -> None:
    bench = await make_bench(tmp_path)
    bench.engine.client_addresses = {"n1": leader.address}
    bench.follow("n1")
    bench.start(lock_request(code))
    answers = bench.connection.answers
    await until(lambda: answers)
    assert (answers[0].code, answers[0].opaque, answers[0].body) == (0, 7, b'{"lockOKMQSet":[]}')
    (asked,) = leader.requests
    assert (asked.code, asked.body, asked.ext_fields) == (code, lock_request().body, {MARK: "1"})
    await bench.parts.core.client.close()


async def test_a_request_that_was_handed_on_is_not_handed_on_again(tmp_path: Path, leader: Leader) -> None:
    bench = await make_bench(tmp_path)
    bench.engine.client_addresses = {"n1": leader.address}
    bench.follow("n1")
    asked = lock_request()
    asked.ext_fields = {MARK: "1"}
    assert (await bench.ask(asked)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert leader.requests == []


@pytest.mark.parametrize("code", [0, 1])
async def test_the_end_of_a_transaction_reaches_the_leader(tmp_path: Path, leader: Leader, code: int) -> None:
    bench = await make_transaction_bench(tmp_path)
    half = await bench.prepare()
    leader.code = code
    bench.follow("n1", leader.address)
    ended = bench.end_request(half, COMMIT)
    fields = dict(ended.ext_fields)
    bench.send_end(ended)
    await until(lambda: bench.producer.answers)
    (answer,) = bench.producer.take_answers()
    assert (answer.code, answer.opaque) == (code, ended.opaque)
    (asked,) = leader.requests
    assert asked.ext_fields == {**fields, MARK: "1"}
    await bench.parts.core.client.close()


async def test_during_an_election_the_end_waits_for_the_next_leader(tmp_path: Path, leader: Leader) -> None:
    bench = await make_transaction_bench(tmp_path)
    half = await bench.prepare()
    bench.follow(None)
    bench.send_end(bench.end_request(half, COMMIT))
    await bench.settle()
    bench.follow("n1", leader.address)
    await until(lambda: leader.requests and bench.producer.answers)
    await bench.parts.core.client.close()


async def test_a_node_that_becomes_the_leader_ends_it_itself(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path)
    half = await bench.prepare()
    bench.follow(None)
    bench.send_end(bench.end_request(half, COMMIT))
    await bench.settle()
    bench.follow("n0")
    bench.log.set_writable(True)
    await until(lambda: bench.producer.answers)
    assert [answer.code for answer in bench.producer.take_answers()] == [0]
    assert bench.delivered == [b"hello"]


async def test_requests_under_way_are_bounded_by_number_and_bytes(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    bench.engine.client_addresses = {"n1": "127.0.0.1:1"}
    bench.follow(None)
    forwarder = bench.parts.core.forwarder
    waiting = [
        asyncio.ensure_future(forwarder.ask_leader(lock_request(), 1.0, 60.0)) for _ in range(FORWARDS_MAX)
    ]
    assert forwarder.may_forward(lock_request())
    await asyncio.sleep(0)
    assert not forwarder.may_forward(lock_request())
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert forwarder.may_forward(lock_request())
    large = asyncio.ensure_future(forwarder.ask_leader(request(41, bytes(FORWARD_BYTES_MAX)), 1.0, 60.0))
    await asyncio.sleep(0)
    assert not forwarder.may_forward(lock_request())
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)


async def test_a_broker_without_a_group_has_nobody_to_ask(tmp_path: Path) -> None:
    forwarder = make_parts(tmp_path, FakeLog()).core.forwarder
    assert not forwarder.may_forward(lock_request())
    assert forwarder.leader_address is None
    assert forwarder.other_addresses == []


@pytest.fixture
async def sends(tmp_path: Path) -> AsyncIterator[SendBench]:
    """A node of a group that does not lead."""
    log = FakeLog(is_writable=False)
    bench = SendBench(make_parts(tmp_path, log, FakeEngine(leader_id=None)), log)
    yield bench
    await bench.parts.core.tasks.cancel()
    await bench.parts.core.client.close()


def lead(bench: SendBench, leader_id: str | None, *addresses: str) -> None:
    """Who leads, and where n1 serves clients."""
    engine = bench.parts.core.engine
    assert isinstance(engine, FakeEngine)
    engine.leader_id = leader_id
    engine.client_addresses = dict(zip(("n1",), addresses, strict=False))


@pytest.mark.parametrize("code", [0, ResponseCode.SYSTEM_BUSY])
async def test_a_send_to_a_node_that_leads_no_more_reaches_the_leader(
    sends: SendBench, leader: Leader, code: int
) -> None:
    leader.code = code
    lead(sends, "n1", leader.address)
    asked = send_request("t", opaque=5)
    sends.handle(asked)
    await until(lambda: sends.connection.answers)
    (answer,) = sends.connection.take_answers()
    assert (answer.code, answer.opaque, answer.is_response) == (code, 5, True)
    (forwarded,) = leader.requests
    assert (forwarded.code, forwarded.body, forwarded.ext_fields[MARK]) == (asked.code, asked.body, "1")
    assert sends.stored == []


async def test_a_send_waits_for_the_next_leader(sends: SendBench, leader: Leader) -> None:
    sends.handle(send_request("t"))
    await sends.settle()
    assert sends.connection.answers == []
    lead(sends, "n1", leader.address)
    await until(lambda: sends.connection.answers)
    assert [answer.code for answer in sends.connection.take_answers()] == [0]


async def test_a_forwarded_oneway_send_is_not_answered(sends: SendBench, leader: Leader) -> None:
    lead(sends, "n1", leader.address)
    asked = send_request("t")
    asked.flag = ONEWAY_FLAG
    sends.handle(asked)
    await until(lambda: leader.requests)
    await sends.settle()
    assert sends.connection.answers == []


async def test_a_leader_that_is_gone_may_have_stored_the_send(sends: SendBench, leader: Leader) -> None:
    """Its code is not that of a refusal, after which nothing is stored."""
    lead(sends, "n1", leader.address)
    await leader.server.stop()
    sends.handle(send_request("t"))
    await until(lambda: sends.connection.answers)
    (answer,) = sends.connection.take_answers()
    assert (answer.code, "may still be stored" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_forwarded_send_is_not_forwarded_again(sends: SendBench, leader: Leader) -> None:
    lead(sends, "n1", leader.address)
    asked = send_request("t")
    asked.ext_fields = asked.ext_fields | {MARK: "1"}
    sends.handle(asked)
    assert [answer.code for answer in sends.connection.take_answers()] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert leader.requests == []
