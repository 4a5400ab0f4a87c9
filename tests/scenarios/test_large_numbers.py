"""S14: a group whose indexes and positions pass 2^31 and 2^32, over sockets and with the real entry store."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from commitlog.entry_store import EntryStore
from dledger.core.membership import FIXED_MEMBERS_LEVEL
from dledger.core.types import HardState, ResponseCode
from dledger.durable_state import HardStateFile
from dledger.server import DLedgerServer
from tests.support.log_entries import open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs
from tests.support.memory_log import MemoryLog
from tests.support.polling import until
from tests.unit.dledger.test_server import Member, append, elected, free_ports, make_member

IDS = ("n0", "n1", "n2")


def old_store(boundary: int, count: int) -> EntryStore:
    """A log that retention left a few entries of, a little before the boundary."""
    store = open_small(MemoryFs())
    store.reset(boundary - 6, boundary - 700)
    store.append_bodies(boundary - 6, 1, [b"old %d" % number for number in range(count)])
    write_all(store)
    return store


def make_group(folder: Path, boundary: int) -> dict[str, Member]:
    """The third member lacks what the others have."""
    addresses = {node: ("127.0.0.1", port) for node, port in zip(IDS, free_ports(3), strict=True)}
    group = {}
    for node, count in zip(IDS, (3, 3, 1), strict=True):
        (folder / node).mkdir()
        HardStateFile(folder / node).save(HardState(1, None))
        store = cast("MemoryLog", old_store(boundary, count))
        group[node] = make_member(node, addresses, folder / node, store)
    return group


def stands_on_all(servers: list[DLedgerServer], last_index: int) -> bool:
    return all(server.persisted_index >= last_index <= server.commit_index for server in servers)


@pytest.mark.parametrize("boundary", [2**31, 2**32])
async def test_s14_group_replicates_elects_and_catches_up_across_the_boundary(
    tmp_path: Path, boundary: int
) -> None:
    group = make_group(tmp_path, boundary)
    try:
        for member in group.values():
            await member.server.start()
        first = await elected(group, FIXED_MEMBERS_LEVEL)
        for number in range(4):
            assert await append(first, [bytes([number]) * 60] * 3) is ResponseCode.SUCCESS
        end = first.store.end_index
        assert first.store.begin_index < boundary < end
        await until(lambda: stands_on_all([member.server for member in group.values()], end))
        await first.server.stop()
        rest = {node: member for node, member in group.items() if member is not first}
        second = await elected(rest, FIXED_MEMBERS_LEVEL)
        assert await append(second, [b"after the failover"]) is ResponseCode.SUCCESS
        end = second.store.end_index
        await until(lambda: stands_on_all([member.server for member in rest.values()], end))
        logs = [read_all(cast("EntryStore", member.store)) for member in rest.values()]
        assert logs[0] == logs[1]
        assert logs[0][-1].body == b"after the failover"
        assert second.store.position_of(end) > boundary
        assert not any(member.witness.fatal for member in group.values())
    finally:
        for member in group.values():
            await member.server.stop()
