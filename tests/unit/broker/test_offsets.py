"""Consumer offsets and queue bounds, on the leader and on a node that is not."""

import asyncio
from pathlib import Path

import pytest

from broker.state.changes import PutTopic
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.unit.broker.consume_bench import ConsumeBench, make_bench, request

RETRY = "%RETRY%g"


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


def query(topic: str = "t", queue_id: int = 0, language: str = "JAVA", **ext: str) -> RemotingCommand:
    fields = {"consumerGroup": "g", "topic": topic, "queueId": str(queue_id), **ext}
    return request(RequestCode.QUERY_CONSUMER_OFFSET, b"", language, **fields)


def update(offset: int, topic: str = "t", group: str = "g", queue_id: int = 0) -> RemotingCommand:
    return request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group,
        topic=topic,
        queueId=str(queue_id),
        commitOffset=str(offset),
    )


def bound(code: int, queue_id: int = 0, /, **ext: str) -> RemotingCommand:
    return request(code, topic="t", queueId=str(queue_id), **ext)


async def offset_of(bench: ConsumeBench, asked: RemotingCommand) -> int:
    answer = await bench.ask(asked)
    assert answer.code == 0, answer
    return int(answer.ext_fields["offset"])


async def test_an_update_is_answered_when_it_is_committed(bench: ConsumeBench) -> None:
    bench.log.auto_commit = False
    bench.start(update(7))
    await bench.settle()
    assert bench.connection.answers == []
    bench.log.commit()
    await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [0]
    assert bench.parts.state.offsets.get("g", "t", 0) == 7


async def test_an_update_counts_for_queries_before_it_is_committed(bench: ConsumeBench) -> None:
    """The new owner of a queue asks right behind the old one's last word, and need not read that again."""
    bench.log.auto_commit = False
    bench.start(update(7))
    assert await offset_of(bench, query()) == 7


async def test_updates_of_one_turn_are_one_record(bench: ConsumeBench) -> None:
    puts = bench.state_puts
    for queue_id in range(4):
        bench.start(update(queue_id + 1, queue_id=queue_id))
    await bench.settle()
    assert bench.state_puts == puts + 1
    assert [answer.code for answer in bench.connection.take_answers()] == [0] * 4
    assert bench.parts.state.offsets.queues("g", "t") == {0: 1, 1: 2, 2: 3, 3: 4}


async def test_an_offset_that_is_stored_already_costs_no_record(bench: ConsumeBench) -> None:
    await bench.ask(update(7))
    puts = bench.state_puts
    assert (await bench.ask(update(7))).code == 0
    assert bench.state_puts == puts


async def test_the_same_offset_twice_waits_for_one_commit(bench: ConsumeBench) -> None:
    bench.log.auto_commit = False
    puts = bench.state_puts
    bench.start(update(7))
    bench.start(update(7))
    await bench.settle()
    assert bench.state_puts == puts + 1
    bench.log.commit()
    await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [0, 0]


async def test_an_offset_may_be_set_back(bench: ConsumeBench) -> None:
    await bench.ask(update(7))
    await bench.ask(update(3))
    assert await offset_of(bench, query()) == 3


async def test_going_back_while_the_same_offset_is_stored_still_counts(bench: ConsumeBench) -> None:
    """7 is stored, 9 on its way: a 7 behind it must not be taken for done."""
    await bench.ask(update(7))
    bench.start(update(9))
    bench.start(update(7))
    await bench.settle()
    assert bench.parts.state.offsets.get("g", "t", 0) == 7


async def test_an_update_that_fails_is_answered_so_and_does_not_count(bench: ConsumeBench) -> None:
    bench.log.auto_commit = False
    bench.start(update(7))
    await bench.settle()
    bench.log.fail(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [1]
    assert await offset_of(bench, query()) == 0


async def test_going_back_while_it_is_not_known_whether_an_offset_is_stored_still_counts(
    bench: ConsumeBench,
) -> None:
    """What is stored now says nothing: the one that timed out may be applied yet."""
    assert (await bench.ask(update(5))).code == 0
    bench.log.auto_commit = False
    bench.start(update(9))
    await bench.settle()
    bench.log.time_out()
    await bench.settle()
    assert bench.connection.take_answers()[0].code != 0
    bench.start(update(5))
    await bench.settle()
    assert bench.connection.answers == [], "it is not known yet"
    bench.log.commit()
    await bench.settle()
    assert bench.connection.take_answers()[0].code == 0
    assert bench.parts.state.offsets.get("g", "t", 0) == 5
    puts = bench.state_puts
    assert (await bench.ask(update(5))).code == 0
    assert bench.state_puts == puts, "now it is known again"


async def test_updates_for_unknown_topics_and_impossible_offsets_are_refused(bench: ConsumeBench) -> None:
    assert (await bench.ask(update(1, topic="absent"))).code == 17
    assert (await bench.ask(update(-1))).code == 1
    assert (await bench.ask(update(1, queue_id=-1))).code == 1


async def test_an_update_of_an_unknown_group_is_26_and_makes_none(bench: ConsumeBench) -> None:
    """mqadmin's cloneGroupOffset commits for its target like a consumer, and says what comes back."""
    assert (await bench.ask(update(3, group="new"))).code == 26
    assert (await bench.ask(update(3, group="new", topic="absent"))).code == 26
    assert "new" not in bench.parts.state.groups
    assert bench.parts.state.offsets.get("new", "t", 0) is None


async def test_a_new_group_begins_at_0_while_the_queue_does(bench: ConsumeBench) -> None:
    assert await offset_of(bench, query(queue_id=3)) == 0
    await bench.put(b"one", b"two")
    assert await offset_of(bench, query()) == 0
    bench.log.fake_queues.by_key["t", 0].drop_before(1)
    assert (await bench.ask(query())).code == 22


async def test_a_client_may_ask_not_to_be_given_0(bench: ConsumeBench) -> None:
    assert (await bench.ask(query(setZeroIfNotFound="false"))).code == 22
    assert await offset_of(bench, query(setZeroIfNotFound="true")) == 0


async def test_a_new_group_of_a_cold_queue_decides_itself_where_to_begin(tmp_path: Path) -> None:
    """Its consumeFromWhere counts there; in a young queue it begins at the first message."""
    bench = await make_bench(tmp_path, accessMessageInMemoryMaxRatio="0")
    assert (await bench.ask(query())).ext_fields["offset"] == "0"
    await bench.put(b"one")
    assert (await bench.ask(query())).code == 22


async def test_bounds_of_a_queue(bench: ConsumeBench) -> None:
    await bench.put(b"one", b"two", b"three")
    bench.log.fake_queues.by_key["t", 0].drop_before(1)
    assert await offset_of(bench, bound(RequestCode.GET_MAX_OFFSET)) == 3
    assert await offset_of(bench, bound(RequestCode.GET_MIN_OFFSET)) == 1
    assert await offset_of(bench, bound(RequestCode.GET_MAX_OFFSET, 2)) == 0
    assert await offset_of(bench, bound(RequestCode.GET_MIN_OFFSET, 2)) == 0


async def test_search_by_time(bench: ConsumeBench) -> None:
    start_ms = bench.log.now_ms
    for step in range(4):
        bench.log.now_ms = start_ms + 100 * step
        await bench.put(b"one")

    async def found(timestamp_ms: int, **ext: str) -> int:
        asked = bound(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(timestamp_ms), **ext)
        return await offset_of(bench, asked)

    assert await found(start_ms - 1) == 0
    assert await found(start_ms + 100) == 1
    assert await found(start_ms + 101) == 2
    assert await found(start_ms + 1_000) == 4
    assert await found(start_ms + 199, boundaryType="UPPER") == 1
    assert await found(start_ms + 200, boundaryType="upper") == 2
    empty = bound(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 3, timestamp="5")
    assert await offset_of(bench, empty) == 0


async def test_the_earliest_store_time(bench: ConsumeBench) -> None:
    asked = bound(RequestCode.GET_EARLIEST_MSG_STORETIME)
    assert (await bench.ask(asked)).ext_fields["timestamp"] == "-1"
    await bench.put(b"one")
    assert (await bench.ask(asked)).ext_fields["timestamp"] == str(bench.log.now_ms)


# A node that does not lead

LEADER_ONLY = [
    query(),
    update(7),
    bound(RequestCode.GET_MAX_OFFSET),
    bound(RequestCode.GET_MIN_OFFSET),
    bound(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp="5"),
    bound(RequestCode.GET_EARLIEST_MSG_STORETIME),
    query(language="CPP"),
]


@pytest.mark.parametrize("asked", LEADER_ONLY, ids=lambda each: f"{int(each.code)}-{each.language}")
async def test_a_follower_refuses_and_names_the_leader(bench: ConsumeBench, asked: RemotingCommand) -> None:
    await bench.put(b"one")
    await bench.ask(update(1))
    bench.engine.client_addresses = {"n1": "127.0.0.1:10921"}
    bench.follow("n1")
    answer = await bench.ask(asked)
    assert answer.code == 14
    assert "127.0.0.1:10921" in (answer.remark or "")


async def test_a_query_during_an_election_is_answered_by_the_new_leader(bench: ConsumeBench) -> None:
    await bench.ask(update(1))
    bench.follow(None)
    bench.start(query())
    await bench.settle()
    assert bench.connection.answers == []
    bench.lead()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert (answer.code, answer.ext_fields["offset"]) == (0, "1")


async def test_a_query_during_an_election_is_refused_once_another_node_leads(bench: ConsumeBench) -> None:
    bench.follow(None)
    bench.start(query())
    await bench.settle()
    bench.engine.leader_id = "n2"
    async with asyncio.timeout(10):
        while not bench.connection.answers:
            await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [14]


async def test_cpp_gets_a_followers_offset_of_a_retry_topic(bench: ConsumeBench) -> None:
    """It would take a refusal for 0, and consume all retries again."""
    await bench.parts.state.propose(PutTopic(TopicConfig(RETRY, 1, 1)))
    await bench.ask(update(5, topic=RETRY))
    bench.follow()
    assert await offset_of(bench, query(RETRY, language="CPP")) == 5
    assert (await bench.ask(query(RETRY, queue_id=1, language="CPP"))).code == 14
    assert (await bench.ask(query(RETRY, language="JAVA"))).code == 14


# Offsets that came with pulls


async def test_noted_offsets_only_advance_and_give_way_to_a_commit(bench: ConsumeBench) -> None:
    commits = bench.parts.consumers.commits
    commits.note("g", "t", 0, 5)
    commits.note("g", "t", 0, 4)
    assert commits.current("g", "t", 0) == 5
    await bench.ask(update(3))
    assert commits.current("g", "t", 0) == 3
    puts = bench.state_puts
    commits.flush()
    await bench.settle()
    assert bench.state_puts == puts


async def test_one_flush_takes_all_groups_in_one_record(bench: ConsumeBench) -> None:
    commits = bench.parts.consumers.commits
    for group in ("g", "TOOLS_CONSUMER"):
        for queue_id in range(3):
            commits.note(group, "t", queue_id, queue_id + 1)
    puts = bench.state_puts
    commits.flush()
    await bench.settle()
    assert bench.state_puts == puts + 1
    assert bench.parts.state.offsets.queues("TOOLS_CONSUMER", "t") == {0: 1, 1: 2, 2: 3}


async def test_offsets_noted_as_a_leader_are_not_proposed_after_it(bench: ConsumeBench) -> None:
    commits = bench.parts.consumers.commits
    commits.note("g", "t", 0, 5)
    bench.follow()
    bench.lead()
    assert commits.current("g", "t", 0) is None
    await commits.stop()


async def test_there_is_one_table_of_offsets_on_their_way(bench: ConsumeBench) -> None:
    assert bench.parts.consumers.commits is bench.parts.consumers.commits


@pytest.mark.parametrize(("offset", "queue_id"), [(2**63 - 1, 0), (2**53, 0), (0, 2**31 - 1), (0, 16)])
async def test_numbers_that_no_queue_can_have_are_refused(
    bench: ConsumeBench, offset: int, queue_id: int
) -> None:
    answer = await bench.ask(update(offset, queue_id=queue_id))
    assert (answer.code, "out of range" in str(answer.remark)) == (1, True)
    bench.parts.consumers.commits.note("g", "t", queue_id, offset)
    assert bench.parts.consumers.commits.current("g", "t", queue_id) is None
