"""What stands in the way of an upgrade, its steps, and its end, over a group of three brokers without a
network.
"""

from typing import Any

import orjson
import pytest

from dledger.core.membership import CHANGING_MEMBERS_LEVEL, FIXED_MEMBERS_LEVEL
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from telemetry.release import own_release
from tests.unit.admin_api.node_samples import ADDRESSES
from tests.unit.admin_api.serving import answered, asking
from tests.unit.admin_api.test_replication import GROUP, IDS, READY, FakeGroup

FINISH = f"/replication/{GROUP}/format-level"
NEW = {
    "release": own_release(),
    "protocol_version": 3,
    "format_level": FIXED_MEMBERS_LEVEL,
    "format_level_max": CHANGING_MEMBERS_LEVEL,
}
"""What a node of this release says in a group of level 2; one of 0.1.0 says nothing of it."""


class UpgradedGroup(FakeGroup):
    """Members of `new` run this release, the others 0.1.0."""

    def __init__(self, *new: str, peers: dict[str, dict[str, Any]] | None = None) -> None:
        super().__init__({"n2": READY, **(peers or {})})
        self.refuses = False
        for node_id in new:
            self.node(node_id).update(NEW)

    def node(self, node_id: str) -> dict[str, Any]:
        return self.brokers[ADDRESSES[node_id]].facts

    def _answer(
        self, address: str, code: RequestCode, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if code is not RequestCode.LEDGERMQ_CHANGE_MEMBERS:
            return super()._answer(address, code, command, timeout_s)
        if self.refuses:
            return RemotingCommand(code=ResponseCode.NO_PERMISSION, remark="an earlier change is pending")
        wanted = orjson.loads(command.body)
        assert (wanted["change"], address) == ("format_level", ADDRESSES["n0"])
        for node_id in IDS:
            self.node(node_id)["format_level"] = wanted["level"]
        return RemotingCommand(code=0)


async def report_of(group: UpgradedGroup) -> Any:
    async with asking(group) as client:
        return answered(await client.get("/upgrade"))


def codes(report: Any) -> list[str]:
    return [finding["code"] for finding in report["findings"] if finding["severity"] == "error"]


async def test_the_leader_is_upgraded_last() -> None:
    report = await report_of(UpgradedGroup())
    (group,) = report["groups"]
    assert (report["isReady"], codes(report)) == (True, [])
    assert [step.partition(":")[0] for step in group["steps"]] == [
        "n1",
        "n2",
        "hand leadership over",
        "n0",
        "when you do not want to go back any more",
    ]
    assert [node["release"] for node in group["nodes"]] == ["0.1.0"] * 3
    assert (group["formatLevel"], group["levelToFinish"], group["hasMajorityToSpare"]) == (2, None, True)


async def test_what_is_done_is_no_step_any_more() -> None:
    (group,) = (await report_of(UpgradedGroup("n1")))["groups"]
    assert group["steps"][0].startswith("n2: stop it")
    assert group["levelToFinish"] is None, "n2 does not know the new formats"
    (group,) = (await report_of(UpgradedGroup(*IDS)))["groups"]
    assert (len(group["steps"]), group["levelToFinish"]) == (1, CHANGING_MEMBERS_LEVEL)
    finished = UpgradedGroup(*IDS)
    for node_id in IDS:
        finished.node(node_id)["format_level"] = CHANGING_MEMBERS_LEVEL
    (group,) = (await report_of(finished))["groups"]
    assert (group["steps"], group["levelToFinish"]) == ([], None)


async def test_no_node_is_stopped_without_a_majority_to_spare() -> None:
    group = UpgradedGroup()
    group.dead.add(ADDRESSES["n2"])
    assert codes(await report_of(group)) == ["no-majority-to-spare"]
    behind = {**READY, "push_state": "COMPARE"}
    report = await report_of(UpgradedGroup(peers={"n1": behind}))
    assert codes(report) == ["no-majority-to-spare"]
    assert "n1 is not in sync" in report["findings"][0]["sentence"]
    impaired = UpgradedGroup()
    impaired.node("n1")["impairment"] = "its disk is empty"
    assert codes(await report_of(impaired)) == ["no-majority-to-spare"]


async def test_a_group_without_a_leader_or_a_name_server_is_mended_first() -> None:
    group = UpgradedGroup()
    for node_id in IDS:
        group.node(node_id).update(role="CANDIDATE", is_writable=False, leader_id=None)
    assert "no-leader" in codes(await report_of(group))
    silent = UpgradedGroup()
    silent.dead.add("127.0.0.1:9876")
    assert codes(await report_of(silent))[:1] == ["name-server-down"]


async def test_formats_of_a_later_release_are_not_read() -> None:
    group = UpgradedGroup(*IDS)
    for node_id in IDS:
        group.node(node_id).update(format_level=9, format_level_max=9)
    assert codes(await report_of(group)) == ["format-too-new"]


async def test_plain_replication_between_machines_does_not_go_on() -> None:
    group = UpgradedGroup("n1")
    group.node("n0")["replication_address"] = "10.0.0.7:10914"
    group.node("n1")["replication_address"] = "10.0.0.8:10914"
    report = await report_of(group)
    assert [(f["code"], f["subject"]) for f in report["findings"]] == [("plain-replication", "n0")]


async def test_the_level_is_raised_when_it_is_confirmed() -> None:
    group = UpgradedGroup(*IDS)
    async with asking(group) as client:
        preview = answered(await client.post(FINISH))
        assert preview["effects"] == [{"subject": "format level", "before": "2", "after": "3"}]
        assert "no way back" in preview["warnings"][0]
        assert group.asks_of(RequestCode.LEDGERMQ_CHANGE_MEMBERS) == 0
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        made = answered(await client.post(FINISH, params=query))
        assert [outcome["ok"] for outcome in made["outcomes"]] == [True]
        again = answered(await client.post(FINISH), 409)
        (entry, *_) = answered(await client.get("/audit"))["items"]
    assert "already" in again["detail"]
    assert entry["action"] == "upgrade.finish"


async def test_a_member_of_the_old_release_keeps_the_level() -> None:
    group = UpgradedGroup("n0", "n1")
    async with asking(group) as client:
        refused = answered(await client.post(FINISH), 409)
    assert "n2: 0.1.0" in refused["detail"]


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_member_that_is_away_or_behind_keeps_the_level(is_dead: bool) -> None:
    group = UpgradedGroup(*IDS, peers={"n2": READY if is_dead else {**READY, "push_state": "COMPARE"}})
    if is_dead:
        group.dead.add(ADDRESSES["n2"])
    async with asking(group) as client:
        assert "n2" in answered(await client.post(FINISH), 409)["detail"]


async def test_a_refusal_of_the_leader_is_told() -> None:
    group = UpgradedGroup(*IDS)
    group.refuses = True
    async with asking(group) as client:
        preview = answered(await client.post(FINISH))
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        failed = answered(await client.post(FINISH, params=query), 409)
    assert "an earlier change is pending" in failed["detail"]
