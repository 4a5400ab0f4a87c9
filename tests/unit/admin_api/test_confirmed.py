"""What is carried out is what was confirmed, whatever happens between the two."""

from typing import Any

import pytest

from admin_api.app import create_app
from admin_api.changes import Change, ChangeRefusedError
from admin_api.dead_letters import resend as dlq_resend
from admin_api.groups.offset_changes import OffsetReset, ResetTo
from admin_api.messages.views import id_of
from admin_api.services import Services
from admin_api.settings import Settings
from admin_api.topics.changes import TopicSpec
from remoting.codes import RequestCode
from tests.unit.admin_api.fake_brokers import NAMESRV, FakeBroker, FakeBrokers
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS
from tests.unit.admin_api.fake_groups import FakeBrokers as GroupBrokers
from tests.unit.admin_api.fake_groups import Kind, sample
from tests.unit.admin_api.message_bench import browsing, detail
from tests.unit.admin_api.serving import answered, asking, asking_app
from tests.unit.admin_api.test_dlq import copies, filled
from tests.unit.admin_api.test_replication import FakeGroup

A, B = "127.0.0.1:10911", "127.0.0.1:20911"
RESET = "/consumer-groups/g/offsets/reset"


@pytest.mark.parametrize("kind", ["ledgermq", "rocketmq5", "rocketmq4"])
async def test_a_queue_that_comes_before_the_reset_needs_a_new_confirmation(kind: Kind) -> None:
    broker, wanted = sample(kind), {"topic": "t", "to": "earliest"}
    async with asking_app(create_app(Settings(namesrv=NAMESRV_ADDRESS), GroupBrokers(broker))) as client:
        preview = answered(await client.post(RESET, json=wanted))
        broker.queues["t"].append((0, 7))
        broker.offsets["g", "t"][2] = 5
        confirmed = {"dryRun": "false", "confirmation": preview["confirmation"]}
        problem = answered(await client.post(RESET, json=wanted, params=confirmed), 409)
    assert "broker-a/2" in {effect["subject"] for effect in problem["result"]["effects"]}
    assert broker.offsets["g", "t"] == {0: 40, 1: 0, 2: 5}


@pytest.mark.parametrize("kind", ["ledgermq", "rocketmq5", "rocketmq4"])
async def test_a_queue_that_comes_in_the_last_moment_is_not_moved_either(kind: Kind) -> None:
    broker = sample(kind)
    services = Services(GroupBrokers(broker), Settings(NAMESRV_ADDRESS))
    change = services.offsets.reset("g", OffsetReset(topic="t", to=ResetTo.EARLIEST))
    preview = await change.preview()
    broker.queues["t"].append((0, 7))
    broker.offsets["g", "t"][2] = 5
    outcomes = await change.carry_out(preview)
    assert [(each.ok, each.is_refused) for each in outcomes] == [(False, True)] * 2
    assert broker.offsets["g", "t"] == {0: 40, 1: 0, 2: 5}
    await services.close()


async def test_what_a_broker_moves_besides_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ 4.9 resets the queues that are written, and tells of those that are read."""
    broker = sample("rocketmq4")
    broker.clients["g"] = ["c1"]
    broker.queues["t"].append((0, 7))
    broker.offsets["g", "t"][2] = 5
    rows = broker._rows
    monkeypatch.setattr(broker, "_rows", lambda group, topic: rows(group, topic)[:2])
    services = Services(GroupBrokers(broker), Settings(NAMESRV_ADDRESS))
    change = services.offsets.reset("g", OffsetReset(topic="t", to=ResetTo.EARLIEST))
    preview = await change.preview()
    assert [effect.subject for effect in preview.effects] == ["broker-a/0", "broker-a/1"]
    *moved, besides = await change.carry_out(preview)
    assert [each.ok for each in moved] == [True, True]
    assert (besides.subject, besides.ok, "moved it too, to 0" in (besides.problem or "")) == (
        "broker-a/2",
        False,
        True,
    )
    await services.close()


async def test_a_broker_that_answers_meanwhile_is_not_changed() -> None:
    a, b = FakeBroker("broker-a", A, is_stock=True), FakeBroker("broker-b", B, is_stock=True)
    for broker in (a, b):
        broker.add_topic("orders")
    brokers = FakeBrokers(a, b)
    brokers.dead.add(B)
    services = Services(brokers, Settings(NAMESRV, brokers_cache_ms=0))
    changes: list[Change] = [
        services.topic_changes.edit("orders", TopicSpec(write_queues=6)),
        services.topic_changes.delete("orders"),
    ]
    previews = [await change.preview() for change in changes]
    brokers.dead.clear()
    for change, preview in zip(changes, previews, strict=True):
        assert [each.subject for each in await change.carry_out(preview)] == ["broker-a"]
    assert b.topics["orders"]["writeQueueNums"] == 4
    assert brokers.routes_deleted == []
    await services.close()


async def test_one_secret_is_not_confirmed_by_another() -> None:
    broker = FakeBroker("broker-a", A)
    broker.runtime_keys = "someSecretKey"
    path = f"/brokers/{A}/config"
    async with asking(FakeBrokers(broker)) as client:
        first: dict[str, Any] = {"settings": {"someSecretKey": "one"}}
        other: dict[str, Any] = {"settings": {"someSecretKey": "two"}}
        preview = answered(await client.patch(path, json=first))
        confirmed = {"dryRun": "false", "confirmation": preview["confirmation"]}
        problem = answered(await client.patch(path, json=other, params=confirmed), 409)
        assert "situation changed" in problem["detail"]
        answered(await client.patch(path, json=first, params=confirmed))
        audit = (await client.get("/audit")).text
    assert ("one" in audit, "two" in audit) == (False, False)


async def test_letters_named_by_id_have_a_bound_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq_resend, "RESENT_BYTES_MAX", len(b"letter 0") * 10)
    cluster, store, letters = filled(40)
    path = "/api/v1/dlq/billing/resend"
    async with browsing(cluster) as client:
        fits = await client.post(path, json={"ids": [id_of(each) for each in letters[:10]]})
        assert (fits.status_code, len(fits.json()["effects"])) == (200, 10)
        asked = len(cluster.codes(RequestCode.VIEW_MESSAGE_BY_ID))
        problem = await client.post(path, json={"ids": [id_of(each) for each in letters]})
        assert "name fewer" in detail(problem, 400)
        looked = len(cluster.codes(RequestCode.VIEW_MESSAGE_BY_ID)) - asked
    assert looked <= 2 * dlq_resend.FOUND_AT_ONCE, "the others are not even read"
    assert copies(store, "%RETRY%billing") == []


async def test_another_leader_in_the_last_moment_hands_nothing_over() -> None:
    group = FakeGroup()
    services = Services(group, Settings(NAMESRV, cache_ms=0, brokers_cache_ms=0))
    change = services.replication.transfer("broker-a", "n2")
    preview = await change.preview()
    group.let_lead("n1", term=4)
    with pytest.raises(ChangeRefusedError, match="n1 leads broker-a now"):
        await change.carry_out(preview)
    assert group.asks_of(RequestCode.LEDGERMQ_TRANSFER_LEADER) == 0
    await services.close()
