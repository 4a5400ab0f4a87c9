"""A cluster of processes whose logs lose their begin while one of them is away.

A disk of a machine that runs tests is fuller than a tenth: with diskSpaceCleanForciblyRatio there every node
deletes all that it can do without.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from remoting.codes import RequestCode, ResponseCode
from tests.integration.cluster import Cluster
from tests.integration.test_bad_input import send_ext
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire, call

pytestmark = [pytest.mark.integration, pytest.mark.long]
MIB = 1 << 20
BODY = bytes(512 * 1024)
SETTINGS = {
    "mappedFileSizeCommitLog": str(8 * MIB),
    "mappedFileSizeConsumeQueue": "2000",
    "diskMaxUsedSpaceRatio": "10",
    "cleanFileForciblyEnable": "true",
    "diskSpaceCleanForciblyRatio": "10",
    "cleanResourceInterval": "500",
    "stateSnapshotIntervalMs": "500",
    "defaultTopicQueueNums": "1",
}
QUIET_MESSAGES = 5


@pytest.fixture
def short_lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("retention"))
    try:
        cluster.start(SETTINGS)
        yield cluster
    finally:
        cluster.stop()


def send(cluster: Cluster, topic: str, bodies: list[bytes]) -> list[int]:
    """The queue offsets that the messages got."""
    with Wire(cluster.address(cluster.wait_leader()), 20.0) as wire:
        answers = [wire.invoke(RequestCode.SEND_MESSAGE_V2, send_ext(topic), body) for body in bodies]
    assert [answer.code for answer in answers] == [0] * len(bodies), answers[-1].remark
    return [int(answer.ext_fields["queueOffset"]) for answer in answers]


def status(cluster: Cluster, node_id: str) -> dict[str, Any]:
    return wait_for(f"{node_id} answers", lambda: cluster.status(node_id), 20.0)


def wait_begin(cluster: Cluster, node_ids: list[str], above: int) -> None:
    for node_id in node_ids:
        wait_for(
            f"{node_id} begins behind {above}",
            lambda node_id=node_id: status(cluster, node_id)["beginIndex"] > above,  # type: ignore[misc]
            40.0,
        )


def test_follower_away_for_longer_than_the_log_goes_back_leads_afterwards(short_lived: Cluster) -> None:
    cluster = short_lived
    assert send(cluster, "Quiet", [b"first"] * QUIET_MESSAGES) == list(range(QUIET_MESSAGES))
    leader = cluster.wait_leader()
    late, other = [node_id for node_id in cluster.nodes if node_id != leader]
    cluster.kill(late, signal.SIGKILL)
    missed = status(cluster, leader)["endIndex"]
    send(cluster, "Filler", [BODY] * 60)
    wait_begin(cluster, [leader, other], missed)
    cluster.restart(late)
    wait_for(
        "it holds what the leader holds",
        lambda: status(cluster, late)["endIndex"] == status(cluster, leader)["endIndex"],
        30.0,
    )
    assert status(cluster, late)["beginIndex"] > missed
    call(cluster.address(leader), RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": late})
    wait_for("it leads", lambda: cluster.leader() == late, 20.0)
    assert send(cluster, "Quiet", [b"again"]) == [QUIET_MESSAGES]
    with Wire(cluster.address(late)) as wire:
        ext = {"topic": "Quiet", "queueId": "0"}
        low = wire.invoke(RequestCode.GET_MIN_OFFSET, ext)
        assert (low.code, low.ext_fields["offset"]) == (ResponseCode.SUCCESS, str(QUIET_MESSAGES))
