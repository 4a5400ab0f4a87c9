"""The command line against a real cluster: asked directly, and through its admin service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.integration.client_runs import ROOT
from tests.integration.cluster import Cluster, admin_service
from tests.integration.waiting import wait_for
from tests.unit.ledgermq.running import CommandLine, Ran

pytestmark = pytest.mark.integration
LIMIT_S = 60.0
HURRY = 15
"""Rounds of four expensive queries."""


class Operator:
    """Types commands, with the options that say whom to ask."""

    def __init__(self, line: CommandLine, whom: tuple[str, str], way: str) -> None:
        self._line = line
        self.whom = whom
        self.way = way

    def __call__(self, *args: str, code: int = 0) -> Ran:
        ran = self._line(*args, *self.whom)
        assert ran.code == code, (args, ran)
        return ran


@pytest.fixture(params=["brokers", "service"])
def operator(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Operator:
    whom = ("--namesrv", cluster.namesrv) if request.param == "brokers" else ("--admin", cluster.admin)
    return Operator(CommandLine(monkeypatch, capsys), whom, request.param)


def test_a_topic_from_its_creation_to_its_end(operator: Operator, name: str) -> None:
    topic, group = f"CliTopic-{operator.way}-{name}", f"cli-{operator.way}-{name}"
    operator("topic", "create", topic, "--queues", "2")
    exists = operator("topic", "create", topic, code=1)
    assert exists.err.startswith("error: ")
    assert "exists already" in exists.err
    (row,) = operator("topic", "list", topic, "--json").json["items"]
    assert (row["name"], row["readQueues"], row["canWrite"]) == (topic, 2, True)
    assert "would change" in operator("topic", "edit", topic, "--perm", "r", "--dry-run").out

    for number in range(3):
        sent = operator("message", "send", topic, f"hello {number}", "--key", f"k{number}", "--json").json
        assert sent["outcomes"][0]["ok"]
    found = wait_for(
        "the message in the index",
        lambda: operator("message", "find", topic, "--key", "k1", "--json").json["items"],
        LIMIT_S,
    )
    assert "hello 1" in operator("message", "show", found[0]["id"]).out
    assert operator("topic", "show", topic, "--json").json["messageCount"] == 3
    assert topic in operator("topic", "route", topic).out

    operator("group", "create", group, "--retry-max", "3")
    reset = ("offset", "reset", group, topic, "--to", "earliest")
    assert operator(*reset, code=2).err == "error: this needs --yes; --dry-run shows what it would do.\n"
    assert operator(*reset, "--yes", "--json").json["action"] == "offset.reset"
    assert operator("offset", "show", group, "--json").json["lag"] == 3
    operator("offset", "skip", group, "--topic", topic, "--yes")
    assert operator("offset", "show", group, "--json").json["lag"] == 0
    assert operator("group", "show", group, "--json").json["presence"] == "offline"
    no_member = operator("group", "running", group, code=1)
    assert no_member.err == f"error: no consumer of {group} is connected.\n"

    operator("group", "delete", group, "--yes")
    operator("topic", "delete", topic, "--yes")
    gone = operator("topic", "show", topic, code=1)
    assert gone.err == f"error: The topic {topic} does not exist.\n"


def test_a_topic_made_again_is_empty_from_offset_0(
    operator: Operator,
    cluster: Cluster,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On every node, also behind a change of the leader; deleting and creating is how people empty topics."""
    topic = f"CliEmptied-{operator.way}-{name}"
    for life, count in enumerate((5, 2)):
        operator("topic", "create", topic, "--queues", "1")
        assert operator("topic", "show", topic, "--json").json["messageCount"] == 0
        for number in range(count):
            sent = operator("message", "send", topic, f"{life}-{number}", "--key", "k", "--json").json
            assert sent["outcomes"][0]["ok"]
        assert operator("topic", "show", topic, "--json").json["messageCount"] == count
        found = wait_for(
            "the messages in the index",
            lambda: operator("message", "find", topic, "--key", "k", "--json").json["items"],
            LIMIT_S,
        )
        assert len(found) <= count
        group = f"cli-emptied-{operator.way}-{name}-{life}"
        line = CommandLine(monkeypatch, capsys)
        whom = ("--group", group, "--count", str(count), "--namesrv", cluster.namesrv)
        read = line("consume", topic, *whom).out.split()
        assert read == [f"{life}-{number}" for number in range(count)]
        operator("topic", "delete", topic, "--yes")


def test_looks_at_the_cluster(operator: Operator, cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    view = operator("status", "--json").json
    assert [group["leaderId"] for group in view["groups"]] == [leader]
    nodes = operator("node", "list").out
    assert all(node.remoting in nodes for node in cluster.nodes.values())
    assert operator("node", "show", leader, "--json").json["node"]["role"] == "LEADER"
    assert "there is no node n9" in operator("node", "show", "n9", code=1).err
    report = operator("doctor", "--json").json
    assert report["lookedAt"]["nodes"] == len(cluster.nodes)
    strange = {
        "disk-near-full",
        "memory-low",
        "consumer-dead",
        "dlq-growing",
        "elections-frequent",
        "lag-high",
    }
    assert {finding["code"] for finding in report["findings"]} <= strange, "of this machine and other tests"
    assert operator("watch").out.count("committed") >= 1
    settings = operator("config", "get", leader, "listenPort", "--json").json["settings"]
    assert [setting["value"] for setting in settings] == [cluster.address(leader).rpartition(":")[2]]
    assert operator("config", "set", leader, "noSuchKey=1", code=2).err
    assert "leads already" in operator("transfer-leader", leader, code=1).err
    other = next(node for node in cluster.nodes if node != leader)
    assert other in operator("transfer-leader", other, "--dry-run").out
    assert operator("dlq", "list", "--json").json["page"] == 1
    assert operator("dlq", "show", "no-such-group", code=1).err.startswith("error: ")


def test_doctor_names_the_process_of_a_node_that_hangs(operator: Operator, cluster: Cluster) -> None:
    leader = cluster.wait_leader()
    hung = next(node_id for node_id in cluster.nodes if node_id != leader)
    cluster.kill(hung, signal.SIGSTOP)
    try:
        findings = operator("doctor", "--json", code=1).json["findings"]
        (found,) = [each for each in findings if each["subject"].startswith(f"{hung} ")]
        assert found["code"] == "node-hangs"
        pid = cluster.nodes[hung].pid
        assert f"pid {pid}, is stopped and still holds its ports" in found["remedy"]
        assert found["remedy"].find(f"kill -CONT {pid}") < found["remedy"].find(f"`ledgermq node {hung}`")
    finally:
        cluster.resume(hung)
    wait_for("the node answers", lambda: cluster.status(hung), LIMIT_S)


def test_commands_of_one_person_are_all_answered(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, as fast as they end, through a service with the bounds that everyone has."""
    run, topic = CommandLine(monkeypatch, capsys), f"CliHurry-{name}"
    with admin_service(cluster) as port:
        person = Operator(run, ("--admin", f"http://127.0.0.1:{port}"), "service")
        wait_for("the admin service", lambda: run("status", *person.whom).code == 0, LIMIT_S)
        person("topic", "create", topic)
        person("message", "send", topic, "hello", "--key", "k")
        find = ("message", "find", topic, "--key", "k", "--json")
        found = wait_for("the message in the index", lambda: person(*find).json["items"], LIMIT_S)
        for _ in range(HURRY):
            assert "unknown" not in person("message", "show", found[0]["id"]).out.partition("consumed by")[2]
            person("topic", "show", topic)
            person("watch")
        person("topic", "delete", topic, "--yes")


def test_changes_through_the_service_are_in_its_audit_log(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = CommandLine(monkeypatch, capsys)
    topic = f"CliAudited-{name}"
    assert run("topic", "create", topic, "--admin", cluster.admin).code == 0
    assert run("topic", "delete", topic, "--yes", "--admin", cluster.admin).code == 0
    entries = run("audit", "--json", "--admin", cluster.admin).json["items"]
    told = [(entry["action"], entry["outcome"]) for entry in entries if entry["target"] == topic]
    assert told == [("topic.delete", "applied"), ("topic.create", "applied")]


def test_as_a_process_of_its_own(cluster: Cluster) -> None:
    program = "from ledgermq.cli import main; main()"
    command = [sys.executable, "-c", program, "status", "--json", "--namesrv", cluster.namesrv]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    status = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
    assert (status.returncode, status.stderr) == (0, "")
    assert json.loads(status.stdout)["groups"][0]["state"] == "writable"
