"""A node that lacks much of the log gets it from where its disk ends, whatever breaks meanwhile.

A quota makes it slow enough to be disturbed.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.cluster import Cluster
from tests.integration.test_metrics import scrape_node
from tests.integration.test_retention import send, status
from tests.integration.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.long]
MIB = 1 << 20
BODY = bytes(MIB // 2)
LOG_BYTES = 128 * MIB
QUOTA_BYTES = 16 * MIB
SETTINGS = {
    "peerPushQuota": str(QUOTA_BYTES),
    "peerPushThrottlePoint": str(MIB),
    "defaultTopicQueueNums": "1",
}


@pytest.fixture
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("catch-up"))
    try:
        cluster.start(SETTINGS)
        yield cluster
    finally:
        cluster.stop()


def end_of(cluster: Cluster, node_id: str) -> int:
    return int(status(cluster, node_id)["endPosition"])


def peer_of(seen: dict[str, Any], peer: str) -> dict[str, Any]:
    return next(one for one in seen["peers"] if one["id"] == peer)


def pushed_bytes(cluster: Cluster, leader: str, peer: str) -> float:
    return scrape_node(cluster, leader)[f'ledgermq_peer_pushed_bytes_total{{peer="{peer}"}}']


def fill(cluster: Cluster, late: str) -> None:
    """The node dies, and misses most of the log."""
    cluster.kill(late, signal.SIGKILL)
    wait_for("it is dead", lambda: cluster.has_ended(late), 10.0)
    for _ in range(LOG_BYTES // len(BODY) // 16):
        send(cluster, "Filler", [BODY] * 16)


def wait_for_half(cluster: Cluster, late: str) -> None:
    wait_for("it has half of the log", lambda: end_of(cluster, late) >= LOG_BYTES // 2, 60.0)


def wait_for_all(cluster: Cluster, leader: str, late: str) -> None:
    wait_for("it has all", lambda: end_of(cluster, late) == end_of(cluster, leader), 60.0)


def test_emptied_node_that_is_killed_half_way_is_not_sent_what_its_disk_has(slow: Cluster) -> None:
    leader = slow.wait_leader()
    late = next(node_id for node_id in slow.nodes if node_id != leader)
    fill(slow, late)
    shutil.rmtree(slow.data / late / "store")
    before = pushed_bytes(slow, leader, late)
    slow.restart(late)
    wait_for_half(slow, late)
    seen = status(slow, leader)
    slow.kill(late, signal.SIGKILL)
    wait_for("it is dead", lambda: slow.has_ended(late), 10.0)
    slow.restart(late)
    wait_for_all(slow, leader, late)
    progress = peer_of(seen, late)
    assert progress["isThrottled"]
    assert progress["heldBytes"] + progress["lagBytes"] == seen["endPosition"]
    assert 0 < progress["bytesPerS"] < 2 * QUOTA_BYTES
    assert progress["caughtUpInMs"] > 0
    sent_again = pushed_bytes(slow, leader, late) - before - end_of(slow, leader)
    assert sent_again <= 2 * QUOTA_BYTES < LOG_BYTES // 2


def test_another_leader_goes_on_where_the_disk_of_a_late_node_ends(slow: Cluster) -> None:
    leader = slow.wait_leader()
    late, other = [node_id for node_id in slow.nodes if node_id != leader]
    fill(slow, late)
    slow.restart(late)
    wait_for_half(slow, late)
    slow.kill(leader, signal.SIGKILL)
    wait_for("the other leads", lambda: slow.leader() == other, 20.0)
    wait_for_all(slow, other, late)
    # It pushes the entry of its term and what the late node lacked, at most half of the log.
    assert pushed_bytes(slow, other, late) <= LOG_BYTES // 2 + 2 * QUOTA_BYTES
