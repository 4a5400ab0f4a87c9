"""Resets of one group that meet, resets without room for their marks, and consumers without a heartbeat."""

import asyncio
from pathlib import Path

import pytest

from broker.consume.clients import HEARD_WITHIN_MS, RunningGroups
from broker.state.changes import CommitOffsets, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import STATE_TOPIC, TopicConfig
from commitlog.log import PutStatus
from remoting import slices
from tests.support.broker_parts import FakeEngine
from tests.support.group_requests import RESET, begin_reset, commit, pull_at, pull_request, send_reset
from tests.support.operator import Operator, connect_client


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    """Topic t with two queues, 9 messages in queue 1; a client of group g runs and has consumed them."""
    made = Operator(tmp_path, FakeEngine())
    made.parts.consumers.running_groups.heard_since_ms -= HEARD_WITHIN_MS
    made.add_pulls()
    made.add_offsets()
    await made.parts.state.propose(
        PutTopic(TopicConfig("t", 2, 2)),
        PutGroup(SubscriptionGroupConfig("g")),
        CommitOffsets("g", "t", {0: 0, 1: 9}),
    )
    await made.store("t", 1, 9)
    return made


async def begin_two(operator: Operator, first: int, second: int) -> None:
    """Two resets of queue 1, in two records that are not committed."""
    operator.log.auto_commit = False
    await begin_reset(operator, 11, queueId="1", offset=str(first))
    await begin_reset(operator, 12, queueId="1", offset=str(second))


async def finish(operator: Operator) -> None:
    """All that is in the log is committed, and both resets are answered."""
    operator.log.auto_commit = True
    operator.log.commit()
    answers = await operator.answers(2)
    assert [(answer.opaque, answer.code) for answer in answers] == [(11, 0), (12, 0)]


async def test_the_second_reset_stands_when_a_consumer_pulls_between_their_commits(
    operator: Operator,
) -> None:
    connect_client(operator)
    await begin_two(operator, 1, 5)
    operator.log.commit(1)
    assert (await pull_at(operator, 9)).code == 19, "nobody is sent to where it is not to stay"
    assert await commit(operator, 1) == 5, "nor stores that behind the second reset"
    await finish(operator)
    moved = await pull_at(operator, 9)
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (21, "5")
    assert operator.parts.state.offsets.get("g", "t", 1) == 5
    assert (await pull_at(operator, 5)).code == 0
    assert await commit(operator, 7) == 7


async def test_a_pull_that_is_held_hears_of_the_second_reset_alone(operator: Operator) -> None:
    connect_client(operator)
    held = pull_request(9, 77, sysFlag="6", suspendTimeoutMillis="15000")
    operator.parts.router.dispatch([(operator.connection.as_connection, [held], held.code)])
    await begin_two(operator, 1, 5)
    operator.log.commit(1)
    assert [answer.opaque for answer in await operator.answers(1)] == [11]
    operator.log.commit()
    answers = {answer.opaque: answer for answer in await operator.answers(2)}
    assert answers[12].code == 0
    assert (answers[77].code, answers[77].ext_fields["nextBeginOffset"]) == (21, "5")


async def test_two_resets_in_one_record_are_the_second(operator: Operator) -> None:
    connect_client(operator)
    held = pull_request(9, 77, sysFlag="6", suspendTimeoutMillis="15000")
    operator.parts.router.dispatch([(operator.connection.as_connection, [held], held.code)])
    records = sum(message.topic == STATE_TOPIC for message in operator.log.messages)
    for opaque, offset in ((11, "1"), (12, "5")):
        send_reset(operator, opaque, queueId="1", offset=offset)
    answers = {answer.opaque: answer for answer in await operator.answers(3)}
    assert sum(message.topic == STATE_TOPIC for message in operator.log.messages) == records + 1
    assert (answers[11].code, answers[12].code, answers[77].code) == (0, 0, 21)
    assert answers[77].ext_fields["nextBeginOffset"] == "5"
    assert operator.parts.state.offsets.get("g", "t", 1) == 5


async def test_a_consumer_that_left_between_two_resets_leaves_the_mark_of_the_second(
    operator: Operator,
) -> None:
    """It is back before that is committed, with the offsets it had."""
    client = connect_client(operator)
    await begin_two(operator, 1, 5)
    slices.finish(operator.parts.clients.connection_closed(client.connection_id))
    operator.log.commit(1)
    assert [answer.opaque for answer in await operator.answers(1)] == [11]
    connect_client(operator)
    assert await commit(operator, 9) == 5
    operator.log.commit()
    await operator.answers(1)
    assert (await pull_at(operator, 9)).code == 21
    assert operator.parts.state.offsets.get("g", "t", 1) == 5


@pytest.mark.parametrize("status", [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY])
async def test_the_first_stands_when_the_second_is_refused(operator: Operator, status: PutStatus) -> None:
    connect_client(operator)
    operator.log.auto_commit = False
    await begin_reset(operator, 11, queueId="1", offset="1")
    operator.log.next_status = status
    send_reset(operator, 12, queueId="1", offset="5")
    (refused,) = await operator.answers(1)
    assert (refused.opaque, refused.code != 0) == (12, True)
    operator.log.commit()
    await operator.answers(1)
    assert (await pull_at(operator, 9)).ext_fields["nextBeginOffset"] == "1"


async def test_a_commit_that_was_on_its_way_first_ends_no_reset(operator: Operator) -> None:
    connect_client(operator)
    operator.log.auto_commit = False
    operator.parts.consumers.commits.commit("g", "t", 1, 8)
    await asyncio.sleep(0)
    await begin_two(operator, 1, 5)
    operator.log.commit(1)
    assert await commit(operator, 9) == 5
    await finish(operator)
    assert (await pull_at(operator, 9)).ext_fields["nextBeginOffset"] == "5"


# -- no room -----------------------------------------------------------------------------------------------


async def test_a_reset_without_room_for_its_marks_is_refused_before_it_is_proposed(
    operator: Operator,
) -> None:
    """Else the running consumers, which nobody tells, would store their old offsets behind it."""
    connect_client(operator)
    operator.parts.config.__dict__["reset_marks_max"] = 1
    puts = len(operator.log.put_calls)
    refused = await operator.ask(RESET, topic="t", group="g", timestamp="0")
    assert (refused.code, "offsetResetMarksMax is 1. Nothing was reset" in (refused.remark or "")) == (
        1,
        True,
    )
    assert len(operator.log.put_calls) == puts
    assert (await pull_at(operator, 9)).code == 19
    assert await commit(operator, 8) == 8
    assert (await operator.ask(RESET, topic="t", group="g", timestamp="0", queueId="1")).code == 0
    assert (await pull_at(operator, 9)).ext_fields["nextBeginOffset"] == "0"


async def test_a_group_that_does_not_run_needs_no_room(operator: Operator) -> None:
    operator.parts.config.__dict__["reset_marks_max"] = 1
    assert (await operator.ask(RESET, topic="t", group="g", timestamp="0")).code == 0


async def test_marks_of_a_group_that_runs_no_more_make_room(operator: Operator) -> None:
    client = connect_client(operator)
    operator.parts.config.__dict__["reset_marks_max"] = 2
    assert (await operator.ask(RESET, topic="t", group="g", timestamp="0")).code == 0
    await operator.parts.state.propose(PutGroup(SubscriptionGroupConfig("h")))
    operator.parts.consumers.running_groups.pulled("h")
    assert (await operator.ask(RESET, topic="t", group="h", timestamp="0")).code == 1
    slices.finish(operator.parts.clients.connection_closed(client.connection_id))
    assert (await operator.ask(RESET, topic="t", group="h", timestamp="0")).code == 0


# -- consumers without a heartbeat -------------------------------------------------------------------------


async def test_a_consumer_that_only_pulls_is_sent_to_the_new_offset_too(operator: Operator) -> None:
    await pull_at(operator, 9)
    assert (await operator.ask(RESET, topic="t", group="g", timestamp="0")).code == 0
    assert await commit(operator, 9) == 0
    assert (await pull_at(operator, 9)).ext_fields["nextBeginOffset"] == "0"


async def test_a_leader_that_has_heard_of_nobody_yet_takes_every_group_for_one_that_runs(
    operator: Operator,
) -> None:
    operator.log.set_writable(False)
    operator.log.set_writable(True)
    assert (await operator.ask(RESET, topic="t", group="g", timestamp="0")).code == 0
    assert await commit(operator, 9) == 0, "its heartbeat is yet to come"
    assert (await pull_at(operator, 9)).ext_fields["nextBeginOffset"] == "0"


def test_groups_are_heard_of_for_a_while(operator: Operator) -> None:
    now_ms = 0
    groups = RunningGroups(operator.parts.clients, lambda: now_ms)
    assert groups.may_run("any")
    now_ms = HEARD_WITHIN_MS
    assert not groups.may_run("any")
    groups.pulled("a")
    now_ms += HEARD_WITHIN_MS - 1
    groups.pulled("b")
    assert (groups.may_run("a"), groups.may_run("b"), groups.is_known("b")) == (True, True, False)
    now_ms += 1
    groups.pulled("b")
    assert (groups.may_run("a"), groups.may_run("b"), len(groups._pulled)) == (False, True, 1)
    groups.begin()
    assert groups.may_run("a")
