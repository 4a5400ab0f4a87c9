"""Transactions, numbered writers and delay levels beside times of their own."""

from pathlib import Path

from broker.timer.scheduling import TIMER_TOPIC
from commitlog.record import Message, parse_properties
from remoting.codes import ResponseCode
from tests.support.broker_parts import NOW_MS
from tests.support.send_bench import make_bench
from tests.support.sequenced import sequenced_send
from tests.support.transaction_bench import COMMIT, SECOND, TransactionBench, make_transaction_bench


def waiting(bench: TransactionBench) -> list[Message]:
    return bench.stored(TIMER_TOPIC)


async def test_a_delay_begins_with_the_commit(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path)
    half = await bench.prepare(properties="TIMER_DELAY_SEC\x0160\x02")
    assert half.code == 0
    assert "recallHandle" not in half.ext_fields
    assert waiting(bench) == []
    bench.at(5 * SECOND)
    assert (await bench.end(half, COMMIT)).code == 0
    (message,) = waiting(bench)
    properties = parse_properties(message.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("t", "2")
    assert properties["TIMER_OUT_MS"] == str(NOW_MS + 64 * SECOND)
    assert message.prepared_transaction_offset == int(half.ext_fields["msgId"][16:], 16)
    assert message.sys_flag & COMMIT
    new = await bench.next_leader()
    assert (await new.end(half, COMMIT)).code == 0
    assert len(waiting(new)) == 1


async def test_a_time_that_is_over_at_the_commit_is_no_reason_to_wait(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path)
    half = await bench.prepare(properties=f"TIMER_DELIVER_MS\x01{NOW_MS + SECOND}\x02")
    bench.at(5 * SECOND)
    await bench.end(half, COMMIT)
    assert bench.delivered == [b"hello"]


async def test_a_time_that_cannot_be_kept_is_refused_when_it_is_prepared(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path)
    answer = await bench.prepare(properties="TIMER_DELAY_SEC\x01999999999\x02")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert bench.halves == []


async def test_numbered_messages_wait_for_their_times(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    bench.parts.clock = lambda: NOW_MS
    times = b"KEYS\x01k\x02TIMER_DELIVER_MS\x01%d\x02" % (NOW_MS + 5_000)
    assert (await bench.answer(sequenced_send(0, [b"a"], properties=times))).code == 0
    assert (await bench.answer(sequenced_send(0, [b"a"], properties=times))).code == 0
    (message,) = bench.stored
    properties = parse_properties(message.properties)
    assert (message.topic, message.queue_id) == (TIMER_TOPIC, 0)
    assert properties["TIMER_OUT_MS"] == str(NOW_MS + 4_000)
    assert properties["LEDGERMQ_SEQ"] == "w|0|1|0"


async def test_a_level_rules_over_a_numbered_messages_time(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    properties = b"DELAY\x012\x02TIMER_DELAY_SEC\x019\x02"
    assert (await bench.answer(sequenced_send(0, [b"a"], properties=properties))).code == 0
    (message,) = bench.stored
    assert message.topic == "SCHEDULE_TOPIC_XXXX"
    assert b"TIMER_" not in message.properties
