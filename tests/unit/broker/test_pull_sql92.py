"""Pulls that filter by properties: who may, what comes, where the next begins, what a held one waits for."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from broker.state.changes import PutTopic
from broker.state.topics import TopicConfig
from commitlog.record import Message, format_properties
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.fake_connection import FakeConnection
from tests.unit.broker.consume_bench import (
    SUSPEND,
    ConsumeBench,
    expire_all,
    header_offsets,
    ignore,
    make_bench,
    pull_request,
    records,
    request,
    waits_of,
)

REFUSED = "The broker does not support consumer to filter message by SQL92"
RETRY = "%RETRY%g"


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path, enablePropertyFilter=True)


def sql_pull(offset: int, expression: str, **fields: str) -> RemotingCommand:
    """A pull that brings its expression along, as Java's lite pull consumer makes it."""
    return pull_request(offset, subscription=expression, expressionType="SQL92", **fields)  # type: ignore[arg-type]


def registered_pull(offset: int = 0, topic: str = "t") -> RemotingCommand:
    """A pull that means what its group's heartbeats said, as Java's push consumer makes it."""
    return pull_request(
        offset, topic=topic, flags=SUSPEND, subscription="", expressionType="SQL92", subVersion="1"
    )


async def put(bench: ConsumeBench, *properties: dict[str, str], topic: str = "t") -> None:
    numbered = enumerate(properties)
    bench.log.put([Message(topic, 0, b"%d" % n, format_properties(p)) for n, p in numbered], ignore)
    await bench.settle()


async def beat(bench: ConsumeBench, *subscriptions: tuple[str, str, str]) -> None:
    """A heartbeat of the group with (topic, expression, type)."""
    data = [
        {"topic": topic, "subString": text, "expressionType": kind, "subVersion": 1}
        for topic, text, kind in subscriptions
    ]
    body = orjson.dumps(
        {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": data}]}
    )
    assert (await bench.ask(request(RequestCode.HEART_BEAT, body))).code == 0


def numbers(answer: RemotingCommand) -> list[int]:
    """The queue offsets of the answer's messages."""
    return [each.queue_offset for each in records(answer.body)]


async def test_what_the_expression_is_true_for_comes_and_the_next_pull_begins_behind_all(
    bench: ConsumeBench,
) -> None:
    await put(bench, {"a": "5"}, {"a": "6"}, {}, {"a": "x"}, {"a": "7", "b": "1"})
    answer = await bench.ask(sql_pull(0, "a > 5"))
    assert (answer.code, numbers(answer), header_offsets(answer)) == (0, [1, 4], (5, 0, 5))
    lite = sql_pull(0, "a = 5 or b is not null")
    lite.code = RequestCode.LITE_PULL_MESSAGE
    assert numbers(await bench.ask(lite)) == [0, 4]
    nothing = await bench.ask(sql_pull(1, "a = 99"))
    assert (nothing.code, nothing.remark, header_offsets(nothing)) == (20, "NO_MATCHED_MESSAGE", (5, 0, 5))


async def test_the_clients_bounds_count_for_what_was_taken(bench: ConsumeBench) -> None:
    await put(bench, *[{"a": str(number % 3)} for number in range(30)])
    answer = await bench.ask(sql_pull(0, "a = 0", maxMsgNums="4"))
    assert (numbers(answer), header_offsets(answer)[0]) == ([0, 3, 6, 9], 10)
    small = await bench.ask(sql_pull(10, "a = 0", maxMsgBytes="1"))
    assert (numbers(small), header_offsets(small)[0]) == ([12], 15)


async def test_the_groups_heartbeat_counts_when_the_pull_brings_no_expression(bench: ConsumeBench) -> None:
    await put(bench, {"a": "5"}, {"a": "6"})
    await beat(bench, ("t", "a = 6", "SQL92"))
    assert numbers(await bench.ask(registered_pull())) == [1]
    go = registered_pull()
    go.ext_fields |= {"expressionType": "TAG", "subVersion": "0"}  # Go writes these whatever it subscribed to
    assert numbers(await bench.ask(go)) == [1]


@pytest.mark.parametrize("expression", ["a =", "", "a > 'x'", "a = 9223372036854775808"])
async def test_an_expression_that_cannot_be_read_is_refused(bench: ConsumeBench, expression: str) -> None:
    brought = await bench.ask(sql_pull(0, expression))
    assert brought.code == 23
    assert (brought.remark or "").startswith("parse the consumer's subscription failed: ")
    await beat(bench, ("t", expression, "SQL92"))
    registered = await bench.ask(registered_pull())
    assert registered.code == 27
    assert "filter data is not exist!Your expression may be wrong!" in (registered.remark or "")


async def test_a_type_that_nobody_knows_is_refused(bench: ConsumeBench) -> None:
    assert (await bench.ask(pull_request(0, subscription="a", expressionType="FOO"))).code == 23
    await beat(bench, ("t", "a", "FOO"))
    assert (await bench.ask(registered_pull())).code == 27


async def test_where_it_is_not_enabled_rocketmqs_sentence_says_so(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    brought = await bench.ask(sql_pull(0, "a = 5"))
    assert (brought.code, brought.remark) == (1, REFUSED)
    await beat(bench, ("t", "a = 5", "SQL92"))
    registered = await bench.ask(registered_pull())
    assert (registered.code, registered.remark) == (1, REFUSED)
    other = await bench.ask(pull_request(0, subscription="a", expressionType="X" * 9_000))
    assert other.code == 1
    assert len(other.remark or "") < 120


async def test_the_check_of_a_subscription(
    bench: ConsumeBench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(asked: ConsumeBench, expression: str, kind: str = "SQL92") -> RemotingCommand:
        subscription = {"topic": "t", "subString": expression, "expressionType": kind}
        body = orjson.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription})
        return await asked.ask(request(RequestCode.CHECK_CLIENT_CONFIG, body))

    assert (await check(bench, "a > 5 and b is null")).code == 0
    assert (await check(bench, "a > 5 -- why", "TAG")).code == 0
    assert caplog.messages == []
    refused = await check(bench, "a > ")
    assert (refused.code, refused.remark) == (23, "the expression ends too early")
    assert (await check(bench, "")).code == 23
    assert (await check(bench, "a", "FOO")).code == 23
    assert (await check(bench, "a like 'x'")).code == 0
    assert "the filter ends before \"like 'x'\"" in caplog.text
    off = await check(await make_bench(tmp_path / "off"), "a > 5")
    assert (off.code, off.remark) == (1, REFUSED)


async def test_a_held_pull_waits_on_behind_messages_it_does_not_want(bench: ConsumeBench) -> None:
    await put(bench, {"a": "5"})
    bench.start(sql_pull(1, "a = 7", suspendTimeoutMillis="30000"))
    await put(bench, {"a": "5"}, {"a": "6"})
    await put(bench, {"a": "x"})
    assert bench.connection.take_answers() == []
    assert len(waits_of(bench)) == 1
    await put(bench, {"a": "7"}, {"a": "5"})
    (answer,) = bench.connection.take_answers()
    assert (answer.code, numbers(answer), header_offsets(answer)) == (0, [4], (6, 0, 6))


async def test_its_time_is_its_own_however_often_it_was_woken(bench: ConsumeBench) -> None:
    bench.start(sql_pull(0, "a = 7"))
    await put(bench, {"a": "5"}, {"a": "6"})
    expire_all(bench)
    (answer,) = bench.connection.take_answers()
    assert (answer.code, answer.remark, header_offsets(answer)) == (19, "OFFSET_OVERFLOW_ONE", (2, 0, 2))
    assert len(waits_of(bench)) == 0


async def test_a_held_pull_woken_while_the_node_stops_is_told_where_to_go_on(bench: ConsumeBench) -> None:
    bench.start(sql_pull(0, "a = 7"))
    waits_of(bench)._is_stopped = True
    await put(bench, {"a": "5"})
    (answer,) = bench.connection.take_answers()
    assert (answer.code, header_offsets(answer)) == (20, (1, 0, 1))


async def test_a_held_pull_of_a_closed_connection_is_forgotten(bench: ConsumeBench) -> None:
    gone = FakeConnection(9)
    bench.start(sql_pull(0, "a = 7"), gone)
    await put(bench, {"a": "5"})
    bench.parts.close_connection(gone.as_connection)
    assert len(waits_of(bench)) == 0


async def test_a_follower_filters_too(bench: ConsumeBench) -> None:
    await put(bench, {"a": "5"}, {"a": "7"})
    bench.follow()
    assert numbers(await bench.ask(sql_pull(0, "a = 7"))) == [1]


@pytest.mark.parametrize(
    ("supports_retry", "wanted"),
    [(False, [0]), (True, [1, 2, 3, 4])],
    ids=["own expression", "topic's expression"],
)
async def test_a_retry_topic_filters_by_its_own_or_by_each_messages_topic(
    tmp_path: Path, supports_retry: bool, wanted: list[int]
) -> None:
    """ExpressionForRetryMessageFilter: what the group filters in no such way is always wanted."""
    bench = await make_bench(tmp_path, enablePropertyFilter=True, filterSupportRetry=supports_retry)
    await bench.parts.state.propose(PutTopic(TopicConfig(RETRY, 1, 1)))
    others = ("u", "TagA", "TAG"), ("bad", "a =", "SQL92")
    await beat(bench, ("t", "a = 6", "SQL92"), *others, (RETRY, "a = 5", "SQL92"))
    origins = [("5", "t"), ("6", "t"), ("1", "u"), ("1", "bad"), ("1", "")]
    await put(bench, *[{"a": a, "RETRY_TOPIC": topic} for a, topic in origins], topic=RETRY)
    assert numbers(await bench.ask(registered_pull(topic=RETRY))) == wanted


async def test_clients_subscribe_to_their_retry_topic_by_a_star_and_get_all_of_it(
    bench: ConsumeBench,
) -> None:
    await bench.parts.state.propose(PutTopic(TopicConfig(RETRY, 1, 1)))
    await beat(bench, ("t", "a = 6", "SQL92"), (RETRY, "*", "TAG"))
    await put(bench, {"a": "5", "RETRY_TOPIC": "t"}, {}, topic=RETRY)
    assert numbers(await bench.ask(registered_pull(topic=RETRY))) == [0, 1]
