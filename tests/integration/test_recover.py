"""A majority of a group is gone for good: `ledgermq recover` on what one node has, with real processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.integration.client_runs import ROOT
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.streams import Acknowledged, Stream, find_broker, read_topic
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
QUEUES = 4
LIMIT_S = 60.0


@pytest.fixture
def ruined(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def end(cluster: Cluster, *nodes: str, signal_number: int = signal.SIGKILL) -> None:
    for node in nodes:
        cluster.kill(node, signal_number)
    wait_for("their ends", lambda: all(map(cluster.has_ended, nodes)) or None, LIMIT_S)


def logs(cluster: Cluster) -> str:
    """Of the nodes that were started again."""
    return "".join(path.read_text(errors="replace") for path in cluster.folder.glob("node-*.err"))


def grow(cluster: Cluster, leader: str, node: str) -> None:
    """An empty node under its old id."""
    shutil.rmtree(cluster.data / node / "store", ignore_errors=True)
    cluster.restart(node)
    added = run(
        *("member", "add", node, cluster.nodes[node].replication, "--yes", "--namesrv", cluster.namesrv)
    )
    assert added.returncode == 0, added.stderr

    def votes() -> dict[str, Any] | None:
        status = cluster.status(leader)
        if status is None or not status["isConfigurationCommitted"]:
            return None
        roles = {each["id"]: each["role"] for each in status["members"]}
        return status if roles.get(node) == "voter" else None

    wait_for(f"{node} votes", votes, LIMIT_S)


async def acknowledged_under_load(cluster: Cluster) -> tuple[str, list[Acknowledged]]:
    """Kill two of three while messages are sent; which node is left."""
    stream = Stream(cluster.namesrv, "Recovered", QUEUES)
    await stream.start()
    await stream.wait_acknowledged(300)
    leader = await asyncio.to_thread(cluster.wait_leader)
    survivor = next(node for node in sorted(cluster.nodes) if node != leader)
    await asyncio.to_thread(end, cluster, *(node for node in cluster.nodes if node != survivor))
    await stream.stop()
    return survivor, stream.acknowledged


async def assert_kept(cluster: Cluster, acknowledged: list[Acknowledged]) -> None:
    """What the survivor had is there, once its group's leader is registered."""
    client, leader = RemotingClient(), await asyncio.to_thread(cluster.wait_leader)
    async with asyncio.timeout(LIMIT_S):
        while await find_broker(client, cluster.namesrv, "Recovered") != cluster.address(leader):
            await asyncio.sleep(0.1)
    await client.close()
    queues = await read_topic(cluster.namesrv, "Recovered")
    kept = [sent for sent in acknowledged if sent.offset < len(queues[sent.queue])]
    assert [sent for sent in kept if queues[sent.queue][sent.offset].body != sent.body] == []
    assert len(kept) >= 250, "the survivor had nearly all, being in contact"


async def assert_unheard(cluster: Cluster, survivor: str, others: list[str]) -> None:
    """The majority of before comes back with its files and elects a leader, which no client finds."""
    for node in others:
        cluster.restart(node)
    sentences = {f"and {node} does not know of it" for node in others}
    sentences |= {f"is of generation 1, {node} of 0" for node in others}
    wait_for("both sides say why", lambda: all(each in logs(cluster) for each in sentences), LIMIT_S)
    wait_for("a leader of before", lambda: any(is_writable(cluster, node) for node in others), LIMIT_S)
    client = RemotingClient()
    async with asyncio.timeout(LIMIT_S):
        while await registered(client, cluster) != {"0": cluster.address(survivor)}:
            await asyncio.sleep(0.1)
    await client.close()


def assert_seen(cluster: Cluster, survivor: str, others: list[str]) -> None:
    """That they are of the past an operator sees from outside, also after a restart of one of them."""
    old = others[0]
    end(cluster, old)
    cluster.restart(old)
    wait_for("it is told again", lambda: newer_generation(cluster, old) == 1 or None, LIMIT_S)
    assert newer_generation(cluster, survivor) is None
    shown = run("status", "--namesrv", cluster.namesrv)
    assert shown.stdout.count("outdated: its group is of generation 1") == len(others), shown.stdout
    report = json.loads(run("doctor", "--json", "--namesrv", cluster.namesrv).stdout)
    found = [each for each in report["findings"] if each["code"] == "node-outdated"]
    assert {each["subject"].partition(" ")[0] for each in found} == set(others), report
    assert all("empty its store" in each["remedy"] for each in found)


def newer_generation(cluster: Cluster, node: str) -> int | None:
    status = cluster.status(node)
    return None if status is None else status["newerGeneration"]


def is_writable(cluster: Cluster, node: str) -> bool:
    status = cluster.status(node)
    return status is not None and bool(status["isWritable"])


async def registered(client: RemotingClient, cluster: Cluster) -> dict[str, str]:
    """The addresses of the group's nodes by broker id, as clients get them."""
    command = RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO)
    answer = await client.invoke(cluster.namesrv, command, LIMIT_S)
    (broker,) = json.loads(answer.body)["brokerAddrTable"].values()
    return dict(broker["brokerAddrs"])


async def test_a_majority_is_gone(ruined: Cluster) -> None:
    cluster = ruined
    survivor, acknowledged = await acknowledged_under_load(cluster)
    others = lost, mistaken = [node for node in sorted(cluster.nodes) if node != survivor]
    toml = str(cluster.data / survivor / "broker.toml")

    running = run("recover", "decide", toml)
    assert (running.returncode, "stop its node first" in running.stderr) == (1, True), running.stderr
    end(cluster, survivor, signal_number=signal.SIGTERM)
    shown = run("recover", "show", toml, "--store", str(cluster.data / mistaken / "store"))
    assert shown.returncode == 0, shown.stderr
    assert "The most complete log has" in shown.stdout

    unconfirmed = run("recover", "decide", toml)
    assert (unconfirmed.returncode, "nothing was changed" in unconfirmed.stderr) == (1, True)
    confirmation = unconfirmed.stderr.rpartition("--confirm ")[2].strip()
    wrong = run("recover", "decide", toml, "--confirm", f"{confirmation}0")
    assert (wrong.returncode, "is not what this decision is about" in wrong.stderr) == (1, True)
    decided = run("recover", "decide", toml, "--confirm", confirmation)
    assert decided.returncode == 0, decided.stderr

    cluster.restart(survivor)
    assert await asyncio.to_thread(cluster.wait_leader) == survivor
    await assert_kept(cluster, acknowledged)
    before = cluster.status(survivor)
    assert before is not None
    assert (before["generation"], [each["id"] for each in before["members"]]) == (1, [survivor])

    await assert_unheard(cluster, survivor, others)
    await asyncio.to_thread(assert_seen, cluster, survivor, others)
    after = cluster.status(survivor)
    assert after is not None
    assert (after["term"], after["isWritable"]) == (before["term"], True)
    end(cluster, *others)

    for node in (mistaken, lost):
        await asyncio.to_thread(grow, cluster, survivor, node)
    end(cluster, survivor)
    assert await asyncio.to_thread(cluster.wait_leader) in (lost, mistaken)
    await assert_kept(cluster, acknowledged)
