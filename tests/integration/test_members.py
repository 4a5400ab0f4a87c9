"""The members of a real group change while producers send: nothing acknowledged is lost, and every command is
the operator's.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.streams import Stream, read_topic
from tests.integration.test_failover import assert_all_acknowledged_there, assert_replicas_equal
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
COMMAND_LIMIT_S, CHANGE_LIMIT_S = 60, 60.0
NODES_MAX = 5
QUEUES = 4
SENDS = 100
REFUSED = 1
UNDISTURBED_S = 4.0
"""Several election timeouts."""
MOVED_BY = 4
"""From a node's port for replication to one that no node has."""


class Group:
    """A cluster of `ledgermq up`, and its operator."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`ledgermq member …`, whatever its end."""
        return subprocess.run(
            [str(COMMAND), "member", *arguments, "--namesrv", self.cluster.namesrv],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def change(self, *arguments: str) -> None:
        done = self.ask(*arguments, "--yes")
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)

    def change_local(self, *arguments: str) -> None:
        """With the files and the plan of the cluster's folder."""
        self.change(*arguments, "--local", "--data", str(self.cluster.data))

    def members(self) -> dict[str, str]:
        """The role of each, in the newest configuration that the leader's log has; none without a leader."""
        leader = self.cluster.leader()
        status = self.cluster.status(leader) if leader is not None else None
        if status is None or not status["isConfigurationCommitted"]:
            return {}
        return {member["id"]: member["role"] for member in status["members"]}

    def wait_members(self, *voters: str) -> None:
        wanted = dict.fromkeys(voters, "voter")
        last: list[dict[str, str]] = []

        def is_so() -> bool:
            last[:] = [self.members()]
            return last[0] == wanted

        try:
            wait_for(f"{voters} vote, and no other node is a member", is_so, CHANGE_LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}; {last}; {self.cluster.statuses()}") from None

    def grow(self, node_id: str, *voters: str) -> None:
        self.change_local("add", node_id)
        self.cluster.start_joined(node_id)
        self.wait_members(*voters, node_id)

    def remove(self, node_id: str, *voters: str) -> None:
        """The node runs on."""
        self.change_local("remove", node_id)
        self.wait_members(*voters)
        self.cluster.wait_leader()

    def kill(self, node_id: str, signal_number: int = signal.SIGKILL) -> None:
        self.cluster.kill(node_id, signal_number)
        wait_for("it has ended", lambda: self.cluster.has_ended(node_id), CHANGE_LIMIT_S)

    def terms(self, node_ids: list[str]) -> dict[str, tuple[int, str]]:
        """What each says of the term and its leader."""
        statuses = self.cluster.statuses()
        return {node_id: (statuses[node_id]["term"], statuses[node_id]["leaderId"]) for node_id in node_ids}

    def peers(self) -> dict[str, dict[str, Any]]:
        """The others, as the leader sees them."""
        status = self.cluster.status(self.cluster.wait_leader())
        assert status is not None
        return {peer["id"]: peer for peer in status["peers"]}


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
