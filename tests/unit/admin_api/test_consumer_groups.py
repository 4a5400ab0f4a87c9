"""Groups as they are shown: unknown stays null, offline is no zero, a silent broker's part is missing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from admin_api.changes import ChangeRefusedError
from admin_api.errors import NotFoundError, PageWanted, UnavailableError
from admin_api.groups.changes import ConsumeMode, ConsumeModeChange, GroupSettingsChange
from admin_api.groups.overview import GroupPresence, GroupSort
from admin_api.groups.service import ConsumerGroups, GroupQuery
from admin_api.services import Services
from admin_api.settings import Settings
from remoting.codes import RequestCode
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS
from tests.unit.admin_api.fake_groups import FakeBroker, FakeBrokers, Kind, group_config, sample

KINDS: list[Kind] = ["ledgermq", "rocketmq5", "rocketmq4"]


@asynccontextmanager
async def opened(*brokers: FakeBroker) -> AsyncIterator[ConsumerGroups]:
    services = Services(FakeBrokers(*brokers), Settings(NAMESRV_ADDRESS))
    yield services.consumer_groups
    await services.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_the_list_tells_lag_and_presence_of_any_broker(kind: Kind) -> None:
    broker = sample(kind)
    broker.clients["g"] = ["c1", "c2"]
    async with opened(broker) as groups:
        page = await groups.find(GroupQuery(sort=GroupSort.LAG, is_descending=True), PageWanted())
        assert [item.group for item in page.items] == ["g", "h"], "RocketMQ's own are left out"
        g, h = page.items
        assert (g.lag, g.presence, g.members, g.message_model) == (60, "online", 2, "CLUSTERING")
        assert (h.lag, h.presence, h.members) == (None, "offline", 0)
        assert (page.is_partial, page.total, g.lag_by_topic) == (False, 2, {"t": 60})


async def test_a_list_costs_a_few_requests_however_many_groups_there_are() -> None:
    broker = sample("ledgermq")
    broker.groups = {f"g{n:04}": group_config(f"g{n:04}") for n in range(5_000)}
    async with opened(broker) as groups:
        page = await groups.find(GroupQuery(sort=GroupSort.LAG), PageWanted(2, 100))
        assert (page.total, page.items[0].group) == (5_000, "g0100")
        await groups.find(GroupQuery(contains="G4999"), PageWanted())
        assert len(broker.asked) < 10, "its status, its groups, their progress; again when they are old"


async def test_a_stock_broker_is_not_asked_for_all_lag_when_nobody_wants_it() -> None:
    broker = sample("rocketmq5")
    async with opened(broker) as groups:
        page = await groups.find(GroupQuery(with_lag=False), PageWanted())
        assert page.items[0].lag is None
        assert RequestCode.GET_BROKER_CONSUME_STATS not in broker.asked
        broker.asked.clear()
        long = await groups.find(GroupQuery(with_lag=False), PageWanted(1, 1000))
        assert long.items[0].presence == "offline", "two groups are a short page, whatever its size"


async def test_a_silent_broker_makes_presence_unknown_and_lag_partial() -> None:
    silent = sample("rocketmq5", "broker-b")
    silent.is_hanging = True
    async with opened(sample("ledgermq"), silent) as groups:
        page = await groups.find(GroupQuery(), PageWanted())
        g = page.items[0]
        assert (page.is_partial, g.is_lag_partial, g.lag) == (True, True, 60)
        assert (g.presence, g.members) == (GroupPresence.UNKNOWN, None)
        with pytest.raises(UnavailableError):
            await groups.view("absent")
        view = await groups.view("g")
        assert (view.is_partial, view.presence, view.member_count) == (True, "unknown", None)
        assert view.has_same_settings is None


async def test_members_and_progress_that_nobody_tells_are_unknown() -> None:
    broker = sample("ledgermq")
    broker.clients["g"] = ["c1"]
    async with opened(broker) as groups:
        await groups.find(GroupQuery(), PageWanted())
        broker.is_hanging = True
        members, progress = await groups.members("g"), await groups.progress("g")
        assert (members.is_partial, members.presence) == (True, "unknown")
        assert (members.members, members.subscriptions) == (None, None)
        assert (progress.topics, progress.lag, progress.consume_tps) == (None, None, None)


async def test_an_offset_that_is_not_told_is_no_offset_that_is_not_there() -> None:
    broker = sample("ledgermq")
    broker.offsets["g", "t"] = {0: 0, 1: 0}
    async with opened(broker) as groups:
        assert (await groups.progress("g")).is_partial is False
        broker.failing.add(RequestCode.QUERY_CONSUMER_OFFSET)
        for view in (await groups.progress("g"), await groups.view("g")):
            assert view.is_partial is True
            assert "a fault" in view.problems[0].problem


async def test_nobody_answers() -> None:
    broker = sample("rocketmq5")
    broker.is_hanging = True
    async with opened(broker) as groups:
        with pytest.raises(UnavailableError):
            await groups.find(GroupQuery(), PageWanted())


@pytest.mark.parametrize("kind", KINDS)
async def test_one_group_shows_its_settings_and_members(kind: Kind) -> None:
    broker = sample(kind)
    broker.clients["g"] = ["c1"]
    async with opened(broker) as groups:
        view = await groups.view("g")
        assert (view.lag, view.member_count, view.is_broadcast) == (60, 1, False)
        assert view.brokers[0].settings is not None
        assert view.brokers[0].settings.retry_max_times == 16
        assert view.members is not None
        assert view.subscriptions is not None
        (member,) = view.members
        assert (member.client_id, member.version, member.language) == ("c1", "4.9.8", "JAVA")
        assert view.subscriptions[0].topic == "t"
        offline = await groups.view("h")
        assert (offline.lag, offline.member_count, offline.is_broadcast) == (None, 0, None)
        with pytest.raises(NotFoundError):
            await groups.view("absent")


async def test_broadcast_is_marked_and_has_no_lag() -> None:
    broker = sample("ledgermq")
    broker.clients["g"] = ["c1"]
    broker.message_model = "BROADCASTING"
    async with opened(broker) as groups:
        view = await groups.view("g")
        assert (view.is_broadcast, view.lag) == (True, None)
        page = await groups.find(GroupQuery(), PageWanted())
        assert (page.items[0].lag, page.items[0].message_model) == (None, "BROADCASTING")


@pytest.mark.parametrize(("kind", "in_flight"), [("ledgermq", None), ("rocketmq5", 3), ("rocketmq4", None)])
async def test_progress_shows_each_queue(kind: Kind, in_flight: int | None) -> None:
    broker = sample(kind)
    broker.clients["g"] = ["c1", "c2"]
    async with opened(broker) as groups:
        view = await groups.progress("g")
        assert view.topics is not None
        (topic,) = view.topics
        full, empty = topic.queues
        assert (full.min_offset, full.max_offset, full.offset, full.lag) == (10, 100, 40, 60)
        assert (full.delay_ms, full.last_consumed_at_ms, full.client_id) == (700, 39_000, "c1")
        assert full.in_flight == in_flight
        assert (empty.lag, empty.delay_ms, empty.client_id) == (0, 0, "c2")
        assert (view.lag, topic.lag) == (60, 60)


@pytest.mark.parametrize("kind", ["rocketmq4", "rocketmq5"])
async def test_a_queue_without_an_offset_has_no_lag(kind: Kind) -> None:
    broker = sample(kind)
    broker.queues["t"] = [(0, 100), (0, 50)]
    broker.offsets["g", "t"] = {1: 20}
    async with opened(broker) as groups:
        view = await groups.progress("g")
        assert view.topics is not None
        first, second = view.topics[0].queues
        assert (first.offset, first.lag, first.delay_ms) == (None, None, None)
        assert (second.offset, second.lag, view.lag) == (20, 30, 30)
        assert (await groups.view("g")).lag == 30
        assert view.topics[0].unknown_queues == 1
        nothing = await groups.progress("h", "t")
        assert nothing.lag is None
        broker.queues["t"] = [(0, 100), (0, 0)]
        broker.offsets["g", "t"] = {1: 0}
        assert (await groups.view("g")).lag is None, "the offset of an empty queue says nothing of the other"
        assert (await groups.progress("g")).lag is None


async def test_a_member_says_what_it_does() -> None:
    broker = sample("rocketmq5")
    broker.clients["g"] = ["c1"]
    async with opened(broker) as groups:
        running = await groups.running("g", "c1", with_stack=True)
        assert running.stack == "at org.example.Work"
        assert running.properties == {"PROP_CLIENT_VERSION": "V4_9_8", "secretKey": "********"}
        assert [(queue.queue_id, queue.cached_messages) for queue in running.queues] == [(0, 2), (1, 2)]
        assert (running.rates[0].pull_ms, running.rates[0].consume_ok_tps) == (1.5, 3.0)
        with pytest.raises(NotFoundError):
            await groups.running("g", "c9")


async def test_settings_are_changed_and_what_is_not_known_is_kept() -> None:
    broker = sample("rocketmq5")
    async with opened(broker) as groups:
        change = groups.put("g", GroupSettingsChange(retry_max_times=3, consume_enabled=False))
        preview = await change.preview()
        assert preview.is_destructive
        assert {(each.subject, each.before, each.after) for each in preview.effects} == {
            ("broker-a: retryMaxTimes", "16", "3"),
            ("broker-a: consumeEnabled", "true", "false"),
        }
        assert [each.ok for each in await change.carry_out(preview)] == [True]
        assert broker.groups["g"]["groupSysFlag"] == 5
        assert (broker.groups["g"]["retryMaxTimes"], broker.groups["g"]["consumeEnable"]) == (3, False)


async def test_a_group_is_made_and_deleted() -> None:
    brokers = sample("ledgermq"), sample("rocketmq4", "broker-b")
    async with opened(*brokers) as groups:
        make = groups.put("new", GroupSettingsChange(retry_queues=2))
        preview = await make.preview()
        assert (preview.action, preview.is_destructive) == ("group.create", False)
        assert [each.subject for each in await make.carry_out(preview)] == ["broker-a", "broker-b"]
        assert all(broker.groups["new"]["retryQueueNums"] == 2 for broker in brokers)
        delete = groups.delete("g")
        preview = await delete.preview()
        assert preview.is_destructive
        assert "offsets of t" in [each.subject for each in preview.effects]
        await delete.carry_out(preview)
        assert all("g" not in broker.groups and not broker.offsets for broker in brokers)
        with pytest.raises(NotFoundError):
            await groups.delete("g").preview()


async def test_the_consume_mode_is_shown_and_set_where_brokers_know_it() -> None:
    broker, old = sample("ledgermq"), sample("rocketmq4", "broker-b")
    async with opened(broker, old) as groups:
        assert (await groups.view("g")).consume_modes == []
        wanted = ConsumeModeChange(topic="t", mode=ConsumeMode.POP, pop_share_queues=2)
        change = groups.set_mode("g", wanted)
        preview = await change.preview()
        assert [(each.subject, each.before, each.after) for each in preview.effects] == [
            ("broker-a: t", None, "POP, 2 share a queue")
        ]
        assert [each.ok for each in await change.carry_out(preview)] == [True]
        modes = (await groups.view("g")).consume_modes
        assert modes is not None
        assert [(mode.topic, mode.broker_name, mode.mode) for mode in modes] == [("t", "broker-a", "POP")]
        with pytest.raises(ChangeRefusedError, match="already"):
            await groups.set_mode("g", wanted).preview()
        with pytest.raises(NotFoundError):
            await groups.set_mode("g", ConsumeModeChange(topic="absent", mode=ConsumeMode.PULL)).preview()


async def test_rocketmq_4_knows_no_consume_modes() -> None:
    async with opened(sample("rocketmq4")) as groups:
        assert (await groups.view("g")).consume_modes is None
        with pytest.raises(ChangeRefusedError, match="RocketMQ 5"):
            await groups.set_mode("g", ConsumeModeChange(topic="t", mode=ConsumeMode.POP)).preview()


async def test_a_new_leader_is_asked_at_once() -> None:
    broker = sample("ledgermq")
    fake = FakeBrokers(broker)
    services = Services(fake, Settings(NAMESRV_ADDRESS, brokers_cache_ms=0))
    assert (await services.consumer_groups.find(GroupQuery(), PageWanted())).total == 2
    del fake.brokers[broker.address]
    broker.port_shift = 10
    broker.groups["k"] = group_config("k")
    fake.brokers[broker.address] = broker
    page = await services.consumer_groups.find(GroupQuery(), PageWanted())
    assert (page.total, page.is_partial) == (3, False)
    await services.close()
