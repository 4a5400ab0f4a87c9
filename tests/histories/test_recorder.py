"""What the recorder writes down, against a server that keeps one queue and errs when told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

import pytest

from commitlog.record import Message, encode_record
from ledgermq.client import Producer
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import ClientError, RemotingError, RequestError
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.route import BrokerData, QueueData, TopicRoute, format_topic_route
from remoting.router import Router
from remoting.server import RemotingServer
from tests.histories.checker import check
from tests.histories.drain import GROUP, drain_topic
from tests.histories.operations import Commit, Drain, Fetch, Outcome, Poll, Queue, Seek, Send
from tests.histories.recorder import MemorySink, RecordedProducer, Recorder, RecordingClient

TOPIC = "T"
QUEUE = Queue(TOPIC, 0)


class Server:
    """A name server and a broker with one queue in one; `errors` are the next answers."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.offset: int | None = None
        self.errors: list[ResponseCode] = []
        router = Router()
        router.register(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        router.register(RequestCode.SEND_MESSAGE_V2, self._send)
        router.register(RequestCode.PULL_MESSAGE, self._pull)
        router.register(RequestCode.UPDATE_CONSUMER_OFFSET, self._update)
        router.register(RequestCode.QUERY_CONSUMER_OFFSET, self._query)
        self.server = RemotingServer(router, "127.0.0.1", 0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def _err(self) -> None:
        if self.errors and (code := self.errors.pop(0)):
            raise RequestError(code, "as told")

    def _route(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        brokers = (BrokerData("C", "b", {0: self.address}),)
        route = TopicRoute((QueueData("b", 1, 1, 6),), brokers)
        return success_response(request, body=format_topic_route(route))

    def _send(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._err()
        message = Message(TOPIC, 0, bytes(request.body), born_host=bytes(8), store_host=bytes(8))
        self.log.append(encode_record(message, len(self.log), 0))
        ext = {"queueId": "0", "queueOffset": str(len(self.log) - 1), "msgId": "x"}
        return success_response(request, ext)

    def _pull(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._err()
        start = int(request.ext_fields["queueOffset"])
        records = self.log[start : start + 2]
        code = ResponseCode.SUCCESS if records else ResponseCode.PULL_NOT_FOUND
        ext = {
            "nextBeginOffset": str(start + len(records)),
            "minOffset": "0",
            "maxOffset": str(len(self.log)),
        }
        ext["suggestWhichBrokerId"] = "0"
        return success_response(request, ext, b"".join(records), code=code)

    def _update(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        self._err()
        self.offset = int(request.ext_fields["commitOffset"])
        return success_response(request)

    def _query(self, request: RemotingCommand, _: Connection) -> RemotingCommand:
        if self.offset is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, "no offset")
        return success_response(request, {"offset": str(self.offset)})


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.server.start()
    yield server
    await server.server.stop()


class Writing:
    """A recorder whose clock goes up by one whenever it is read."""

    def __init__(self) -> None:
        self.sink = MemorySink()
        ticks = count()
        self.recorder = Recorder(self.sink, lambda: next(ticks))


async def invoke(
    server: Server,
    recorder: Recorder,
    code: RequestCode,
    header: PullMessageRequestHeader | UpdateConsumerOffsetRequestHeader | QueryConsumerOffsetRequestHeader,
) -> RemotingCommand:
    client = RecordingClient(recorder, "c")
    try:
        request = RemotingCommand(code, ext_fields=header.ext_fields())
        return await client.invoke(server.address, request)
    finally:
        await client.close()


def pull(topic: str = TOPIC, *, sys_flag: int = 4, commit_offset: int = 0) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="G",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=sys_flag,
        commit_offset=commit_offset,
        suspend_timeout_ms=0,
        subscription="*",
        expression_type="TAG",
    )


async def produce(server: Server, recorder: Recorder, *values: str, give_up_s: float = 30.0) -> None:
    async with Producer(server.address, send_timeout_s=give_up_s) as producer:
        recorded = RecordedProducer(producer, recorder, "p")
        for value in values:
            await recorded.send(TOPIC, value)


async def test_acknowledged_sends_have_places_and_tries(server: Server) -> None:
    writing = Writing()
    server.errors = [ResponseCode(0), ResponseCode.SYSTEM_ERROR]
    await produce(server, writing.recorder, "a", "b")
    assert writing.sink.history == [
        Send("p/0", 0, 1, Outcome.OK, ("a",), QUEUE, (0,), 1),
        Send("p/0", 2, 3, Outcome.OK, ("b",), QUEUE, (1,), 2),
    ]


async def test_send_that_is_given_up_is_of_unknown_outcome(server: Server) -> None:
    writing = Writing()
    server.errors = [ResponseCode.SYSTEM_ERROR] * 100
    with pytest.raises(ClientError):
        await produce(server, writing.recorder, "a", give_up_s=0.05)
    assert writing.sink.history == [Send("p/0", 0, 1, Outcome.INFO, ("a",), None, (), None)]


def test_send_that_nobody_ends_is_of_unknown_outcome() -> None:
    writing = Writing()
    writing.recorder.send("p", ("a", "b"))
    assert writing.sink.history == [Send("p", 0, None, Outcome.INFO, ("a", "b"), None, (), None)]


def test_send_that_failed_for_sure() -> None:
    writing = Writing()
    writing.recorder.send("p", ("a",)).failed(1)
    assert writing.sink.history == [Send("p", 0, 1, Outcome.FAIL, ("a",), None, (), 1)]


async def test_polls_are_written_down_as_they_are_on_the_wire(server: Server) -> None:
    writing = Writing()
    await produce(server, Recorder(MemorySink()), "a", "b")
    await invoke(server, writing.recorder, RequestCode.PULL_MESSAGE, pull())
    assert writing.sink.history == [Poll("c", 0, 1, Outcome.OK, QUEUE, 0, ((0, "a"), (1, "b")), 2)]


async def test_poll_that_brings_a_commit(server: Server) -> None:
    """It asks for no acknowledgement, so its outcome stays unknown."""
    writing = Writing()
    header = pull(sys_flag=5, commit_offset=7)
    await invoke(server, writing.recorder, RequestCode.PULL_MESSAGE, header)
    commit = Commit("c", 0, None, Outcome.INFO, "G", QUEUE, 7)
    assert writing.sink.history == [Poll("c", 0, 1, Outcome.OK, QUEUE, 0, (), 0), commit]


async def test_refused_poll_has_no_messages(server: Server) -> None:
    writing = Writing()
    server.errors = [ResponseCode.SYSTEM_ERROR]
    await invoke(server, writing.recorder, RequestCode.PULL_MESSAGE, pull())
    assert writing.sink.history == [Poll("c", 0, 1, Outcome.FAIL, QUEUE, 0)]


async def test_retry_topics_are_not_part_of_a_history(server: Server) -> None:
    writing = Writing()
    await invoke(server, writing.recorder, RequestCode.PULL_MESSAGE, pull("%RETRY%G"))
    assert writing.sink.history == []


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (ResponseCode(0), Outcome.OK),
        (ResponseCode.SERVICE_NOT_AVAILABLE, Outcome.FAIL),
        (ResponseCode.SYSTEM_ERROR, Outcome.INFO),
    ],
)
async def test_outcomes_of_commits(server: Server, code: ResponseCode, outcome: Outcome) -> None:
    writing = Writing()
    server.errors = [code]
    header = UpdateConsumerOffsetRequestHeader("G", TOPIC, 0, 5)
    await invoke(server, writing.recorder, RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert writing.sink.history == [Commit("c", 0, 1, outcome, "G", QUEUE, 5)]


async def test_lost_answers_leave_it_open(server: Server) -> None:
    writing = Writing()
    address = server.address
    await server.server.stop()
    client = RecordingClient(writing.recorder, "c")
    header = UpdateConsumerOffsetRequestHeader("G", TOPIC, 0, 5)
    request = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=header.ext_fields())
    with pytest.raises(RemotingError):
        await client.invoke(address, request)
    await client.close()
    assert writing.sink.history == [Commit("c", 0, 1, Outcome.INFO, "G", QUEUE, 5)]


async def test_fetches_say_none_while_there_is_no_offset(server: Server) -> None:
    writing = Writing()
    header = QueryConsumerOffsetRequestHeader("G", TOPIC, 0)
    await invoke(server, writing.recorder, RequestCode.QUERY_CONSUMER_OFFSET, header)
    server.offset = 5
    await invoke(server, writing.recorder, RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert writing.sink.history == [
        Fetch("c", 0, 1, Outcome.OK, "G", QUEUE, None),
        Fetch("c", 2, 3, Outcome.OK, "G", QUEUE, 5),
    ]


async def test_final_reading_reads_all_and_goes_on_after_errors(server: Server) -> None:
    writing = Writing()
    await produce(server, writing.recorder, *(f"v{number}" for number in range(5)))
    server.errors = [ResponseCode.SYSTEM_ERROR, ResponseCode(0), ResponseCode.SYSTEM_BUSY]
    assert await drain_topic(writing.recorder, server.address, TOPIC) == 1
    history = writing.sink.history
    last = history[-1]
    assert isinstance(last, Drain)
    assert (last.queue, last.begin, last.end) == (QUEUE, 0, 5)
    assert Seek("final", 10, QUEUE, None) in history
    report = check(history)
    report.assert_clean()
    assert report.operations["values read"] == 5
    assert GROUP not in str(history)


async def test_final_reading_shows_what_the_server_lost(server: Server) -> None:
    writing = Writing()
    await produce(server, writing.recorder, "a", "b")
    server.log.pop()
    await drain_topic(writing.recorder, server.address, TOPIC)
    assert not check(writing.sink.history).is_clean
