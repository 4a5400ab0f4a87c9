"""A cluster that was stopped, or whose processes all died at once, has all it had acknowledged."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from remoting.codes import RequestCode
from tests.integration.cluster import Cluster
from tests.integration.streams import READER_GROUP, Stream, read_topic
from tests.integration.test_failover import assert_all_acknowledged_there, assert_replicas_equal
from tests.integration.wire import Wire, call

pytestmark = pytest.mark.integration
QUEUES = 4
COMMITTED = 77


@pytest.fixture(scope="module", params=["persisted", "replicated"])
def durability(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


@pytest.fixture(scope="module")
def restartable(tmp_path_factory: pytest.TempPathFactory, durability: str) -> Iterator[Cluster]:
    """A cluster that runs whenever a test begins."""
    cluster = Cluster(tmp_path_factory.mktemp("restart"))
    try:
        cluster.start(durability=durability)
        yield cluster
    finally:
        cluster.stop()


async def fill(cluster: Cluster, topic: str, sends: int) -> Stream:
    stream = Stream(cluster.namesrv, topic, QUEUES)
    await stream.start()
    await stream.wait_acknowledged(sends)
    await stream.stop()
    return stream


def commit_offset(cluster: Cluster, topic: str) -> None:
    ext = {"consumerGroup": READER_GROUP, "topic": topic, "queueId": "1", "commitOffset": str(COMMITTED)}
    call(cluster.address(cluster.wait_leader()), RequestCode.UPDATE_CONSUMER_OFFSET, ext)


def committed_offset(cluster: Cluster, topic: str) -> int:
    ext = {"consumerGroup": READER_GROUP, "topic": topic, "queueId": "1"}
    with Wire(cluster.address(cluster.wait_leader())) as wire:
        return int(wire.invoke(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext_fields["offset"])


@pytest.mark.parametrize("is_clean", [True, False], ids=["stopped", "killed at once"])
async def test_whole_cluster_comes_back_with_messages_topics_and_offsets(
    restartable: Cluster, name: str, durability: str, is_clean: bool
) -> None:
    """Page caches outlive processes: so must what is acknowledged as `replicated`."""
    topic = f"Restart{name}{durability}{'Stopped' if is_clean else 'Killed'}"
    stream = await fill(restartable, topic, 500)
    await read_topic(restartable.namesrv, topic)  # makes the group known
    commit_offset(restartable, topic)
    if is_clean:
        restartable.stop()
    else:
        restartable.kill_all()
    restartable.start(durability=durability)
    statuses = restartable.statuses()
    assert {status["durability"] for status in statuses.values()} == {durability}, json.dumps(statuses)
    queues = await read_topic(restartable.namesrv, topic, stream.acknowledged)
    assert_all_acknowledged_there(stream.acknowledged, queues)
    assert committed_offset(restartable, topic) == COMMITTED
    again = await fill(restartable, topic + "Again", 100)
    queues = await read_topic(restartable.namesrv, topic + "Again", again.acknowledged)
    assert_all_acknowledged_there(again.acknowledged, queues)
    assert_replicas_equal(restartable)
