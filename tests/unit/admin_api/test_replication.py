"""Moving leadership, over a group of three brokers without a network."""

from typing import Any

import pytest

from broker.admin.types import NodeRole, NodeStatusMessage
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.node_samples import ADDRESSES, node_status, peer
from tests.unit.admin_api.serving import answered, asking

GROUP = "broker-a"
IDS = ("n0", "n1", "n2")
TRANSFER = f"/replication/{GROUP}/transfer"
PREFERRED = f"/replication/{GROUP}/preferred-leader"
READY = {"push_state": "APPEND", "match_index": 9, "next_index": 10, "lag_entries": 0, "lag_bytes": 0}


class FakeNode(FakeBroker):
    """A member of the group; `facts` is all it says."""

    def status(self) -> NodeStatusMessage:
        return node_status(**{"broker_name": self.name, "group": self.name, **self.facts})


class FakeGroup(FakeBrokers):
    """Three nodes that hand over at once. `peers` says how the leader sees the others."""

    def __init__(self, peers: dict[str, dict[str, Any]] | None = None, leader: str = "n0") -> None:
        super().__init__(*(FakeNode(GROUP, ADDRESSES[node_id]) for node_id in IDS))
        self.peers = {"n1": READY, "n2": {**READY, "lag_entries": 3, "match_index": 6}, **(peers or {})}
        self.hands_over = True
        for broker in self.brokers.values():
            broker.settings["heartbeatIntervalMs"] = "250"
            broker.settings["peerPushQuota"] = "0"
        self.let_lead(leader, term=3)

    def let_lead(self, leader: str, term: int) -> None:
        for number, node_id in enumerate(IDS, start=1):
            broker = self.brokers[ADDRESSES[node_id]]
            leads = node_id == leader
            broker.broker_id = 0 if leads else number
            known = {**self.peers, leader: READY}
            others = tuple(
                peer(other, is_connected=True, **known.get(other, READY)) for other in IDS if other != node_id
            )
            broker.facts = {
                "node_id": node_id,
                "role": NodeRole.LEADER if leads else NodeRole.FOLLOWER,
                "is_writable": leads,
                "leader_id": leader,
                "term": term,
                "peers": others if leads else (),
            }

    def _answer(
        self, address: str, code: RequestCode, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if code is not RequestCode.LEDGERMQ_TRANSFER_LEADER:
            return super()._answer(address, code, command, timeout_s)
        if self.brokers[address].facts["role"] is not NodeRole.LEADER:
            return RemotingCommand(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark="only the leader")
        if self.hands_over:
            self.let_lead(command.ext_fields["transferee"], term=4)
        return RemotingCommand(code=0)


async def test_a_group_tells_who_is_in_sync_and_by_which_rules() -> None:
    group = FakeGroup()
    group.brokers[ADDRESSES["n0"]].settings["preferredLeaderId"] = "n0"
    async with asking(group) as client:
        view = answered(await client.get(f"/replication/{GROUP}"))
    assert (view["group"]["leaderId"], view["preferredLeaderId"]) == ("n0", "n0")
    assert view["inSync"] == view["group"]["inSync"]
    assert (view["settings"]["heartbeatIntervalMs"], view["settings"]["throttleBytesPerS"]) == (250, 0)
    assert (view["settings"]["throttleLagBytes"], view["isPartial"]) == (None, False)


async def test_without_a_leader_its_part_is_unknown() -> None:
    group = FakeGroup()
    group.brokers[ADDRESSES["n0"]].facts.update(role=NodeRole.CANDIDATE, is_writable=False, leader_id=None)
    for broker in group.brokers.values():
        broker.facts["leader_id"] = None
    async with asking(group) as client:
        view = answered(await client.get(f"/replication/{GROUP}"))
        assert (view["inSync"], view["settings"], view["isPartial"]) == (None, None, True)
        problem = answered(await client.post(TRANSFER, json={"nodeId": "n1"}), 503)
    assert "broker-a has no leader" in problem["detail"]


async def test_a_group_that_nobody_knows_is_not_there_or_not_known_to_be() -> None:
    group = FakeGroup()
    async with asking(group) as client:
        assert "no replication group" in answered(await client.get("/replication/other"), 404)["detail"]
    group.dead.add("127.0.0.1:9876")
    async with asking(group) as client:
        assert "name server" in answered(await client.get("/replication/other"), 503)["detail"]


@pytest.mark.parametrize(("wanted", "chosen"), [("n2", "n2"), (None, "n1")])
async def test_leadership_is_handed_to_the_one_named_or_the_nearest(wanted: str | None, chosen: str) -> None:
    group = FakeGroup()
    async with asking(group) as client:
        preview = answered(await client.post(TRANSFER, json={"nodeId": wanted}))
        assert preview["effects"] == [{"subject": "leader", "before": "n0", "after": chosen}]
        assert (preview["isDestructive"], group.asks_of(RequestCode.LEDGERMQ_TRANSFER_LEADER)) == (True, 0)
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        made = answered(await client.post(TRANSFER, json={"nodeId": wanted}, params=query))
        (outcome,) = made["outcomes"]
        assert (outcome["subject"], outcome["ok"], outcome["problem"]) == (
            f"broker-a led by {chosen}",
            True,
            None,
        )
        view = answered(await client.get("/cluster"))
    assert view["groups"][0]["leaderId"] == chosen


async def test_a_preferred_leader_would_take_it_back() -> None:
    group = FakeGroup()
    group.brokers[ADDRESSES["n0"]].settings["preferredLeaderId"] = "n0"
    async with asking(group) as client:
        preview = answered(await client.post(TRANSFER, json={"nodeId": "n1"}))
    assert any("n0 is the preferred leader" in warning for warning in preview["warnings"])


async def test_a_term_that_went_on_needs_a_new_look() -> None:
    group = FakeGroup()
    async with asking(group) as client:
        preview = answered(await client.post(TRANSFER, json={"nodeId": "n2"}))
        group.let_lead("n0", term=5)
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        stale = answered(await client.post(TRANSFER, json={"nodeId": "n2"}, params=query), 409)
    assert "situation changed" in stale["detail"]
    assert group.asks_of(RequestCode.LEDGERMQ_TRANSFER_LEADER) == 0


@pytest.mark.parametrize(
    ("node_id", "facts", "said"),
    [
        ("n0", {}, "n0 leads already"),
        ("n9", {}, "n9 is no member"),
        ("n1", {"lag_entries": 1_001}, "n1 is 1001 entries behind, 1000 at most"),
        ("n1", {"lag_entries": None}, "not known well enough"),
    ],
)
async def test_what_stands_in_the_way_is_said(node_id: str, facts: dict[str, Any], said: str) -> None:
    async with asking(FakeGroup({"n1": {**READY, **facts}})) as client:
        problem = answered(await client.post(TRANSFER, json={"nodeId": node_id}), 409)
    assert said in problem["detail"]


async def test_a_dead_or_damaged_node_is_not_to_lead() -> None:
    group = FakeGroup()
    group.dead.add(ADDRESSES["n1"])
    group.brokers[ADDRESSES["n2"]].facts["impairment"] = "its disk was replaced"
    async with asking(group) as client:
        dead = answered(await client.post(TRANSFER, json={"nodeId": "n1"}), 409)
        damaged = answered(await client.post(TRANSFER, json={"nodeId": "n2"}), 409)
        nobody = answered(await client.post(TRANSFER, json={}), 409)
    assert "n1 is down" in dead["detail"]
    assert "its disk was replaced" in damaged["detail"]
    assert "No other member" in nobody["detail"]


async def test_a_transfer_that_does_not_come_about_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("admin_api.cluster.replication.POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr("admin_api.cluster.replication.TRANSFER_LIMIT_S", 0.003)
    group = FakeGroup()
    group.hands_over = False
    async with asking(group) as client:
        preview = answered(await client.post(TRANSFER, json={"nodeId": "n2"}))
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        failed = answered(await client.post(TRANSFER, json={"nodeId": "n2"}, params=query), 502)
        audited = answered(await client.get("/audit"))
    assert "it does not lead: it is FOLLOWER, and n0 leads" in failed["result"]["outcomes"][0]["problem"]
    assert [entry["outcome"] for entry in audited["items"]] == ["failed"]


async def test_a_preferred_leader_is_set_and_taken_back() -> None:
    group = FakeGroup()
    settings = group.brokers[ADDRESSES["n0"]].settings
    async with asking(group) as client:
        preview = answered(await client.put(PREFERRED, json={"nodeId": "n2"}))
        assert (preview["isDryRun"], "moves from n0 to n2" in preview["warnings"][0]) == (True, True)
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        answered(await client.put(PREFERRED, json={"nodeId": "n2"}, params=query))
        assert settings["preferredLeaderId"] == "n2"
        back = answered(await client.put(PREFERRED, json={"nodeId": None}))
        assert (back["isDryRun"], back["effects"][0]["before"], back["effects"][0]["after"]) == (
            False,
            "n2",
            "none",
        )
        assert settings["preferredLeaderId"] == ""
        problem = answered(await client.put(PREFERRED, json={"nodeId": "n9"}), 409)
    assert "n9 is no member" in problem["detail"]


async def test_stock_brokers_have_no_leadership_to_move() -> None:
    brokers = FakeBrokers(FakeBroker("stock", "127.0.0.1:20911", is_stock=True))
    async with asking(brokers) as client:
        problem = answered(await client.post("/replication/stock/transfer", json={}), 404)
    assert "RocketMQ's own" in problem["detail"]
