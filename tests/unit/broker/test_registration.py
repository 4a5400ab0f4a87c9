"""Registration at name servers, over real connections on loopback."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from broker.registration import Registration
from broker.state.changes import DeleteTopic, PutSettings, PutTopic
from broker.state.topics import TopicConfig
from dledger.core.membership import Configuration, Member, MemberRole
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.router import Router
from remoting.server import RemotingServer
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.support.polling import loop_turns, until

LIMIT_S = 10.0


class NameServer:
    """Keeps what brokers say to it."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[RemotingCommand] = []
        router = Router()
        for code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
            router.register(code, self._take)
        self.server = RemotingServer(router, "127.0.0.1", port)

    def _take(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        self.requests.append(request)
        return success_response(request)

    @property
    def ids(self) -> list[tuple[int, str]]:
        return [(request.code, request.ext_fields["brokerId"]) for request in self.requests]


@pytest.fixture
async def name_server() -> AsyncIterator[NameServer]:
    server = NameServer()
    await server.server.start()
    yield server
    await server.server.stop()


class Node:
    """A broker's registration over a fake log."""

    def __init__(
        self, tmp_path: Path, addresses: str, engine: FakeEngine | None = None, **values: object
    ) -> None:
        self.log = FakeLog(is_writable=False)
        self.parts = make_parts(
            tmp_path,
            self.log,
            engine,
            namesrvAddr=addresses,
            dLegerSelfId="n1",
            dLegerPeers="n0-127.0.0.1:1;n1-127.0.0.1:2",
            **values,
        )
        self.client = RemotingClient()
        self.registration = Registration(
            self.parts.config, self.parts.state, self.log, self.client, lambda: 3, self.parts.core.members
        )


@contextlib.asynccontextmanager
async def registered_node(
    tmp_path: Path, addresses: str, engine: FakeEngine | None = None, **values: object
) -> AsyncIterator[Node]:
    node = Node(tmp_path, addresses, engine, **values)
    await node.registration.start()
    try:
        yield node
    finally:
        await node.registration.stop()
        await node.client.close()


async def test_a_node_registers_as_follower_then_as_leader_and_takes_itself_off(
    tmp_path: Path, name_server: NameServer
) -> None:
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}") as node:
        await until(lambda: len(name_server.requests) == 1)
        node.log.set_writable(True)
        await until(lambda: len(name_server.requests) == 2)
        node.log.set_writable(False)
        await until(lambda: len(name_server.requests) == 3)
    register, unregister = int(RequestCode.REGISTER_BROKER), int(RequestCode.UNREGISTER_BROKER)
    assert name_server.ids == [(register, "2"), (register, "0"), (register, "2"), (unregister, "2")]


async def test_a_node_is_registered_while_it_is_a_member(tmp_path: Path, name_server: NameServer) -> None:
    first = Member("n0", "127.0.0.1", 1)
    engine = FakeEngine(configuration=Configuration((first,)))
    register, unregister = int(RequestCode.REGISTER_BROKER), int(RequestCode.UNREGISTER_BROKER)
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}", engine) as node:
        engine.set_members(Configuration((first, Member("n1", "127.0.0.1", 2, MemberRole.LEARNER))))
        await until(lambda: name_server.ids == [(register, "2")])
        engine.set_members(Configuration((first,)))
        await until(lambda: name_server.ids == [(register, "2"), (unregister, "2")])
        node.registration.trigger()
    assert len(name_server.requests) == 2, "it does not register again, and takes itself off once"


async def test_a_node_that_an_operator_has_given_up_takes_itself_off(
    tmp_path: Path, name_server: NameServer
) -> None:
    """Also if it leads: an old majority may have come back after `ledgermq recover`."""
    engine = FakeEngine(configuration=Configuration((Member("n1", "127.0.0.1", 1),)))
    register, unregister = int(RequestCode.REGISTER_BROKER), int(RequestCode.UNREGISTER_BROKER)
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}", engine) as node:
        node.log.set_writable(True)
        await until(lambda: name_server.ids[-1:] == [(register, "0")])
        engine.become_outdated()
        await until(lambda: name_server.ids[-1] == (unregister, "0"))
        node.registration.trigger()
        await loop_turns()
    assert name_server.ids[-1] == (unregister, "0")


async def test_the_body_holds_topics_and_a_version_with_the_term(
    tmp_path: Path, name_server: NameServer
) -> None:
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}"):
        await until(lambda: len(name_server.requests) == 1)
    request = name_server.requests[0]
    ext = request.ext_fields
    assert ext["brokerAddr"] == "127.0.0.1:10911"
    assert (ext["brokerName"], ext["clusterName"]) == ("broker-a", "DefaultCluster")
    assert int(ext["bodyCrc32"]) == zlib.crc32(request.body) & 0x7FFFFFFF
    wrapper = orjson.loads(request.body)["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"] == {"counter": 0, "stateVersion": 3, "timestamp": 0}
    assert wrapper["topicConfigTable"]["TBW102"]["perm"] == 7


@pytest.mark.parametrize(("permission", "shown"), [(6, 7), (4, 4), (2, 2)])
async def test_a_broker_that_may_not_be_written_or_read_says_so_with_every_topic(
    tmp_path: Path, name_server: NameServer, permission: int, shown: int
) -> None:
    address = f"127.0.0.1:{name_server.server.port}"
    async with registered_node(tmp_path, address, brokerPermission=str(permission)):
        await until(lambda: len(name_server.requests) == 1)
    topics = orjson.loads(name_server.requests[0].body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert topics["TBW102"]["perm"] == shown


async def test_a_permission_that_changes_is_shown_at_once(tmp_path: Path, name_server: NameServer) -> None:
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}") as node:
        await until(lambda: len(name_server.requests) == 1)
        node.log.set_writable(True)
        await until(lambda: len(name_server.requests) == 2)
        await node.parts.state.propose(PutSettings({"brokerPermission": "4"}))
        await until(lambda: len(name_server.requests) == 3)
        wrapper = orjson.loads(name_server.requests[-1].body)["topicConfigSerializeWrapper"]
        assert wrapper["topicConfigTable"]["TBW102"]["perm"] == 4
        assert wrapper["dataVersion"]["counter"] == 1


async def test_topic_changes_are_told_at_once_and_together(tmp_path: Path, name_server: NameServer) -> None:
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}") as node:
        await until(lambda: len(name_server.requests) == 1)
        node.log.set_writable(True)
        await until(lambda: len(name_server.requests) == 2)
        await asyncio.gather(*(node.parts.state.propose(PutTopic(TopicConfig(f"t{n}"))) for n in range(20)))
        await until(lambda: len(name_server.requests) >= 3)
        topics = orjson.loads(name_server.requests[-1].body)["topicConfigSerializeWrapper"][
            "topicConfigTable"
        ]
        assert {f"t{n}" for n in range(20)} <= set(topics)
        assert len(name_server.requests) == 3


async def test_every_name_server_is_told_and_a_dead_one_holds_up_no_other(
    tmp_path: Path, name_server: NameServer
) -> None:
    closed = NameServer()
    await closed.server.start()
    dead = closed.server.port
    await closed.server.stop()
    async with registered_node(tmp_path, f"127.0.0.1:{dead};127.0.0.1:{name_server.server.port}"):
        await until(lambda: len(name_server.requests) == 1)


async def test_a_restarted_name_server_is_told_anew(tmp_path: Path) -> None:
    first = NameServer()
    await first.server.start()
    port = first.server.port
    async with registered_node(tmp_path, f"127.0.0.1:{port}"):
        await until(lambda: len(first.requests) == 1)
        await first.server.stop()
        second = NameServer(port)
        await second.server.start()
        await until(lambda: len(second.requests) >= 1)
        await second.server.stop()


async def test_stop_ends_a_link_that_was_woken_in_the_same_turn(
    name_server: NameServer, tmp_path: Path
) -> None:
    """A node that stops after a failure changes its role a moment before: that must not make it stay."""
    node = Node(tmp_path, f"127.0.0.1:{name_server.server.port}")
    await node.registration.start()
    await until(lambda: len(name_server.requests) == 1)
    for _ in range(3):
        await asyncio.sleep(0)  # until the link rests
    node.registration.trigger()
    await asyncio.sleep(0)  # the wait has ended, and whoever waits for it has not heard yet
    try:
        async with asyncio.timeout(LIMIT_S):
            await node.registration.stop()
    finally:
        await node.client.close()


async def test_the_body_follows_every_change_of_a_topic(tmp_path: Path, name_server: NameServer) -> None:
    async with registered_node(tmp_path, f"127.0.0.1:{name_server.server.port}") as node:
        state = node.parts.state
        for change in (
            PutTopic(TopicConfig("a")),
            PutTopic(TopicConfig("b")),
            PutTopic(TopicConfig("a", perm=2)),
            DeleteTopic("b"),
        ):
            await state.propose(change)
            body = orjson.loads(node.registration._register_body())
            table = body["topicConfigSerializeWrapper"]["topicConfigTable"]
            assert table == {name: topic.to_json() for name, topic in state.topics.items()}
            assert list(body) == ["filterServerList", "topicConfigSerializeWrapper"]
