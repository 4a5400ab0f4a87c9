"""`ledgermq replication`: what is left in a group, and the plan of a local cluster."""

from pathlib import Path

import pytest

from broker.admin.types import GroupProgress, TopicProgress
from ledgermq.commands import replication
from ledgermq.local.foreground import locked
from ledgermq.local.plan import ClusterPlan, load_plan
from tests.unit.admin_api.fake_brokers import NAMESRV
from tests.unit.admin_api.test_draining import B, FakeGroups
from tests.unit.ledgermq.running import CommandLine, Ran


class ClosedGroups(FakeGroups):
    """As a client that commands make for themselves."""

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setattr(replication, "POLL_S", 0.0)
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> ClosedGroups:
    made = ClosedGroups()
    monkeypatch.setattr("admin_api.services.client_from", lambda *_: made)
    return made


def command(run: CommandLine, *args: str) -> Ran:
    return run("replication", *args, "--namesrv", NAMESRV)


def test_what_is_left_is_shown(run: CommandLine, groups: ClosedGroups) -> None:
    groups.consumers = {"billing": GroupProgress(topics={"orders": TopicProgress(lag=3)})}
    groups.left |= {"unread": {"%DLQ%billing": 2}, "unread_topics": 1}
    ran = command(run, "left", "broker-b")
    assert ran.code == 1
    assert "broker-b accepts messages; it is not drained." in ran.out
    assert "billing" in ran.out
    assert "%DLQ%billing" in ran.out
    groups.consumers, groups.left = {}, {**groups.left, "unread": {}, "unread_topics": 0}
    groups.brokers[B].settings["brokerPermission"] = "4"
    assert command(run, "left", "broker-b").code == 0


def test_drain_waits_until_nothing_is_left_and_fill_takes_it_back(
    run: CommandLine, groups: ClosedGroups
) -> None:
    groups.left |= {"quiet_ms": 5}
    asked = 0

    def progress(code: int) -> None:
        nonlocal asked
        asked += 1
        if asked > 3:
            groups.left |= {"quiet_ms": 60_000}

    groups.on_progress = progress
    ran = command(run, "drain", "broker-b", "--wait", "--yes")
    assert ran.code == 0, ran.err
    assert "Nothing is left in broker-b." in ran.err
    settings = groups.brokers[B].settings
    assert (settings["brokerPermission"], settings["refuseMessages"]) == ("4", "true")
    assert command(run, "fill", "broker-b").code == 0
    assert (settings["brokerPermission"], settings["refuseMessages"]) == ("6", "false")


def test_a_group_is_removed_when_it_is_drained_or_by_force(
    run: CommandLine, groups: ClosedGroups, tmp_path: Path
) -> None:
    plan = ClusterPlan(tmp_path, node_count=1, group_count=3)
    plan.save()
    refused = command(run, "remove", "broker-b", "--data", str(tmp_path))
    assert refused.code == 1
    assert "broker-b is not drained. It accepts messages." in refused.err
    assert load_plan(tmp_path) == plan
    groups.brokers[B].settings["brokerPermission"] = "4"
    assert command(run, "remove", "broker-b", "--data", str(tmp_path)).code == 0
    assert groups.brokers[B].settings["refuseMessages"] == "true"
    assert command(run, "remove", "broker-c", "--data", str(tmp_path), "--force").code == 0
    assert load_plan(tmp_path) == plan.without_group("broker-b").without_group("broker-c")
    assert command(run, "remove", "broker-a", "--data", str(tmp_path), "--force").code == 1


def test_a_group_is_added_to_a_cluster_that_runs(
    run: CommandLine, groups: ClosedGroups, tmp_path: Path
) -> None:
    ClusterPlan(tmp_path, node_count=1, has_replication_tls=False).save()
    groups.brokers["127.0.0.1:10911"].add_topic("orders")
    stopped = command(run, "add", "--data", str(tmp_path))
    assert (stopped.code, "does not run" in stopped.err) == (2, True)
    with locked(tmp_path):
        ran = command(run, "add", "--data", str(tmp_path))
    assert ran.code == 0, ran.err
    plan = load_plan(tmp_path)
    assert plan is not None
    assert [group.name for group in plan.groups] == ["broker-a", "broker-b"]
    assert (tmp_path / "n10" / "broker.toml").exists()
    assert [(address, made.ext_fields["topic"]) for address, made in groups.made] == [(B, "orders")]


def test_a_new_group_without_a_leader_is_said(
    run: CommandLine, groups: ClosedGroups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "START_LIMIT_S", 0.0)
    ClusterPlan(tmp_path, node_count=1, has_replication_tls=False).save()
    with locked(tmp_path):
        ran = command(run, "add", "--data", str(tmp_path))
    assert ran.code == 1
    assert "copy-settings" in ran.err
