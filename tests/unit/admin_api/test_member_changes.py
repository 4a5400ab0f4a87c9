"""The members of a group, over brokers without a network whose leader plans as a real one does."""

from typing import Any

import orjson
import pytest

from admin_api.changes import Action
from broker.admin.member_plan import GroupNow, PlanRefusedError, plan_change
from broker.admin.types import ChangeKind, MemberChange, MemberPlanView, MemberView, NodeRole, PeerView
from dledger.core.membership import Configuration, Member, MemberRole
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.unit.admin_api.fake_brokers import FakeBrokers
from tests.unit.admin_api.node_samples import ADDRESSES, REPLICATION, peer
from tests.unit.admin_api.serving import answered, asking
from tests.unit.admin_api.test_replication import GROUP, READY, FakeNode

MEMBERS = f"/replication/{GROUP}/members"
NEW = {"id": "n3", "address": "127.0.0.1:10944"}
CHANGE = RequestCode.LEDGERMQ_CHANGE_MEMBERS


def view_of(member: Member) -> MemberView:
    address = f"{member.host}:{member.port}"
    return MemberView(
        id=member.id, replication_address=address, role=member.role.value, replaces=member.replaces
    )


class ChangingGroup(FakeBrokers):
    """n0 leads n1 and n2, and takes changes of the members; `down` do not answer."""

    def __init__(self, *down: str, level: int = 3, extra: tuple[PeerView, ...] = ()) -> None:
        super().__init__(*(FakeNode(GROUP, address) for address in ADDRESSES.values()))
        self.down = set(down)
        self.extra = extra
        self.index = 5
        self.is_committed = True
        self.configuration = Configuration(
            tuple(Member(each, "127.0.0.1", int(REPLICATION[each].rpartition(":")[2])) for each in ADDRESSES),
            level,
        )
        self.refresh()

    def refresh(self) -> None:
        self.dead = {ADDRESSES[each] for each in self.down}
        others = tuple(peer(each, is_connected=each not in self.down, **READY) for each in ("n1", "n2"))
        for node_id, address in ADDRESSES.items():
            leads = node_id == "n0"
            self.brokers[address].broker_id = int(node_id[1:]) if not leads else 0
            self.brokers[address].facts = {
                "node_id": node_id,
                "role": NodeRole.LEADER if leads else NodeRole.FOLLOWER,
                "is_writable": leads,
                "peers": (*others, *self.extra) if leads else (),
                "members": tuple(map(view_of, self.configuration.members)),
                "configuration_index": self.index,
                "is_configuration_committed": self.is_committed,
                "format_level": self.configuration.format_level,
                "begin_position": 200,
                "end_position": 1_200,
            }

    def _answer(
        self, address: str, code: RequestCode, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        if code is not CHANGE or (address, code) in self.refusing:
            return super()._answer(address, code, command, timeout_s)
        up = [each for each in self.configuration.ids if each not in self.down]
        wanted = MemberChange.from_json(command.body)
        try:
            plan = plan_change(GroupNow(self.configuration, self.is_committed, "n0", up, up), wanted)
        except PlanRefusedError as error:
            return RemotingCommand(ResponseCode.NO_PERMISSION, remark=str(error))
        if not wanted.dry_run:
            self.configuration, self.index = plan.new, self.index + 1
            self.refresh()
        members = tuple(map(view_of, plan.new.members))
        plan_view = MemberPlanView(steps=plan.steps, warnings=plan.warnings, lost=plan.lost, members=members)
        return RemotingCommand(0, body=plan_view.to_json())


async def make(client: Any, method: str, path: str, body: dict[str, Any] | None = None, **query: Any) -> Any:
    """Previewed, then confirmed."""
    preview = answered(await client.request(method, path, json=body, params=query))
    assert (preview["isDryRun"], preview["isDestructive"]) == (True, True)
    confirmed = {**query, "dryRun": "false", "confirmation": preview["confirmation"]}
    return answered(await client.request(method, path, json=body, params=confirmed))


async def test_the_members_of_a_group() -> None:
    joining = PeerView(
        id="n3", replication_address=NEW["address"], is_connected=True, lag_bytes=700, bytes_per_s=50
    )
    group = ChangingGroup("n2", extra=(joining,))
    group.configuration = group.configuration.with_member(
        Member("n3", "127.0.0.1", 10944, MemberRole.JOINING, "n2")
    )
    group.refresh()
    async with asking(group) as client:
        view = answered(await client.get(MEMBERS))
    assert (view["leaderId"], view["formatLevel"], view["configurationIndex"], view["isCommitted"]) == (
        "n0",
        3,
        5,
        True,
    )
    rows = {row["id"]: row for row in view["members"]}
    assert [(row["role"], row["state"]) for row in rows.values()] == [
        ("voter", "up"),
        ("voter", "up"),
        ("voter", "down"),
        ("joining", "unknown"),
    ]
    assert rows["n0"]["isLeader"]
    assert rows["n3"]["replaces"] == "n2"
    assert rows["n3"]["progress"] == {"totalBytes": 1_000, "receivedBytes": 300, "bytesPerS": 50}
    assert (view["strangers"], view["isPartial"]) == ([], False)


async def test_a_member_is_added_once_its_preview_is_confirmed() -> None:
    group = ChangingGroup()
    async with asking(group) as client:
        preview = answered(await client.post(MEMBERS, json=NEW))
        assert preview["effects"][0] == {
            "subject": "member n3",
            "before": None,
            "after": "joining at 127.0.0.1:10944",
        }
        assert preview["effects"][1]["after"] == "n3 at 127.0.0.1:10944 gets the whole log, without a vote."
        assert "n3 is not connected yet: start it; until then nothing else happens." in preview["warnings"]
        assert group.configuration.member("n3") is None
        result = await make(client, "POST", MEMBERS, NEW)
        assert [outcome["ok"] for outcome in result["outcomes"]] == [True]
        assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 10944, MemberRole.JOINING)
        (ended, *_) = answered(await client.get("/audit"))["items"]
    assert (ended["action"], ended["target"], ended["outcome"]) == (
        "member.add",
        "replication group broker-a",
        "applied",
    )


async def test_every_change_reaches_the_leader() -> None:
    group = ChangingGroup()
    async with asking(group) as client:
        await make(client, "POST", MEMBERS, {**NEW, "role": "learner"})
        assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 10944, MemberRole.LEARNER)
        await make(client, "PUT", f"{MEMBERS}/n3/address", {"address": "127.0.0.1:1"})
        assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 1, MemberRole.LEARNER)
        await make(client, "PUT", f"{MEMBERS}/n3/role", {"role": "voter"})
        assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 1, MemberRole.JOINING)
        await make(client, "DELETE", f"{MEMBERS}/n3")
        assert group.configuration.ids == ("n0", "n1", "n2")
        await make(client, "PUT", f"{MEMBERS}/n2/role", {"role": "learner"})
        assert group.configuration.voters == ("n0", "n1")
        await make(client, "POST", f"{MEMBERS}/n1/replace", NEW)
        assert group.configuration.member("n3") == Member("n3", "127.0.0.1", 10944, MemberRole.JOINING, "n1")


async def test_fixed_members_are_refused_by_the_command_that_lets_them_change() -> None:
    group = ChangingGroup(level=2)
    async with asking(group) as client:
        refused = answered(await client.post(MEMBERS, json=NEW), 409)
        assert "`ledgermq upgrade-finish` raises it" in refused["detail"]
    assert group.configuration.ids == ("n0", "n1", "n2")


async def test_what_would_cost_the_majority_needs_force() -> None:
    group = ChangingGroup("n2")
    async with asking(group) as client:
        refused = answered(await client.delete(f"{MEMBERS}/n1"), 409)
        assert refused["detail"].startswith("It would cost the majority: of the 2 voters n0 and n2 only n0")
        preview = answered(await client.delete(f"{MEMBERS}/n1", params={"force": True}))
        assert any(warning.startswith("Forced: of the 2 voters") for warning in preview["warnings"])
        await make(client, "DELETE", f"{MEMBERS}/n1", force=True)
    assert group.configuration.voters == ("n0", "n2")


async def test_members_that_changed_since_the_preview_need_another_look() -> None:
    group = ChangingGroup()
    async with asking(group) as client:
        preview = answered(await client.post(MEMBERS, json=NEW))
        group.index += 1
        group.refresh()
        query = {"dryRun": "false", "confirmation": preview["confirmation"]}
        assert "changed" in answered(await client.post(MEMBERS, json=NEW, params=query), 409)["detail"]
    assert group.configuration.member("n3") is None


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({**NEW, "address": "nowhere"}, 400, "'nowhere' is not of the form host:port"),
        ({**NEW, "id": "third"}, 400, "id: String should match pattern"),
        ({**NEW, "role": "king"}, 422, "role"),
        ({**NEW, "forced": True}, 422, "forced"),
        ({**NEW, "id": "n1"}, 409, "n1 is a voter of the group already."),
    ],
)
async def test_what_cannot_be_done(body: dict[str, Any], status: int, said: str) -> None:
    async with asking(ChangingGroup()) as client:
        problem = answered(await client.post(MEMBERS, json=body), status)
    assert said in orjson.dumps(problem).decode()


async def test_a_group_without_a_leader_changes_nothing() -> None:
    group = ChangingGroup("n0")
    async with asking(group) as client:
        problem = answered(await client.delete(f"{MEMBERS}/n2"), 503)
        view = answered(await client.get(MEMBERS))
    assert "no leader now" in problem["detail"]
    assert (view["isPartial"], [row["id"] for row in view["members"]]) == (True, ["n0", "n1", "n2"])


async def test_an_older_broker_says_that_it_cannot() -> None:
    group = ChangingGroup()
    for broker in group.brokers.values():
        broker.facts["members"] = None
    group.refusing[ADDRESSES["n0"], CHANGE] = (3, " request type 65008 not supported")
    async with asking(group) as client:
        view = answered(await client.get(MEMBERS))
        assert (view["formatLevel"], [row["role"] for row in view["members"]]) == (None, ["voter"] * 3)
        problem = answered(await client.post(MEMBERS, json=NEW), 409)
    assert "runs a release whose members are fixed" in problem["detail"]


async def test_a_plan_that_cannot_be_read_is_the_broker_s_fault() -> None:
    group = ChangingGroup()
    group.bodies[CHANGE] = b"{}"
    group.refusing[ADDRESSES["n0"], CHANGE] = (0, "")
    async with asking(group) as client:
        assert "plan cannot be read" in answered(await client.post(MEMBERS, json=NEW), 503)["detail"]


async def test_a_removed_node_is_shown_while_it_runs_only() -> None:
    group = ChangingGroup()
    async with asking(group) as client:
        await client.get("/cluster")
        group.configuration = group.configuration.without("n2")
        group.refresh()
        view = answered(await client.get(MEMBERS))
        assert ([row["id"] for row in view["members"]], view["strangers"]) == (["n0", "n1"], ["n2"])
        group.down.add("n2")
        group.refresh()
        nodes = answered(await client.get("/cluster"))["groups"][0]["nodes"]
    assert [node["id"] for node in nodes if node["id"]] == ["n0", "n1"]


def test_each_kind_of_change_is_audited_by_a_name_of_its_own() -> None:
    from admin_api.cluster.members import _ACTIONS

    assert _ACTIONS.keys() == set(ChangeKind) - {ChangeKind.FORMAT_LEVEL}  # `ledgermq upgrade-finish`
    assert {action for action in Action if action.startswith("member.")} == set(_ACTIONS.values())
