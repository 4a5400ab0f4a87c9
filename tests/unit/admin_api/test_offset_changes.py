"""Resets, skips and clones: what the preview says is what happens, on each kind of broker."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from pydantic import ValidationError

from admin_api.changes import ChangeRefusedError, Outcome, Preview
from admin_api.errors import NotFoundError, UnavailableError
from admin_api.groups.offset_changes import (
    OffsetClone,
    OffsetReset,
    Offsets,
    OffsetSkip,
    QueueOffset,
    QueuePlan,
    ResetTo,
    has_moved,
)
from admin_api.services import Services
from admin_api.settings import Settings
from remoting.codes import ResponseCode
from tests.unit.admin_api.fake_cluster import NAMESRV_ADDRESS
from tests.unit.admin_api.fake_groups import FakeBroker, FakeBrokers, Kind, sample

KINDS: list[Kind] = ["ledgermq", "rocketmq5", "rocketmq4"]


@asynccontextmanager
async def opened(*brokers: FakeBroker) -> AsyncIterator[Offsets]:
    services = Services(FakeBrokers(*brokers), Settings(NAMESRV_ADDRESS))
    yield services.offsets
    await services.close()


async def reset(offsets: Offsets, request: OffsetReset) -> tuple[Preview, Sequence[Outcome]]:
    change = offsets.reset("g", request)
    preview = await change.preview()
    return preview, await change.carry_out(preview)


def at(broker: FakeBroker, group: str = "g") -> dict[int, int]:
    return broker.offsets.get((group, "t"), {})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_online", [True, False])
@pytest.mark.parametrize(
    ("request_", "effect", "after"),
    [
        (OffsetReset(topic="t", to=ResetTo.EARLIEST), "10, 30 messages again", 10),
        (OffsetReset(topic="t", to=ResetTo.LATEST), "100, 60 messages skipped", 100),
        (OffsetReset(topic="t", to=ResetTo.TIME, time_ms=24_500), "25, 15 messages again", 25),
    ],
)
async def test_all_queues_are_moved(
    kind: Kind, is_online: bool, request_: OffsetReset, effect: str, after: int
) -> None:
    broker = sample(kind)
    if is_online:
        broker.clients["g"] = ["c1"]
    async with opened(broker) as offsets:
        preview, outcomes = await reset(offsets, request_)
        first, second = preview.effects
        assert (first.subject, first.before, first.after) == ("broker-a/0", "40", effect)
        assert (second.before, second.after) == ("0", "0, as it is")
        assert preview.is_destructive
        assert any("run" in warning for warning in preview.warnings) == is_online
        assert outcomes == [Outcome("broker-a/0", True), Outcome("broker-a/1", True)]
        assert at(broker) == {0: after, 1: 0}


@pytest.mark.parametrize(
    ("kind", "is_online", "is_moved"),
    [
        (kind, is_online, kind != "rocketmq4" or not is_online)
        for kind in KINDS
        for is_online in (True, False)
    ],
)
async def test_one_queue_is_moved_where_the_broker_can(kind: Kind, is_online: bool, is_moved: bool) -> None:
    broker = sample(kind)
    broker.queues["t"][1] = (0, 80)
    broker.offsets["g", "t"][1] = 80
    if is_online:
        broker.clients["g"] = ["c1"]
    wanted = [QueueOffset(broker_name="broker-a", queue_id=0, offset=57)]
    async with opened(broker) as offsets:
        preview, (outcome,) = await reset(offsets, OffsetReset(topic="t", to=ResetTo.OFFSET, queues=wanted))
        assert [(each.subject, each.after) for each in preview.effects] == [
            ("broker-a/0", "57, 17 messages skipped")
        ]
        assert outcome.ok is is_moved
        assert at(broker) == {0: 57 if is_moved else 40, 1: 80}, "no other queue is ever touched"


async def test_a_queue_without_an_offset_is_unknown_before_and_known_after() -> None:
    broker = sample("rocketmq4")
    broker.offsets.clear()
    async with opened(broker) as offsets:
        preview, outcomes = await reset(offsets, OffsetReset(topic="t", to=ResetTo.EARLIEST))
        assert (preview.effects[0].before, preview.effects[0].after) == (None, "10, 90 messages to consume")
        assert all(each.ok for each in outcomes)
        assert at(broker) == {0: 10, 1: 0}, "4.9 refuses 222 here, so the offsets were committed"


async def test_the_confirmed_thing_is_the_request_not_offsets_that_move() -> None:
    broker = sample("ledgermq")
    async with opened(broker) as offsets:
        request = OffsetReset(topic="t", to=ResetTo.LATEST)
        before = await offsets.reset("g", request).preview()
        broker.queues["t"][0] = (10, 200)
        broker.offsets["g", "t"][0] = 60
        after = await offsets.reset("g", request).preview()
        assert before.effects != after.effects
        assert before.basis == after.basis
        other = await offsets.reset("g", OffsetReset(topic="t", to=ResetTo.EARLIEST)).preview()
        assert other.basis != before.basis


async def test_what_cannot_be_reached_is_said() -> None:
    broker = sample("ledgermq")
    silent = sample("ledgermq", "broker-b")
    async with opened(broker, silent) as offsets:
        silent.is_hanging = True
        preview = await offsets.reset("g", OffsetReset(topic="t", to=ResetTo.EARLIEST)).preview()
        assert any("broker-b" in warning or silent.address in warning for warning in preview.warnings)
        assert {each.subject for each in preview.effects} == {"broker-a/0", "broker-a/1"}
        with pytest.raises(UnavailableError):
            await offsets.reset("g", OffsetReset(topic="absent", to=ResetTo.EARLIEST)).preview()


async def test_refusal_of_a_broker_stays_one() -> None:
    broker = sample("rocketmq4")
    broker.clients["g"] = ["c1"]
    async with opened(broker) as offsets:
        change = offsets.reset("g", OffsetReset(topic="t", to=ResetTo.EARLIEST))
        preview = await change.preview()
        broker.clients["g"] = []
        outcomes = await change.carry_out(preview)
    refused = [outcome for outcome in outcomes if not outcome.ok]
    assert [outcome.code for outcome in refused] == [ResponseCode.CONSUMER_NOT_ONLINE] * len(refused) != []


async def test_what_is_not_there_is_refused() -> None:
    async with opened(sample("ledgermq")) as offsets:
        with pytest.raises(NotFoundError):
            await offsets.reset("absent", OffsetReset(topic="t", to=ResetTo.EARLIEST)).preview()
        with pytest.raises(NotFoundError):
            await offsets.reset("g", OffsetReset(topic="absent", to=ResetTo.EARLIEST)).preview()
        with pytest.raises(ChangeRefusedError, match="goes from 10 to 100"):
            await offsets.reset("g", OffsetReset(topic="t", to=ResetTo.OFFSET, offset=7)).preview()
        wanted = [QueueOffset(broker_name="broker-a", queue_id=9)]
        with pytest.raises(ChangeRefusedError, match="broker-a/9"):
            await offsets.reset("g", OffsetReset(topic="t", to=ResetTo.LATEST, queues=wanted)).preview()


@pytest.mark.parametrize(
    "wrong",
    [
        {"to": "time"},
        {"to": "latest", "timeMs": 5},
        {"to": "latest", "offset": 5},
        {"to": "offset"},
        {"to": "offset", "queues": [{"brokerName": "b", "queueId": 1}]},
        {"to": "earliest", "queues": [{"brokerName": "b", "queueId": 1}, {"brokerName": "b", "queueId": 1}]},
        {"to": "time", "time": "2026-01-01T00:00:00"},
    ],
)
def test_a_request_is_whole(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        OffsetReset.model_validate({"topic": "t", **wrong})


async def test_all_topics_are_skipped_but_not_retries() -> None:
    broker = sample("ledgermq")
    broker.queues |= {"u": [(0, 5)], "%RETRY%g": [(0, 3)]}
    broker.offsets |= {("g", "u"): {0: 1}, ("g", "%RETRY%g"): {0: 0}}
    async with opened(broker) as offsets:
        change = offsets.skip("g", OffsetSkip())
        preview = await change.preview()
        assert [each.subject for each in preview.effects] == ["t broker-a/0", "t broker-a/1", "u broker-a/0"]
        assert all(each.ok for each in await change.carry_out(preview))
        assert (at(broker)[0], broker.offsets["g", "u"], broker.offsets["g", "%RETRY%g"]) == (
            100,
            {0: 5},
            {0: 0},
        )
        with pytest.raises(ChangeRefusedError, match="consumed nothing"):
            await offsets.skip("h", OffsetSkip()).preview()


@pytest.mark.parametrize("kind", KINDS)
async def test_offsets_are_cloned(kind: Kind) -> None:
    broker = sample(kind)
    broker.queues["t"][0] = (0, 100)
    async with opened(broker) as offsets:
        change = offsets.clone("g", OffsetClone(target_group="h"))
        preview = await change.preview()
        assert (preview.is_destructive, preview.effects[0].before) == (False, None)
        assert all(each.ok for each in await change.carry_out(preview))
        assert at(broker, "h") == {0: 40, 1: 0}
        broker.offsets["g", "t"][0] = 50
        assert (await offsets.clone("g", OffsetClone(target_group="h", topic="t")).preview()).is_destructive
        broker.clients["h"] = ["c1"]
        with pytest.raises(ChangeRefusedError, match="stop them"):
            await offsets.clone("g", OffsetClone(target_group="h")).preview()


def test_a_group_that_has_gone_on_was_moved() -> None:
    back = QueuePlan("t", "b", 0, 0, 100, before=50, after=10)
    assert [has_moved(back, offset) for offset in (10, 30, 50, 9, None)] == [True, True, False, False, False]
    ahead = QueuePlan("t", "b", 0, 0, 100, before=50, after=90)
    assert [has_moved(ahead, offset) for offset in (90, 95, 60)] == [True, True, False]
