"""Members that change while a group of drivers runs, over sockets."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dledger.core.membership import (
    Configuration,
    ConfigurationEntry,
    ConfigurationHistory,
    Member,
    MemberRole,
    encode_configuration,
)
from dledger.core.types import HardState, ResponseCode
from dledger.durable_state import HardStateFile
from dledger.server import first_members
from tests.support.memory_log import MemoryLog
from tests.support.polling import until
from tests.unit.dledger.test_server import Member as Node
from tests.unit.dledger.test_server import elected, free_ports, leader_of, make_member, running_group


def configuration_of(node: Node) -> Configuration:
    return node.server.members.configuration


async def change(leader: Node, wanted: Configuration) -> None:
    """Proposes it, and waits until it is committed."""
    codes: list[ResponseCode] = []
    assert leader.server.propose_configuration(wanted, codes.append) is ResponseCode.SUCCESS
    await until(lambda: codes)
    assert codes == [ResponseCode.SUCCESS]


def joining_member(folder: Path, group: dict[str, Node], name: str) -> tuple[Node, Member]:
    """A node with an empty disk whose configuration file names itself and the others, and how the group names
    it.
    """
    known = {each.id: (each.host, each.port) for each in configuration_of(next(iter(group.values()))).members}
    (port,) = free_ports(1)
    node = make_member(name, {**known, name: ("127.0.0.1", port)}, folder / name, is_joining=True)
    return node, Member(name, "127.0.0.1", port, MemberRole.JOINING)


async def test_a_new_member_gets_the_log_and_then_its_vote(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        leader.server.handle_append([b"a", b"b"], lambda _code: None)
        node, member = joining_member(tmp_path, group, "n3")
        seen: dict[str, list[MemberRole]] = {}

        def note(name: str, at: Node) -> None:
            """What the host of a node finds when it is notified of its members."""
            own = configuration_of(at).member("n3")
            seen[name] += [] if own is None else [own.role]

        for name, each in [*group.items(), ("n3", node)]:
            seen[name] = []
            each.server.on_members_change(partial(note, name, each))
        await node.server.start()
        group["n3"] = node
        await change(leader, configuration_of(leader).with_member(member))
        await until(lambda: configuration_of(node).is_voter("n3"))
        await until(lambda: node.store.entries() == leader.store.entries())
        assert configuration_of(node).member("n3") == replace(member, role=MemberRole.VOTER)
        steps = [MemberRole.JOINING, MemberRole.VOTER]
        await until(lambda: all(each[-2:] == steps for each in seen.values()))


async def test_a_dead_member_is_replaced(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        dead = next(name for name, node in group.items() if node is not leader)
        await group.pop(dead).server.stop()
        node, member = joining_member(tmp_path, group, "n3")
        await node.server.start()
        group["n3"] = node
        await change(leader, configuration_of(leader).with_member(replace(member, replaces=dead)))
        await until(lambda: dead not in configuration_of(leader).ids)
        assert configuration_of(leader).is_voter("n3")
        await until(lambda: node.server.members == leader.server.members)


async def test_a_leader_that_removes_itself_hands_over(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        name = leader.server.config.self_id
        await change(leader, configuration_of(leader).without(name))
        others = {other: node for other, node in group.items() if other != name}
        await until(lambda: leader_of(others) is not None)
        codes: list[ResponseCode] = []
        (await elected(others)).server.handle_append([b"c"], codes.append)
        await until(lambda: codes)
        assert codes == [ResponseCode.SUCCESS]


def recovered_group(folder: Path) -> dict[str, Node]:
    """n0 alone is of generation 1, n1 of generation 0 with its log, and n2 has an empty disk."""
    names = ("n0", "n1", "n2")
    addresses = {name: ("127.0.0.1", port) for name, port in zip(names, free_ports(3), strict=True)}
    alone = Configuration((Member("n0", *addresses["n0"]),), generation=1)
    logs = {name: MemoryLog() for name in names[:2]}
    for log in logs.values():
        log.append_bodies(0, 1, [b"old", b"older"])
    logs["n0"].append_configuration(2, 1001, encode_configuration(alone))
    history = ConfigurationHistory(
        (
            ConfigurationEntry(-1, 0, first_members("n0", addresses, is_joining=False)),
            ConfigurationEntry(2, 1001, alone),
        )
    )
    states = {"n0": HardState(1001, "n0", history), "n1": HardState(1, "n0")}
    for name, state in states.items():
        (folder / name).mkdir()
        HardStateFile(folder / name).save(state)
    return {name: make_member(name, addresses, folder / name, logs.get(name)) for name in names}


async def test_a_recovered_group_grows_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A member of generation 0 with its log is refused, not an empty one."""
    group = recovered_group(tmp_path)
    try:
        for member in group.values():
            await member.server.start()
        assert "an operator has decided without a majority" in caplog.text
        leader = await elected(group)
        assert leader is group["n0"]
        await until(lambda: "and n1 does not know of it" in caplog.text)
        node = group["n2"]
        own = configuration_of(node).member("n2")
        assert own is not None
        joining = replace(own, role=MemberRole.JOINING)
        await change(leader, configuration_of(leader).with_member(joining))
        await until(lambda: configuration_of(node).is_voter("n2"))
        await until(lambda: node.store.entries() == leader.store.entries())
        assert configuration_of(node).generation == 1
        assert (leader.server.term, group["n1"].server.term) == (1002, 1)
    finally:
        for member in group.values():
            await member.server.stop()


async def test_a_generation_that_was_taken_outlives_a_restart(tmp_path: Path) -> None:
    """Also before the node has an entry of it: it has the term, and must not bring it to n1."""
    group = recovered_group(tmp_path)
    leader, empty = group["n0"], group["n2"]
    state_dir = tmp_path / "n2"
    for member in (leader, empty):
        await member.server.start()
    try:
        await until(lambda: HardStateFile(state_dir).load().generation == 1)
    finally:
        for member in (leader, empty):
            await member.server.stop()
    addresses = {each.id: (each.host, each.port) for each in configuration_of(empty).members}
    again = make_member("n2", addresses, state_dir)
    await again.server.start()
    await group["n1"].server.start()
    try:
        await until(lambda: group["n1"].server.newer_generation == 1)
        assert (again.store.end_index, configuration_of(again).generation) == (-1, 0)
    finally:
        for member in (again, group["n1"]):
            await member.server.stop()
