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
LIMIT_S = 60.0
PATIENCE_S = 10.0
"""How long a viewer waits for an answer while a broker hangs: far beyond what is promised."""


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


@pytest.fixture(scope="module")
def stock_of(cluster: Cluster, name: str) -> tuple[str, str, str]:
    """A topic with a message, a group with a dead-letter topic, and the message's id."""
    topic, group = f"stopped-{name}", f"stopped-{name}"
    headers = {"X-LedgerMQ-Request": "1"}
    with httpx.Client(base_url=f"{cluster.admin}/api/v1", headers=headers, timeout=LIMIT_S) as api:
        for made in (topic, f"%DLQ%{group}"):
            answered(api.post("/topics", json={"name": made, "readQueues": 2, "writeQueues": 2}))
            wait_for("a route", partial(is_routed, api, made), LIMIT_S)
        answered(api.put(f"/consumer-groups/{group}", params={"dryRun": False}, json={}))
        sent = answered(api.post(f"/topics/{topic}/messages", json={"text": "one", "keys": ["stopped"]}))
        (outcome,) = sent["outcomes"]
        window = wait_for("the message", lambda: found(api, topic), LIMIT_S)
    assert outcome["ok"]
    return topic, group, window[0]["id"]


def is_routed(api: httpx.Client, topic: str) -> bool:
    return api.get(f"/topics/{topic}/route").is_success


def found(api: httpx.Client, topic: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = answered(api.get("/messages", params={"topic": topic}))["items"]
    return items


def paths(topic: str, group: str, message_id: str, address: str, broker_name: str) -> list[str]:
    """Every route that asks brokers; `address` is of one that answers."""
    return [
        "/cluster",
        "/brokers",
        *(f"/brokers/{address}{part}" for part in ("", "/runtime", "/storage", "/config")),
        "/topics",
        *(f"/topics/{topic}{part}" for part in ("", "/queues", "/stats", "/route")),
        "/producer-groups",
        "/consumer-groups",
        *(f"/consumer-groups/{group}{part}" for part in ("", "/members", "/progress")),
        f"/messages?topic={topic}",
        f"/messages?topic={topic}&from=1&tag=none",
        f"/messages?topic={topic}&key=stopped",
        f"/messages?topic={topic}&brokerName={broker_name}&queueId=0&offset=0",
        *(f"/messages/{message_id}{part}?topic={topic}" for part in ("", "/body", "/trace", "/track")),
        "/dlq",
        *(f"/dlq/{group}{part}" for part in ("", "/messages")),
        "/doctor",
        f"/replication/{broker_name}",
        "/name-server",
        *("/access", "/users", "/policies"),
        "/history",
    ]


@pytest.mark.parametrize("role", ["FOLLOWER", "LEADER"])
def test_no_route_waits_for_a_broker_that_hangs(
    cluster: Cluster, stock_of: tuple[str, str, str], measured: Measured, role: str
) -> None:
    statuses = wait_for("all nodes", lambda: whole(cluster), LIMIT_S)
    stopped = next(node_id for node_id, status in statuses.items() if status["role"] == role)
    other = next(node_id for node_id in statuses if node_id != stopped)
    broker_name = statuses[stopped]["brokerName"]
    asked = paths(*stock_of, cluster.address(other), broker_name)
    with httpx.Client(base_url=f"{cluster.admin}/api/v1", timeout=PATIENCE_S) as viewer:
        wait_for("all answers", lambda: all(look(viewer, path).is_success for path in asked), LIMIT_S)
        cluster.kill(stopped, signal.SIGSTOP)
        try:
            # At first nobody knows it, and without a leader some have nobody to ask; none waits longer.
            first = {path: look(viewer, path) for path in asked}
            assert {answer.status_code for answer in first.values()} <= {200, 503}
            slowest = max(first, key=lambda path: first[path].elapsed)
            measured(f"slowest beside a hanging {role}, s", (slowest, first[slowest].elapsed.total_seconds()))
            wait_for("a leader", lambda: is_led(viewer, cluster.address(stopped)), LIMIT_S)
            then = wait_for("all answers beside it", lambda: all_answers(viewer, asked), LIMIT_S)
            slowest = max(then, key=lambda path: then[path].elapsed)
            measured(
                f"slowest once it is known, s ({role})", (slowest, then[slowest].elapsed.total_seconds())
            )
            (row,) = [row for row in then["/brokers"].json()["items"] if row["state"] == "down"]
            assert row["address"] == cluster.address(stopped)
        finally:
            cluster.resume(stopped)
        wait_for("all nodes", lambda: whole(cluster), LIMIT_S)
        # The service leaves a broker that was silent alone for some seconds; those who ask next need it.
        wait_for("no part missing", lambda: not answered(viewer.get("/brokers"))["isPartial"], LIMIT_S)


def all_answers(viewer: httpx.Client, paths: list[str]) -> dict[str, httpx.Response] | None:
    """None while one of them is refused: there may be another election."""
    answers = {path: look(viewer, path) for path in paths}
    return answers if all(answer.is_success for answer in answers.values()) else None


def look(viewer: httpx.Client, path: str) -> httpx.Response:
    """Asks again when it is told that it asks too much: expensive queries have a rate."""
    answer = viewer.get(path)
    while answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        time.sleep(int(answer.headers["Retry-After"]))
        answer = viewer.get(path)
    return answer


def whole(cluster: Cluster) -> dict[str, dict[str, Any]] | None:
    """Every node's status, once all answer and one leads."""
    statuses = cluster.statuses()
    is_led = any(status["isWritable"] for status in statuses.values())
    return statuses if is_led and len(statuses) == len(cluster.nodes) else None


def is_led(viewer: httpx.Client, stopped: str) -> bool:
    """Whether the service knows who takes the writes, and that it is not the stopped one."""
    rows = answered(viewer.get("/brokers"))["items"]
    by_state = {row["address"]: row for row in rows}
    return by_state[stopped]["state"] == "down" and any(row["isWritable"] for row in rows)
