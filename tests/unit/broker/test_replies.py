"""324 and 325: a reply is pushed to the client that asked, wherever in the group it is connected."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.consume.clients import Client
from broker.consume.heartbeats import Heartbeat
from broker.feature import Feature
from broker.leadership import MARK
from broker.send.feature import make_replies
from commitlog.log import PutStatus
from commitlog.record import parse_properties
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, error_response, success_response
from remoting.connection import Connection
from remoting.errors import RemotingClosedError
from remoting.router import Router
from remoting.server import RemotingServer
from remoting.slices import finish
from tests.support.broker_parts import NOW_MS, BrokerParts, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.send_bench import send_request

TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02"
TRACE = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


class Bench:
    """A node with the reply processor, and a client `asker` that may be connected to it."""

    def __init__(self, parts: BrokerParts, log: FakeLog, engine: FakeEngine) -> None:
        self.parts = parts
        self.log = log
        self.engine = engine
        parts.add(Feature(handlers=make_replies(parts.core).handlers()))
        self.replier = FakeConnection(1, port=50001)
        self.asker = FakeConnection(2, port=50002)

    def connect(self) -> None:
        client = Client("asker", self.asker, "JAVA", 409)
        finish(self.parts.clients.beat(client, Heartbeat("asker", ("p",), ()), NOW_MS))

    async def reply(
        self, *, code: int = RequestCode.SEND_REPLY_MESSAGE_V2, **changes: object
    ) -> RemotingCommand:
        fields: dict[str, Any] = {"topic": TOPIC, "properties": PROPERTIES, **changes}
        request = send_request(body=b"the answer", opaque=5, **fields)
        request.code = code
        return await self.ask(request)

    async def ask(self, request: RemotingCommand) -> RemotingCommand:
        self.parts.router.dispatch([(self.replier.as_connection, [request], request.code)])
        async with asyncio.timeout(5):
            while not self.replier.answers:
                await asyncio.sleep(0)
        (answer,) = self.replier.take_answers()
        return answer

    @property
    def stored(self) -> list[bytes]:
        return [message.body for message in self.log.messages if message.topic == TOPIC]


def make_bench(tmp_path: Path, **values: object) -> Bench:
    log, engine = FakeLog(), FakeEngine()
    peers = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"
    parts = make_parts(tmp_path, log, engine, dLegerPeers=peers, **values)
    return Bench(parts, log, engine)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
async def test_a_reply_is_pushed_to_the_client_that_asked_and_stored(bench: Bench, code: int) -> None:
    bench.connect()
    bench.asker.replies = [RemotingCommand(0)]
    answer = await bench.reply(code=code, sys_flag=1, flag=7)
    assert answer.code == 0
    assert {name: answer.ext_fields[name] for name in TRACE} == TRACE
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("0", "0")
    assert len(answer.ext_fields["msgId"]) == 32
    (push,) = bench.asker.requests
    assert (push.code, push.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"the answer")
    fields = push.ext_fields
    assert (fields["topic"], fields["producerGroup"], fields["sysFlag"], fields["flag"]) == (
        TOPIC,
        "p",
        "1",
        "7",
    )
    assert (fields["bornHost"], fields["storeHost"]) == ("127.0.0.1:50001", "127.0.0.1:10911")
    properties = parse_properties(fields["properties"].encode())
    assert properties["CORRELATION_ID"] == "c-1"
    assert properties["PUSH_REPLY_TIME"] == str(NOW_MS)
    assert bench.stored == [b"the answer"]


async def test_without_storing_the_answer_names_no_place(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, storeReplyMessageEnable="false")
    bench.connect()
    bench.asker.replies = [RemotingCommand(0)]
    answer = await bench.reply()
    assert (answer.code, answer.ext_fields["msgId"], answer.ext_fields["queueOffset"]) == (0, "0", "0")
    assert bench.stored == []


async def test_a_reply_that_was_taken_succeeds_though_it_could_not_be_stored(bench: Bench) -> None:
    bench.connect()
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.asker.replies = [RemotingCommand(0)]
    answer = await bench.reply()
    assert (answer.code, answer.ext_fields["msgId"]) == (0, "0")


async def test_a_client_that_nobody_knows_gets_nothing(bench: Bench) -> None:
    answer = await bench.reply()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "channel of <asker> not found" in (answer.remark or "")
    assert answer.ext_fields == TRACE
    assert bench.stored == []


async def test_a_client_that_refuses_or_is_gone_is_no_success(bench: Bench) -> None:
    bench.connect()
    bench.asker.replies = [RemotingCommand(1, remark="full"), RemotingClosedError("closed")]
    for words in ("1 full", "closed"):
        answer = await bench.reply()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert words in (answer.remark or "")
    assert bench.stored == []


async def test_a_reply_to_nobody_is_refused(bench: Bench) -> None:
    answer = await bench.reply(properties="MSG_TYPE\x01reply\x02UNIQ_KEY\x01K\x02")
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")


async def test_what_no_send_may_do_no_reply_may(bench: Bench) -> None:
    bench.connect()
    assert (await bench.reply(queue_id=9)).code == ResponseCode.INVALID_PARAMETER
    assert (await bench.reply(topic="SCHEDULE_TOPIC_XXXX")).code == ResponseCode.NO_PERMISSION
    assert (await bench.reply(is_batch=True)).code == ResponseCode.MESSAGE_ILLEGAL
    unreadable = RemotingCommand(RequestCode.SEND_REPLY_MESSAGE_V2, 9, ext_fields={"b": "x"})
    answer = await bench.ask(unreadable)
    assert (answer.code, answer.ext_fields) == (1, TRACE)
    assert bench.asker.requests == []


class OtherNode:
    """Another node of the group, which knows the client or does not."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.requests: list[RemotingCommand] = []
        router = Router()
        router.register(RequestCode.SEND_REPLY_MESSAGE_V2, self._take)
        self.server = RemotingServer(router, "127.0.0.1", 0)

    def _take(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.requests.append(request)
        if self.code:
            return error_response(request, self.code, "not here")
        return success_response(request)


@pytest.mark.parametrize("codes", [(0, 1), (1, 0), (1, 1)])
async def test_a_node_that_does_not_know_the_client_has_the_others_push(
    bench: Bench, codes: tuple[int, int]
) -> None:
    others = [OtherNode(code) for code in codes]
    for other in others:
        await other.server.start()
    bench.engine.client_addresses = {
        f"n{number}": f"127.0.0.1:{other.server.port}" for number, other in enumerate(others, 1)
    }
    bench.engine.connected = frozenset({"n1", "n2"})
    try:
        answer = await bench.reply()
        assert answer.code == min(codes)
        for other in others:
            (asked,) = other.requests
            assert (asked.body, asked.ext_fields[MARK]) == (b"the answer", "1")
        assert bench.stored == ([b"the answer"] if answer.code == 0 else [])
    finally:
        await bench.parts.core.client.close()
        for other in others:
            await other.server.stop()


async def test_a_reply_that_was_handed_on_goes_no_further_and_is_not_stored_twice(bench: Bench) -> None:
    bench.engine.client_addresses = {"n1": "127.0.0.1:9"}
    bench.engine.connected = frozenset({"n1"})
    request = send_request(TOPIC, b"the answer", 5, properties=PROPERTIES)
    request.code = RequestCode.SEND_REPLY_MESSAGE_V2
    request.ext_fields = {**request.ext_fields, MARK: "1"}
    assert (await bench.ask(request)).code == ResponseCode.SYSTEM_ERROR
    bench.connect()
    bench.asker.replies = [RemotingCommand(0)]
    assert (await bench.ask(request)).code == 0
    assert bench.stored == []
