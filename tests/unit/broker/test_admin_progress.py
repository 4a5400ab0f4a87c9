"""All groups' lag in one answer."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from broker.admin.progress import ROWS_PER_TURN, ProgressAdmin
from broker.admin.types import ProgressMessage
from broker.pop.feature import pop_feature
from broker.state.changes import CommitOffsets, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.connection import Connection
from tests.support.broker_parts import FakeEngine
from tests.support.operator import Operator, connect_client


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    """Topic t with two queues, 5 messages in queue 1; group g has consumed 2 of them, group h nothing."""
    made = Operator(tmp_path, FakeEngine())
    await made.parts.state.propose(
        PutTopic(TopicConfig("t", 2, 2)),
        PutGroup(SubscriptionGroupConfig("g")),
        PutGroup(SubscriptionGroupConfig("h")),
        CommitOffsets("g", "t", {0: 0, 1: 2}),
        CommitOffsets("gone", "t", {0: 0}),
    )
    await made.store("t", 1, 5)
    return made


async def read(operator: Operator) -> ProgressMessage:
    answer = await operator.ask(RequestCode.LEDGERMQ_GROUP_PROGRESS)
    assert answer.code == 0, answer
    return ProgressMessage.from_json(answer.body)


async def test_lag_of_every_group_comes_in_one_answer(operator: Operator) -> None:
    progress = await read(operator)
    assert progress.broker_name == operator.parts.config.broker_name
    assert (progress.groups["g"].topics["t"].lag, progress.groups["g"].topics["t"].unknown_queues) == (3, 0)
    assert progress.groups["h"].topics == {}
    assert progress.groups["gone"].topics["t"].unknown_queues == 1, (
        "offsets without a group are shown as well"
    )
    assert progress.groups["g"].members == 0
    assert progress.groups["g"].message_model is None
    assert progress.groups["g"].pop_in_flight is None, "nobody here keeps pops"


async def test_members_and_their_mode_are_told_of_groups_that_are_online(operator: Operator) -> None:
    connect_client(operator)
    group = (await read(operator)).groups["g"]
    assert (group.members, group.message_model, group.consume_type) == (1, "CLUSTERING", "CONSUME_PASSIVELY")


async def test_what_is_popped_is_unknown_until_it_was_read(operator: Operator) -> None:
    feature, operator.popped_queues = pop_feature(operator.parts.core, operator.parts.consumers)
    operator.parts.add(feature)
    assert (await read(operator)).groups["g"].pop_in_flight is None, "the table is not read yet"


def progress_admin(operator: Operator) -> ProgressAdmin:
    core = operator.parts.core
    return ProgressAdmin(core.config, core.log, core.state, core.clients, core.clock, core.statistics)


async def test_a_group_of_very_many_topics_leaves_the_loop_to_others(operator: Operator) -> None:
    """Nobody's turn is longer than that of so many rows, and what changes meanwhile does no harm."""
    count = 10 * ROWS_PER_TURN
    state = operator.parts.state
    await state.propose(
        *(CommitOffsets("wide", f"t{number}", {0: 0}) for number in range(count)),
        *(PutTopic(TopicConfig(f"t{number}", 1, 1)) for number in range(count)),
        *(CommitOffsets(f"g{number}", "t", {0: 0}) for number in range(count)),
    )
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    reading = asyncio.create_task(
        progress_admin(operator).all_groups(
            RemotingCommand(RequestCode.LEDGERMQ_GROUP_PROGRESS), cast("Connection", None)
        )
    )
    await asyncio.sleep(0)
    await state.propose(CommitOffsets("new", "t", {0: 0}), CommitOffsets("wide", "t1", {0: 0}))
    progress = ProgressMessage.from_json((await reading).body)
    counting.cancel()
    assert turns >= 2 * count // ROWS_PER_TURN
    assert len(progress.groups["wide"].topics) == count
    assert {*(f"g{number}" for number in range(count)), "g", "h"} <= progress.groups.keys()


async def test_topics_without_a_reader_and_what_waits_here_are_in_the_answer(tmp_path: Path) -> None:
    operator = Operator(tmp_path, FakeEngine())
    await operator.parts.state.propose(
        *(PutTopic(TopicConfig(name, 1, 1)) for name in ("read", "left", "empty", "RMQ_SYS_TRACE_TOPIC")),
        CommitOffsets("g", "read", {0: 0}),
    )
    for topic in ("read", "left", "RMQ_SYS_TRACE_TOPIC"):
        await operator.store(topic, 0, 3)
    progress = await read(operator)
    assert (progress.unread, progress.unread_topics) == ({"left": 3}, 1)
    assert progress.waiting == {"delay": 0}


async def test_a_change_of_the_permission_ends_the_quiet(operator: Operator) -> None:
    """Producers send on by routes from before it, also to a group that got nothing for long."""
    operator.parts.core.statistics.last_put_ms -= 60_000
    assert ((await read(operator)).quiet_ms or 0) >= 60_000
    await operator.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4")
    assert ((await read(operator)).quiet_ms or 0) < 60_000
