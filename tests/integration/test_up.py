"""`ledgermq up` as an operator meets it: READY, status, a killed leader, a clean stop, data that stays."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from admin_api.__main__ import NICE_MAX
from ledgermq.local.processes import ADMIN_NICE
from tests.integration.cluster import COMMAND, Cluster
from tests.integration.waiting import wait_for

pytestmark = pytest.mark.integration
LIMIT_S = 30.0


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command line to its end."""
    return subprocess.run(
        [str(COMMAND), *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, not started yet."""
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.stop()


def group_view(cluster: Cluster) -> dict[str, Any]:
    (group,) = httpx.get(f"{cluster.admin}/api/v1/cluster", timeout=10).json()["groups"]
    assert isinstance(group, dict)
    return group


def states(cluster: Cluster) -> dict[str, str]:
    return {node["id"]: node["state"] for node in group_view(cluster)["nodes"]}


def test_up_killed_leader_is_reported_replaced_and_comes_back(own: Cluster) -> None:
    own.start(admin=True)
    nice = {name: process.nice() for name, process in own.processes().items()}
    assert nice["n0"] == nice["namesrv"]
    assert nice["admin_api"] == min(nice["n0"] + ADMIN_NICE, NICE_MAX), "the page gives way to the brokers"
    status = run("status", "--namesrv", own.namesrv, "--json")
    assert status.returncode == 0, status.stderr
    (group,) = json.loads(status.stdout)["groups"]
    roles = sorted(node["role"] for node in group["nodes"])
    assert (group["state"], roles) == ("writable", ["FOLLOWER", "FOLLOWER", "LEADER"])
    assert httpx.get(f"{own.admin}/readyz", timeout=10).json()["leaders"] == {
        group["group"]: group["leaderId"]
    }

    dead = own.wait_leader()
    pid = own.nodes[dead].pid
    own.kill(dead)
    wait_for(
        "a new leader in `status`", lambda: run("status", "--namesrv", own.namesrv).returncode == 0, LIMIT_S
    )
    assert own.wait_leader() != dead
    wait_for(f"{dead} shown as down", lambda: states(own)[dead] == "down", LIMIT_S)
    reported = (own.folder / "up-0.err").read_text()
    assert f"{dead} (pid {pid}) was ended by SIGKILL." in reported
    assert f"ledgermq node {dead} --data {own.data}" in reported

    own.restart(dead)
    wait_for("all up", lambda: set(states(own).values()) == {"up"}, LIMIT_S)


def test_up_sigterm_leaves_no_process_and_the_data_stays(own: Cluster) -> None:
    own.start(admin=True)
    sent = run("produce", "Kept", "--namesrv", own.namesrv, stdin="one\nzwölf\n")
    assert sent.returncode == 0, sent.stderr
    processes = list(own.processes().values())
    assert len(processes) == 6
    own.stop()
    assert [process for process in processes if process.is_running()] == []
    assert (own.folder / "up-0.err").read_text().endswith("Stopping ...\nStopped.\n")
    open_to_others = [path for path in own.data.rglob("*") if path.lstat().st_mode & 0o077]
    assert open_to_others == [], "messages and logs are not for other users of the machine"

    refused = run("up", "--data", str(own.data), "--nodes", "5")
    assert refused.returncode == 1
    assert "has 3 nodes, --nodes 5 conflicts" in refused.stderr

    own.start()
    read = run("consume", "Kept", "--namesrv", own.namesrv, "--count", "2")
    assert sorted(read.stdout.splitlines()) == ["one", "zwölf"]


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel's parent-death signal is Linux's"
)
def test_up_killed_itself_takes_its_processes_along(own: Cluster) -> None:
    own.start()
    processes = own.processes()
    processes["up"].kill()
    _, alive = psutil.wait_procs(list(processes.values()), timeout=LIMIT_S)
    assert alive == []


def test_up_restart_brings_a_killed_node_back(own: Cluster) -> None:
    own.start(restart=True, admin=True)
    follower = next(node_id for node_id in own.nodes if node_id != own.wait_leader())
    pid = own.nodes[follower].pid
    own.kill(follower)

    def is_back() -> bool:
        (node,) = [node for node in group_view(own)["nodes"] if node["id"] == follower]
        return bool(node["state"] == "up" and node["pid"] != pid)

    wait_for(f"{follower} runs again", is_back, LIMIT_S)
    assert f"{follower} is started again in 0.5 s." in (own.folder / "up-0.err").read_text()


def test_event_stream_shows_a_leader_dying_and_ends_with_the_process(own: Cluster) -> None:
    own.start(admin=True)
    dead = own.wait_leader()
    with httpx.stream("GET", f"{own.admin}/api/v1/cluster/events", timeout=LIMIT_S) as stream:
        data = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: "))
        assert json.loads(next(data))["groups"][0]["leaderId"] == dead
        own.kill(dead)
        for text in data:
            (group,) = json.loads(text).get("groups", [{"leaderId": dead}])  # none: nothing changed
            if group["leaderId"] not in (None, dead):
                break
        processes = own.processes()
        processes["admin_api"].terminate()
        for _ in data:
            pass
    assert processes["admin_api"].wait(timeout=LIMIT_S) in (0, None)
