"""A cluster of processes whose logs lose their begin while one of them is away.

A disk of a machine that runs tests is fuller than a tenth: with diskSpaceCleanForciblyRatio there every node
deletes all that it can do without.
"""

from __future__ import annotations

import json
import shutil
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
    "messageDelayLevel": "30s",
}
QUIET_MESSAGES = 5
GROUP, OFFSET = "readers", 3
PREPARED, COMMIT = 4, 8


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


def properties(**values: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


def send_with(cluster: Cluster, topic: str, sys_flag: int = 0, **values: str) -> dict[str, str]:
    """The fields of the answer."""
    ext = send_ext(topic, f=str(sys_flag), i=properties(UNIQ_KEY=topic, **values))
    answer = call(cluster.address(cluster.wait_leader()), RequestCode.SEND_MESSAGE_V2, ext, topic.encode())
    return dict(answer.ext_fields)


def end_offset(cluster: Cluster, topic: str) -> int:
    ext = {"topic": topic, "queueId": "0"}
    answer = call(cluster.address(cluster.wait_leader()), RequestCode.GET_MAX_OFFSET, ext)
    return int(answer.ext_fields["offset"])


def test_emptied_node_leads_with_state_from_before_the_log_begins(
    short_lived: Cluster,
) -> None:
    """Topics, a group and its offset are from the removed part; what is in flight is in the rest."""
    cluster = short_lived
    send(cluster, "Quiet", [b"first"] * QUIET_MESSAGES)
    leader = cluster.wait_leader()
    group = json.dumps({"groupName": GROUP, "consumeEnable": True}).encode()
    call(cluster.address(leader), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    read = {"consumerGroup": GROUP, "topic": "Quiet", "queueId": "0"}
    call(cluster.address(leader), RequestCode.UPDATE_CONSUMER_OFFSET, read | {"commitOffset": str(OFFSET)})
    for topic in ("Delayed", "Timed", "Paid"):
        send(cluster, topic, [b"first"])
    written_index = status(cluster, leader)["endIndex"]
    send(cluster, "Filler", [BODY] * 60)
    wait_begin(cluster, list(cluster.nodes), written_index)
    half = send_with(cluster, "Paid", PREPARED, TRAN_MSG="true", PGROUP="payers")
    send_with(cluster, "Delayed", DELAY="1")
    send_with(cluster, "Timed", TIMER_DELAY_SEC="30")

    late = next(node_id for node_id in cluster.nodes if node_id != leader)
    cluster.kill(late, signal.SIGKILL)
    wait_for("it is dead", lambda: cluster.has_ended(late), 10.0)
    shutil.rmtree(cluster.data / late / "store")
    cluster.restart(late)
    wait_for(
        "it holds and has applied what the leader holds",
        lambda: status(cluster, late)["appliedIndex"] == status(cluster, leader)["endIndex"],
        30.0,
    )
    assert status(cluster, late)["beginIndex"] > written_index
    call(cluster.address(leader), RequestCode.LEDGERMQ_TRANSFER_LEADER, {"transferee": late})
    wait_for("it leads", lambda: cluster.leader() == late, 20.0)

    assert send(cluster, "Quiet", [b"again"]) == [QUIET_MESSAGES]
    answer = call(cluster.address(late), RequestCode.QUERY_CONSUMER_OFFSET, read)
    assert answer.ext_fields["offset"] == str(OFFSET)
    assert [end_offset(cluster, topic) for topic in ("Delayed", "Timed", "Paid")] == [1, 1, 1]
    end = {"producerGroup": "payers", "commitOrRollback": str(COMMIT), "msgId": "Paid"}
    end |= {"tranStateTableOffset": half["queueOffset"], "commitLogOffset": str(int(half["msgId"][16:], 16))}
    with Wire(cluster.address(late)) as wire:
        wire.invoke(RequestCode.END_TRANSACTION, end)
    for topic in ("Paid", "Delayed", "Timed"):
        wait_for(f"{topic} is delivered", lambda topic=topic: end_offset(cluster, topic) == 2, 60.0)  # type: ignore[misc]
