"""Pulls and queries of offsets that are linearizable, or that accept a follower."""

from pathlib import Path

import pytest

from broker.consume.read_choice import AGE_FIELD
from broker.state.changes import PutTopic
from broker.state.topics import TopicConfig
from dledger.core.types import ResponseCode as EngineCode
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.unit.broker.consume_bench import (
    SUBSCRIPTION,
    ConsumeBench,
    expire_all,
    header_offsets,
    make_bench,
    pull_request,
    records,
    request,
)


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    bench = await make_bench(tmp_path)
    attributes = {"read.consistency": "linearizable"}
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 4, 4, attributes=attributes)))
    return bench


def max_offset(**fields: str) -> RemotingCommand:
    return request(RequestCode.GET_MAX_OFFSET, topic="t", queueId="0", **fields)


async def test_a_pull_of_a_linearizable_topic_is_read_after_the_round(bench: ConsumeBench) -> None:
    bench.engine.are_reads_held = True
    bench.start(pull_request(0, flags=SUBSCRIPTION))
    await bench.settle()
    assert bench.connection.answers == []
    await bench.put(b"one")
    bench.engine.end_reads(bench.log.applied_index)
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert [each.body for each in records(answer.body)] == [b"one"]


async def test_without_a_majority_nothing_is_said(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.engine.read_code = EngineCode.WAIT_QUORUM_ACK_TIMEOUT
    for asked in (pull_request(0), pull_request(1), max_offset()):
        answer = await bench.ask(asked)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no majority confirms" in (answer.remark or "")
        assert answer.body == b""


async def test_a_follower_refuses_and_names_the_leader(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.follow()
    for asked in (pull_request(0), max_offset()):
        answer = await bench.ask(asked)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the leader is n1" in (answer.remark or "")


async def test_a_request_may_be_content_with_less_than_its_topic(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.engine.read_code = EngineCode.WAIT_QUORUM_ACK_TIMEOUT
    assert (await bench.ask(pull_request(0, LEDGERMQ_READ="committed"))).code == 0


async def test_a_held_pull_is_confirmed_again_before_it_says_that_nothing_came(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.start(pull_request(1))
    await bench.settle()
    assert bench.connection.answers == []
    bench.engine.read_code = EngineCode.TERM_CHANGED
    expire_all(bench)
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_a_held_pull_gets_its_message_after_a_round_too(bench: ConsumeBench) -> None:
    bench.start(pull_request(0))
    await bench.settle()
    bench.engine.are_reads_held = True
    await bench.put(b"one")
    assert bench.connection.answers == []
    bench.engine.end_reads()
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert [each.body for each in records(answer.body)] == [b"one"]


async def test_offsets_of_a_linearizable_topic_come_after_the_round(bench: ConsumeBench) -> None:
    bench.engine.are_reads_held = True
    bench.start(max_offset())
    await bench.settle()
    assert bench.connection.answers == []
    await bench.put(b"one")
    bench.engine.end_reads(bench.log.applied_index)
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert answer.ext_fields == {"offset": "1"}


async def test_an_unknown_value_is_refused(bench: ConsumeBench) -> None:
    for asked in (pull_request(0, LEDGERMQ_READ="latest"), max_offset(LEDGERMQ_MAX_AGE_MS="soon")):
        assert (await bench.ask(asked)).code == ResponseCode.INVALID_PARAMETER


def has_seen_all(bench: ConsumeBench, ago_ms: int) -> None:
    """As if the node had asked its leader then."""
    read_index = bench.parts.core.read_index
    read_index._as_of = bench.parts.monotonic_ms() - ago_ms, bench.parts.clock() - ago_ms


async def test_a_follower_says_how_old_its_answer_may_be(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.follow()
    bench.parts.monotonic_ms = lambda: 50_000
    has_seen_all(bench, 250)
    for asked in (pull_request(0, LEDGERMQ_READ="follower"), max_offset(LEDGERMQ_MAX_AGE_MS="250")):
        answer = await bench.ask(asked)
        assert (answer.code, answer.ext_fields[AGE_FIELD]) == (0, "250")


async def test_a_follower_that_is_too_old_sends_the_consumer_to_the_leader(bench: ConsumeBench) -> None:
    """No leader can be asked here: what it knew stays what it knows."""
    await bench.put(b"one")
    bench.follow()
    bench.parts.monotonic_ms = lambda: 50_000
    has_seen_all(bench, 251)
    answer = await bench.ask(pull_request(1, LEDGERMQ_MAX_AGE_MS="250"))
    assert (answer.code, header_offsets(answer)[0], answer.body) == (20, 1, b"")
    assert answer.ext_fields[AGE_FIELD] == "251"
    refused = await bench.ask(max_offset(LEDGERMQ_MAX_AGE_MS="250"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "251 ms old" in (refused.remark or "")


async def test_an_unknown_age_is_not_zero(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.follow()
    served = await bench.ask(pull_request(0, LEDGERMQ_READ="follower"))
    assert served.code == 0
    assert AGE_FIELD not in served.ext_fields
    redirected = await bench.ask(pull_request(0, LEDGERMQ_MAX_AGE_MS="60000"))
    assert (redirected.code, header_offsets(redirected)[0]) == (20, 0)
    assert AGE_FIELD not in redirected.ext_fields


async def test_a_cut_off_leader_that_is_too_old_does_not_serve_either(bench: ConsumeBench) -> None:
    await bench.put(b"one")
    bench.parts.monotonic_ms = lambda: 50_000
    has_seen_all(bench, 9_000)
    bench.engine.read_code = EngineCode.WAIT_QUORUM_ACK_TIMEOUT
    assert (await bench.ask(pull_request(0, LEDGERMQ_MAX_AGE_MS="2000"))).code == 20
    bench.engine.read_code = EngineCode.SUCCESS
    answer = await bench.ask(pull_request(0, LEDGERMQ_MAX_AGE_MS="2000"))
    assert (answer.code, answer.ext_fields[AGE_FIELD]) == (0, "0")
