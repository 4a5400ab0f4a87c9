"""The leader dies by SIGKILL under load: what was acknowledged is there, in order, and the node comes back.

Times are measured and reported, never asserted; the limits here only end a run that hangs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from commitlog.record import Record
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from tests.integration.client_runs import finish, java_driver, read_report
from tests.integration.cluster import Cluster
from tests.integration.conftest import Measured
from tests.integration.log_files import first_difference
from tests.integration.messages import Sample
from tests.integration.streams import READER_GROUP, Acknowledged, Stream, find_broker, read_topic
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
QUEUES = 8
CATCH_UP_LIMIT_S = 60.0


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose nodes may be killed; each test leaves all three running."""
    cluster = Cluster(tmp_path_factory.mktemp("breakable"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def kill_leader(cluster: Cluster) -> tuple[str, float]:
    """Kill the leader; return its id and the time (Unix, s) of the kill."""
    leader = cluster.wait_leader()
    killed_s = time.time()
    cluster.kill(leader)
    return leader, killed_s


def election_ms(cluster: Cluster, killed_s: float) -> int:
    """How long after the kill the engine had its new leader."""
    leader = cluster.wait_leader()
    status = cluster.status(leader)
    assert status is not None
    elections = [election for election in status["elections"] if election["leaderId"] == leader]
    return int(elections[-1]["atMs"]) - round(killed_s * 1000)


def assert_all_acknowledged_there(acknowledged: list[Acknowledged], queues: dict[int, list[Record]]) -> None:
    """Every acknowledged message lies at the place its answer named; what one producer sent lies in order."""
    for queue, records in queues.items():
        assert [record.queue_offset for record in records] == list(range(len(records))), f"queue {queue}"
        numbers = [int(record.body.rpartition(b" ")[2]) for record in records]
        assert all(a < b for a, b in pairwise(numbers)), f"queue {queue} is out of order"
    lost = [sent for sent in acknowledged if sent.offset >= len(queues[sent.queue])]
    assert lost == [], f"{len(lost)} acknowledged messages are gone"
    moved = [sent for sent in acknowledged if queues[sent.queue][sent.offset].body != sent.body]
    assert moved == [], f"{len(moved)} acknowledged messages lie under another's offset"


def all_equal(cluster: Cluster) -> dict[str, dict[str, Any]] | None:
    """The statuses of all nodes once each has applied all that the leader holds."""
    statuses = cluster.statuses()
    indexes = {
        (
            status["term"],
            status["leaderId"],
            status["endIndex"],
            status["committedIndex"],
            status["appliedIndex"],
        )
        for status in statuses.values()
    }
    return statuses if len(statuses) == len(cluster.nodes) and len(indexes) == 1 else None


def assert_replicas_equal(cluster: Cluster) -> None:
    """All nodes catch up, and their log files are the same bytes up to the committed position."""
    what = "all nodes show one committed and applied index"
    statuses = wait_for(what, lambda: all_equal(cluster), CATCH_UP_LIMIT_S)
    positions = {status["committedPosition"] for status in statuses.values()}
    assert len(positions) == 1
    first, *others = (cluster.data / node_id for node_id in sorted(statuses))
    for other in others:
        assert first_difference(first, other, positions.copy().pop()) is None


async def test_killed_leader_loses_nothing_acknowledged(
    breakable: Cluster, name: str, measured: Measured
) -> None:
    topic = f"Failover{name}"
    stream = Stream(breakable.namesrv, topic, QUEUES)
    await stream.start()
    await stream.wait_acknowledged(500)
    dead, killed_s = await asyncio.to_thread(kill_leader, breakable)
    await stream.wait_acknowledged(500)
    await asyncio.to_thread(breakable.restart, dead)
    await stream.wait_acknowledged(500)
    await stream.stop()
    assert stream.errors, "the kill was not felt: the stream did not run through it"
    queues = await read_topic(breakable.namesrv, topic, stream.acknowledged)
    assert_all_acknowledged_there(stream.acknowledged, queues)
    measured("a new leader after the kill, ms", election_ms(breakable, killed_s))
    assert_replicas_equal(breakable)


async def test_every_leader_killed_in_turn_loses_nothing(breakable: Cluster, name: str) -> None:
    topic = f"Turns{name}"
    stream = Stream(breakable.namesrv, topic, QUEUES)
    await stream.start()
    for _ in range(3):
        await stream.wait_acknowledged(200)
        dead, _ = await asyncio.to_thread(kill_leader, breakable)
        await stream.wait_acknowledged(200)
        await asyncio.to_thread(breakable.restart, dead)
        await asyncio.to_thread(wait_for, "three nodes", lambda: all_in_touch(breakable), CATCH_UP_LIMIT_S)
    await stream.stop()
    queues = await read_topic(breakable.namesrv, topic, stream.acknowledged)
    assert_all_acknowledged_there(stream.acknowledged, queues)
    assert_replicas_equal(breakable)


def all_in_touch(cluster: Cluster) -> bool:
    """Whether a leader knows how far each of its peers is, so that the next kill leaves a majority."""
    leader = cluster.leader()
    status = cluster.status(leader) if leader is not None else None
    peers = status["peers"] if status is not None else []
    followers = [peer for peer in peers if peer["id"] != leader]
    return bool(followers) and all(peer["pushState"] == "APPEND" for peer in followers)


def test_java_clients_go_on_with_the_new_leader(breakable: Cluster, name: str, tmp_path: Path) -> None:
    """Stock producer and push consumer at a route poll of 1 s: every send that succeeded is consumed.

    Pulls that the client had sent to the dead node it waits out, up to 30 s. It may get a message twice, as
    after any failover, but each where the producer was told it is.
    """
    sends, consumed, stop = tmp_path / "stream.jsonl", tmp_path / "consumed.jsonl", tmp_path / "stop"
    driver = java_driver("5.5.0", tmp_path)
    options = [f"namesrv={breakable.namesrv}", f"topic=JavaFailover{name}", f"group=JavaFailover{name}"]
    options.append("poll_ms=1000")
    producer = driver.start(["stream", *options, f"out={sends}", f"stop={stop}"], sends)
    try:
        wait_for("a hundred sends", lambda: len(succeeded(sends)) >= 100, 60.0)
        consumer = driver.start(["consume", *options, f"out={consumed}", "count=1000000000"], consumed)
        wait_for("a hundred consumed", lambda: len(places(consumed)) >= 100, 60.0)
        dead, _ = kill_leader(breakable)
        before = len(succeeded(sends))
        wait_for("a hundred sends to the new leader", lambda: len(succeeded(sends)) >= before + 100, 60.0)
    finally:
        stop.touch()
        finish(producer, sends)
    breakable.restart(dead)
    try:
        wanted = succeeded(sends)
        wait_for("all that succeeded is consumed", lambda: wanted <= places(consumed), 60.0)
    finally:
        consumer.terminate()
        consumer.wait(20.0)
    assert_replicas_equal(breakable)


def succeeded(sends: Path) -> set[tuple[int, int, str]]:
    """Queue, offset and body of every send that the producer saw succeed so far."""
    return {
        (sent["queue"], sent["offset"], Sample("stream", sent["number"]).body)
        for sent in read_report(sends)
        if sent["status"] == "SEND_OK"
    }


def places(consumed: Path) -> set[tuple[int, int, str]]:
    """Queue, offset and body of every message consumed so far."""
    return {(message["queue"], message["offset"], message["body"]) for message in read_report(consumed)}


async def commit_offset(client: RemotingClient, broker: str, topic: str, offset: int) -> bool:
    ext = {"consumerGroup": READER_GROUP, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    request = RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=ext)
    answer = await client.invoke(broker, request)
    return answer.code == ResponseCode.SUCCESS


async def committed_offset(client: RemotingClient, broker: str, topic: str) -> int:
    ext = {"consumerGroup": READER_GROUP, "topic": topic, "queueId": "0"}
    answer = await client.invoke(broker, RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=ext))
    assert answer.code == ResponseCode.SUCCESS, answer
    return int(answer.ext_fields["offset"])


async def test_acknowledged_consumer_offset_never_goes_back(breakable: Cluster, name: str) -> None:
    topic = f"Offsets{name}"
    stream = Stream(breakable.namesrv, topic, 1)
    await stream.start()
    await stream.wait_acknowledged(300)
    await stream.stop()
    await read_topic(breakable.namesrv, topic)  # makes the group known
    client = RemotingClient()
    committing = asyncio.create_task(commit_until_dead(client, breakable, topic))
    await asyncio.sleep(0.3)  # some commits are in flight at whatever moment the kill comes
    dead, _ = await asyncio.to_thread(kill_leader, breakable)
    last = await committing
    assert last > 0
    await asyncio.to_thread(breakable.wait_leader)
    broker = await asyncio.to_thread(wait_for_broker_other_than, breakable, dead)
    assert await committed_offset(client, broker, topic) >= last
    await client.close()
    await asyncio.to_thread(breakable.restart, dead)
    await asyncio.to_thread(assert_replicas_equal, breakable)


async def commit_until_dead(client: RemotingClient, cluster: Cluster, topic: str) -> int:
    """Commit ever higher offsets to the leader of now till it is gone; return the last acknowledged one."""
    broker = await find_broker(client, cluster.namesrv, topic)
    assert broker is not None
    last = 0
    while True:
        try:
            if not await commit_offset(client, broker, topic, last + 1):
                return last
        except RemotingError:
            return last
        last += 1


def wait_for_broker_other_than(cluster: Cluster, dead: str) -> str:
    """The writable leader's address, which is not the dead node's."""

    def address() -> str | None:
        leader = cluster.leader()
        return cluster.address(leader) if leader is not None and leader != dead else None

    return wait_for("a new writable leader", address, 30.0)
