"""Peers that change while the node runs, and strangers: members of another configuration, which are
answered.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dledger.codec import PROTOCOL_VERSION, Hello, Introduction, Refused
from dledger.core.messages import HeartbeatResponse
from dledger.core.output import Envelope
from dledger.credentials import member_id_in, member_uri
from dledger.transport import Address, Transport, TransportLimits
from sockets.tls import PeerNames
from tests.support.polling import until
from tests.support.scripted_peer import ScriptedConnection, ScriptedNode, dialled, scripted_node
from tests.unit.dledger.test_transport import Sink
from tests.unit.dledger.test_transport_versions import (
    BEAT,
    BRIEF,
    LIMITS,
    NOTICE,
    WELCOME,
    Node,
    addresses,
    alone,
    before_script,
    running,
    two,
)

VISITORS_MAX = 3
FEW = replace(LIMITS, visitors_max=VISITORS_MAX)
IDLE = replace(LIMITS, visitor_idle_ms=100)


def introduction_at(address: Address) -> Introduction:
    return Introduction(3, *address[:2], 3, 0, "0.2.0")


@asynccontextmanager
async def stranger(node: Node, node_id: str) -> AsyncIterator[tuple[ScriptedConnection, ScriptedNode]]:
    """It has introduced itself to the node, and accepts connections."""
    async with scripted_node() as script, dialled(node.address) as connection:
        connection.send(Hello("g", node_id, 2, f"client of {node_id}"), introduction_at(script.address))
        await until(lambda: any(peer == node_id for peer, _ in node.sink.introduced))
        yield connection, script


# -- set_peers


async def test_a_new_peer_is_dialled() -> None:
    async with alone() as node, scripted_node() as script:
        node.transport.set_peers({**node.transport.peers, "n2": script.address}, 3, 0)
        await until(lambda: node.transport.is_connected("n2"))
        node.transport.send_all([Envelope("n2", BEAT)])
        await until(lambda: script.frames == [node.transport.hello, BEAT])


async def test_peers_that_remain_keep_their_connections() -> None:
    async with before_script() as (node, script), scripted_node() as other:
        connection = node.transport._dialers["n1"].connection
        node.transport.set_peers({"n1": script.address, "n2": other.address, "n0": node.address}, 3, 0)
        await until(lambda: node.transport.is_connected("n2"))
        assert node.transport._dialers["n1"].connection is connection
        assert connection.is_open
        assert set(node.transport.peers) == {"n1", "n2"}


async def test_a_removed_peer_gets_what_was_sent_before() -> None:
    async with before_script() as (node, script):
        node.transport.send("n1", BEAT)  # not flushed
        node.transport.set_peers({}, 3, 0)
        assert node.transport.version_of("n1") is None
        node.transport.send_all([Envelope("n1", BEAT)])
        assert node.transport.direct_ack(Envelope("n1", BEAT)) is None
        await until(lambda: script.newest.is_at_end)
        assert script.frames == [node.transport.hello, BEAT]
        assert len(script.connections) == 1


async def test_a_removed_peer_that_does_not_read_is_given_up() -> None:
    limits = replace(LIMITS, connect_timeout_ms=100)
    async with (
        scripted_node() as script,
        running("n0", addresses(1)[0], {"n1": script.address}, 0, limits) as node,
    ):
        await until(lambda: script.frames)
        script.newest._reading.cancel()
        connection = node.transport._dialers["n1"].connection
        connection.send([bytes(32 << 20)])
        node.transport.set_peers({}, 3, 0)
        await until(lambda: connection.closed.is_set())
        await until(lambda: not node.transport._ending)


async def test_a_node_stops_while_a_removed_peer_reads_nothing() -> None:
    async with before_script() as (node, script):
        script.newest._reading.cancel()
        connection = node.transport._dialers["n1"].connection
        connection.send([bytes(32 << 20)])
        node.transport.set_peers({}, 3, 0)
        await node.transport.stop()
        assert connection.closed.is_set()


async def test_a_peer_that_moves_keeps_its_connection_and_is_dialled_at_its_new_address_then() -> None:
    """An address in the log may be of the past, and the node at the other end has said who it is."""
    async with before_script() as (node, old), scripted_node() as new:
        node.transport.set_peers({"n1": new.address}, 3, 0)
        node.transport.send_all([Envelope("n1", BEAT)])
        await until(lambda: old.frames == [node.transport.hello, BEAT])
        assert new.connections == []
        old.newest.send(WELCOME)
        await until(lambda: len(old.frames) == 3)
        await old.newest.close()
        await until(lambda: new.frames)


async def test_another_node_at_the_address_in_the_log_does_not_keep_the_peer_away() -> None:
    async with before_script() as (node, right), scripted_node() as wrong:
        right.newest.send(WELCOME)
        node.transport.set_peers({"n1": wrong.address}, 3, 0)
        await until(lambda: len(right.frames) == 2)
        await right.newest.close()
        await until(lambda: wrong.connections and wrong.frames)
        wrong.newest.send(replace(WELCOME, node_id="n7"))
        await until(lambda: len(right.connections) == 2)


async def test_a_peer_is_dialled_where_it_introduced_itself() -> None:
    """Neither the log nor the files of this node have heard of the address, as after a long absence."""
    (own,), (former,) = addresses(1), addresses(1)
    async with running("n0", own, {"n1": former}), scripted_node() as script, dialled(own) as connection:
        connection.send(Hello("g", "n1", 2, ""), introduction_at(script.address))
        await until(lambda: script.frames)


async def test_a_peer_may_be_where_the_own_files_say() -> None:
    """All nodes of a group may have been stopped and come back with other addresses."""
    (own,), (elsewhere,) = addresses(1), addresses(1)
    async with scripted_node() as script:
        hello = Hello("g", "n0", PROTOCOL_VERSION, "")
        transport = Transport(hello, own, {"n1": script.address}, Sink(), LIMITS)
        transport.set_peers({"n1": elsewhere}, 3, 0)
        await transport.start()
        await until(lambda: script.frames)
        await transport.stop()


async def test_peers_may_be_set_before_the_start() -> None:
    (own,) = addresses(1)
    async with scripted_node() as script:
        hello = Hello("g", "n0", PROTOCOL_VERSION, "")
        transport = Transport(hello, own, {"n1": addresses(1)[0], "n2": ("::", 1)}, Sink(), LIMITS)
        transport.set_peers({"n1": script.address, "n0": ("10.0.0.1", 9)}, 7, 0)
        await transport.start()
        await until(lambda: script.frames)
        script.newest.send(WELCOME)
        await until(lambda: len(script.frames) == 2)
        assert script.frames == [hello, Introduction(3, *own, 7, 0, "")]
        await transport.stop()


async def test_a_removed_member_of_protocol_3_is_a_visitor() -> None:
    """Its leader says to it that it was removed, and it may still have messages for the others."""
    async with two() as (n0, n1):
        await until(lambda: n0.sink.introduced and n1.sink.introduced)
        await until(lambda: n0.transport.version_of("n1") == 3)
        n0.transport.set_peers({}, 3, 0)
        assert n0.transport.client_addresses == {}
        n0.transport.send_all([Envelope("n1", NOTICE)])
        n1.transport.send_all([Envelope("n0", BEAT)])
        await until(lambda: n1.sink.messages == [("n0", NOTICE)] and n0.sink.messages == [("n1", BEAT)])
        assert (n0.sink.disconnected, n1.sink.disconnected) == ([], [])


async def test_a_removed_member_of_protocol_2_is_refused() -> None:
    async with alone() as node, dialled(node.address) as old:
        old.send(Hello("g", "n1", 2, ""))
        await until(lambda: node.sink.connected)
        node.transport.set_peers({}, 3, 0)
        await until(lambda: old.is_at_end)
        words = "the peer calls itself 'n1', which is not another member of the group, and speaks replication"
        assert old.frames[-1].reason.startswith(words)


# -- strangers


async def test_a_stranger_is_heard_and_answered() -> None:
    async with alone() as node, stranger(node, "n9") as (connection, script):
        assert node.sink.introduced == [("n9", introduction_at(script.address))]
        connection.send(BEAT)
        await until(lambda: node.sink.messages == [("n9", BEAT)])
        await until(lambda: script.frames)
        script.newest.send(replace(WELCOME, node_id="n9"))
        await until(lambda: node.transport.version_of("n9") == 3)
        node.transport.send_all([Envelope("n9", NOTICE)])
        await until(lambda: len(script.frames) == 3)
        assert script.frames == [node.transport.hello, node.transport.introduction(), NOTICE]
        assert node.transport.client_addresses == {}


async def test_messages_of_a_stranger_before_its_introduction_are_dropped() -> None:
    async with alone() as node, scripted_node() as script, dialled(node.address) as connection:
        connection.send(Hello("g", "n9", 2, ""), BEAT, BEAT)
        await until(lambda: connection.frames)
        assert node.sink.connected == []
        other = HeartbeatResponse(2, 6)
        connection.send(BEAT, introduction_at(script.address), other)
        await until(lambda: node.sink.messages)
        assert (node.sink.messages, node.sink.connected) == ([("n9", other)], ["n9"])


async def test_a_stranger_of_protocol_2_is_refused() -> None:
    async with alone(limits=BRIEF) as node, dialled(node.address) as connection:
        connection.send(Hello("g", "n9", 2, ""), BEAT)
        await until(lambda: connection.is_at_end)
        words = "the peer calls itself 'n9', which is not another member of the group, and speaks replication"
        assert connection.frames[-1].reason == f"{words} protocol 2 only"
        assert (node.sink.connected, node.sink.messages) == ([], [])


async def test_a_stranger_sends_little_before_its_introduction() -> None:
    limits = replace(LIMITS, handshake_bytes_max=1000)
    async with alone(limits=limits) as node, dialled(node.address) as connection:
        connection.send(Hello("g", "n9", 2, ""), *[BEAT] * 100)
        await until(lambda: connection.is_at_end)
        assert isinstance(connection.frames[-1], Refused)
        assert node.sink.connected == []


@pytest.mark.parametrize("node_id", ["", "n" * 33, "n\n9", "n0"])
async def test_no_member_has_such_an_id(node_id: str) -> None:
    async with alone() as node, dialled(node.address) as connection:
        connection.send(Hello("g", node_id, 2, ""), introduction_at(node.address))
        await until(lambda: connection.is_at_end)
        assert "not another member of the group" in connection.frames[-1].reason
        assert node.sink.connected == []


async def enter_strangers(
    stack: AsyncExitStack, node: Node, ids: Iterable[str]
) -> dict[str, tuple[ScriptedConnection, ScriptedNode]]:
    return {each: await stack.enter_async_context(stranger(node, each)) for each in ids}


async def test_visitors_are_few_and_those_that_send_stay() -> None:
    async with alone(limits=FEW) as node, AsyncExitStack() as stack:
        strangers = await enter_strangers(stack, node, ("n7", "n8", "n9"))
        strangers["n7"][0].send(BEAT)
        await until(lambda: node.sink.messages)
        strangers |= await enter_strangers(stack, node, ("n10",))
        quiet, script = strangers["n8"]
        await until(lambda: quiet.is_at_end and script.connections and script.newest.is_at_end)
        assert set(node.transport._visitors) == set(node.transport._dialers) - {"n1"} == {"n7", "n9", "n10"}
        assert not any(strangers[each][0].is_at_end for each in ("n7", "n9", "n10"))
        assert node.sink.disconnected == ["n8"]


async def test_a_flood_of_strangers_leaves_members_their_connections() -> None:
    async with before_script() as (node, script), AsyncExitStack() as stack:
        member = await stack.enter_async_context(dialled(node.address))
        member.send(Hello("g", "n1", 2, ""))
        for number in range(40):
            connection = await stack.enter_async_context(dialled(node.address))
            connection.send(Hello("g", f"x{number}", 2, ""), introduction_at(("127.0.0.1", 1)))
        await until(lambda: len(node.sink.introduced) == 40)
        assert len(node.transport._visitors) == TransportLimits().visitors_max
        await until(lambda: len(node.transport._open) == TransportLimits().visitors_max + 1)
        assert [member.is_at_end, script.newest.is_at_end] == [False, False]


async def test_a_visitor_that_sends_nothing_is_dropped() -> None:
    async with alone(limits=IDLE) as node, stranger(node, "n9") as (connection, script):
        await until(lambda: script.connections)
        await until(lambda: connection.is_at_end and script.newest.is_at_end)
        assert node.transport._visitors == {}
        assert node.transport.version_of("n9") is None
        async with stranger(node, "n8"), asyncio.timeout(5):
            await until(lambda: "n8" in node.transport._visitors)
            await until(lambda: not node.transport._visitors)


async def test_a_visitor_becomes_a_peer() -> None:
    limits = replace(LIMITS, visitor_idle_ms=1_000)  # long enough to make a peer of the first one
    async with alone(limits=limits) as node, stranger(node, "n9") as (connection, script):
        await until(lambda: node.transport.is_connected("n9"))
        node.transport.set_peers({**node.transport.peers, "n9": script.address[:2]}, 3, 0)
        assert node.transport.client_addresses == {"n9": "client of n9"}
        async with stranger(node, "n8"):
            await until(lambda: "n8" in node.sink.disconnected)  # the time of visitors is over
        assert node.transport.is_connected("n9")
        assert not connection.is_at_end
        assert len(script.connections) == 1


async def test_a_visitor_that_moved_is_dialled_at_its_new_address() -> None:
    async with alone() as node, stranger(node, "n9") as (first, old), stranger(node, "n9") as (_, new):
        await until(lambda: new.connections)
        await until(lambda: first.is_at_end)
        assert node.transport._dialers["n9"].address == new.address[:2]
        await until(lambda: old.connections == [] or old.newest.is_at_end)


async def test_two_strangers_dial_each_other_once() -> None:
    first, second = addresses(2)
    async with running("n0", first, {"n1": second}) as n0, running("n1", second, {}) as n1:
        await until(lambda: n0.sink.introduced and n1.sink.introduced)
        for node, peer in ((n0, "n1"), (n1, "n0")):
            await until(lambda node=node, peer=peer: node.transport.version_of(peer) == 3)  # type: ignore[misc]
            node.transport.send_all([Envelope(peer, NOTICE)])
        await until(lambda: n0.sink.messages == [("n1", NOTICE)] and n1.sink.messages == [("n0", NOTICE)])
        assert (n0.sink.connected, n1.sink.connected) == (["n1"], ["n0"])


# -- with certificates


def test_the_id_in_a_certificate() -> None:
    assert member_id_in("g%1|x", member_uri("g%1|x", "n/1 é")) == "n/1 é"
    for uri in (
        member_uri("other", "n1"),
        member_uri("g%1|x", ""),
        "ledgermq://g%251%7Cx/n1/more",
        "ledgermq://g%251%7Cx/n%31",
        "LEDGERMQ://g%251%7Cx/n1",
        "https://g%251%7Cx/n1",
        "",
    ):
        assert member_id_in("g%1|x", uri) is None


def test_of_several_members_in_a_certificate_a_peer_counts() -> None:
    transport = Transport(Hello("g", "n0", 2, ""), ("127.0.0.1", 1), {"n1": ("127.0.0.1", 2)}, Sink())
    uris = {each: member_uri("g", each) for each in ("n0", "n1", "n9")}
    for ids, expected in (
        (("n0", "n9", "n1"), "n1"),
        (("n0", "n9"), "n9"),
        (("n0",), None),
        ((), None),
    ):
        assert transport.member_in(PeerNames(tuple(uris[each] for each in ids))) == expected


async def test_a_peer_that_comes_back_at_another_address_of_its_name_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a pod does: its name is looked up for each attempt to connect."""
    loop = asyncio.get_running_loop()
    look_up, silent = loop.getaddrinfo, "127.0.0.99"
    async with scripted_node() as script:
        answers = iter((silent, silent))

        async def names(name: str, *rest: Any, **options: Any) -> Any:
            host = next(answers, script.address[0]) if name == "n1.group" else name
            return await look_up(host, *rest, **options)

        monkeypatch.setattr(loop, "getaddrinfo", names)
        (own,) = addresses(1)
        async with running("n0", own, {"n1": ("n1.group", script.address[1])}) as node:
            await until(lambda: node.transport.is_connected("n1"))
    assert next(answers, None) is None
