"""Pulls on the writable leader: order of checks, statuses, long polling."""

from pathlib import Path

import pytest

from broker.consume import held_pulls
from broker.monitoring.statistics import BROKER_GET
from broker.state.changes import DeleteTopic, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from dledger.core.types import ResponseCode
from remoting.codes import RequestCode
from remoting.command import ONEWAY_FLAG
from tests.unit.broker.consume_bench import (
    COMMIT,
    SUBSCRIPTION,
    ConsumeBench,
    answer_after_doubt,
    expire_all,
    header_offsets,
    make_bench,
    pull_request,
    records,
    request,
    waits_of,
)


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


async def test_found_messages_come_back_to_back_with_all_header_fields(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two", b"three")
    answer = await bench.ask(pull_request(1))
    assert (answer.code, answer.remark, answer.opaque) == (0, "FOUND", 1)
    assert header_offsets(answer) == (3, 0, 3)
    assert [(each.body, each.queue_offset) for each in records(answer.body)] == [(b"two", 1), (b"three", 2)]
    assert bench.parts.statistics.total(BROKER_GET) == 2
    assert bench.parts.statistics.total_bytes(BROKER_GET) == len(answer.body)


async def test_lite_pull_is_served_as_well(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    pull = pull_request(0)
    pull.code = RequestCode.LITE_PULL_MESSAGE
    assert (await bench.ask(pull)).code == 0


async def test_an_answer_keeps_to_the_number_and_bytes_asked_for(bench: ConsumeBench) -> None:
    await bench.put(*[b"x" * 100_000] * 5)
    two = await bench.ask(pull_request(0, maxMsgNums="2"))
    assert header_offsets(two)[0] == 2
    within_256_kib = await bench.ask(pull_request(0))
    assert header_offsets(within_256_kib)[0] == 2
    small = await bench.ask(pull_request(0, maxMsgBytes="1000"))
    assert header_offsets(small)[0] == 1


async def test_a_message_beyond_all_bounds_comes_alone(bench: ConsumeBench) -> None:
    await bench.put(b"x" * 1_000_000, b"small")
    answer = await bench.ask(pull_request(0))
    assert [len(each.body) for each in records(answer.body)] == [1_000_000]


async def test_tags_are_filtered_and_the_next_offset_lies_behind_all_that_was_looked_at(
    bench: ConsumeBench,
) -> None:
    for tag in ("TagA", "TagB", "", "TagA", "TagB"):
        await bench.put(tag.encode(), tag=tag)
    answer = await bench.ask(pull_request(0, subscription="TagA"))
    assert [each.body for each in records(answer.body)] == [b"TagA", b"TagA"]
    assert header_offsets(answer) == (5, 0, 5)
    nothing = await bench.ask(pull_request(0, subscription="TagC"))
    assert (nothing.code, nothing.remark) == (20, "NO_MATCHED_MESSAGE")
    assert header_offsets(nothing) == (5, 0, 5)


async def test_an_offset_out_of_range_moves_the_consumer_on_the_leader(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two")
    bench.log.fake_queues.by_key["t", 0].drop_before(1)
    too_small = await bench.ask(pull_request(0))
    assert (too_small.code, too_small.remark) == (21, "OFFSET_TOO_SMALL")
    assert header_offsets(too_small) == (1, 1, 2)
    beyond = await answer_after_doubt(bench, 9)
    assert (beyond.code, beyond.remark) == (21, "OFFSET_OVERFLOW_BADLY")
    assert header_offsets(beyond) == (2, 1, 2)


async def test_a_consumer_of_a_deleted_topic_gets_all_of_the_one_made_again(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two", b"three")
    await bench.parts.state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t", 4, 4)))
    await bench.put(b"new")
    beyond = await answer_after_doubt(bench, 3)
    assert (beyond.code, beyond.remark) == (21, "OFFSET_OVERFLOW_BADLY")
    assert header_offsets(beyond) == (0, 0, 1)


async def test_an_empty_queue_is_21_for_any_offset_but_0(bench: ConsumeBench) -> None:
    at_0 = await bench.ask(pull_request(0, flags=SUBSCRIPTION))
    assert (at_0.code, at_0.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert header_offsets(at_0) == (0, 0, 0)
    at_5 = await answer_after_doubt(bench, 5)
    assert at_5.code == 21
    assert header_offsets(at_5) == (0, 0, 0)


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_leader_that_is_disputed_meanwhile_sends_no_consumer_back(
    bench: ConsumeBench, is_writable: bool
) -> None:
    """A machine that was suspended, its clocks with it, hears of the next leader after the pull."""
    await bench.put(b"one")
    bench.engine.are_reads_held = True
    bench.start(pull_request(9, flags=SUBSCRIPTION))
    await bench.settle()
    bench.engine.read_code = ResponseCode.TERM_CHANGED
    bench.log.set_writable(is_writable)
    bench.engine.end_reads()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert (answer.code, header_offsets(answer)[0]) == (19, 9)


async def test_the_end_of_the_queue_is_19_when_the_pull_may_not_wait(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    answer = await bench.ask(pull_request(1, flags=SUBSCRIPTION))
    assert (answer.code, answer.remark) == (19, "OFFSET_OVERFLOW_ONE")
    assert header_offsets(answer) == (1, 0, 1)


async def test_a_deleted_file_is_passed_over(bench: ConsumeBench) -> None:
    (first, _) = await bench.put(b"one", b"two")
    del bench.log._records[first]
    answer = await bench.ask(pull_request(0))
    assert (answer.code, answer.remark) == (20, "MESSAGE_WAS_REMOVING")
    assert header_offsets(answer)[0] == 1


async def test_a_hole_in_the_queue_is_passed_over(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two")
    rows = bench.log.fake_queues.by_key["t", 0].rows
    rows[0] = (rows[0][0], 0, -1)
    answer = await bench.ask(pull_request(0))
    assert [each.body for each in records(answer.body)] == [b"two"]
    assert header_offsets(answer)[0] == 2


async def test_a_held_pull_is_answered_in_the_turn_in_which_its_message_is_committed(
    bench: ConsumeBench,
) -> None:
    bench.start(pull_request(0, opaque=5))
    await bench.settle()
    assert bench.connection.answers == []
    bench.log.auto_commit = False
    await bench.put(b"one")
    assert bench.connection.answers == []
    bench.log.commit()
    (answer,) = bench.connection.take_answers()
    assert (answer.code, answer.opaque) == (0, 5)
    assert [each.body for each in records(answer.body)] == [b"one"]
    assert len(waits_of(bench)) == 0


async def test_a_held_pull_sleeps_through_other_tags_and_goes_on_behind_them(bench: ConsumeBench) -> None:
    bench.start(pull_request(0, subscription="TagA"))
    await bench.put(b"b", b"b", tag="TagB")
    assert bench.connection.answers == []
    expire_all(bench)
    (answer,) = bench.connection.take_answers()
    assert answer.code == 19
    assert header_offsets(answer) == (2, 0, 2)


async def test_a_wanted_tag_among_others_wakes_the_pull(bench: ConsumeBench) -> None:
    bench.start(pull_request(0, subscription="TagA"))
    await bench.put(b"b", tag="TagB")
    await bench.put(b"a", tag="TagA")
    (answer,) = bench.connection.take_answers()
    assert [each.body for each in records(answer.body)] == [b"a"]
    assert header_offsets(answer) == (2, 0, 2)


async def test_messages_of_other_queues_wake_nobody(bench: ConsumeBench) -> None:
    bench.start(pull_request(0, queue_id=1))
    await bench.put(b"one", queue_id=0)
    assert bench.connection.answers == []


async def test_a_held_pull_whose_time_is_up_is_answered_19_with_its_offset(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.start(pull_request(1))
    await bench.settle()
    expire_all(bench)
    (answer,) = bench.connection.take_answers()
    assert answer.code == 19
    assert header_offsets(answer) == (1, 0, 1)


async def test_the_timer_answers_by_itself(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, longPollingEnable=False, shortPollingTimeMills=1)
    answered = bench.connection
    bench.start(pull_request(0))
    while not answered.answers:
        await bench.settle()
    assert answered.answers[0].code == 19


async def test_a_closed_connection_is_not_answered_any_more(bench: ConsumeBench) -> None:
    bench.start(pull_request(0))
    await bench.settle()
    bench.parts.close_connection(bench.connection.as_connection)
    assert len(waits_of(bench)) == 0
    await bench.put(b"one")
    assert bench.connection.answers == []


async def test_stopping_answers_those_who_wait(bench: ConsumeBench) -> None:
    bench.start(pull_request(0))
    await bench.settle()
    await waits_of(bench).stop()
    assert [answer.code for answer in bench.connection.take_answers()] == [19]


async def test_a_oneway_pull_is_not_held(bench: ConsumeBench) -> None:
    pull = pull_request(0)
    pull.flag = ONEWAY_FLAG
    bench.start(pull)
    await bench.settle()
    assert len(waits_of(bench)) == 0


async def test_too_many_held_pulls_are_told_to_come_back(bench: ConsumeBench) -> None:
    waits_of(bench)._table._held_max = 1
    bench.start(pull_request(0))
    answer = await bench.ask(pull_request(0, opaque=2))
    assert (answer.code, answer.opaque) == (2, 2)


# Checks


async def test_an_unknown_group_is_created(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    assert (await bench.ask(pull_request(0, group="new"))).code == 0
    assert "new" in bench.parts.state.groups


@pytest.mark.parametrize("status", [PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.OS_PAGE_CACHE_BUSY])
async def test_a_group_that_cannot_be_created_now_reads_all_the_same(
    bench: ConsumeBench, status: PutStatus
) -> None:
    """A leader whose disk is full, or who has too much to do, takes nothing: what is there can be read."""
    await bench.put(b"one")
    bench.log.next_status = status
    answer = await bench.ask(pull_request(0, group="new"))
    assert answer.code == 0
    assert [each.body for each in records(answer.body)] == [b"one"]
    assert "new" not in bench.parts.state.groups
    bench.log.next_status = PutStatus.PUT_OK
    assert (await bench.ask(pull_request(0, group="new"))).code == 0
    assert "new" in bench.parts.state.groups


async def test_checks_come_in_rocketmqs_order(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, autoCreateSubscriptionGroup=False)
    await bench.parts.state.propose(
        PutGroup(SubscriptionGroupConfig("off", consume_enable=False)),
        PutTopic(TopicConfig("unreadable", 4, 4, perm=2)),
    )

    async def code(**fields: str) -> int:
        return (await bench.ask(pull_request(0, **fields))).code  # type: ignore[arg-type]

    bad = {"topic": "unreadable", "queueId": "4", "subscription": "||"}
    assert await code(group="unknown", **bad) == 26
    assert await code(group="off", **bad) == 16
    assert await code(**{**bad, "topic": "absent"}) == 17
    assert await code(**bad) == 16
    assert await code(**{**bad, "topic": "t"}) == 29
    assert await code(queueId="-1") == 29
    assert await code(subscription="||") == 23
    assert await code(subscription="a > 1", expressionType="SQL92") == 1


async def test_an_unreadable_header_is_answered_1_with_the_fields_name(bench: ConsumeBench) -> None:
    answer = await bench.ask(pull_request(0, queueOffset="x"))
    assert answer.code == 1
    assert "queueOffset" in (answer.remark or "")


# Offsets that come with a pull


async def test_an_offset_in_a_pull_counts_at_once_and_is_stored_with_the_next_flush(
    bench: ConsumeBench,
) -> None:
    await bench.put(b"one", b"two", b"three")
    puts = bench.state_puts
    for offset in (1, 2, 2, 1):
        await bench.ask(pull_request(0, flags=COMMIT | SUBSCRIPTION, commitOffset=str(offset)))
    assert bench.state_puts == puts
    query = request(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId="0")
    assert (await bench.ask(query)).ext_fields["offset"] == "2"
    assert bench.parts.state.offsets.get("g", "t", 0) is None
    for service in bench.parts.features.services:
        await service.stop()
    assert bench.state_puts == puts + 1
    assert bench.parts.state.offsets.get("g", "t", 0) == 2


async def test_a_follower_stores_no_offset_of_a_pull(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.follow()
    await bench.ask(pull_request(0, flags=COMMIT | SUBSCRIPTION, commitOffset="1"))
    bench.lead()
    query = request(RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId="0")
    assert (await bench.ask(query)).ext_fields["offset"] == "0"


async def test_very_many_pulls_that_one_message_wakes_do_not_keep_the_loop(
    bench: ConsumeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for opaque in range(5):
        bench.start(pull_request(0, opaque=opaque))
    await bench.settle()
    assert len(waits_of(bench)) == 5
    bench.connection.take_answers()
    bench.log.auto_commit = False
    await bench.put(b"for all")
    monkeypatch.setattr(held_pulls, "RESUMED_S_MAX", -1)
    bench.log.commit()
    assert len(bench.connection.take_answers()) == 1
    await bench.settle()
    assert len(bench.connection.take_answers()) == 4


async def test_pulls_that_wait_for_a_new_group_go_on_one_after_the_other(bench: ConsumeBench) -> None:
    bench.log.auto_commit = False
    for opaque in range(5):
        bench.start(pull_request(opaque=opaque, group="new", flags=SUBSCRIPTION))
    await bench.settle()
    assert bench.connection.take_answers() == []
    bench.log.commit()
    await bench.settle()
    assert [each.opaque for each in bench.connection.take_answers()] == [0, 1, 2, 3, 4]


async def test_pull_of_a_connection_that_is_gone_is_not_read(bench: ConsumeBench) -> None:
    bench.connection.is_open = False
    bench.start(pull_request(0))
    await bench.settle()
    assert len(waits_of(bench)) == 0
