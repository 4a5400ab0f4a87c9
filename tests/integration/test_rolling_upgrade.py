"""Groups whose nodes are of two releases, as while a cluster is upgraded: nothing acknowledged is lost and no
send fails, in both directions, until the format level is raised.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledgermq.client import Message, Producer
from ledgermq.messaging import Consumer
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from tests.integration.client_runs import need
from tests.integration.cluster import COMMAND
from tests.integration.mixed_cluster import THIS, MixedCluster
from tests.integration.wire import Wire
from tests.support.long_runs import is_long_run
from tests.support.releases import Release, release

pytestmark = pytest.mark.integration
SENDERS = 2
SEND_PAUSE_S = 0.005
READ_LIMIT_S = 60.0
LIMIT_S = 30.0
KILLS = 5 if is_long_run() else 1
JAVA = "5.5.0"


@pytest.fixture(scope="module")
def old() -> Release:
    """The release before this one."""
    found = release("0.1.0")
    need("releases", found.is_installed, "run `scripts/setup releases`, which builds it from the history")
    return found


class Load:
    """Senders that never give up on a message, and a consumer that reads along."""

    def __init__(self, namesrv: str, topic: str) -> None:
        self.acknowledged: set[str] = set()
        self.consumed: set[str] = set()
        self.longest_s = 0.0
        self._namesrv = namesrv
        self._topic = topic
        self._is_stopping = False
        self._client = RemotingClient()
        self._senders = [asyncio.create_task(self._send(number)) for number in range(SENDERS)]
        self._reader = asyncio.create_task(self._read())

    async def _send(self, number: int) -> None:
        async with Producer(self._namesrv, group=f"Senders{number}", send_timeout_s=30.0) as producer:
            for count in itertools.count():
                if self._is_stopping:
                    return
                body = f"{number}-{count}"
                began_s = time.monotonic()
                await producer.send(Message(self._topic, body.encode()))
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.acknowledged.add(body)
                await asyncio.sleep(SEND_PAUSE_S)

    async def _read(self) -> None:
        async with Consumer(self._client, self._namesrv, self._topic, "Readers") as consumer:
            async for delivery in consumer.messages():
                self.consumed.add(bytes(delivery.record.body).decode())

    async def wait_acknowledged(self, more: int) -> None:
        """Return when so many more sends are acknowledged than now."""
        wanted = len(self.acknowledged) + more
        async with asyncio.timeout(READ_LIMIT_S):
            while len(self.acknowledged) < wanted:
                self.check()
                await asyncio.sleep(SEND_PAUSE_S)

    def check(self) -> None:
        """Raises what a sender or the reader raised: no send may fail."""
        for task in (*self._senders, self._reader):
            if task.done():
                task.result()

    async def stop(self) -> None:
        """End the senders, and wait until the consumer has all that was acknowledged. Raises what failed."""
        self._is_stopping = True
        await asyncio.gather(*self._senders)
        async with asyncio.timeout(READ_LIMIT_S):
            while not self.consumed >= self.acknowledged:
                self.check()
                await asyncio.sleep(SEND_PAUSE_S)

    async def close(self) -> None:
        for task in (*self._senders, self._reader):
            task.cancel()
        await asyncio.gather(*self._senders, self._reader, return_exceptions=True)
        await self._client.close()


@asynccontextmanager
async def under_load(cluster: MixedCluster, topic: str) -> AsyncIterator[Load]:
    """The cluster, started, with clients. At the end all that was acknowledged must have been consumed, and
    be in the queues for a consumer that starts at the beginning.
    """
    try:
        await cluster.start()
        load = Load(cluster.namesrv, topic)
        try:
            await load.wait_acknowledged(100)
            yield load
            await load.wait_acknowledged(100)
            await load.stop()
        finally:
            await load.close()
        await cluster.wait_whole()
        await read_again(cluster.namesrv, topic, load.acknowledged)
    finally:
        await cluster.stop()


async def read_again(namesrv: str, topic: str, wanted: set[str]) -> None:
    client = RemotingClient()
    found: set[str] = set()
    try:
        async with asyncio.timeout(READ_LIMIT_S), Consumer(client, namesrv, topic, "Auditors") as consumer:
            async for delivery in consumer.messages():
                found.add(bytes(delivery.record.body).decode())
                if found >= wanted:
                    return
    finally:
        await client.close()


async def test_rolling_upgrade_and_the_way_back_lose_no_send(
    tmp_path: Path, old: Release, measured: Callable[[str, object], None]
) -> None:
    cluster = MixedCluster(tmp_path / "cluster", [old] * 3, old)
    async with under_load(cluster, "Rolling") as load:
        for target in (THIS, old):
            for node_id in cluster.nodes:
                await cluster.replace(node_id, target)
                await load.wait_acknowledged(20)
    measured("sends over a rolling upgrade and back", len(load.acknowledged))
    measured("the longest send meanwhile", f"{load.longest_s * 1000:.0f} ms")


@pytest.mark.parametrize(
    "is_old",
    [
        pytest.param((True, True, False), id="two old"),
        pytest.param((False, True, False), id="one old", marks=pytest.mark.long),
    ],
)
async def test_killed_leaders_of_a_mixed_group_lose_nothing(
    tmp_path: Path, old: Release, is_old: tuple[bool, ...]
) -> None:
    cluster = MixedCluster(tmp_path / "cluster", [old if each else THIS for each in is_old], THIS)
    async with under_load(cluster, "Killed") as load:
        for _ in range(KILLS):
            for node_id in ("n1", "n2"):  # one of each release
                await cluster.wait_in_touch()
                await cluster.lead(node_id)
                await load.wait_acknowledged(20)
                await cluster.end_node(node_id, 9)
                await load.wait_acknowledged(50)
                cluster.start_node(node_id, cluster.nodes[node_id].release)
                await cluster.wait_answers(node_id)


async def test_nothing_that_the_old_release_cannot_read_is_written(tmp_path: Path, old: Release) -> None:
    cluster = MixedCluster(tmp_path / "cluster", [old, THIS, THIS], THIS)
    retried = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000}}
    group = json.dumps({"groupName": "Retrying", "groupRetryPolicy": retried}).encode()
    try:
        await cluster.start()
        await cluster.wait_in_touch()
        await cluster.lead("n1")
        with Wire(cluster.nodes["n1"].address) as wire:
            answers = [
                wire.invoke(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group),
                wire.invoke(RequestCode.UPDATE_BROKER_CONFIG, body=b"addressRequestsPerSecond=77777\n"),
                wire.invoke(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=48\n"),
            ]
        refused, done = ResponseCode.VERSION_NOT_SUPPORTED, ResponseCode.SUCCESS
        assert [answer.code for answer in answers] == [refused, refused, done], answers
        assert "upgrade-finish" in (answers[0].remark or "")
        await cluster.wait_whole()
        assert cluster.nodes["n0"].is_running
    finally:
        await cluster.stop()


async def test_after_the_last_step_the_old_release_refuses_the_store(tmp_path: Path, old: Release) -> None:
    cluster = MixedCluster(tmp_path / "cluster", [old] * 3, THIS)
    try:
        await cluster.start()
        for node_id in cluster.nodes:
            await cluster.replace(node_id, THIS)
        await cluster.wait_whole()
        command = [str(COMMAND), "upgrade-finish", "--yes", "--json", "--namesrv", cluster.namesrv]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        async with asyncio.timeout(LIMIT_S):
            _, errors = await process.communicate()
        assert process.returncode == 0, errors
        await cluster.wait_level(3)
        await cluster.hand_over("n0")
        await cluster.end_node("n0")
        cluster.start_node("n0", old)
        refused = cluster.nodes["n0"].process
        assert refused is not None
        assert await asyncio.to_thread(refused.wait, LIMIT_S) == 1
        assert "this node expects" in cluster.log("n0")
        cluster.start_node("n0", THIS)
        await cluster.wait_answers("n0")
        await cluster.wait_in_touch()
    finally:
        await cluster.stop()
