"""Protocol 2 or 3: what both sides of a connection speak, with nodes of release 0.1.0 among them; and members
of different generations of a group hear nothing of each other.
"""

import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from dledger.codec import (
    PROTOCOL_VERSION,
    Hello,
    Introduction,
    Refused,
    Welcome,
)
from dledger.core.membership import Configuration, ConfigurationEntry
from dledger.core.messages import AppendResponse, HeartbeatResponse, MembershipNotice, TruncateRequest
from dledger.core.output import Envelope
from dledger.core.types import ResponseCode
from dledger.server import running_older_nodes
from dledger.transport import Address, Transport, TransportLimits
from tests.support.polling import loop_turns, until
from tests.support.scripted_peer import ScriptedNode, bytes_of, dialled, is_of_version_2, scripted_node
from tests.unit.dledger.test_transport import Sink

LIMITS = TransportLimits(reconnect_delay_ms=10, closed_log_interval_ms=0, handshake_timeout_ms=60_000)
BRIEF = replace(LIMITS, handshake_timeout_ms=100)
BEAT = HeartbeatResponse(1, 5)
ACK = AppendResponse(1, ResponseCode.SUCCESS, 0, 5, 5)
ENTRY = ConfigurationEntry(5, 1, Configuration.of_voters(("n0", "n1")))
NOTICE = MembershipNotice(1, ENTRY)
TRUNCATION = TruncateRequest(1, 0, 6, 1, 400, False, 7, 1, ENTRY)
WELCOME = Welcome(3, "n1", 3, 0, "0.2.0")


@dataclass
class Node:
    transport: Transport
    sink: Sink
    address: Address


@asynccontextmanager
async def running(
    node_id: str,
    address: Address,
    peers: Mapping[str, Address],
    generation: int = 0,
    limits: TransportLimits = LIMITS,
) -> AsyncIterator[Node]:
    sink = Sink()
    hello = Hello("g", node_id, PROTOCOL_VERSION, f"client of {node_id}")
    transport = Transport(hello, address, {**peers, node_id: address}, sink, limits, release="0.2.0")
    transport.set_peers(peers, 3, generation)
    await transport.start()
    try:
        yield Node(transport, sink, address)
    finally:
        await transport.stop()


def addresses(count: int) -> list[Address]:
    """At which nothing listens, all different."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname() for each in bound]


@asynccontextmanager
async def alone(generation: int = 0, limits: TransportLimits = LIMITS) -> AsyncIterator[Node]:
    """A node n0 whose peer n1 does not listen."""
    own, other = addresses(2)
    async with running("n0", own, {"n1": other}, generation, limits) as node:
        yield node


@asynccontextmanager
async def two(
    generations: tuple[int, int] = (0, 0), limits: TransportLimits = LIMITS
) -> AsyncIterator[tuple[Node, Node]]:
    first, second = addresses(2)
    async with (
        running("n0", first, {"n1": second}, generations[0], limits) as n0,
        running("n1", second, {"n0": first}, generations[1], limits) as n1,
    ):
        yield n0, n1


@asynccontextmanager
async def before_script(
    generation: int = 0, limits: TransportLimits = LIMITS
) -> AsyncIterator[tuple[Node, ScriptedNode]]:
    """A node whose peer n1 is played by the test, and which has said Hello to it."""
    async with (
        scripted_node() as script,
        running("n0", addresses(1)[0], {"n1": script.address}, generation, limits) as node,
    ):
        await until(lambda: script.frames)
        yield node, script


# -- negotiation


async def test_two_new_nodes_speak_protocol_3() -> None:
    async with two() as (n0, n1):
        await until(lambda: n0.transport.version_of("n1") == n1.transport.version_of("n0") == 3)
        await until(lambda: n0.sink.introduced and n1.sink.introduced)
        expected = Introduction(3, *n0.address, 3, 0, "0.2.0")
        assert (n1.sink.introduced, n1.sink.connected) == ([("n0", expected)], ["n0"])
        n0.transport.send_all([Envelope("n1", each) for each in (NOTICE, TRUNCATION, BEAT)])
        await until(lambda: len(n1.sink.messages) == 3)
        assert n1.sink.messages == [("n0", NOTICE), ("n0", TRUNCATION), ("n0", BEAT)]


async def test_the_release_of_a_member_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dledger.transport")
    async with alone() as node:
        for release in ("0.2.0", "0.2.0", "0.3.0"):
            node.sink.introduced.clear()
            async with dialled(node.address) as other:
                other.send(Hello("g", "n1", 2, ""), Introduction(3, "127.0.0.1", 9, 3, 0, release))
                await until(lambda: node.sink.introduced)
    runs = [each.message for each in caplog.records if "runs release" in each.message]
    assert runs == ["n1 runs release '0.2.0'", "n1 runs release '0.3.0'"]


async def test_a_new_node_dials_an_old_one() -> None:
    """It answers nothing: what only protocol 3 has is dropped and counted."""
    async with before_script() as (node, old):
        assert node.transport.version_of("n1") == 2
        node.transport.send_all([Envelope("n1", each) for each in (BEAT, NOTICE, TRUNCATION, ACK)])
        await until(lambda: len(old.frames) == 3)
        assert old.frames == [Hello("g", "n0", 2, "client of n0"), BEAT, ACK]
        assert all(map(is_of_version_2, old.frames))
        assert node.transport.unsupported_messages == 2


async def test_an_old_node_dials_a_new_one() -> None:
    """It reads nothing of the Welcome, and its messages count at once."""
    async with alone() as node, dialled(node.address) as old:
        old.send(Hello("g", "n1", 2, "client of n1"), BEAT)
        await until(lambda: node.sink.messages == [("n1", BEAT)])
        await until(lambda: old.frames == [Welcome(3, "n0", 3, 0, "0.2.0")])
        assert (node.sink.connected, node.sink.introduced) == (["n1"], [])
        assert node.transport.version_of("n1") is None


async def test_a_peer_speaks_the_newest_protocol_on_both_connections() -> None:
    """Its own may be of an older release by now, while this node's looks open as it was."""
    introduction = Introduction(3, "127.0.0.1", 7, 3, 0, "")
    async with before_script() as (node, script):
        script.newest.send(WELCOME)
        await until(lambda: node.transport.version_of("n1") == 3)
        assert not node.transport.speaks_newest("n1")
        async with dialled(node.address) as peer:
            peer.send(Hello("g", "n1", 2, ""), introduction)
            await until(lambda: node.transport.speaks_newest("n1"))
        async with dialled(node.address) as old:
            old.send(Hello("g", "n1", 2, ""), BEAT)
            await until(lambda: node.sink.messages)
            assert not node.transport.speaks_newest("n1")


async def test_nothing_waits_for_the_welcome() -> None:
    async with before_script() as (node, script):
        node.transport.send_all([Envelope("n1", BEAT)])
        await until(lambda: script.frames[1:] == [BEAT])
        script.newest.send(WELCOME)
        await until(lambda: node.transport.version_of("n1") == 3)
        node.transport.send_all([Envelope("n1", NOTICE)])
        await until(lambda: len(script.frames) == 4)
        assert script.frames[2:] == [node.transport.introduction(), NOTICE]


@pytest.mark.parametrize(("named", "spoken"), [(2, 2), (3, 3), (9, 3)])
async def test_the_lower_of_both_newest_versions_counts(named: int, spoken: int) -> None:
    async with before_script() as (node, script):
        script.newest.send(replace(WELCOME, version=named))
        await until(lambda: node.transport._dialers["n1"].connection.is_welcome)
        assert node.transport.version_of("n1") == spoken
        node.transport.send_all([Envelope("n1", BEAT)])
        await until(lambda: BEAT in script.frames)
        introductions = [each for each in script.frames if isinstance(each, Introduction)]
        assert [each.version for each in introductions] == ([3] if spoken == 3 else [])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (bytes_of(WELCOME, WELCOME), "answers with a Welcome"),
        (bytes_of(Hello("g", "n1", 2, "")), "answers with a Hello"),
        (bytes_of(WELCOME, ACK), "answers with a AppendResponse"),
        (bytes_of(Introduction(3, "h", 1, 2, 0, "")), "answers with a Introduction"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "longer than 4096"),
        (struct.pack(">II", 4097, 10), "longer than 4096"),
        (struct.pack(">II", 20, 10) + b"\xff" * 16, "not msgpack"),
        (bytes_of(replace(WELCOME, node_id="n2")), "the node at its address calls itself 'n2'"),
    ],
)
async def test_a_wrong_answer_costs_the_connection(
    answer: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with before_script() as (_, script):
        first = script.newest
        first.send_bytes(answer)
        await until(lambda: first.is_at_end)
        await until(lambda: len(script.connections) >= 2)
        assert words in caplog.text


async def test_the_reason_of_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with before_script() as (_, script):
        for number in range(1, 4):
            await until(lambda number=number: len(script.connections) >= number)  # type: ignore[misc]
            script.newest.send(Refused("not\nhere"))
            await until(lambda: script.newest.is_at_end)
    assert caplog.text.count("n1 refuses the replication connection of this node: 'not\\nhere'") == 1


async def test_an_introduction_does_not_interrupt_a_direct_ack() -> None:
    """The thread has written a part of its frame: the rest goes first."""
    async with before_script() as (node, script):
        direct_ack = node.transport.direct_ack(Envelope("n1", ACK))
        assert direct_ack is not None
        connection = node.transport._dialers["n1"].connection
        assert connection._transport is not None
        connection._transport.write(direct_ack.frame[:7])
        direct_ack.begin(lambda: 7)
        script.newest.send(WELCOME)
        await until(lambda: len(script.frames) == 3)
        assert script.frames[1:] == [ACK, node.transport.introduction()]


async def test_a_second_introduction_closes_the_connection() -> None:
    introduction = Introduction(3, "127.0.0.1", 7, 3, 0, "")
    async with alone() as node, dialled(node.address) as peer:
        peer.send(Hello("g", "n1", 2, ""), introduction, BEAT, introduction)
        await until(lambda: peer.is_at_end)
        assert peer.frames[1:] == [Refused("a second handshake")]
        assert node.sink.introduced == [("n1", introduction)]
        assert node.sink.disconnected == ["n1"]


@pytest.mark.parametrize(
    ("introduction", "words"),
    [
        (Introduction(2, "h", 1, 3, 0, ""), "replication protocol 2"),
        (Introduction(4, "h", 1, 3, 0, ""), "replication protocol 4"),
        (Introduction(3, "", 1, 3, 0, ""), "replication address"),
        (Introduction(3, "h" * 254, 1, 3, 0, ""), "replication address"),
        (Introduction(3, "h", 0, 3, 0, ""), "replication address"),
        (Introduction(3, "h", 65536, 3, 0, ""), "replication address"),
    ],
)
@pytest.mark.parametrize("node_id", ["n1", "n9"])
async def test_an_impossible_introduction_is_refused(
    introduction: Introduction, words: str, node_id: str
) -> None:
    async with alone() as node, dialled(node.address) as peer:
        peer.send(Hello("g", node_id, 2, ""), introduction, BEAT)
        await until(lambda: peer.is_at_end)
        assert words in peer.frames[-1].reason
        assert (node.sink.introduced, node.sink.messages) == ([], [])


async def test_a_long_reason_fits_into_its_frame() -> None:
    async with alone() as node, dialled(node.address) as peer:
        peer.send(Hello("\U0001f4a1" * 250, "n1", 2, ""))
        await until(lambda: peer.is_at_end)
        assert peer.frames[0].reason.startswith("the peer is of group")


# -- generations


@pytest.mark.parametrize("generations", [(0, 1), (1, 0), (1, 2)])
async def test_generations_do_not_hear_each_other(
    generations: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Also what is sent before the other's generation is known. Both logs have the reason."""
    async with two(generations) as (n0, n1):
        for node, peer in ((n0, "n1"), (n1, "n0")):
            await until(lambda node=node, peer=peer: node.transport.is_connected(peer))  # type: ignore[misc]
            node.transport.send_all([Envelope(peer, BEAT)])
        older = "n0" if generations[0] < generations[1] else "n1"
        of = {"n0": generations[0], "n1": generations[1]}
        for one, other in (("n0", "n1"), ("n1", "n0")):
            reason = (
                f"{one} is of generation {of[one]} of the group, {other} of generation {of[other]}: an "
                f"operator has decided who the members are (ledgermq recover), and {older} does not know "
                "of it"
            )
            refused = f"{other} refuses the replication connection of this node: '{reason}'"
            await until(lambda refused=refused: refused in caplog.text)  # type: ignore[misc]
            assert f": {reason}" in caplog.text.replace(refused, "")
        assert (n0.sink.messages, n1.sink.messages) == ([], [])


async def test_members_of_one_generation_lose_no_message() -> None:
    async with two((1, 1)) as (n0, n1):
        await until(lambda: n0.transport.is_connected("n1"))
        n0.transport.send_all([Envelope("n1", BEAT), Envelope("n1", ACK)])
        await until(lambda: n1.sink.messages == [("n0", BEAT), ("n0", ACK)])
        assert n1.sink.connected == ["n0"]


async def test_messages_wait_for_a_welcome_of_the_same_generation() -> None:
    async with before_script(generation=1) as (node, script):
        node.transport.send_all([Envelope("n1", BEAT)])
        assert node.transport.direct_ack(Envelope("n1", ACK)) is None
        await loop_turns()
        assert script.frames == [node.transport.hello]
        script.newest.send(replace(WELCOME, generation=1))
        await until(lambda: len(script.frames) == 3)
        assert script.frames[1:] == [node.transport.introduction(), BEAT]
        assert node.transport.direct_ack(Envelope("n1", ACK)) is not None


async def test_messages_for_another_generation_never_leave() -> None:
    async with before_script(generation=1, limits=BRIEF) as (node, script):
        node.transport.send_all([Envelope("n1", BEAT)])
        first = script.newest
        first.send(WELCOME)
        await until(lambda: len(first.frames) == 2)
        node.transport.send_all([Envelope("n1", BEAT)])
        assert node.transport.direct_ack(Envelope("n1", ACK)) is None
        await until(lambda: first.is_at_end)
        assert first.frames == [node.transport.hello, node.transport.introduction()]


async def test_a_recovered_group_sends_nothing_to_a_node_of_protocol_2(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with before_script(generation=1, limits=BRIEF) as (node, old):
        first = old.newest
        node.transport.send_all([Envelope("n1", BEAT)])
        await until(lambda: first.is_at_end)
        assert first.frames == [node.transport.hello]
    assert "it does not say that it is of generation 1" in caplog.text


async def test_a_recovered_group_takes_nothing_from_a_node_of_protocol_2() -> None:
    async with (
        alone(generation=1, limits=BRIEF) as node,
        dialled(node.address) as old,
    ):
        old.send(Hello("g", "n1", 2, ""), BEAT)
        await until(lambda: old.is_at_end)
        assert "speaks replication protocol 2 only, and this group was recovered" in old.frames[-1].reason
        assert (node.sink.messages, node.sink.connected) == ([], [])


async def test_a_new_generation_ends_all_connections(caplog: pytest.LogCaptureFixture) -> None:
    async with two() as (n0, n1):
        await until(lambda: n0.sink.introduced and n1.sink.introduced)
        n0.transport.set_peers({"n1": n1.address}, 3, 1)
        await until(lambda: n0.sink.disconnected and n1.sink.disconnected)
        await until(lambda: "and n1 does not know of it" in caplog.text)
        n1.transport.set_peers({"n0": n0.address}, 3, 1)
        await until(lambda: n0.transport.version_of("n1") == n1.transport.version_of("n0") == 3)
        n0.transport.send_all([Envelope("n1", BEAT)])
        await until(lambda: n1.sink.messages == [("n0", BEAT)])


@pytest.mark.parametrize("generations", [(0, 1), (1, 0), (1, 2)])
async def test_a_node_without_promises_takes_the_newest_generation(generations: tuple[int, int]) -> None:
    """From a member that it dialled, whichever has the newer one."""
    async with two(generations) as (n0, n1):
        younger, older = sorted((n0, n1), key=lambda node: node.transport.generation)
        younger.transport.on_newer_generation = older.transport.on_newer_generation = lambda _: True
        await until(lambda: n0.transport.generation == n1.transport.generation == max(generations))
        await until(lambda: n0.transport.version_of("n1") == n1.transport.version_of("n0") == 3)
        for one, name in ((n0, "n1"), (n1, "n0")):
            one.transport.send_all([Envelope(name, BEAT)])
        await until(lambda: n0.sink.messages == [("n1", BEAT)] and n1.sink.messages == [("n0", BEAT)])


async def test_a_node_of_an_older_generation_learns_that_it_is_outdated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with two((1, 2)) as (n0, n1):
        calls: list[int] = []
        n0.transport.on_outdated = lambda: calls.append(n0.transport.newest_generation)
        await until(lambda: calls)
        await until(lambda: "n0 does not know of it" in caplog.text)
        assert (calls, n1.transport.newest_generation, n0.transport.generation) == ([2], 0, 1)
        assert "n1 is of generation 2, n0 of 1" in caplog.text
        n0.transport.set_peers({"n1": n1.address}, 3, 2)
        assert n0.transport.generation == n0.transport.newest_generation


@pytest.mark.parametrize("has_none", [True, False])
async def test_a_generation_is_not_taken_from_a_node_that_was_not_dialled(has_none: bool) -> None:
    """Nor does it count as news that this node is outdated."""
    async with alone() as node, dialled(node.address) as other:
        node.transport.on_newer_generation = lambda generation: has_none
        other.send(Hello("g", "n1", 2, ""), Introduction(3, "127.0.0.1", 9, 3, 5, ""))
        await until(lambda: other.is_at_end)
        assert "n1 is of generation 5 of the group, n0 of generation 0" in other.frames[-1].reason
        assert (node.transport.generation, node.transport.newest_generation) == (0, 0)


@pytest.mark.parametrize("name", ["n1", "n9"])
async def test_a_generation_is_not_taken_at_an_address_that_only_its_node_names(name: str) -> None:
    """A member and a stranger: both are dialled where they say that they accept connections."""
    async with alone() as node, scripted_node() as script, dialled(node.address) as other:
        node.transport.on_newer_generation = lambda generation: True
        other.send(Hello("g", name, 2, ""), Introduction(3, *script.address, 3, 0, ""))
        await until(lambda: script.frames)
        script.newest.send(replace(WELCOME, node_id=name, generation=5))
        await until(lambda: script.frames[1:])
        assert (script.frames[-1].generation, node.transport.generation) == (0, 0)


async def test_a_node_of_an_older_generation_is_known_until_it_is_gone_or_emptied() -> None:
    async with alone(generation=2, limits=replace(LIMITS, older_node_ms=100)) as node:
        address = ("127.0.0.1", 9)
        async with dialled(node.address) as other:
            other.send(Hello("g", "n1", 2, "a:1"), Introduction(3, *address, 3, 1, ""))
            await until(lambda: running_older_nodes(node.transport))
            (older,) = running_older_nodes(node.transport)
            assert (older.id, older.generation, older.client_address) == ("n1", 1, "a:1")
            assert older.replication_address == address
        await until(lambda: running_older_nodes(node.transport) == [])
    async with alone(generation=2) as node, dialled(node.address) as old, dialled(node.address) as new:
        old.send(Hello("g", "n1", 2, "a:1"), Introduction(3, *address, 3, 1, ""))
        await until(lambda: node.transport.older_nodes)
        new.send(Hello("g", "n1", 2, "a:1"), Introduction(3, *address, 3, 2, ""))
        await until(lambda: not node.transport.older_nodes)


async def test_a_flood_of_older_nodes_is_bounded() -> None:
    async with alone(generation=2, limits=replace(LIMITS, older_nodes_max=2)) as node:
        for number in range(4):
            async with dialled(node.address) as other:
                other.send(Hello("g", f"n{number + 1}", 2, ""), Introduction(3, "127.0.0.1", 9, 3, 1, ""))
                await until(lambda: other.is_at_end)
        assert [*node.transport.older_nodes] == ["n3", "n4"]


async def test_a_generation_never_falls() -> None:
    """The log that fills up a node has the configurations from before the recovery."""
    async with two((1, 1)) as (n0, n1):
        await until(lambda: n0.sink.introduced and n1.sink.introduced)
        n0.transport.set_peers({"n1": n1.address}, 3, 0)
        assert n0.transport.generation == 1
        await loop_turns()
        assert n1.sink.disconnected == []
