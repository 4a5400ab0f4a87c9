"""Brokers for tests in processes of their own: ready, used, broken on purpose, and gone at the end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import ledgermq.testing
from ledgermq.client import Message
from ledgermq.client.blocking import Producer
from ledgermq.errors import UserError
from ledgermq.testing import RunningCluster
from tests.integration.client_runs import ROOT
from tests.integration.conftest import Measured
from tests.integration.waiting import wait_for
from tests.unit.ledgermq.testing.messages import Messages

pytestmark = pytest.mark.integration
LIMIT_S = 20.0
HOLDER = """
import sys, time
import ledgermq.testing
with ledgermq.testing.broker() as b:
    print(b.home, flush=True)
    time.sleep(60)
"""


def children() -> set[int]:
    return {each.pid for each in psutil.Process().children(recursive=True)}


def processes_in(home: Path) -> list[psutil.Process]:
    """Those whose command line names the folder."""
    running = psutil.process_iter(["cmdline"])
    return [each for each in running if any(str(home) in part for part in each.info["cmdline"] or ())]


def send(namesrv: str, topic: str, body: bytes, give_up_s: float = LIMIT_S) -> int:
    """One message, at whichever node leads; how many tries it took."""
    with Producer(namesrv, send_timeout_s=give_up_s, request_timeout_s=1.0) as producer:
        return producer.send(Message(topic, body)).tries


def exchange(namesrv: str, topic: str, body: bytes) -> list[bytes]:
    """Send one, and read all."""

    async def sending() -> list[bytes]:
        async with Messages(namesrv, topic) as messages:
            await messages.send(body)
            return await messages.read()

    return asyncio.run(sending())


# -- one node


def test_a_broker_takes_messages_and_leaves_nothing_behind(measured: Measured) -> None:
    before = children()
    began_s = time.monotonic()
    with ledgermq.testing.broker() as broker:
        measured("s until ledgermq.testing.broker() takes messages", f"{time.monotonic() - began_s:.2f}")
        assert exchange(broker.namesrv, "orders", b"first") == [b"first"]
        assert len(children() - before) == 1
        home = broker.home
        assert home.exists()
    assert children() == before
    assert not home.exists()


def test_a_path_keeps_the_messages(tmp_path: Path) -> None:
    for number in range(2):
        with ledgermq.testing.broker(tmp_path / "home") as broker:
            assert exchange(broker.namesrv, "orders", b"%d" % number) == [b"0", b"1"][: number + 1]
    assert (tmp_path / "home" / "logs" / "n0.log").exists()


def test_two_brokers_run_beside_each_other() -> None:
    with ledgermq.testing.broker() as one, ledgermq.testing.broker() as other:
        assert exchange(one.namesrv, "orders", b"one") == [b"one"]
        assert exchange(other.namesrv, "orders", b"other") == [b"other"]


def test_a_setting_reaches_the_broker() -> None:
    with (
        ledgermq.testing.broker(settings={"maxMessageSize": 1_024}) as broker,
        pytest.raises(AssertionError, match="1024 are possible"),
    ):
        exchange(broker.namesrv, "orders", b"x" * 2_048)


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with ledgermq.testing.broker(tmp_path):
        pass
    (tmp_path / "n0" / "store").rename(tmp_path / "n0" / "away")
    (tmp_path / "n0" / "store").write_text("a file where its store should be")
    before = children()
    with pytest.raises(UserError, match="0 of 1 nodes run"), ledgermq.testing.broker(tmp_path):
        pass
    assert children() == before


def test_brokers_end_with_a_test_process_that_is_killed() -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        home = Path(holder.stdout.readline().strip())
        assert processes_in(home)
    finally:
        holder.kill()
        holder.communicate()
    wait_for("the broker ends", lambda: not processes_in(home), LIMIT_S)
    shutil.rmtree(home)


# -- three nodes


@pytest.fixture(scope="module")
def running() -> Iterator[RunningCluster]:
    with ledgermq.testing.cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RunningCluster) -> RunningCluster:
    """All nodes run, and topics are the test's own."""
    running.restore()
    running.begin_test()
    return running


def test_a_killed_leader_is_replaced_and_returns(cluster: RunningCluster) -> None:
    topic = cluster.topic("orders")
    assert exchange(cluster.namesrv, topic, b"before") == [b"before"]
    killed = cluster.kill_leader()
    leader = cluster.wait_until_writable()
    assert leader in set(cluster.nodes) - {killed}
    assert exchange(cluster.namesrv, topic, b"after") == [b"before", b"after"]
    cluster.start(killed)
    cluster.kill(leader)
    assert cluster.wait_until_writable() != leader, "the returned node is half of the majority"
    assert exchange(cluster.namesrv, topic, b"again") == [b"before", b"after", b"again"]


def test_a_stopped_leader_hands_over(cluster: RunningCluster) -> None:
    leader = cluster.wait_until_writable()
    cluster.stop(leader)
    assert cluster.wait_until_writable() != leader
    cluster.start(leader)


def test_a_paused_leader_is_replaced_and_follows_when_it_goes_on(cluster: RunningCluster) -> None:
    paused = cluster.wait_until_writable()
    cluster.pause(paused)
    leader = cluster.wait_until_writable()
    assert leader != paused
    assert cluster.leader() == leader
    cluster.resume(paused)
    wait_for("the old leader follows", lambda: cluster.leader() == leader, LIMIT_S)
    assert exchange(cluster.namesrv, cluster.topic("orders"), b"one") == [b"one"]


def test_a_leader_that_is_cut_off_acknowledges_nothing(cluster: RunningCluster) -> None:
    topic = cluster.topic("orders")
    cut_off = cluster.wait_until_writable()
    exchange(cluster.namesrv, topic, b"before")
    cluster.partition(cut_off)
    leader = cluster.wait_until_writable()
    assert leader != cut_off
    send(cluster.namesrv, topic, b"during")
    cluster.heal()
    cluster.kill(leader)
    third = cluster.wait_until_writable()
    assert third in set(cluster.nodes) - {leader}


def test_a_minority_alone_takes_no_messages(cluster: RunningCluster) -> None:
    one, other, third = cluster.nodes
    cluster.partition(one)
    cluster.stop(other)
    with pytest.raises(UserError, match="no message was acknowledged"):
        cluster.wait_until_writable(limit_s=4)
    cluster.heal()
    assert cluster.wait_until_writable() in (one, third)


def test_two_dead_nodes_are_no_majority(cluster: RunningCluster) -> None:
    for node in cluster.nodes[:2]:
        cluster.kill(node)
    with pytest.raises(UserError, match="no message was acknowledged"):
        cluster.wait_until_writable(limit_s=2)
    cluster.restore()
    assert cluster.leader() is not None


def test_a_node_that_dies_by_itself_is_reported(cluster: RunningCluster) -> None:
    one, other, _ = cluster.nodes
    pids = [process.pid for name in (one, other) for process in processes_in(cluster.home / name)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        UserError, match=r"1 of 3 nodes run, that is no majority:\nn[01] was ended by SIGKILL"
    ):
        cluster.wait_until_writable()


@pytest.mark.parametrize("act", ["kill", "stop", "pause", "resume"])
def test_a_node_that_does_not_run_is_named(act: str, cluster: RunningCluster) -> None:
    cluster.kill("n2")
    with pytest.raises(UserError, match="n2 does not run"):
        getattr(cluster, act)("n2")
    cluster.start("n2")
    with pytest.raises(UserError, match="n2 runs already"):
        cluster.start("n2")


@pytest.mark.parametrize("act", ["kill", "partition", "start", "address"])
def test_a_node_that_does_not_exist_is_refused(act: str, cluster: RunningCluster) -> None:
    with pytest.raises(UserError, match="has no node n7"):
        getattr(cluster, act)("n7")


def test_a_cluster_on_a_path_has_its_messages_again(tmp_path: Path, measured: Measured) -> None:
    for number in range(2):
        began_s = time.monotonic()
        with ledgermq.testing.cluster(tmp_path) as cluster:
            measured("s until ledgermq.testing.cluster() takes messages", f"{time.monotonic() - began_s:.2f}")
            assert exchange(cluster.namesrv, "orders", b"%d" % number) == [b"0", b"1"][: number + 1]
