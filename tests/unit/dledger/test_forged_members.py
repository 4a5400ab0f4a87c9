"""What a process that reaches the replication port can do to a group in the name of its members.

Without certificates members believe everybody: that is why such a group may listen on this machine only
(`broker.config`), and the first expectation of each test says what it costs. With certificates the same bytes
have no effect.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dledger import transport
from dledger.codec import INTEGER_MAX, PROTOCOL_VERSION, TERM_STEP_MAX, Hello, encode_frame
from dledger.core.messages import (
    AppendResponse,
    CompareRequest,
    CompareResponse,
    HeartbeatRequest,
    Message,
    TakeLeadershipRequest,
    TruncateRequest,
    VoteRequest,
)
from dledger.core.types import ResponseCode, Role
from dledger.credentials import MemberCredentials
from ledgermq.members import MemberFiles
from sockets.tls import TlsFiles
from tests.support.polling import loop_turns, until
from tests.unit.dledger.test_server import Member, append, elected, free_ports, make_member

IDS = ("n0", "n1", "n2")


def load(folder: Path, node: str, age_max_ms: int = 600_000) -> MemberCredentials:
    files = TlsFiles(folder / f"{node}.pem", folder / f"{node}.key", folder / "ca.pem")
    return MemberCredentials.load(files, age_max_ms)


class Group:
    """Three members in this process. `addresses` are those of replication."""

    def __init__(self, folder: Path, credentials: Callable[[str], MemberCredentials | None]) -> None:
        ports = free_ports(len(IDS))
        self.addresses = {node: ("127.0.0.1", port) for node, port in zip(IDS, ports, strict=True)}
        self.members = {
            node: make_member(node, self.addresses, folder / node, credentials=credentials(node))
            for node in IDS
        }

    async def say(self, to: str, sender: str, *messages: Message) -> None:
        """Over a new connection, as the sender; returns when it is closed, or all is read."""
        hello = Hello("g", sender, PROTOCOL_VERSION, "evil:1")
        frames = [encode_frame(hello), *map(encode_frame, messages)]
        reader, writer = await asyncio.open_connection(*self.addresses[to])
        with contextlib.suppress(ConnectionError):
            writer.write(b"".join(bytes(part) for frame in frames for part in frame))
            writer.write_eof()
            await reader.read()
        writer.close()
        await loop_turns()

    async def leader(self) -> Member:
        return await elected(self.members)

    def followers(self) -> dict[str, Member]:
        return {node: one for node, one in self.members.items() if one.server.role is not Role.LEADER}

    def connections(self) -> set[object]:
        """Of all members to all others."""
        return {
            dialer.connection
            for member in self.members.values()
            for dialer in member.server._transport._dialers.values()
        }

    def name_of(self, wanted: Member) -> str:
        return next(node for node, member in self.members.items() if member is wanted)


@asynccontextmanager
async def running(
    folder: Path, credentials: Callable[[str], MemberCredentials | None]
) -> AsyncIterator[Group]:
    group = Group(folder, credentials)
    try:
        for member in group.members.values():
            await member.server.start()
        yield group
    finally:
        for member in group.members.values():
            await member.server.stop()


@asynccontextmanager
async def either(folder: Path, has_certificates: bool) -> AsyncIterator[Group]:
    files = folder / "certificates"
    if has_certificates:
        MemberFiles(files).complete("g", dict.fromkeys(IDS, ("127.0.0.1",)))
    async with running(folder, lambda node: load(files, node) if has_certificates else None) as group:
        yield group


both = pytest.mark.parametrize("has_certificates", [False, True], ids=["plain", "certificates"])


@both
async def test_a_forged_leader_resets_logs(tmp_path: Path, has_certificates: bool) -> None:
    """Heartbeats of a later term, then a reset that looks like a leader's whose retention passed this log."""
    async with either(tmp_path, has_certificates) as group:
        leader = await group.leader()
        assert await append(leader, [b"kept"] * 5) is ResponseCode.SUCCESS
        end_index, term = leader.store.end_index, leader.server.term
        await until(lambda: all(one.server.commit_index == end_index for one in group.members.values()))
        for node, member in group.members.items():
            false_leader = next(other for other in IDS if other != node)
            await group.say(
                node,
                false_leader,
                HeartbeatRequest(term + 5, -1),
                CompareRequest(term + 5, end_index + 99, end_index + 99, term),
                TruncateRequest(
                    term + 5, end_index + 99, end_index + 100, term, 1 << 20, True, end_index, term
                ),
            )
            if has_certificates:
                assert (member.store.begin_index, member.store.end_index) == (0, end_index)
            else:
                await until(lambda member=member: member.store.begin_index == end_index + 100)  # type: ignore[misc]
        assert (leader.server.role is Role.LEADER) == has_certificates
        assert (leader.server.term == term) == has_certificates


@both
async def test_no_message_uses_up_the_terms(tmp_path: Path, has_certificates: bool) -> None:
    """A term near the last one would be the last: no ballot could be above it. Also a term that looks
    possible is no farther ahead, however many of them one connection sends at once.
    """
    async with either(tmp_path, has_certificates) as group:
        leader = await group.leader()
        term = leader.server.term
        node = group.name_of(leader)
        sender = next(other for other in IDS if other != node)
        for absurd in (INTEGER_MAX, 1 << 62, term + TERM_STEP_MAX + 1):
            await group.say(node, sender, HeartbeatRequest(absurd, -1))
            await group.say(node, sender, VoteRequest(absurd, absurd, 100, absurd, False, True))
        assert leader.server.term == term
        steps = [HeartbeatRequest(term + step * TERM_STEP_MAX, -1) for step in range(1, 9)]
        await group.say(node, sender, *steps)
        assert leader.server.term == term
        await group.say(node, sender, HeartbeatRequest(term + TERM_STEP_MAX, -1))
        assert (leader.server.term == term) == has_certificates


@both
async def test_forged_acknowledgements_commit_what_one_disk_has(
    tmp_path: Path, has_certificates: bool
) -> None:
    async with either(tmp_path, has_certificates) as group:
        leader = await group.leader()
        assert await append(leader, [b"first"]) is ResponseCode.SUCCESS
        node, end_index, term = group.name_of(leader), leader.store.end_index, leader.server.term
        for follower in group.followers().values():
            await follower.server.stop()
        codes: list[ResponseCode] = []
        leader.server.handle_append([b"on one disk"], codes.append)
        for sender in (other for other in IDS if other != node):
            await group.say(
                node,
                sender,
                CompareResponse(term, ResponseCode.SUCCESS, end_index, 0, end_index, term, end_index, term),
                CompareResponse(
                    term, ResponseCode.SUCCESS, end_index + 1, 0, end_index + 1, term, end_index + 1, term
                ),
                AppendResponse(term, ResponseCode.SUCCESS, end_index + 1, end_index + 1, end_index + 1),
            )
        if has_certificates:
            await until(lambda: codes)
            assert codes != [ResponseCode.SUCCESS]
        else:
            await until(lambda: codes == [ResponseCode.SUCCESS])


@both
async def test_forged_transfers_depose_the_leader(tmp_path: Path, has_certificates: bool) -> None:
    async with either(tmp_path, has_certificates) as group:
        leader = await group.leader()
        node, term = group.name_of(leader), leader.server.term
        for follower in group.followers():
            await group.say(follower, node, TakeLeadershipRequest(term, -1))
        if has_certificates:
            assert await append(leader, [b"still"]) is ResponseCode.SUCCESS
            assert (leader.server.role, leader.server.term) == (Role.LEADER, term)
        else:
            await until(lambda: leader.server.term > term)


async def test_a_replaced_authority_costs_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three steps, on one member after the other, while entries are appended all the time."""
    monkeypatch.setattr(transport, "_REPLACED_AT", (0.002, 0.003))
    own, signing = tmp_path / "own", MemberFiles(tmp_path / "signing")
    signing.complete("g", dict.fromkeys(IDS, ("127.0.0.1",)))
    for node in IDS:
        signing.copy_member(node, own / node)
    async with running(tmp_path, lambda node: load(own / node, node, age_max_ms=60_000)) as group:
        leader = await group.leader()
        term, acknowledged = leader.server.term, 0
        old = (tmp_path / "signing" / "ca.pem").read_bytes()
        for change in (signing.add_authority, signing.renew, signing.remove_old_authorities):
            change()
            for node in IDS:
                signing.copy_member(node, own / node)
                before = group.connections()
                while group.connections() & before:
                    assert await append(leader, [b"kept"]) is ResponseCode.SUCCESS
                    acknowledged += 1
        assert old not in (own / "n1" / "ca.pem").read_bytes()
        assert (leader.server.role, leader.server.term) == (Role.LEADER, term)
        await until(lambda: all(one.server.commit_index >= acknowledged for one in group.members.values()))
