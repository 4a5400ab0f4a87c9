"""Which messages a pull gets by its group's heartbeats, also when it is ahead of them."""

from pathlib import Path

import pytest

from broker.state.changes import PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from tests.support.fake_connection import FakeConnection
from tests.unit.broker.consume_bench import (
    SUSPEND,
    ConsumeBench,
    make_bench,
    pull_request,
    records,
    request,
)
from tests.unit.broker.heartbeat_samples import GO_CONSUMER, JAVA_CONSUMER


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


async def test_without_an_expression_the_heartbeats_counts(bench: ConsumeBench) -> None:
    """Go sends subscription "" and subVersion 0, and means what its heartbeat said."""
    for tag in ("TagA", "TagB", "TagC"):
        await bench.put(tag.encode(), topic="T", tag=tag)
    await bench.parts.state.propose(PutTopic(TopicConfig("T", 1, 1)))
    go_fields = {"topic": "T", "group": "CID", "flags": SUSPEND, "subscription": "", "subVersion": "0"}
    unknown = await bench.ask(pull_request(0, **go_fields))  # type: ignore[arg-type]
    assert unknown.code == 24
    await bench.ask(request(RequestCode.HEART_BEAT, GO_CONSUMER, "GO"))
    answer = await bench.ask(pull_request(0, **go_fields))  # type: ignore[arg-type]
    assert [each.body for each in records(answer.body)] == [b"TagA", b"TagB"]


async def test_a_topic_that_no_heartbeat_named_is_refused(bench: ConsumeBench) -> None:
    await bench.ask(request(RequestCode.HEART_BEAT, GO_CONSUMER, "GO"))
    assert (await bench.ask(pull_request(0, group="CID", flags=SUSPEND))).code == 24


async def test_a_broadcasting_group_needs_permission(bench: ConsumeBench) -> None:
    await bench.parts.state.propose(PutGroup(SubscriptionGroupConfig("b", consume_broadcast_enable=False)))
    body = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"b","messageModel":0,'
        b'"subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":1}]}]}'
    )
    await bench.ask(request(RequestCode.HEART_BEAT, body))
    assert (await bench.ask(pull_request(0, group="b", flags=SUSPEND))).code == 16


# A consumer that pulls with a version which no heartbeat has named yet: Java's first rebalance raises it, and
# leaves out the heartbeat while another one of the same client is under way.


def newer_pull(offset: int = 0, **fields: str) -> RemotingCommand:
    """Of a version after all heartbeats of the samples, and without an expression, as Java's client pulls."""
    pull = pull_request(offset, topic="T", group="CID", flags=SUSPEND)
    pull.ext_fields |= {"subscription": "", "expressionType": "TAG", "subVersion": "1700000000009", **fields}
    return pull


async def seen(bench: ConsumeBench, asked: RemotingCommand) -> tuple[list[int], RemotingCommand]:
    """The codes of the notices that came with the answer, and the answer."""
    bench.start(asked)
    await bench.settle()
    *notices, answer = bench.connection.take_answers()
    assert answer.is_response
    assert all(each.is_oneway and each.ext_fields == {"consumerGroup": "CID"} for each in notices)
    return [each.code for each in notices], answer


def bodies_of(answer: RemotingCommand) -> list[bytes]:
    return [bytes(each.body) for each in records(answer.body)]


@pytest.fixture
async def racing(bench: ConsumeBench) -> ConsumeBench:
    """The group CID wants TagA and TagB of T, which has a message of each of three tags."""
    await bench.parts.state.propose(PutTopic(TopicConfig("T", 1, 1)))
    for tag in ("TagA", "TagB", "TagC"):
        await bench.put(tag.encode(), topic="T", tag=tag)
    await bench.ask(request(RequestCode.HEART_BEAT, GO_CONSUMER, "GO"))
    return bench


async def test_a_pull_that_is_ahead_of_its_heartbeat_gets_all_tags_and_one_notice(
    racing: ConsumeBench,
) -> None:
    codes, answer = await seen(racing, newer_pull())
    assert codes == [RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert (answer.code, bodies_of(answer)) == (0, [b"TagA", b"TagB", b"TagC"])
    for version in range(10, 30):
        codes, answer = await seen(racing, newer_pull(subVersion=f"17000000000{version}"))
        assert (codes, answer.code) == ([], 0)


async def test_its_next_heartbeat_brings_the_filter_back(racing: ConsumeBench) -> None:
    await seen(racing, newer_pull())
    beat = GO_CONSUMER.replace(b"1700000000003000000", b"1700000000009000000")
    await racing.ask(request(RequestCode.HEART_BEAT, beat, "GO"))
    codes, answer = await seen(racing, newer_pull())
    assert (codes, bodies_of(answer)) == ([], [b"TagA", b"TagB"])


async def test_there_is_one_notice_at_most_between_two_heartbeats(racing: ConsumeBench) -> None:
    told = 0
    for _ in range(3):
        for _ in range(4):
            told += len((await seen(racing, newer_pull()))[0])
        await racing.ask(request(RequestCode.HEART_BEAT, GO_CONSUMER, "GO"))
    assert told == 3


async def test_who_sent_no_heartbeat_over_the_connection_is_not_notified(racing: ConsumeBench) -> None:
    other = FakeConnection(2)
    for _ in range(3):
        racing.start(newer_pull(), other)
    await racing.settle()
    assert [each.code for each in other.take_answers()] == [0, 0, 0]


async def test_a_group_that_wants_no_notices_gets_none(racing: ConsumeBench) -> None:
    config = SubscriptionGroupConfig("CID", notify_consumer_ids_changed_enable=False)
    await racing.parts.state.propose(PutGroup(config))
    codes, answer = await seen(racing, newer_pull())
    assert (codes, answer.code) == ([], 0)


async def test_a_held_pull_that_is_ahead_gets_the_next_message_of_any_tag(racing: ConsumeBench) -> None:
    racing.start(newer_pull(3))
    await racing.settle()
    assert [each.is_response for each in racing.connection.take_answers()] == [False]
    await racing.put(b"new", topic="T", tag="TagD")
    (answer,) = racing.connection.take_answers()
    assert bodies_of(answer) == [b"new"]


@pytest.mark.parametrize(("before", "now"), [("SQL92", "SQL92"), ("TAG", "SQL92"), ("SQL92", "TAG")])
async def test_what_clients_do_not_filter_themselves_is_refused_when_it_is_ahead(
    tmp_path: Path, before: str, now: str
) -> None:
    bench = await make_bench(tmp_path, enablePropertyFilter=True)
    await bench.parts.state.propose(PutTopic(TopicConfig("T", 1, 1)))
    beat = JAVA_CONSUMER.replace(b'"TAG"', b'"' + before.encode() + b'"')
    await bench.ask(request(RequestCode.HEART_BEAT, beat))
    for expected in ([RequestCode.NOTIFY_CONSUMER_IDS_CHANGED], []):
        codes, answer = await seen(bench, newer_pull(expressionType=now))
        assert (codes, answer.code) == (expected, 25)
