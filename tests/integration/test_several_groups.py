"""Several groups: a producer with its default settings goes on without a failed send when a leader dies, and
while groups come and go.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client_runs import ROOT, Report, finish, java_driver, read_report
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.conftest import Measured
from tests.integration.waiting import wait_for

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
        own.start()
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
    limits = {"count": SENDS, "quiet_ms": 5_000, "limit_ms": 120_000}
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
            consumed = await asyncio.to_thread(finish, consumer, read)
    finally:
        cluster.stop()
    assert [row for row in sends if row["status"] != "SEND_OK"] == []
    assert {row["number"] for row in sends} <= {int(row["number"]) for row in consumed}


def run_command(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """`ledgermq replication …`, and what it says."""
    folder = ["--data", str(cluster.data)] if arguments[0] in ("add", "remove") else []
    command = [str(COMMAND), "replication", *arguments, *folder, "--namesrv", cluster.namesrv]
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
