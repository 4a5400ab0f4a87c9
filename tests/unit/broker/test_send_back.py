"""36: retries and dead letters."""

from pathlib import Path

import pytest

from broker.send.send_back import CPP_SWAPPED_MAXIMUM
from broker.state.changes import PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from broker.timer.scheduling import SCHEDULE_TOPIC
from commitlog.log import PutStatus
from commitlog.record import Message, format_properties, offset_msg_id, parse_properties
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.unit.broker.consume_bench import ConsumeBench, ignore, make_bench, request


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


def send_back(
    position: int, group: str = "g", level: int = 0, language: str = "JAVA", **ext: str
) -> RemotingCommand:
    return request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        b"",
        language,
        offset=str(position),
        group=group,
        delayLevel=str(level),
        **ext,
    )


async def consumed(bench: ConsumeBench, times: int = 0, **properties: str) -> int:
    """A message that was consumed `times` times already; answers its position."""
    message = Message(
        "t" if times == 0 else "%RETRY%g",
        2,
        b"body",
        format_properties({"TAGS": "a", "UNIQ_KEY": "K1", **properties}),
        flag=5,
        sys_flag=1,
        born_timestamp_ms=77,
        born_host=bytes(range(8)),
        reconsume_times=times,
    )
    result = bench.log.put([message], ignore)
    await bench.settle()
    return result.positions[0]


async def test_the_first_retry_waits_at_level_3_for_the_retry_topic(bench: ConsumeBench) -> None:
    position = await consumed(bench)
    assert (await bench.ask(send_back(position))).code == 0
    copy = bench.stored[-1]
    assert (copy.topic, copy.queue_id) == (SCHEDULE_TOPIC, 2)
    assert (copy.body, copy.flag, copy.sys_flag, copy.reconsume_times) == (b"body", 5, 1, 1)
    assert (copy.born_timestamp_ms, copy.born_host) == (77, bytes(range(8)))
    assert copy.store_host == bench.parts.store_host
    assert parse_properties(copy.properties) == {
        "TAGS": "a",
        "UNIQ_KEY": "K1",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": offset_msg_id(bytes(8), position),
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "0",
    }
    assert bench.parts.state.topics["%RETRY%g"].write_queue_nums == 1


async def test_a_later_retry_waits_longer_and_remembers_where_it_came_from(bench: ConsumeBench) -> None:
    position = await consumed(bench, times=2, RETRY_TOPIC="t", ORIGIN_MESSAGE_ID="FIRST", DELAY="4")
    assert (await bench.ask(send_back(position))).code == 0
    properties = parse_properties(bench.stored[-1].properties)
    assert (bench.stored[-1].queue_id, bench.stored[-1].reconsume_times) == (4, 3)
    assert (properties["DELAY"], properties["RETRY_TOPIC"]) == ("5", "t")
    assert properties["ORIGIN_MESSAGE_ID"] == "FIRST"


async def test_the_level_asked_for_counts_and_the_last_one_is_the_longest(bench: ConsumeBench) -> None:
    position = await consumed(bench)
    await bench.ask(send_back(position, level=2))
    assert bench.stored[-1].queue_id == 1
    await bench.ask(send_back(position, level=99))
    assert bench.stored[-1].queue_id == 17


@pytest.mark.parametrize(
    ("times", "language", "most", "is_dead"),
    [
        (15, "JAVA", None, False),
        (16, "JAVA", None, True),
        (1, "JAVA", 2, False),
        (2, "JAVA", 2, True),
        (2, "JAVA", -1, False),
        (16, "CPP", 16, True),
        (16, "CPP", CPP_SWAPPED_MAXIMUM, True),
        (16, "GO", CPP_SWAPPED_MAXIMUM, False),
    ],
)
async def test_dead_letters_by_the_clients_or_the_groups_maximum(
    bench: ConsumeBench, times: int, language: str, most: int | None, is_dead: bool
) -> None:
    position = await consumed(bench, times)
    ext = {} if most is None else {"maxReconsumeTimes": str(most)}
    assert (await bench.ask(send_back(position, "g", 0, language, **ext))).code == 0
    assert (bench.stored[-1].topic == "%DLQ%g") is is_dead


async def test_a_dead_letter_is_not_delayed(bench: ConsumeBench) -> None:
    position = await consumed(bench, RETRY_TOPIC="t", DELAY="18")
    assert (await bench.ask(send_back(position, level=-1))).code == 0
    dead = bench.stored[-1]
    assert (dead.topic, dead.queue_id, dead.reconsume_times) == ("%DLQ%g", 0, 1)
    assert parse_properties(dead.properties)["DELAY"] == "0"
    assert bench.parts.state.topics["%DLQ%g"].perm == 6


async def test_a_known_group_and_topic_cost_one_put_and_no_wait(bench: ConsumeBench) -> None:
    position = await consumed(bench)
    await bench.ask(send_back(position))
    puts = len(bench.log.put_calls)
    bench.log.auto_commit = False
    bench.start(send_back(position))
    assert len(bench.log.put_calls) == puts + 1
    bench.log.commit()
    assert [each.code for each in bench.connection.take_answers()] == [0]


async def test_an_unknown_group_is_created_with_its_topic(bench: ConsumeBench) -> None:
    position = await consumed(bench)
    assert (await bench.ask(send_back(position, group="new"))).code == 0
    assert "new" in bench.parts.state.groups
    assert "%RETRY%new" in bench.parts.state.topics


async def test_an_unknown_group_is_26_when_groups_are_not_created(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, autoCreateSubscriptionGroup=False)
    assert (await bench.ask(send_back(await consumed(bench), group="new"))).code == 26


async def test_a_group_without_retry_queues_lets_the_message_go(bench: ConsumeBench) -> None:
    await bench.parts.state.propose(PutGroup(SubscriptionGroupConfig("n", retry_queue_nums=0)))
    position = await consumed(bench)
    stored = len(bench.stored)
    assert (await bench.ask(send_back(position, group="n"))).code == 0
    assert len(bench.stored) == stored


async def test_a_retry_topic_that_may_not_be_written_is_16(bench: ConsumeBench) -> None:
    await bench.parts.state.propose(PutTopic(TopicConfig("%RETRY%g", 1, 1, perm=4)))
    assert (await bench.ask(send_back(await consumed(bench)))).code == 16


async def test_a_position_without_a_message_is_answered_1(bench: ConsumeBench) -> None:
    answer = await bench.ask(send_back(12_345))
    assert (answer.code, answer.remark) == (1, "look message by offset failed, 12345")


async def test_a_follower_refuses(bench: ConsumeBench) -> None:
    position = await consumed(bench)
    bench.follow()
    assert (await bench.ask(send_back(position))).code == 14


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.OS_PAGE_CACHE_BUSY, 2),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, 1),
        (PutStatus.MESSAGE_ILLEGAL, 13),
    ],
)
async def test_a_copy_that_is_not_stored_is_answered_so(
    bench: ConsumeBench, status: PutStatus, code: int
) -> None:
    position = await consumed(bench)
    await bench.ask(send_back(position))
    bench.log.auto_commit = False
    bench.start(send_back(position))
    bench.log.fail(status)
    assert [each.code for each in bench.connection.take_answers()] == [code]
    bench.log.next_status = status
    assert (await bench.ask(send_back(position))).code == code
