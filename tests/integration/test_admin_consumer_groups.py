"""Consumer groups through the admin service, with stock consumers that really go where they are sent."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.integration.client_runs import Driver, Report, finish, python_driver, read_report
from tests.integration.cluster import Cluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
COUNT = 40
LIMIT_S = 120.0
"""A stock client commits every 5 s, and goes on 10 s after it was told to go elsewhere."""


class Admin:
    """The cluster's admin service."""

    def __init__(self, cluster: Cluster) -> None:
        headers = {"X-LedgerMQ-Request": "1"}
        url = f"{cluster.admin}/api/v1"
        self._http = httpx.Client(base_url=url, headers=headers, timeout=20)

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        answer = self._http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def status(self, path: str) -> int:
        return self._http.get(path).status_code

    def change(self, method: str, path: str, body: object = None) -> Any:
        """Previewed, then made as confirmed; both results."""
        preview = self._http.request(method, path, json=body, params={"dryRun": "true"})
        assert preview.status_code == 200, preview.text
        query = {"dryRun": "false"}
        if preview.json()["confirmation"]:
            query["confirmation"] = preview.json()["confirmation"]
        made = self._http.request(method, path, json=body, params=query)
        assert made.status_code == 200, made.text
        assert all(outcome["ok"] for outcome in made.json()["outcomes"]), made.text
        return preview.json()


class Consumers:
    """Stock consumers of one topic, each in a process of its own."""

    def __init__(self, driver: Driver, namesrv: str, topic: str) -> None:
        self._driver = driver
        self._namesrv = namesrv
        self._topic = topic
        self._started = 0

    def produce(self) -> None:
        self._call("produce", "producer", "--sync", str(COUNT))

    def _start(self, action: str, group: str, *options: str) -> tuple[subprocess.Popen[bytes], Path]:
        out = self._driver.folder / f"{action}-{self._started}.jsonl"
        self._started += 1
        arguments = [action, "--namesrv", self._namesrv, "--topic", self._topic, "--group", group]
        return self._driver.start([*arguments, "--out", str(out), *options], out), out

    def _call(self, action: str, group: str, *options: str) -> Report:
        return finish(*self._start(action, group, *options))

    @contextmanager
    def running(self, group: str) -> Iterator[Path]:
        """One that runs until it is left; where it writes what it gets."""
        limits = ("--count", "1000000", "--limit-s", "400", "--threads", "1")
        process, out = self._start("consume", group, *limits)
        try:
            yield out
        finally:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    made = Admin(cluster)
    yield made
    made.close()


@pytest.fixture(scope="module")
def topic(name: str) -> str:
    return f"Groups{name}"


@pytest.fixture(scope="module")
def consumers(cluster: Cluster, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Consumers:
    """With COUNT messages in the topic."""
    made = Consumers(python_driver(tmp_path_factory.mktemp("groups")), cluster.namesrv, topic)
    made.produce()
    return made


def got(out: Path) -> Counter[tuple[int, int]]:
    return Counter((row["queue"], row["offset"]) for row in read_report(out))


def lag(admin: Admin, group: str, topic: str) -> int | None:
    """None until it is known of every queue."""
    if admin.status(f"/consumer-groups/{group}") != 200:
        return None
    shown = admin.get(f"/consumer-groups/{group}/progress", topic=topic, clients=False)["topics"]
    if sum(each["unknownQueues"] for each in shown):
        return None
    return sum(int(each["lag"]) for each in shown)


def test_groups_are_shown_and_moved(admin: Admin, consumers: Consumers, topic: str, name: str) -> None:
    group, other = f"Group{name}", f"Other{name}"
    with consumers.running(group) as out:
        wait_for("everything is consumed", lambda: got(out).total() == COUNT, LIMIT_S)
        wait_for("the offsets are committed", lambda: lag(admin, group, topic) == 0, LIMIT_S)
        _check_online(admin, group, topic)
        preview = admin.change(
            "POST", f"/consumer-groups/{group}/offsets/reset", {"topic": topic, "to": "earliest"}
        )
        again = sum(
            int(effect["after"].split()[1]) for effect in preview["effects"] if "again" in effect["after"]
        )
        assert again == COUNT
        wait_for("everything is consumed again", lambda: got(out).total() == 2 * COUNT, LIMIT_S)
        assert set(got(out).values()) == {2}
        wait_for("the new offsets are committed", lambda: lag(admin, group, topic) == 0, LIMIT_S)
    members = wait_for(
        "the consumer is gone",
        lambda: (seen := admin.get(f"/consumer-groups/{group}/members"))["presence"] == "offline" and seen,
        LIMIT_S,
    )
    assert members["members"] == []
    left = _reset_one_queue(admin, group, topic)
    admin.change("POST", f"/consumer-groups/{group}/offsets/clone", {"targetGroup": other, "topic": topic})
    assert lag(admin, group, topic) == len(left)
    for each in (group, other):
        with consumers.running(each) as out:
            wait_for("the queue is read from there", lambda out=out: got(out).total() >= len(left), LIMIT_S)  # type: ignore[misc]
            assert set(got(out)) == left
    admin.change("DELETE", f"/consumer-groups/{other}")
    assert admin.status(f"/consumer-groups/{other}") == 404


def listed(admin: Admin, group: str) -> list[str]:
    """The presence of the groups of this name in the list of groups."""
    return [item["presence"] for item in admin.get("/consumer-groups", name=group)["items"]]


def _check_online(admin: Admin, group: str, topic: str) -> None:
    """The group as it is shown while its consumer runs."""
    view = admin.get(f"/consumer-groups/{group}")
    assert (view["presence"], view["memberCount"], view["isBroadcast"]) == ("online", 1, False)
    (member,) = view["members"]
    assert member["language"] == "CPP"
    wait_for("the list, at most 10 s old, has it", lambda: listed(admin, group) == ["online"], LIMIT_S)
    progress = admin.get(f"/consumer-groups/{group}/progress", topic=topic)
    (shown,) = progress["topics"]
    assert {queue["clientId"] for queue in shown["queues"]} == {member["clientId"]}
    assert sum(queue["maxOffset"] for queue in shown["queues"]) == COUNT
    running = admin.get(f"/consumer-groups/{group}/members/{quote(member['clientId'])}/running")
    assert any(queue["topic"] == topic for queue in running["queues"])


def _reset_one_queue(admin: Admin, group: str, topic: str) -> set[tuple[int, int]]:
    """Moves the fullest queue back by two, while nobody runs; the messages that are to be read again."""
    (shown,) = admin.get(f"/consumer-groups/{group}/progress", topic=topic)["topics"]
    queue = max(shown["queues"], key=lambda queue: queue["maxOffset"])
    offset = queue["maxOffset"] - 2
    wanted = {"brokerName": queue["brokerName"], "queueId": queue["queueId"], "offset": offset}
    body = {"topic": topic, "to": "offset", "queues": [wanted]}
    preview = admin.change("POST", f"/consumer-groups/{group}/offsets/reset", body)
    assert [effect["after"] for effect in preview["effects"]] == [f"{offset}, 2 messages again"]
    return {(queue["queueId"], offset), (queue["queueId"], offset + 1)}
