"""A real Prometheus reads a cluster that works, loses its leader and gets it back: every question of the
Grafana board and of the alerts has an answer that makes sense, at each moment.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ledgermq.client import Message, Producer
from ledgermq.messaging import Consumer
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from tests.integration.cluster import Cluster
from tests.integration.prometheus import Panel, Prometheus, panels, running
from tests.integration.waiting import wait_for
from tests.support.debian_programs import find_program

pytestmark = pytest.mark.integration
TOPIC, GROUP = "Watched", "watchers"
BODY = b"x" * 1_000
PAUSE_S = 0.02
SENDS_PER_S_MAX = 1 / PAUSE_S
LIMIT_S = 60.0
DEAD_LETTER = -1
"""Delay level of a message that is sent back and not tried again."""
LARGEST = {
    "s": 30.0,
    "percentunit": 1.0,
    "bytes": 64e9,
    "Bps": 10 * SENDS_PER_S_MAX * len(BODY),
    "short": 1e6,
}
"""More than this would be a wrong unit, or a counter that was misread, for this load."""
OF_THE_MACHINE = {"LedgerMQFsyncSlow", "LedgerMQDiskNearFull"}
"""Alerts that may be right where this runs."""
RATES = ("Messages put a second", "Messages given to consumers a second")
HELD_UP = 10.0
"""A rate over a short window is extrapolated, and what was held up comes at once."""


class Load:
    """Sends, consumes all but the last of it, lets messages die, and asks for what there is not."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._is_over = threading.Event()
        self.sent = 0

    def run(self) -> None:
        asyncio.run(self._run())

    def end(self) -> None:
        self._is_over.set()

    async def _run(self) -> None:
        client = RemotingClient()
        consumer = Consumer(client, self._cluster.namesrv, TOPIC, GROUP)
        async with Producer(self._cluster.namesrv) as producer, consumer:
            await self._send(producer, 20)
            consuming = asyncio.create_task(self._consume(client, consumer))
            while not self._is_over.is_set():
                await self._send(producer, 1)
                await asyncio.sleep(PAUSE_S)
            assert not consuming.done(), consuming.result()
            consuming.cancel()
            await asyncio.gather(consuming, return_exceptions=True)
        await client.close()

    async def _send(self, producer: Producer, count: int) -> None:
        for _ in range(count):
            with suppress(ClientError):
                await producer.send(Message(TOPIC, BODY))
                self.sent += 1

    async def _consume(self, client: RemotingClient, consumer: Consumer) -> None:
        async for delivery in consumer.messages():
            consumer.consume(delivery)
            if delivery.record.queue_offset % 20 == 5:
                ext = {"offset": str(delivery.record.physical_offset), "group": GROUP}
                ext |= {"delayLevel": str(DEAD_LETTER), "originTopic": TOPIC}
                await self._ask(client, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
                await self._ask(client, RequestCode.GET_TOPIC_STATS_INFO, {"topic": "there-is-none"})

    async def _ask(self, client: RemotingClient, code: RequestCode, ext: dict[str, str]) -> None:
        """Of every node: the leader answers, a follower refuses or hands it on."""
        for node in self._cluster.nodes.values():
            with suppress(RemotingError):
                await client.invoke(node.remoting, RemotingCommand(code, ext_fields=ext), 2.0)


@contextmanager
def loaded(cluster: Cluster) -> Iterator[Load]:
    load = Load(cluster)
    thread = threading.Thread(target=load.run)
    thread.start()
    try:
        yield load
    finally:
        load.end()
        thread.join()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of its own: its leader is killed."""
    find_program("prometheus")
    made = Cluster(tmp_path)
    try:
        made.start(admin=True)
        yield made
    finally:
        made.stop()


def wait_for_all(prometheus: Prometheus, asked: list[Panel]) -> None:
    """Every question has an answer, and that a number."""
    left = list(asked)

    def are_answered() -> bool:
        left[:] = [
            panel
            for panel in left
            if not (found := prometheus.ask(panel.query)) or any(math.isnan(value) for _, value in found)
        ]
        return not left

    try:
        wait_for("every panel has numbers", are_answered, LIMIT_S)
    except AssertionError as error:
        raise AssertionError([(panel, prometheus.ask(panel.query)) for panel in left]) from error


def check_history(prometheus: Prometheus, panel: Panel, begin_s: float) -> None:
    values = [
        value for value in prometheus.history(panel.query, begin_s, time.time()) if not math.isnan(value)
    ]
    assert values, panel
    most = LARGEST[panel.unit]
    if panel.title in RATES:
        most = HELD_UP * SENDS_PER_S_MAX
    assert 0 <= min(values) <= max(values) <= most, (panel, min(values), max(values))


def value_of(prometheus: Prometheus, title: str) -> dict[str, float]:
    """Of a panel with a value a node: by node."""
    (panel,) = (panel for panel in panels() if panel.title == title)
    return {labels["node"]: value for labels, value in prometheus.ask(panel.query)}


def pending(prometheus: Prometheus) -> dict[str, bool]:
    """By name of the alert, whether what it asks for is so; each can be asked for."""
    rules = prometheus.rules()
    assert len(rules) >= 10
    assert {rule["name"]: rule["lastError"] for rule in rules if rule.get("lastError")} == {}
    return {rule["name"]: bool(prometheus.ask(rule["query"])) for rule in rules}


def test_every_panel_and_alert_makes_sense_before_and_after_a_failover(
    cluster: Cluster, tmp_path: Path
) -> None:
    addresses = [node.metrics.split("/")[2] for node in cluster.nodes.values()]
    admin = cluster.admin.removeprefix("http://")
    begin_s = time.time()
    asked = panels()
    assert len(asked) > 35
    with running(tmp_path / "prometheus", addresses, admin) as prometheus, loaded(cluster):
        wait_for_all(prometheus, asked)
        old = cluster.wait_leader()
        assert [node for node, leads in value_of(prometheus, "Leads").items() if leads] == [old]
        so = pending(prometheus)
        named = {name for name, is_so in so.items() if is_so} - OF_THE_MACHINE
        assert named == {"LedgerMQDeadLettersGrowing"}
        term = max(value_of(prometheus, "Term").values())

        cluster.kill(old)
        new = wait_for("another leads", lambda: cluster.leader() if cluster.has_ended(old) else None, LIMIT_S)
        wait_for(
            "prometheus sees it, and that one is down",
            lambda: value_of(prometheus, "Leads").get(new) and prometheus.ask('up{job="ledgermq"} == 0'),
            LIMIT_S,
        )
        wait_for_all(prometheus, asked)
        assert set(value_of(prometheus, "Leads")) == set(cluster.nodes) - {old}, "the dead one has no role"
        assert min(value_of(prometheus, "Term").values()) > term
        so = pending(prometheus)
        assert so["LedgerMQReplicaDown"]
        assert so["LedgerMQPeerDisconnected"]
        assert not so["LedgerMQNoLeader"]

        cluster.restart(old)
        wait_for("it is there again", lambda: old in value_of(prometheus, "Leads"), LIMIT_S)
        wait_for_all(prometheus, asked)
        for panel in asked:
            check_history(prometheus, panel, begin_s)
