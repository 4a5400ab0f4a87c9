"""The members of a real group change while producers send: nothing acknowledged is lost, and every command is
the operator's.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.integration.cluster import Cluster
from tests.integration.member_group import CHANGE_LIMIT_S, Group
from tests.integration.streams import Stream, read_topic
from tests.integration.test_failover import assert_all_acknowledged_there, assert_replicas_equal
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
NODES_MAX = 5
QUEUES = 4
SENDS = 100
REFUSED = 1
UNDISTURBED_S = 4.0
"""Several election timeouts."""
MOVED_BY = 4
"""From a node's port for replication to one that no node has."""


@asynccontextmanager
async def sending(folder: Path, name: str, nodes: int) -> AsyncIterator[tuple[Group, Stream]]:
    """A group that gets messages without pause; at the end every acknowledged one is read."""
    cluster = Cluster(folder, nodes, nodes_max=NODES_MAX)
    try:
        await asyncio.to_thread(cluster.start)
        stream = Stream(cluster.namesrv, f"Members{name}", QUEUES)
        await stream.start()
        try:
            await stream.wait_acknowledged(SENDS)
            yield Group(cluster), stream
            await stream.wait_acknowledged(SENDS)
        finally:
            await stream.stop()
        queues = await read_topic(cluster.namesrv, stream.topic, stream.acknowledged)
        assert_all_acknowledged_there(stream.acknowledged, queues)
        members = await asyncio.to_thread(Group(cluster).members)
        for node_id in cluster.nodes.keys() - members.keys():
            del cluster.nodes[node_id]
        await asyncio.to_thread(assert_replicas_equal, cluster)
    finally:
        await asyncio.to_thread(cluster.stop)


async def grow_and_shrink(group: Group, stream: Stream, size: int) -> None:
    """From one to so many and back, one after the other."""
    node_ids = [f"n{number}" for number in range(size)]
    for count in range(1, size):
        await asyncio.to_thread(group.grow, node_ids[count], *node_ids[:count])
        await stream.wait_acknowledged(SENDS)
    for count in range(size - 1, 0, -1):
        await asyncio.to_thread(group.remove, node_ids[count], *node_ids[:count])
        await stream.wait_acknowledged(SENDS)


@pytest.mark.parametrize("size", [3, pytest.param(5, marks=pytest.mark.long)])
async def test_group_of_one_grows_and_shrinks(tmp_path: Path, name: str, size: int) -> None:
    async with sending(tmp_path, name, 1) as (group, stream):
        await grow_and_shrink(group, stream, size)


async def test_dead_member_is_replaced_and_the_leader_removed(tmp_path: Path, name: str) -> None:
    """Then the removed leader runs on, and disturbs no other node."""
    async with sending(tmp_path, name, 3) as (group, stream):
        cluster = group.cluster
        leader = await asyncio.to_thread(cluster.wait_leader)
        kept, dead = [node_id for node_id in cluster.nodes if node_id != leader]
        await asyncio.to_thread(group.kill, dead)
        shutil.rmtree(cluster.data / dead)
        del cluster.nodes[dead]
        await stream.wait_acknowledged(SENDS)
        await asyncio.to_thread(group.change_local, "replace", dead, "n3")
        await asyncio.to_thread(cluster.start_joined, "n3")
        await asyncio.to_thread(group.wait_members, leader, kept, "n3")
        await stream.wait_acknowledged(SENDS)

        leader = await asyncio.to_thread(cluster.wait_leader)
        left = [node_id for node_id in cluster.nodes if node_id != leader]
        await asyncio.to_thread(group.remove, leader, *left)
        assert not cluster.has_ended(leader)
        await stream.wait_acknowledged(SENDS)
        before = await asyncio.to_thread(group.terms, left)
        assert len(set(before.values())) == 1
        assert before[left[0]][1] in left
        await asyncio.sleep(UNDISTURBED_S)
        await stream.wait_acknowledged(SENDS)
        assert await asyncio.to_thread(group.terms, left) == before
        assert not cluster.has_ended(leader)


async def test_member_moves_and_a_removal_that_costs_the_majority_is_refused(
    tmp_path: Path, name: str
) -> None:
    async with sending(tmp_path, name, 3) as (group, stream):
        cluster = group.cluster
        leader = await asyncio.to_thread(cluster.wait_leader)
        moved, other = [node_id for node_id in cluster.nodes if node_id != leader]
        old = cluster.nodes[moved].replication
        host, _, port = old.rpartition(":")
        new = f"{host}:{int(port) + MOVED_BY}"
        await asyncio.to_thread(group.change, "move", moved, new)
        await asyncio.to_thread(group.kill, moved, signal.SIGTERM)
        config = cluster.data / moved / "broker.toml"
        text = config.read_text(encoding="utf-8")
        assert f"{moved}-{old}" in text
        config.write_text(text.replace(f"{moved}-{old}", f"{moved}-{new}"), encoding="utf-8")
        await asyncio.to_thread(cluster.restart, moved)

        def is_there() -> bool:
            peer = group.peers().get(moved)
            return peer is not None and peer["isConnected"] and peer["pushState"] == "APPEND"

        await asyncio.to_thread(wait_for, "the leader reaches it there", is_there, CHANGE_LIMIT_S)
        shown = json.loads((await asyncio.to_thread(group.ask, "list", "--json")).stdout)
        addresses = {member["id"]: member["replicationAddress"] for member in shown["members"]}
        assert addresses[moved] == new
        await stream.wait_acknowledged(SENDS)

        # Without `other` only the moved member and the leader have the log; one of them must not go.
        await asyncio.to_thread(group.kill, other)
        await asyncio.to_thread(
            wait_for, "the leader misses it", lambda: not group.peers()[other]["isConnected"], CHANGE_LIMIT_S
        )
        refused = await asyncio.to_thread(group.ask, "remove", moved, "--yes")
        assert refused.returncode == REFUSED, (refused.stdout, refused.stderr)
        assert "It would cost the majority" in refused.stderr
        assert "force" in refused.stderr
        await asyncio.to_thread(cluster.restart, other)
        await asyncio.to_thread(group.wait_members, *sorted(addresses))
