"""Several groups: a producer with its default settings goes on without a failed send when a leader dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.integration.client_runs import Report, finish, java_driver, read_report
from tests.integration.cluster import Cluster
from tests.integration.conftest import Measured
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
JAVA = "5.5.0"
SENDS = 200
LIMIT_S = 60.0
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


def consume(driver: Any, given: dict[str, Any], count: int) -> Report:
    out = driver.folder / "consumed.jsonl"
    limits = {"count": count, "quiet_ms": 3_000, "limit_ms": 60_000}
    report: Report = driver.run(
        ["consume", *options_of(**given, group="TwoGroupsConsumers", out=out, **limits)], out
    )
    return report
