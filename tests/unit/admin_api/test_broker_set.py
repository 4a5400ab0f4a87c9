"""Which broker takes the writes."""

import pytest

from admin_api.gateway import AskError, Gateway
from admin_api.settings import Settings
from admin_api.sources.brokers import BrokerDirectory
from broker.admin.types import NodeRole, PeerView
from remoting.codes import RequestCode, ResponseCode
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.admin_api.node_samples import peer

N0, N1 = "127.0.0.1:10911", "127.0.0.1:10921"
STATUS = RequestCode.LEDGERMQ_NODE_STATUS


def directory_of(brokers: FakeBrokers, cache_ms: int = 0) -> BrokerDirectory:
    settings = Settings(namesrv=NAMESRV, brokers_cache_ms=cache_ms)
    return BrokerDirectory(Gateway(brokers, settings), settings)


def follower_of(address: str) -> PeerView:
    return peer("n1", remoting_address=address)


async def test_look_asks_the_listed_master_only() -> None:
    leader = FakeBroker("broker-a", N0, facts={"peers": (follower_of(N1),)})
    brokers = FakeBrokers(leader, FakeBroker("broker-a", N1, 2))
    found = await directory_of(brokers).current()
    assert dict(found.masters) == {"broker-a": N0}
    assert found.troubles == ()
    assert found.addresses == (N0, N1)
    assert (brokers.asked[N0, STATUS], brokers.asked[N1, STATUS]) == (1, 0)


async def test_look_new_leader_is_found_before_the_name_server_knows() -> None:
    old = FakeBroker("broker-a", N0)
    new = FakeBroker("broker-a", N1, 2, facts={"role": NodeRole.LEADER, "is_writable": True, "term": 4})
    brokers = FakeBrokers(old, new)
    brokers.dead = {N0}
    found = await directory_of(brokers).current()
    assert dict(found.masters) == {"broker-a": N1}
    assert found.troubles == ()


async def test_look_of_two_that_lead_the_higher_term_counts() -> None:
    old = FakeBroker("broker-a", N0, facts={"is_writable": False})
    facts = {"role": NodeRole.LEADER, "is_writable": True}
    third = "127.0.0.1:10931"
    brokers = FakeBrokers(
        old,
        FakeBroker("broker-a", N1, 2, facts={**facts, "term": 4}),
        FakeBroker("broker-a", third, 3, facts={**facts, "term": 5}),
    )
    assert dict((await directory_of(brokers).current()).masters) == {"broker-a": third}


async def test_look_group_without_a_leader_is_a_trouble_that_names_it() -> None:
    brokers = FakeBrokers(
        FakeBroker("broker-a", N0, facts={"role": NodeRole.CANDIDATE, "is_writable": False})
    )
    found = await directory_of(brokers).current()
    assert dict(found.masters) == {}
    (trouble,) = found.troubles
    assert trouble.problem == f"broker-a accepts no writes: {N0} is CANDIDATE and accepts no writes"


async def test_look_stock_master_is_taken_at_the_name_servers_word_and_asked_once() -> None:
    brokers = FakeBrokers(FakeBroker("broker-a", N0, is_stock=True))
    directory = directory_of(brokers)
    for _ in range(3):
        assert dict(await directory.masters()) == {"broker-a": N0}
    assert brokers.asked[N0, STATUS] == 1
    assert await directory.is_ledgermq(N0) is False


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION])
async def test_look_a_node_that_refuses_once_is_not_taken_for_a_stock_broker(code: ResponseCode) -> None:
    brokers = FakeBrokers(FakeBroker("broker-a", N0))
    directory = directory_of(brokers)
    brokers.refusing = {(N0, STATUS): (code, "not now")}
    with pytest.raises(AskError, match="not now"):
        await directory.status_of(N0)
    assert dict(await directory.masters()) == {"broker-a": N0}
    brokers.refusing = {}
    assert await directory.is_ledgermq(N0)


async def test_look_is_used_again_while_it_is_young() -> None:
    brokers = FakeBrokers(FakeBroker("broker-a", N0))
    directory = directory_of(brokers, cache_ms=60_000)
    for _ in range(3):
        await directory.current()
    assert brokers.asks_of(RequestCode.GET_BROKER_CLUSTER_INFO) == 1
    directory.invalidate()
    await directory.current()
    assert brokers.asks_of(RequestCode.GET_BROKER_CLUSTER_INFO) == 2


async def test_look_name_server_gone_uses_the_list_known_before_and_says_so() -> None:
    brokers = FakeBrokers(FakeBroker("broker-a", N0))
    directory = directory_of(brokers)
    await directory.current()
    brokers.dead = {NAMESRV}
    found = await directory.current()
    assert dict(found.masters) == {"broker-a": N0}
    assert [trouble.address for trouble in found.troubles] == [NAMESRV]


async def test_look_name_server_never_there_is_an_error() -> None:
    brokers = FakeBrokers()
    brokers.dead = {NAMESRV}
    with pytest.raises(AskError, match="cannot be reached"):
        await directory_of(brokers).current()
