"""The members of a group as an operator sees and changes them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from broker.admin.members import BODY_BYTES_MAX, ReceivedRates
from broker.admin.types import MemberPlanView, MemberView, NodeStatusMessage
from dledger.core.membership import Configuration, Member, MemberRole
from dledger.core.status import NodeStatus, PeerStatus
from dledger.core.types import PushState, Role
from dledger.core.types import ResponseCode as EngineCode
from dledger.transport import OlderNode
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.broker_parts import FakeEngine
from tests.support.fake_log import FakeLog
from tests.support.operator import TURNS_MAX, Operator
from tests.support.secured import secured_values
from tests.unit.broker.test_admin_replication import LEADING

CHANGE = RequestCode.LEDGERMQ_CHANGE_MEMBERS
ADD = {"change": "add", "id": "n3", "address": "127.0.0.1:10944"}
MEMBERS = tuple(Member(f"n{number}", "127.0.0.1", 10914 + 10 * number) for number in range(3))


def leading(lag_bytes: int = 0, **facts: Any) -> NodeStatus:
    peers = tuple(
        replace(PeerStatus(each, PushState.APPEND, 9, 10, 0, lag_bytes, 12), **facts) for each in ("n1", "n2")
    )
    return replace(LEADING, peers=peers)


def engine_of(*members: Member, level: int = 3, **facts: Any) -> FakeEngine:
    values: dict[str, Any] = {"node_status": leading(), "connected": frozenset({"n1", "n2"}), **facts}
    return FakeEngine(configuration=Configuration(members or MEMBERS, level), **values)


async def change(operator: Operator, body: object) -> RemotingCommand:
    return await operator.ask(CHANGE, orjson.dumps(body))


async def proposed(operator: Operator, code: EngineCode, body: object) -> RemotingCommand:
    """The answer, where the engine says this of the entry."""
    assert operator.engine is not None
    asking = asyncio.ensure_future(change(operator, body))
    for _ in range(TURNS_MAX // 2):
        if operator.engine.proposed:
            break
        await asyncio.sleep(0)
    assert not asking.done(), "answered before the entry is committed"
    operator.engine.proposed[-1][1](code)
    return await asking


async def test_a_change_is_answered_once_its_first_step_is_committed(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of())
    answer = await proposed(operator, EngineCode.SUCCESS, ADD)
    assert answer.code == 0
    assert operator.engine is not None
    ((new, _),) = operator.engine.proposed
    assert new.member("n3") == Member("n3", "127.0.0.1", 10944, MemberRole.JOINING)
    view = MemberPlanView.from_json(answer.body)
    assert view.steps[0] == "n3 at 127.0.0.1:10944 gets the whole log, without a vote."
    assert view.members[-1] == MemberView(id="n3", replication_address="127.0.0.1:10944", role="joining")


async def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of())
    view = MemberPlanView.from_json((await change(operator, {**ADD, "dryRun": True})).body)
    assert len(view.steps) == 2
    assert operator.engine is not None
    assert operator.engine.proposed == []


@pytest.mark.parametrize(
    ("code", "answered", "said"),
    [
        (EngineCode.WAIT_QUORUM_ACK_TIMEOUT, 1, "no majority has stored the change in time; it may still be"),
        (EngineCode.TERM_CHANGED, 1, "the leader changed before the change was committed; it may still be"),
    ],
)
async def test_an_unsure_end_is_said(tmp_path: Path, code: EngineCode, answered: int, said: str) -> None:
    answer = await proposed(Operator(tmp_path, engine_of()), code, ADD)
    assert (answer.code, said in str(answer.remark)) == (answered, True), answer.remark


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (EngineCode.CONFIGURATION_PENDING, "is not committed yet"),
        (EngineCode.ILLEGAL_CONFIGURATION, "only one voter can change at a time"),
        (EngineCode.NOT_LEADER, "does not lead any more"),
        (EngineCode.DISK_FULL, "refused: DISK_FULL"),
    ],
)
async def test_what_the_engine_refuses_is_said(tmp_path: Path, code: EngineCode, said: str) -> None:
    answer = await change(Operator(tmp_path, engine_of(proposal_code=code)), ADD)
    assert (answer.code, said in str(answer.remark)) == (16, True), answer.remark


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "Invalid JSON"),
        (b"[]", "object"),
        (b'{"change":"add","id":"n3"}', "add needs id and address: address"),
        (b'{"change":"add","id":"n3","address":"h"}', "'h' is not of the form host:port"),
        (b'{"change":"add","id":"n3","address":"h:0"}', "'h:0' is not of the form host:port"),
        (b'{"change":"add","id":"n3","address":"a b:1"}', "is not of the form host:port"),
        (b'{"change":"remove","id":"seven"}', "id: String should match pattern"),
        (b'{"change":"remove","id":"n1","old":"n2"}', "remove needs id: old"),
        (b'{"change":"remove","id":"n1","colour":"blue"}', "colour: Extra inputs"),
        (b'{"change":"grow"}', "change: Input should be"),
        (b'{"change":"format_level","level":0}', "level: Input should be greater"),
        (b'{"change":"add","id":"n3","address":"h:1","role":"king"}', "role: Input should be"),
        (b" " * (BODY_BYTES_MAX + 1), "4096 are allowed"),
    ],
)
async def test_bodies_that_mean_nothing(tmp_path: Path, body: bytes, said: str) -> None:
    answer = await Operator(tmp_path, engine_of()).ask(CHANGE, body)
    assert (answer.code, said in str(answer.remark)) == (29, True), answer.remark


async def test_a_refusal_names_the_way_out(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of(connected=frozenset({"n1"})))
    answer = await change(operator, {"change": "remove", "id": "n1"})
    assert answer.code == 16
    assert str(answer.remark).startswith("It would cost the majority: of the 2 voters n0 and n2 only n0")
    assert str(answer.remark).endswith("Add force to do it all the same.")
    forced = await proposed(operator, EngineCode.SUCCESS, {"change": "remove", "id": "n1", "force": True})
    assert str(MemberPlanView.from_json(forced.body).lost).startswith("of the 2 voters")
    old = await change(Operator(tmp_path, engine_of(level=2)), ADD)
    assert (old.code, "force" in str(old.remark)) == (16, False)


async def test_a_member_of_an_older_release_keeps_the_format(tmp_path: Path) -> None:
    raised = {"change": "format_level", "level": 3}
    refused = await change(Operator(tmp_path, engine_of(level=2, is_of_one_release=False)), raised)
    assert (refused.code, "Not every member runs this release" in str(refused.remark)) == (16, True)
    made = await proposed(Operator(tmp_path, engine_of(level=2)), EngineCode.SUCCESS, raised)
    assert made.code == 0


@pytest.mark.parametrize(
    ("facts", "is_near"),
    [
        ({}, True),
        ({"lag_bytes": 17 * 1024 * 1024}, False),
        ({"push_state": PushState.COMPARE}, False),
        ({"last_contact_ms_ago": 4_000}, False),
        ({"last_contact_ms_ago": None}, False),
    ],
)
async def test_who_keeps_up(tmp_path: Path, facts: dict[str, Any], is_near: bool) -> None:
    operator = Operator(tmp_path, engine_of(node_status=leading(**facts)))
    answer = await change(operator, {"change": "remove", "id": "n2", "dryRun": True})
    assert (answer.code == 0) is is_near, answer.remark


@pytest.mark.parametrize(
    ("values", "address", "said"),
    [
        ({}, "10.0.0.3:10914", "10.0.0.3 is beyond this machine, and replication has no certificates"),
        (
            {"innerClientAuthenticationCredentials": ""},
            ADD["address"],
            "innerClientAuthenticationCredentials",
        ),
    ],
)
async def test_what_nodes_need_to_be_several(
    tmp_path: Path, values: dict[str, str], address: str, said: str
) -> None:
    settings = {**secured_values(tmp_path), **values, "dLegerPeers": ""} if values else {}
    operator = Operator(tmp_path, engine_of(MEMBERS[0]), **settings)
    for body in ({**ADD, "address": address}, {**ADD, "address": address, "force": True}):
        answer = await change(operator, body)
        assert (answer.code, said in str(answer.remark)) == (16, True), answer.remark


async def test_without_a_group_or_a_leader(tmp_path: Path) -> None:
    assert (await change(Operator(tmp_path, None), ADD)).code == 3
    log = FakeLog(is_writable=False)
    following = Operator(tmp_path, engine_of(leader_id="n1", client_addresses={}), log)
    answer = await change(following, ADD)
    assert (answer.code, "the leader is n1" in str(answer.remark)) == (14, True)


async def read_status(operator: Operator) -> NodeStatusMessage:
    return NodeStatusMessage.from_json((await operator.ask(RequestCode.LEDGERMQ_NODE_STATUS)).body)


async def test_the_status_has_the_members_of_the_log(tmp_path: Path) -> None:
    joining = Member("n3", "127.0.0.1", 10944, MemberRole.JOINING, "n2")
    engine = engine_of(*MEMBERS, joining, is_configuration_committed=False)
    engine.node_status = replace(
        LEADING, peers=(PeerStatus("n3", PushState.APPEND, 2, 3, 7, 700, 12),), begin_index=2
    )
    operator = Operator(tmp_path, engine)
    operator.parts.end_position = lambda: 1_000
    operator.parts.position_of = lambda index: index * 100
    status = await read_status(operator)
    assert status.members is not None
    assert [(each.id, each.role, each.replaces) for each in status.members] == [
        ("n0", "voter", None),
        ("n1", "voter", None),
        ("n2", "voter", None),
        ("n3", "joining", "n2"),
    ]
    assert (status.configuration_index, status.is_configuration_committed, status.format_level) == (
        7,
        False,
        3,
    )
    assert (status.begin_position, status.end_position) == (200, 1_000)
    assert [(peer.id, peer.replication_address, peer.lag_bytes) for peer in status.peers] == [
        ("n1", "127.0.0.1:10924", None),
        ("n2", "127.0.0.1:10934", None),
        ("n3", "127.0.0.1:10944", 700),
    ]


async def test_the_status_says_who_is_of_an_earlier_generation(tmp_path: Path) -> None:
    engine = engine_of()
    engine.refused.append(OlderNode("n2", ("127.0.0.1", 10934), "127.0.0.1:10931", 0, 1.0))
    operator = Operator(tmp_path, engine)
    status = await read_status(operator)
    (older,) = status.older_nodes
    assert (older.id, older.generation, status.newer_generation) == ("n2", 0, None)
    assert (older.replication_address, older.remoting_address) == ("127.0.0.1:10934", "127.0.0.1:10931")
    engine.become_outdated()
    assert (await read_status(operator)).newer_generation == 1


async def test_a_status_of_an_older_release_has_no_members(tmp_path: Path) -> None:
    answer = await Operator(tmp_path, engine_of()).ask(RequestCode.LEDGERMQ_NODE_STATUS)
    fields = orjson.loads(answer.body)
    for key in ("members", "configurationIndex", "isConfigurationCommitted", "formatLevel", "beginPosition"):
        del fields[key]
    read = NodeStatusMessage.from_json(orjson.dumps(fields))
    assert (read.members, read.format_level, read.is_configuration_committed) == (None, None, None)


async def test_the_tools_of_rocketmq_see_the_members_of_the_log(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of(client_addresses={"n0": "127.0.0.1:10911"}))
    answer = await operator.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.ext_fields["peers"] == "n0-127.0.0.1:10914;n1-127.0.0.1:10924;n2-127.0.0.1:10934"
    body = orjson.dumps(["broker-a"])
    table = (await operator.read(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body))["replicasInfoTable"]
    assert [row["brokerId"] for row in table["broker-a"]["inSyncReplicas"]] == [0, 2, 3]
    chosen = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "3"}
    assert operator.engine is not None
    operator.engine.transfer_code = EngineCode.FALL_BEHIND_TOO_MUCH
    assert (await operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, **chosen)).code == 1
    assert operator.engine.transferees == ["n2"]


async def test_only_a_member_can_be_preferred_as_the_leader(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of())
    refused = await operator.ask(RequestCode.UPDATE_BROKER_CONFIG, b"preferredLeaderId=n7")
    assert (refused.code, "n7 is no member (n0, n1, n2)" in str(refused.remark)) == (29, True)
    taken = await operator.ask(RequestCode.UPDATE_BROKER_CONFIG, b"preferredLeaderId=n2")
    assert (taken.code, operator.parts.config.preferred_leader_id) == (0, "n2")


async def test_no_quota_counts_requests_of_other_members(tmp_path: Path) -> None:
    """They are those of many clients. A new member is one at once."""
    operator = Operator(tmp_path, engine_of())
    members, engine = operator.parts.core.members, operator.engine
    assert engine is not None
    assert [each.id for each in members.others] == ["n1", "n2"]
    assert operator.parts.core.shares._rules.holder("10.0.0.3") == "10.0.0.3"
    engine.set_members(Configuration((*MEMBERS, Member("n3", "10.0.0.3", 10914, MemberRole.LEARNER))))
    assert operator.parts.core.shares._rules.holder("10.0.0.3") is None


async def test_a_removed_node_knows_that_it_is_none(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of(*MEMBERS[1:]))
    members = operator.parts.core.members
    assert (members.own_role, members.is_member, members.is_alone) == (None, False, False)
    waiting = Operator(tmp_path, engine_of(configuration_index=-1), dLegerJoin=True).parts.core.members
    assert waiting.own_role is None, "the leader has not added it yet"
    joined = Operator(tmp_path, engine_of(), dLegerJoin=True).parts.core.members
    assert joined.own_role is MemberRole.VOTER
    alone = Operator(tmp_path, engine_of(MEMBERS[0])).parts.core.members
    assert (alone.own_role, alone.is_alone) == (MemberRole.VOTER, True)


def test_rates_are_of_the_last_seconds() -> None:
    now_ms = 0
    rates = ReceivedRates(lambda: now_ms)
    assert rates.rate("n3", 1_000) is None
    now_ms = 499
    assert rates.rate("n3", 1_499) is None
    now_ms = 1_000
    assert rates.rate("n3", 3_000) == 2_000
    now_ms = 8_000
    assert rates.rate("n3", 3_000) is None, "nothing is known of the last five seconds"
    now_ms = 9_000
    assert rates.rate("n3", 2_000) is None, "its log was cut"
    now_ms = 10_000
    assert rates.rate("n3", 2_500) == 500
    rates.keep({"n1"})
    assert rates.rate("n3", 9_000) is None


async def test_a_leader_alone_shows_the_role_of_others_only(tmp_path: Path) -> None:
    operator = Operator(tmp_path, engine_of(MEMBERS[0]))
    assert operator.engine is not None
    operator.engine.node_status = replace(LEADING, role=Role.FOLLOWER, peers=())
    assert (await read_status(operator)).peers == ()
