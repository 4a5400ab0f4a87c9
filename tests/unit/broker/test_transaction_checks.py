"""Open transactions are asked about, as often as is allowed, and put aside then."""

from pathlib import Path

import pytest

from broker.state.changes import PutSettings
from broker.state.state import StateChangeError
from broker.state.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, TopicConfig
from broker.transactions.checks import BATCH_MAX, REUNION_MS
from broker.transactions.ledger import GROUP
from commitlog.log import PutStatus
from commitlog.record import Record, get_property
from remoting.codes import RequestCode
from tests.support.fake_connection import FakeConnection
from tests.support.polling import until
from tests.support.transaction_bench import (
    COMMIT,
    SECOND,
    UNKNOWN,
    TransactionBench,
    make_transaction_bench,
)

HOUR = 3_600 * SECOND


@pytest.fixture
async def bench(tmp_path: Path) -> TransactionBench:
    bench = await make_transaction_bench(tmp_path, transactionTimeOut=6_000, transactionCheckMax=3)
    bench.connect()
    return bench


def bodies(records: list[Record]) -> list[bytes]:
    return [record.body for record in records]


async def test_a_transaction_is_asked_about_when_it_is_old_enough(bench: TransactionBench) -> None:
    await bench.prepare()
    bench.at(6 * SECOND - 1)
    assert await bench.run_round() == []
    bench.at(6 * SECOND)
    assert bodies(await bench.run_round()) == [b"hello"]


async def test_the_producer_reads_the_half_message_as_it_sent_it_and_where_it_is(
    bench: TransactionBench,
) -> None:
    await bench.prepare(b"zero")
    half = await bench.prepare(b"one", sys_flag=5, flag=7)
    bench.at(6 * SECOND)
    await bench.checks.run_round()
    _, asked = bench.producer.take_answers()
    position = int(half.ext_fields["msgId"][16:], 16)
    assert (asked.code, asked.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    assert asked.ext_fields == {
        "tranStateTableOffset": "1",
        "commitLogOffset": str(position),
        "msgId": "K6f6e65",
        "transactionId": "K6f6e65",
        "offsetMsgId": half.ext_fields["msgId"],
    }


async def test_what_is_shown_of_it_stands_in_its_real_queue(bench: TransactionBench) -> None:
    half = await bench.prepare(sys_flag=5, flag=7)
    bench.at(6 * SECOND)
    (record,) = await bench.run_round()
    assert (record.topic, record.queue_id, record.queue_offset) == ("t", 2, 0)
    assert (record.body, record.flag, record.sys_flag) == (b"hello", 7, 1)
    assert record.physical_offset == int(half.ext_fields["msgId"][16:], 16)
    assert get_property(record.properties, b"TRANSACTION_CHECK_TIMES") == b"1"
    assert get_property(record.properties, b"PGROUP") == b"p"


async def test_the_answer_to_a_check_ends_it_once(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.at(6 * SECOND)
    await bench.run_round()
    assert (await bench.end(half, COMMIT, fromTransactionCheck="true")).code == 0
    assert (await bench.end(half, COMMIT)).code == 0
    assert (bench.delivered, await bench.run_round()) == ([b"hello"], [])


async def test_each_round_asks_again_until_it_is_put_aside(bench: TransactionBench) -> None:
    half = await bench.prepare()
    for check in (1, 2, 3):
        bench.at((6 + 30 * check) * SECOND)
        (record,) = await bench.run_round()
        assert get_property(record.properties, b"TRANSACTION_CHECK_TIMES") == b"%d" % check
        assert (await bench.end(half, UNKNOWN, fromTransactionCheck="true")).code == 0
    assert bench.put_aside == []
    assert await bench.run_round() == []
    assert (bench.put_aside, bench.open_count) == ([b"hello"], 0)
    assert CHECK_MAX_TIME_TOPIC in bench.parts.state.topics
    assert (await bench.end(half, COMMIT)).code == 1
    assert bench.delivered == []


async def test_a_message_may_ask_for_more_time_and_holds_up_no_other(bench: TransactionBench) -> None:
    await bench.prepare(b"slow", properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
    await bench.prepare(b"quick")
    bench.at(59 * SECOND)
    assert bodies(await bench.run_round()) == [b"quick"]
    bench.at(60 * SECOND)
    assert bodies(await bench.run_round()) == [b"slow", b"quick"]


@pytest.mark.parametrize(("text", "due_s"), [("-1", 6), ("x", 6), ("0", 0), ("99999999999999999999", 10**9)])
async def test_odd_immunity_times(bench: TransactionBench, text: str, due_s: int) -> None:
    await bench.prepare(properties=f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{text}\x02")
    bench.at(min(due_s, 3_600) * SECOND - 1)
    assert await bench.run_round() == []
    bench.at(due_s * SECOND)
    if due_s < 3_600:
        assert bodies(await bench.run_round()) == [b"hello"]


async def test_the_producers_of_the_group_are_asked_in_turn(bench: TransactionBench) -> None:
    second, other = FakeConnection(2), FakeConnection(3)
    bench.connect("p", second)
    bench.connect("other", other)
    for number in range(4):
        await bench.prepare(b"%d" % number)
    bench.at(6 * SECOND)
    await bench.checks.run_round()
    assert [len(each.take_answers()) for each in (bench.producer, second, other)] == [2, 2, 0]


async def test_one_that_is_gone_or_does_not_read_is_not_asked(bench: TransactionBench) -> None:
    second, third = FakeConnection(2), FakeConnection(3)
    bench.connect("p", second)
    bench.connect("p", third)
    second.is_open, third.is_congested = False, True
    for number in range(4):
        await bench.prepare(b"%d" % number)
    bench.at(6 * SECOND)
    await bench.checks.run_round()
    assert [len(each.take_answers()) for each in (bench.producer, second, third)] == [4, 0, 0]


async def test_without_a_producer_checks_count_once_all_had_time_to_come(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path, transactionCheckMax=1)
    await bench.prepare()
    for _ in range(3):
        bench.at(REUNION_MS - 1)
        assert await bench.run_round() == []
    assert [get_property(each.properties, b"TAGS") for each in bench.ops] == [b"s"]
    bench.at(REUNION_MS)
    await bench.run_round()
    await bench.run_round()
    assert bench.put_aside == [b"hello"]


async def test_a_wall_clock_that_is_set_ahead_does_not_shorten_the_wait_for_producers(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path, transactionCheckMax=1)
    await bench.prepare()
    bench.wall_step_ms = REUNION_MS
    for _ in range(2):
        assert await bench.run_round() == []
    assert bench.put_aside == []


async def test_what_is_older_than_messages_are_kept_is_put_aside(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path, fileReservedTime=1)
    bench.connect()
    await bench.prepare(properties="CHECK_IMMUNITY_TIME_IN_SECONDS\x015\x02")
    bench.at(HOUR)
    assert len(await bench.run_round()) == 1
    bench.at(HOUR + 1)
    assert await bench.run_round() == []
    assert bench.put_aside == [b"hello"]


async def test_a_half_message_that_retention_took_ends(bench: TransactionBench) -> None:
    await bench.prepare(b"one")
    await bench.prepare(b"two")
    bench.log.fake_queues.by_key[HALF_TOPIC, 0].drop_before(1)
    bench.at(6 * SECOND)
    assert bodies(await bench.run_round()) == [b"two"]
    assert bench.open_count == 1


async def test_a_round_of_many_goes_in_batches_and_ends_with_a_snapshot(bench: TransactionBench) -> None:
    for number in range(BATCH_MAX + 3):
        await bench.prepare(b"%d" % number)
    bench.at(6 * SECOND)
    assert len(await bench.run_round()) == BATCH_MAX + 3
    tags = [get_property(each.properties, b"TAGS") for each in bench.ops]
    assert tags == [b"c", b"c", b"s"]
    assert bench.parts.state.offsets.get(GROUP, HALF_TOPIC, 0) == 0
    await bench.run_round()
    assert len(bench.ops) == 6


async def test_a_quiet_round_writes_nothing(bench: TransactionBench) -> None:
    half = await bench.prepare()
    await bench.end(half, COMMIT)
    await bench.run_round()
    count = len(bench.ops)
    await bench.run_round()
    await bench.run_round()
    assert len(bench.ops) == count
    assert bench.parts.state.offsets.get(GROUP, HALF_TOPIC, 0) == 1


async def test_nobody_is_asked_when_the_log_does_not_take_the_count(bench: TransactionBench) -> None:
    await bench.prepare()
    bench.at(6 * SECOND)
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    assert await bench.run_round() == []
    bench.log.next_status = PutStatus.PUT_OK
    assert len(await bench.run_round()) == 1


async def test_one_that_cannot_be_put_aside_ends(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path, transactionCheckMax=0)
    await bench.prepare()
    bench.at(6 * SECOND)
    put = bench.log.put

    def refuse_it(messages, on_done, deleted=()):  # type: ignore[no-untyped-def]
        illegal = any(message.topic == CHECK_MAX_TIME_TOPIC for message in messages)
        bench.log.next_status = PutStatus.MESSAGE_ILLEGAL if illegal else PutStatus.PUT_OK
        return put(messages, on_done, deleted)

    bench.log.put = refuse_it  # type: ignore[method-assign]
    await bench.run_round()
    assert (bench.put_aside, bench.open_count) == ([], 0)


async def test_others_are_asked_while_nothing_can_be_put_aside(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(config: TopicConfig) -> TopicConfig:
        raise StateChangeError(PutStatus.MESSAGE_ILLEGAL)

    monkeypatch.setattr(bench.parts.state, "ensure_topic_config", refuse)
    await bench.parts.state.propose(PutSettings({"transactionCheckMax": "1"}))
    await bench.prepare(b"old")
    bench.at(6 * SECOND)
    await bench.run_round()
    for number in range(BATCH_MAX):
        await bench.prepare(b"%d" % number)
    bench.at(12 * SECOND)
    assert bodies(await bench.run_round()) == [b"%d" % number for number in range(BATCH_MAX)]
    assert bench.open_count == BATCH_MAX + 1


async def test_a_follower_asks_nobody(bench: TransactionBench) -> None:
    await bench.prepare()
    bench.at(6 * SECOND)
    bench.log.set_writable(False)
    assert await bench.run_round() == []


async def test_rounds_begin_with_leadership_and_end_with_it(bench: TransactionBench) -> None:
    rounds = bench.checks._rounds
    assert rounds is not None
    bench.log.set_writable(False)
    await bench.settle()
    assert (rounds.cancelled(), bench.checks._rounds) == (True, None)


async def test_a_shorter_interval_counts_at_once(bench: TransactionBench) -> None:
    """A round is due each transactionCheckInterval; one that became short must not wait for the long one."""
    rounds = 0

    async def count() -> None:
        nonlocal rounds
        rounds += 1

    bench.checks.run_round = count  # type: ignore[method-assign]
    settings = {"transactionCheckInterval": "10", "transactionTimeOut": "10"}
    await bench.parts.state.propose(PutSettings(settings))
    await until(lambda: rounds >= 3)
