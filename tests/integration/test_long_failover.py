"""Many rounds of killed, stopped and paused nodes under load: nothing acknowledged is lost or moved."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator

import pytest

from tests.integration.cluster import Cluster
from tests.integration.streams import Stream, read_topic
from tests.integration.test_failover import (
    CATCH_UP_LIMIT_S,
    QUEUES,
    all_in_touch,
    assert_all_acknowledged_there,
    assert_replicas_equal,
)
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.long]
ROUNDS = 12
PAUSE_S = 3.0  # longer than an election: the paused leader wakes up deposed
SEEDS = (1, 2)


@pytest.fixture
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("long"))
    try:
        cluster.start()
        yield cluster
    finally:
        for node_id in cluster.nodes:
            cluster.resume(node_id)
        cluster.stop()


async def harm(cluster: Cluster, chance: random.Random) -> str:
    """Kill, stop or pause one node, most often the leader; it runs again at the end."""
    leader = await asyncio.to_thread(cluster.wait_leader)
    node_id = leader if chance.random() < 0.7 else chance.choice(sorted(cluster.nodes))
    kind = chance.choice(["kill", "stop", "pause"])
    if kind == "pause":
        cluster.kill(node_id, signal.SIGSTOP)
        await asyncio.sleep(PAUSE_S)
        cluster.resume(node_id)
    else:
        cluster.kill(node_id, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        await asyncio.to_thread(wait_for, f"{node_id} ends", lambda: cluster.has_ended(node_id), 20.0)
        await asyncio.to_thread(cluster.restart, node_id)
    return f"{kind} {node_id}{' (leader)' if node_id == leader else ''}"


@pytest.mark.parametrize("seed", SEEDS)
async def test_many_harmed_nodes_lose_nothing_acknowledged(breakable: Cluster, name: str, seed: int) -> None:
    topic = f"Long{name}x{seed}"
    chance = random.Random(seed)
    stream = Stream(breakable.namesrv, topic, QUEUES)
    await stream.start()
    history = []
    for _ in range(ROUNDS):
        await stream.wait_acknowledged(300, limit_s=60.0)
        await asyncio.to_thread(wait_for, "three nodes", lambda: all_in_touch(breakable), CATCH_UP_LIMIT_S)
        history.append(await harm(breakable, chance))
        print(history[-1])
    await stream.wait_acknowledged(300, limit_s=60.0)
    await stream.stop()
    queues = await read_topic(breakable.namesrv, topic, stream.acknowledged)
    assert_all_acknowledged_there(stream.acknowledged, queues)
    assert_replicas_equal(breakable)
