"""Three DLedgerServers over real sockets in one event loop, with logs in memory."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger.core.config import Config
from dledger.core.events import ElectionStarted
from dledger.core.membership import FORMAT_LEVEL
from dledger.core.types import ResponseCode, Role
from dledger.credentials import MemberCredentials
from dledger.durable_state import HardStateFile
from dledger.server import DLedgerServer
from dledger.writer import Durability
from tests.support.memory_log import MemoryLog
from tests.support.polling import until

WAIT_S = 10.0


@dataclass
class Witness:
    """An Observer that remembers."""

    readable: list[int] = field(default_factory=list)
    roles: list[tuple[Role, int, str | None]] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)

    def on_readable(self, last_index: int) -> None:
        self.readable.append(last_index)

    def on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        self.roles.append((role, term, leader_id))

    def on_fatal(self, error: BaseException) -> None:
        self.fatal.append(error)


@dataclass
class Member:
    server: DLedgerServer
    store: MemoryLog
    witness: Witness


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def make_member(
    node_id: str,
    addresses: dict[str, tuple[str, int]],
    folder: Path,
    store: MemoryLog | None = None,
    credentials: MemberCredentials | None = None,
    *,
    is_joining: bool = False,
) -> Member:
    folder.mkdir(exist_ok=True)
    store = store or MemoryLog()
    server = DLedgerServer(
        Config(
            "g", node_id, tuple(sorted(each for each in addresses if not (is_joining and each == node_id)))
        ),
        listen=addresses[node_id],
        peers=addresses,
        store=store,
        state_dir=folder,
        term_start_body=lambda term: b"term %d" % term,
        durability=Durability.PERSISTED,
        client_address=f"client-of-{node_id}",
        credentials=credentials,
        is_joining=is_joining,
    )
    witness = Witness()
    server.set_observer(witness)
    return Member(server, store, witness)


@asynccontextmanager
async def running_group(folder: Path, size: int = 3) -> AsyncIterator[dict[str, Member]]:
    ids = [f"n{number}" for number in range(size)]
    addresses = {node: ("127.0.0.1", port) for node, port in zip(ids, free_ports(size), strict=True)}
    group = {node: make_member(node, addresses, folder / node, MemoryLog()) for node in ids}
    try:
        for member in group.values():
            await member.server.start()
        yield group
    finally:
        for member in group.values():
            await member.server.stop()


def leader_of(group: dict[str, Member]) -> Member | None:
    leaders = [member for member in group.values() if member.server.role is Role.LEADER]
    return max(leaders, key=lambda member: member.server.term, default=None)


async def elected(group: dict[str, Member], format_level: int = FORMAT_LEVEL) -> Member:
    """`format_level`: which the group has; one with an older log leaves it to a command to raise it."""

    def has_working_leader() -> bool:
        leader = leader_of(group)
        if leader is None or not leader.server.commit_index >= leader.server.term_start_index >= 0:
            return False
        newest, committed = leader.server.members, leader.server.commit_index
        return newest.configuration.format_level == format_level and newest.index <= committed

    await until(has_working_leader)
    leader = leader_of(group)
    assert leader is not None
    return leader


async def append(member: Member, bodies: list[bytes]) -> ResponseCode:
    done: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
    result = member.server.handle_append(bodies, done.set_result)
    assert result.code is ResponseCode.SUCCESS
    assert len(result.positions) == len(bodies)
    async with asyncio.timeout(WAIT_S):
        return await done


async def test_append_is_acknowledged_and_readable_on_every_node(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        assert await append(leader, [b"a", b"b", b"c"]) is ResponseCode.SUCCESS
        end = leader.store.end_index
        await until(lambda: all(m.witness.readable[-1:] == [end] for m in group.values()))
        assert len({m.store.log_state().epochs for m in group.values()}) == 1
        assert not any(member.witness.fatal for member in group.values())


async def test_follower_refuses_appends(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        follower = next(member for member in group.values() if member is not leader)
        result = follower.server.handle_append([b"x"], lambda code: None)
        assert result.code is ResponseCode.NOT_LEADER
        assert result.positions == []


async def test_stopped_leader_is_replaced_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        first = await elected(group)
        assert await append(first, [b"kept"]) is ResponseCode.SUCCESS
        kept_index = first.store.end_index
        await first.server.stop()
        rest = {node: member for node, member in group.items() if member is not first}
        second = await elected(rest)
        assert second.server.term > first.server.term
        assert second.server.commit_index > kept_index
        entry = second.store.read_range(kept_index, kept_index, 1 << 20)
        assert b"kept" in bytes(entry.data)


async def test_votes_and_terms_are_on_disk_before_a_leader_works(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        votes = [HardStateFile(tmp_path / node).load() for node in group]
        supporters = [vote for vote in votes if vote.term == leader.server.term]
        assert sum(vote.voted_for == leader.server.config.self_id for vote in supporters) >= 2


async def test_single_node_group_commits_alone(tmp_path: Path) -> None:
    async with running_group(tmp_path, size=1) as group:
        leader = await elected(group)
        assert await append(leader, [b"only"]) is ResponseCode.SUCCESS
        await until(lambda: leader.witness.readable[-1:] == [leader.store.end_index])


async def test_leadership_moves_to_the_transferee(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        heir_id, heir = next((node, member) for node, member in group.items() if member is not leader)
        await until(lambda: leader.server.transfer_leadership(heir_id) is ResponseCode.SUCCESS)
        await until(lambda: heir.server.role is Role.LEADER)


async def test_leader_that_resigns_waits_until_another_leads(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        followers = [member for member in group.values() if member is not leader]
        await until(lambda: all(each.server.leader_id is not None for each in followers))
        assert await append(leader, [b"x"]) is ResponseCode.SUCCESS
        await leader.server.resign()
        assert leader.server.role is Role.FOLLOWER
        heir = next(each for each in followers if each.server.config.self_id == leader.server.leader_id)
        await until(lambda: heir.server.role is Role.LEADER)


async def test_leader_of_a_group_of_one_resigns_at_once(tmp_path: Path) -> None:
    async with running_group(tmp_path, size=1) as group:
        leader = await elected(group)
        await leader.server.resign()
        assert leader.server.role is Role.LEADER


async def test_failed_write_stops_the_node_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(writes: object, sync: bool) -> None:
        raise OSError(28, "No space left on device")

    async with running_group(tmp_path) as group:
        leader = await elected(group)
        monkeypatch.setattr(leader.store, "write", no_space)
        codes: list[ResponseCode] = []
        leader.server.handle_append([b"x"], codes.append)
        await until(lambda: len(leader.witness.fatal) == 1)
        rest = {node: member for node, member in group.items() if member is not leader}
        await elected(rest)


async def test_peers_learn_each_others_client_address(tmp_path: Path) -> None:
    async with running_group(tmp_path) as group:
        await elected(group)
        await until(lambda: all(len(member.server.client_addresses) == 2 for member in group.values()))
        for node, member in group.items():
            expected = {other: f"client-of-{other}" for other in group if other != node}
            assert dict(member.server.client_addresses) == expected


async def test_an_event_that_only_repeats_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A node without a majority tries again every second, for days."""
    caplog.set_level(logging.INFO)
    server = make_member("n0", {"n0": ("127.0.0.1", 0)}, tmp_path / "n0", MemoryLog()).server
    for ballot_term in (2, 2, 2, 3):
        server._report(ElectionStarted(ballot_term, True, "no leader heard"))
    assert [line.split("ballot_term=")[1][0] for line in caplog.messages] == ["2", "3"]
