"""The admin service over a real cluster: topics, settings, figures, and a broker that hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Cluster
from tests.integration.conftest import Measured
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
LIMIT_S = 20.0


@pytest.fixture
def api(cluster: Cluster) -> Iterator[httpx.Client]:
    headers = {"X-LedgerMQ-Request": "1"}
    with httpx.Client(base_url=f"{cluster.admin}/api/v1", headers=headers, timeout=LIMIT_S) as client:
        yield client


def answered(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def confirmed(api: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    """The change, after its preview was read."""
    preview = answered(api.request(method, path, json=body, params={"dryRun": True}))
    agreed = {"dryRun": False, "confirmation": preview["confirmation"]}
    return answered(api.request(method, path, json=body, params=agreed))


def all_have(expected: dict[str, str], value_of: Callable[[str], str]) -> bool:
    return {node_id: value_of(node_id) for node_id in expected} == expected


def broker_states(api: httpx.Client) -> dict[str, str]:
    return {row["address"]: row["state"] for row in answered(api.get("/brokers"))["items"]}


def test_topic_lives_from_its_making_to_its_end(cluster: Cluster, api: httpx.Client, name: str) -> None:
    topic = f"admin-{name}"
    made = answered(api.post("/topics", json={"name": topic, "readQueues": 4, "writeQueues": 4}))
    assert [outcome["ok"] for outcome in made["outcomes"]] == [True]
    edited = answered(api.patch(f"/topics/{topic}", json={"attributes": {"retention.ms": "3600000"}}))
    assert edited["isDestructive"] is True, "messages older than that are no longer shown"
    confirmed(api, "PATCH", f"/topics/{topic}", {"attributes": {"retention.ms": "3600000"}})
    (config,) = answered(api.get(f"/topics/{topic}"))["configs"]
    assert (config["readQueues"], config["retentionMs"]) == (4, 3_600_000)
    wait_for("a route", lambda: api.get(f"/topics/{topic}/route").is_success, LIMIT_S)
    queues = answered(api.get(f"/topics/{topic}/queues"))["queues"]
    assert [(q["queueId"], q["maxOffset"], q["lastMessageAtMs"]) for q in queues] == [
        (number, 0, None) for number in range(4)
    ]
    assert topic in [row["name"] for row in answered(api.get(f"/topics?name={topic}"))["items"]]
    assert answered(api.get(f"/topics/{topic}/stats"))["putMessages"] is None
    confirmed(api, "DELETE", f"/topics/{topic}")
    answered(api.get(f"/topics/{topic}"), 404)
    wait_for("no route", lambda: api.get(f"/topics/{topic}/route").status_code == 404, LIMIT_S)


def test_settings_change_on_all_nodes_and_go_back(cluster: Cluster, api: httpx.Client) -> None:
    def value_of(node_id: str) -> str:
        told = answered(api.get(f"/brokers/{cluster.address(node_id)}/config"))["settings"]
        return str({setting["key"]: setting["value"] for setting in told}["groupsMax"])

    before = value_of("n0")
    wanted = str(int(before) + 1)
    for value in (wanted, before):
        path = f"/brokers/{cluster.address('n1')}/config"
        confirmed(api, "PATCH", path, {"settings": {"groupsMax": value}})
        expected = dict.fromkeys(cluster.nodes, value)
        wait_for(f"groupsMax={value} everywhere", partial(all_have, expected, value_of), LIMIT_S)
    problem = answered(api.patch(path, json={"settings": {"groupMax": "1"}}), 400)
    assert "near: groupsMax" in problem["detail"]


def test_figures_and_storage_of_every_node(cluster: Cluster, api: httpx.Client) -> None:
    rows = answered(api.get("/brokers"))["items"]
    assert sorted(row["role"] for row in rows) == ["FOLLOWER", "FOLLOWER", "LEADER"]
    for row in rows:
        storage = answered(api.get(f"/brokers/{row['address']}/storage"))
        assert storage["log"]["sizeBytes"] >= 0
        assert 0 < storage["disk"]["freeBytes"] < storage["disk"]["totalBytes"]
        assert storage["log"]["fileCount"] >= 0


def test_broker_that_hangs_makes_its_part_unknown_and_holds_up_nobody(
    cluster: Cluster, api: httpx.Client, measured: Measured
) -> None:
    follower = next(node_id for node_id, s in cluster.statuses().items() if s["role"] == "FOLLOWER")
    address = cluster.address(follower)
    wait_for("all nodes up", lambda: set(broker_states(api).values()) == {"up"}, LIMIT_S)
    cluster.kill(follower, signal.SIGSTOP)
    try:
        begun_s = time.monotonic()
        wait_for("the node is seen as silent", lambda: broker_states(api)[address] == "down", LIMIT_S)
        measured("a hanging broker is seen as such after, s", round(time.monotonic() - begun_s, 2))
        page = answered(api.get("/brokers"))
        (row,) = [row for row in page["items"] if row["address"] == address]
        assert (row["role"], row["putPerSecond"], row["isWritable"]) == (None, None, None)
        assert page["isPartial"] is True
        begun_s = time.monotonic()
        for path in ("/topics", "/producer-groups", "/brokers", "/cluster"):
            answered(api.get(path))
        measured("four answers beside a hanging broker take, s", round(time.monotonic() - begun_s, 3))
        assert answered(api.get("/topics"))["isPartial"] is False, "a follower is no part of it"
        answered(api.get(f"/brokers/{address}/runtime"), 503)
    finally:
        cluster.resume(follower)
    wait_for("the node is seen again", lambda: broker_states(api)[address] == "up", LIMIT_S)
