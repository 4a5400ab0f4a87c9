"""The group in the words of RocketMQ's masters and controllers."""

import asyncio
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from broker.admin import replication as admin_replication
from dledger.core.status import NodeStatus, PeerStatus
from dledger.core.types import Epoch, PushState, Role
from dledger.core.types import ResponseCode as EngineCode
from remoting.codes import RequestCode
from remoting.fastjson import loads
from tests.support.broker_parts import FakeEngine
from tests.support.operator import Operator

LEADING = NodeStatus(
    Role.LEADER,
    3,
    "n0",
    2,
    9,
    8,
    9,
    4,
    (Epoch(1, 0), Epoch(3, 4)),
    (PeerStatus("n1", PushState.APPEND, 7, 8, 2, 200, 12),),
    {},
    (),
)
ELECT = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "2"}


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    engine = FakeEngine(
        node_status=LEADING, client_addresses={"n1": "127.0.0.1:10921"}, connected=frozenset({"n1"})
    )
    made = Operator(tmp_path, engine)
    made.parts.end_position = lambda: 1_000
    made.parts.position_of = lambda index: index * 100
    return made


def follow(operator: Operator) -> None:
    assert operator.engine is not None
    operator.engine.node_status = replace(LEADING, role=Role.FOLLOWER, leader_id="n1", peers=())
    operator.engine.leader_id = "n1"


async def test_a_leader_shows_its_followers_as_slaves(operator: Operator) -> None:
    read = await operator.read(RequestCode.GET_BROKER_HA_STATUS)
    assert (read["master"], read["masterCommitLogMaxOffset"], read["inSyncSlaveNums"]) == (True, 1_000, 0)
    (row,) = read["haConnectionInfo"]
    assert (row["addr"], row["slaveAckOffset"], row["diff"], row["inSync"]) == (
        "127.0.0.1:10921",
        800,
        200,
        False,
    )


async def test_a_follower_shows_whom_it_follows(operator: Operator) -> None:
    follow(operator)
    read = await operator.read(RequestCode.GET_BROKER_HA_STATUS)
    assert (read["master"], read["haClientRuntimeInfo"]["masterAddr"]) == (False, "127.0.0.1:10921")
    assert read["haClientRuntimeInfo"]["maxOffset"] == 1_000


async def test_terms_are_epochs_of_the_log(operator: Operator) -> None:
    read = await operator.read(RequestCode.GET_BROKER_EPOCH_CACHE)
    assert read["epochList"] == [
        {"epoch": 1, "startOffset": 200, "endOffset": 400},
        {"epoch": 3, "startOffset": 400, "endOffset": 1_000},
    ]
    assert (read["brokerId"], read["maxOffset"]) == (0, 1_000)


async def test_any_node_tells_who_leads(operator: Operator) -> None:
    answer = await operator.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.ext_fields == {
        "controllerLeaderAddress": "127.0.0.1:10911",
        "controllerLeaderId": "n0",
        "group": "broker-a",
        "isLeader": "true",
        "peers": "n0-127.0.0.1:10914;n1-127.0.0.1:10924",
    }
    follow(operator)
    answer = await operator.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    assert answer.ext_fields["controllerLeaderAddress"] == "127.0.0.1:10921"
    assert operator.engine is not None
    operator.engine.leader_id = None
    assert (await operator.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)).code == 2


async def test_replicas_are_in_sync_up_to_the_committed_index(operator: Operator) -> None:
    body = b'["broker-a","another"]'
    read = await operator.read(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body)
    (row,) = read["replicasInfoTable"].values()
    assert (row["masterEpoch"], row["masterAddress"]) == (3, "127.0.0.1:10911")
    assert [each["brokerId"] for each in row["inSyncReplicas"]] == [0]
    assert row["notInSyncReplicas"] == [
        {"alive": True, "brokerAddress": "127.0.0.1:10921", "brokerId": 2, "brokerName": "broker-a"}
    ]
    others = await operator.read(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, b'["another"]')
    assert others == {"replicasInfoTable": {}}
    for bad in (b"", b"{}", b"7"):
        assert (await operator.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, bad)).code == 29
    follow(operator)
    assert (await operator.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body)).code == 14


async def test_an_election_is_a_transfer_to_the_named_node(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_replication, "POLL_INTERVAL_S", 1e-5)
    assert operator.engine is not None
    engine = operator.engine

    async def win() -> None:
        while not engine.transferees:
            await asyncio.sleep(0)
        engine.leader_id, engine.term = "n1", 4

    winning = asyncio.ensure_future(win())
    answer = await operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, **ELECT)
    await winning
    assert (answer.code, engine.transferees) == (0, ["n1"])
    assert (answer.ext_fields["masterAddress"], answer.ext_fields["masterEpoch"]) == ("127.0.0.1:10921", "4")
    group = loads(answer.body)
    assert group["brokerAddrs"] == {"0": "127.0.0.1:10921", "1": "127.0.0.1:10911"}
    assert orjson.loads(answer.body)["brokerMemberGroup"]["brokerName"] == "broker-a"


async def test_whoever_leads_need_not_be_elected(operator: Operator) -> None:
    answer = await operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, **{**ELECT, "brokerId": "0"})
    assert (answer.code, answer.ext_fields["masterAddress"]) == (0, "127.0.0.1:10911")


@pytest.mark.parametrize(
    ("change", "code"),
    [({"brokerId": "9"}, 29), ({"brokerId": "1"}, 29), ({"brokerName": "b"}, 29), ({"brokerId": "x"}, 1)],
)
async def test_an_election_of_nobody_is_refused(
    operator: Operator, change: dict[str, str], code: int
) -> None:
    assert (await operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, **{**ELECT, **change})).code == code
    assert operator.engine is not None
    assert operator.engine.transferees == []


async def test_only_the_leader_elects_and_it_may_refuse(operator: Operator) -> None:
    assert operator.engine is not None
    operator.engine.transfer_code = EngineCode.FALL_BEHIND_TOO_MUCH
    answer = await operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, **ELECT)
    assert (answer.code, "FALL_BEHIND_TOO_MUCH" in (answer.remark or "")) == (1, True)
    follow(operator)
    assert (await operator.ask(RequestCode.CONTROLLER_ELECT_MASTER, **ELECT)).code == 14


async def test_the_groups_settings_are_shown(operator: Operator) -> None:
    body = (await operator.ask(RequestCode.GET_CONTROLLER_CONFIG)).body.decode()
    assert "dLegerPeers=n0-127.0.0.1:10914;n1-127.0.0.1:10924\n" in body
    assert "brokerName" not in body


async def test_a_broker_without_a_group_is_no_controller(tmp_path: Path) -> None:
    operator = Operator(tmp_path, None)
    for code in (
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_EPOCH_CACHE,
        RequestCode.CONTROLLER_GET_METADATA_INFO,
        RequestCode.GET_CONTROLLER_CONFIG,
    ):
        assert (await operator.ask(code)).code == 3
