"""Several groups: a producer with its default settings goes on without a failed send when a leader dies, and
while groups come and go.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from remoting.codes import RequestCode
from tests.compat.mqadmin import MqAdmin, compile_runner
from tests.compat.test_timer import TimerRun
from tests.integration.client_runs import ROOT, Driver, Report, finish, java_driver, read_report
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.conftest import Measured
from tests.integration.test_transactions import SETTINGS, Transactions
from tests.integration.waiting import wait_for
from tests.integration.wire import Wire

pytestmark = pytest.mark.integration
JAVA = "5.5.0"
SENDS = 200
LIMIT_S = 60.0
QUIET_MS = 3_000
DEFAULTS = {"poll_ms": 30_000, "retries": 2, "timeout_ms": 3_000}
"""Of DefaultMQProducer."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    own = Cluster(tmp_path, groups=2)
    try:
        own.start(SETTINGS)
        yield own
    finally:
        own.stop()


def options_of(**options: object) -> list[str]:
    return [f"{key}={value}" for key, value in options.items()]


def leader_of(cluster: Cluster, group: str) -> tuple[str, int]:
    """Its id, and how many entries its log has."""

    def find() -> tuple[str, int] | None:
        nodes = [node.node_id for node in cluster.nodes.values() if node.group == group]
        for status in filter(None, map(cluster.status, nodes)):
            if status["leaderId"] == status["nodeId"]:
                return status["nodeId"], status["endIndex"] + 1
        return None

    return wait_for(f"{group} has a leader", find, LIMIT_S)


async def wait_sends(out: Path, count: int) -> None:
    """So many more have ended than have now."""
    wanted = len(read_report(out)) + count
    await asyncio.to_thread(wait_for, "sends", lambda: len(read_report(out)) >= wanted, LIMIT_S)


async def test_no_send_fails_when_the_leader_of_one_group_dies(
    cluster: Cluster, tmp_path: Path, measured: Measured
) -> None:
    driver, out, stop = java_driver(JAVA, tmp_path), tmp_path / "sends.jsonl", tmp_path / "stop"
    given: dict[str, Any] = {"namesrv": cluster.namesrv, "topic": "TwoGroups"}
    arguments = options_of(**given, **DEFAULTS, group="TwoGroupsProducers", out=out, stop=stop)
    producer = driver.start(["stream", *arguments], out)
    try:
        await wait_sends(out, SENDS)
        leader, entries = leader_of(cluster, "broker-b")
        assert entries > SENDS / 4, "it gets its share of the sends"
        cluster.kill(leader)
        await wait_sends(out, 2 * SENDS)
    finally:
        stop.touch()
        sends = await asyncio.to_thread(finish, producer, out)
    assert [row for row in sends if row["status"] != "SEND_OK"] == []
    times = [row["at_ms"] for row in sends]
    measured("longest time between two sends of two groups, ms", max(b - a for a, b in pairwise(times)))
    consumed = await asyncio.to_thread(consume, driver, given, len(sends))
    assert {row["number"] for row in sends} <= {int(row["number"]) for row in consumed}


def test_transactions_timers_and_pops_go_on_when_the_leader_of_one_group_dies(
    cluster: Cluster, tmp_path: Path
) -> None:
    run = Transactions(cluster, JAVA, tmp_path, "OverGroups")
    timers = TimerRun(cluster.namesrv, "TimersOverGroups", tmp_path)
    # A topic that a first send makes may be in that group only: routes name it alone from then on.
    make_by_mqadmin(cluster, (run.topic, timers.topic), tmp_path)
    timed = timers.driver.start(
        timers.arguments(threads=2, delay_ms=3_000, pause_ms=20, stop=timers.stop), timers.out
    )
    wait_for("the first client runs", lambda: timers.events("sent"), LIMIT_S)  # one JVM starts at a time
    process = run.start(threads=4, stop=run.files["stop"])
    try:
        run.wait_events("prepared", SENDS)
        pops = Pops(cluster, run.topic, timers.driver, tmp_path)
        wait_for("timers wait", lambda: len(timers.events("sent")) > SENDS, LIMIT_S)
        dead, _ = leader_of(cluster, "broker-b")
        cluster.kill(dead)
        before = len(run.events("prepared"))
        run.wait_events("prepared", before + SENDS)
        cluster.restart(dead)
    finally:
        timers.stop.touch()
        finish(timed, timers.out)
        run.tell("stop")
    run.wait_events("sent", 1)
    run.finish(process)
    timers.wait_delivered()
    timers.check()
    wanted = run.delivered().keys()
    wait_for("everything is popped", lambda: wanted <= pops.bodies(), LIMIT_S)
    pops.end()
    for topic in (run.topic, timers.topic):
        queues = topic_queues(cluster, topic)
        assert {broker for broker, count in queues if count} == {"broker-a", "broker-b"}


def make_by_mqadmin(cluster: Cluster, topics: Sequence[str], folder: Path) -> None:
    """`-c` reaches every group of the cluster."""
    compile_runner()
    mqadmin = MqAdmin(cluster.namesrv, folder)
    try:
        for topic in topics:
            mqadmin.run("updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "3", "-w", "3")
    finally:
        mqadmin.stop()
    for topic in topics:
        brokers = [broker for broker, _ in topic_queues(cluster, topic)]
        assert sorted(brokers) == ["broker-a"] * 3 + ["broker-b"] * 3


class Pops:
    """A consumer of the topic in POP mode, which each group has to be in."""

    def __init__(self, cluster: Cluster, topic: str, driver: Driver, folder: Path) -> None:
        self._out, self._stop = folder / "pops.jsonl", folder / "pops.stop"
        group = f"{topic}Poppers"
        mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0}
        for name in ("broker-a", "broker-b"):
            leader = cluster.address(leader_of(cluster, name)[0])
            body = json.dumps({"groupName": group, "retryMaxTimes": 16}).encode()
            invoke(leader, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
            invoke(leader, RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode).encode())
        given = {
            "namesrv": cluster.namesrv,
            "topic": topic,
            "group": group,
            "out": self._out,
            "stop": self._stop,
        }
        self._process = driver.start(["pop", *options_of(**given)], self._out)

    def bodies(self) -> set[str]:
        return {line["body"] for line in read_report(self._out) if line["event"] == "message"}

    def end(self) -> None:
        self._stop.touch()
        finish(self._process, self._out)


def invoke(address: str, code: RequestCode, body: bytes) -> None:
    with Wire(address) as wire:
        answer = wire.invoke(code, body=body)
    assert answer.code == 0, answer.remark


def topic_queues(cluster: Cluster, topic: str) -> list[tuple[str, int]]:
    """The broker and the end of each queue."""
    view = json.loads(run_tool(cluster, "topic", "show", topic, "--json"))
    return [(queue["brokerName"], queue["maxOffset"]) for queue in view["queues"]]


async def test_a_group_is_added_and_the_first_one_drained_while_stock_clients_go_on(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path, nodes=1, groups=2)
    cluster.group_count = 1
    driver, out, stop = java_driver(JAVA, tmp_path), tmp_path / "sends.jsonl", tmp_path / "stop"
    given: dict[str, Any] = {"namesrv": cluster.namesrv, "topic": "Moving"}
    arguments = options_of(
        **given, group="MovingProducers", poll_ms=500, timeout_ms=3_000, out=out, stop=stop
    )
    read = driver.folder / "read.jsonl"
    done = tmp_path / "done"
    limits = {"quiet_ms": 0, "limit_ms": 180_000, "stop": done}
    try:
        cluster.start()
        producer = driver.start(["stream", *arguments], out)
        consumer = driver.start(
            ["consume", *options_of(**given, group="MovingConsumers", poll_ms=500, out=read, **limits)], read
        )
        try:
            await wait_sends(out, SENDS)
            await asyncio.to_thread(run_command, cluster, "add")
            await wait_sends(out, SENDS)
            cluster.take_added()
            assert leader_of(cluster, "broker-b")[1] > SENDS / 4, "it gets its share of the sends"
            await asyncio.to_thread(run_command, cluster, "drain", "broker-a", "--yes")
            refused = await asyncio.to_thread(run_command, cluster, "remove", "broker-a", code=1)
            assert "broker-a is not drained" in refused
            await asyncio.to_thread(
                wait_for, "nothing is left", lambda: is_left(cluster, "broker-a"), LIMIT_S
            )
            await asyncio.to_thread(run_command, cluster, "remove", "broker-a", "--force")
            await asyncio.to_thread(wait_for, "n0 is stopped", lambda: cluster.has_ended("n0"), LIMIT_S)
            await wait_sends(out, SENDS)
        finally:
            stop.touch()
            sends = await asyncio.to_thread(finish, producer, out)
            # A consumer looks for queues of a new group each 20 s.
            await asyncio.to_thread(wait_for, "all is consumed", lambda: has_all(read, sends), LIMIT_S)
            done.touch()
            await asyncio.to_thread(finish, consumer, read)
    finally:
        cluster.stop()
    assert [row for row in sends if row["status"] != "SEND_OK"] == []


def has_all(read: Path, sends: Report) -> bool:
    """Whether a consumer has reported all that was sent."""
    return {row["number"] for row in sends} <= {int(row["number"]) for row in read_report(read)}


def run_command(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """`ledgermq replication …`, and what it says."""
    folder = ["--data", str(cluster.data)] if arguments[0] in ("add", "remove") else []
    return run_tool(cluster, "replication", *arguments, *folder, code=code)


def run_tool(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """`ledgermq …`, and what it says."""
    command = [str(COMMAND), *arguments, "--namesrv", cluster.namesrv]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def is_left(cluster: Cluster, group: str) -> bool:
    """Whether producers and consumers have left it. (That it must be quiet for a minute is waited for in no
    test.)
    """
    draining = run_command(cluster, "left", group, "--json", code=1)
    view = json.loads(draining)
    return view["quietMs"] > QUIET_MS and len(view["reasons"]) == 1


def consume(driver: Any, given: dict[str, Any], count: int) -> Report:
    out = driver.folder / "consumed.jsonl"
    limits = {"count": count, "quiet_ms": 3_000, "limit_ms": 60_000}
    report: Report = driver.run(
        ["consume", *options_of(**given, group="TwoGroupsConsumers", out=out, **limits)], out
    )
    return report
