"""33: a message by its position; 12: messages by key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.state.changes import DeleteTopic, PutTopic
from broker.state.topics import TRACE_TOPIC, TopicConfig
from broker.store import queries as key_queries
from broker.store import queries as query_processor
from commitlog.key_index import KeyMaintenance
from commitlog.key_segment import key_hash
from commitlog.record import Message, decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.support.broker_parts import NOW_MS, FakeEngine, make_parts
from tests.support.fake_log import FakeLog
from tests.support.polling import until
from tests.unit.broker.consume_bench import ConsumeBench, ignore, make_bench, records, request

TIMES = {"beginTimestamp": "0", "endTimestamp": str(2**62)}


async def test_a_message_is_found_by_its_position_on_any_node(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    (_, position) = await bench.put(b"one", b"two")
    bench.follow()
    answer = await bench.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(position)))
    assert answer.code == 0
    assert decode_record(answer.body).body == b"two"


async def test_a_position_where_no_message_begins_is_answered_1(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    (position,) = await bench.put(b"one")
    for wrong in (position + 1, -5, 10**12):
        answer = await bench.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(wrong)))
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {wrong}")


async def test_a_message_that_this_node_cannot_read_yet_is_waited_for(tmp_path: Path) -> None:
    """A leader whose own disk is slow acknowledges what it cannot read yet."""
    bench = await make_bench(tmp_path)
    bench.log.auto_commit = False
    position = bench.log.put([Message("t", 0, b"one", b"")], ignore).positions[0]
    bench.parts.end_position = lambda: position + 1_000
    bench.start(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(position)))
    await bench.settle()
    assert bench.connection.take_answers() == []
    bench.log.commit()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert (answer.code, decode_record(answer.body).body) == (0, b"one")


async def test_requests_for_what_never_comes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_processor, "ARRIVALS_MAX", 2)
    monkeypatch.setattr(query_processor, "ARRIVAL_S", 0.01)
    bench = await make_bench(tmp_path)
    bench.parts.end_position = lambda: 10**12
    for offset in range(1_000, 1_003):
        bench.start(request(RequestCode.VIEW_MESSAGE_BY_ID, offset=str(offset)))
    await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [1]
    await until(lambda: len(bench.connection.answers) >= 2)
    assert [answer.code for answer in bench.connection.take_answers()] == [1, 1]


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


def put(bench: ConsumeBench, *texts: str, topic: str = "t") -> None:
    """One message for each text, `ID|WORDS`, a millisecond apart."""
    for text in texts:
        unique_key, _, words = text.partition("|")
        properties = f"KEYS\x01{words}\x02UNIQ_KEY\x01{unique_key}\x02".encode()
        bench.log.now_ms += 1
        bench.log.put([Message(topic, 0, text.encode(), properties)], ignore)
        bench.log.commit()


async def query(bench: ConsumeBench, key: str, **fields: Any) -> RemotingCommand:
    ext = (
        {"topic": "t", "key": key, "maxNum": "64"}
        | TIMES
        | {name: str(value) for name, value in fields.items()}
    )
    bench.start(request(RequestCode.QUERY_MESSAGE, **ext))
    await until(lambda: any(each.is_response for each in bench.connection.answers))
    (answer,) = [each for each in bench.connection.take_answers() if each.is_response]
    return answer


async def bodies(bench: ConsumeBench, key: str, **fields: Any) -> list[str]:
    answer = await query(bench, key, **fields)
    assert answer.code in (0, ResponseCode.QUERY_NOT_FOUND)
    return [record.body.decode() for record in records(answer.body)]


async def test_messages_are_found_by_each_word_of_their_keys_newest_first(bench: ConsumeBench) -> None:
    put(bench, "A|red green", "B|green", "C|red")
    assert await bodies(bench, "red") == ["C|red", "A|red green"]
    assert await bodies(bench, "green") == ["B|green", "A|red green"]
    assert await bodies(bench, "A") == ["A|red green"]
    assert await bodies(bench, "red green") == []


async def test_an_answer_says_how_far_the_index_is(bench: ConsumeBench) -> None:
    put(bench, "A|red")
    fields = (await query(bench, "red")).ext_fields
    assert fields["indexLastUpdateTimestamp"] == str(bench.log.now_ms)
    assert fields["indexLastUpdatePhyoffset"] == str(bench.log.max_position)


async def test_a_query_for_an_id_finds_nothing_else(bench: ConsumeBench) -> None:
    put(bench, "A|red", "B|A", "A|blue")
    assert await bodies(bench, "A", _UNIQUE_KEY_QUERY="true", maxNum=1) == ["A|blue", "A|red"]
    assert await bodies(bench, "A", _UNIQUE_KEY_QUERY="false") == ["A|blue", "B|A", "A|red"]
    assert await bodies(bench, "red", _UNIQUE_KEY_QUERY="true") == []


async def test_only_messages_of_the_topic_are_found(bench: ConsumeBench) -> None:
    put(bench, "A|red")
    put(bench, "B|red", topic="TBW102")
    assert await bodies(bench, "red") == ["A|red"]
    assert await bodies(bench, "red", topic="TBW102") == ["B|red"]


async def test_both_ends_of_the_time_are_included(bench: ConsumeBench) -> None:
    first_ms = bench.log.now_ms + 1
    put(bench, "A|k", "B|k", "C|k", "D|k")
    found = await bodies(bench, "k", beginTimestamp=first_ms + 1, endTimestamp=first_ms + 2)
    assert found == ["C|k", "B|k"]
    assert await bodies(bench, "k", beginTimestamp=first_ms + 4) == []
    assert await bodies(bench, "k", beginTimestamp=first_ms + 2, endTimestamp=first_ms + 1) == []


@pytest.mark.parametrize(("asked", "got"), [(3, 3), (64, 64), (1000, 64), (0, 0), (-1, 0)])
async def test_so_many_at_most_are_answered(bench: ConsumeBench, asked: int, got: int) -> None:
    put(bench, *(f"{number}|k" for number in range(100)))
    found = await bodies(bench, "k", maxNum=asked)
    assert found == [f"{number}|k" for number in range(99, 99 - got, -1)]


async def test_an_answer_has_a_bound_but_one_message_always_fits(
    bench: ConsumeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, "A|k", "B|k")
    monkeypatch.setattr(key_queries, "ANSWER_BYTES_MAX", 10)
    assert await bodies(bench, "k") == ["B|k"]


async def test_one_query_looks_at_so_many_records_only(
    bench: ConsumeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hash that others share leads to other messages too."""
    put(bench, "A|k", *["|x"] * 9)
    monkeypatch.setattr("broker.store.queries.key_hash", lambda topic, key: key_hash(topic, "x"))
    monkeypatch.setattr(key_queries, "RECORDS_READ_MAX", 4)
    looked_at: list[int] = []

    def record_at(position: int) -> bytes | None:
        looked_at.append(position)
        return FakeLog.record_at(bench.log, position)

    monkeypatch.setattr(bench.log, "record_at", record_at)
    assert await bodies(bench, "k") == []
    assert len(looked_at) == 4


async def test_a_collision_is_passed_over(bench: ConsumeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bench, "A|k", "B|x", "C|k")
    monkeypatch.setattr("broker.store.queries.key_hash", lambda topic, key: key_hash(topic, "x"))
    assert await bodies(bench, "k") == []
    assert await bodies(bench, "x") == ["B|x"]


async def test_an_unknown_topic_is_answered_17_a_deleted_one_too(bench: ConsumeBench) -> None:
    put(bench, "A|k")
    assert (await query(bench, "k", topic="none")).code == ResponseCode.TOPIC_NOT_EXIST
    await bench.parts.state.propose(DeleteTopic("t"))
    assert (await query(bench, "k")).code == ResponseCode.TOPIC_NOT_EXIST


async def test_messages_of_before_a_deletion_are_none_of_the_topic_made_again(bench: ConsumeBench) -> None:
    put(bench, "A|k")
    await bench.parts.state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t")))
    put(bench, "B|k")
    assert await bodies(bench, "k") == ["B|k"]


async def test_what_cannot_be_asked(bench: ConsumeBench) -> None:
    assert (await query(bench, "")).code == ResponseCode.QUERY_NOT_FOUND
    assert (await query(bench, "k" * 40_000)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await query(bench, "k", indexType="T")).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert (await query(bench, "k", indexType="K")).code == ResponseCode.QUERY_NOT_FOUND
    assert (await query(bench, "k", maxNum="many")).code == ResponseCode.SYSTEM_ERROR


async def test_too_many_queries_at_a_time_are_answered_busy(
    bench: ConsumeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(bench, "A|k")
    monkeypatch.setattr(key_queries, "WAITING_MAX", 2)
    for _ in range(5):
        bench.start(request(RequestCode.QUERY_MESSAGE, topic="t", key="k", maxNum="9", **TIMES))
    answers: list[RemotingCommand] = []
    async with asyncio.timeout(10):
        while len(answers) < 5:
            answers += [each for each in bench.connection.take_answers() if each.is_response]
            await asyncio.sleep(0)
    assert sorted(answer.code for answer in answers) == [0, 0, 2, 2, 2]


async def test_messages_of_before_the_start_are_found_once_they_are_read_again(
    bench: ConsumeBench, tmp_path: Path
) -> None:
    """A node whose index is behind says so when it finds nothing."""
    put(bench, "A|old")
    log, engine = bench.log.reopened(), FakeEngine()
    parts = make_parts(tmp_path / "again", log, engine)
    await log.start()
    again = ConsumeBench(parts, log, engine)
    assert "indexed again" in str((await query(again, "old")).remark)
    (upkeep,) = [each for each in parts.features.services if isinstance(each, KeyMaintenance)]
    await upkeep.work()
    assert await bodies(again, "old") == ["A|old"]
    assert "indexed again" not in str((await query(again, "none")).remark)


async def test_a_broker_without_an_index_says_so(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, messageIndexEnable="false")
    put(bench, "A|k")
    answer = await query(bench, "k")
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    assert "messageIndexEnable is off" in str(answer.remark)


async def test_the_trace_topic_is_there_from_the_start_only_if_that_is_wanted(tmp_path: Path) -> None:
    for enabled, is_there in (("true", True), ("false", False)):
        bench = await make_bench(tmp_path / enabled, traceTopicEnable=enabled)
        assert (TRACE_TOPIC in bench.parts.state.topics) is is_there
        if is_there:
            assert bench.parts.state.topics[TRACE_TOPIC].queue_nums == 1


async def test_a_follower_answers_as_the_leader_does(bench: ConsumeBench) -> None:
    put(bench, "A|k")
    bench.follow()
    assert await bodies(bench, "k") == ["A|k"]
    assert bench.log.now_ms > NOW_MS
