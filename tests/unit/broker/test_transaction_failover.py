"""A new leader knows from the log what the old one knew, wherever the log ends."""

import random
import struct
import zlib
from pathlib import Path

import pytest

from broker.state.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from broker.transactions.ops import Ended, OpRecordError, OpWriter, SnapshotPart, decode_op, join_parts
from broker.transactions.window import Ending, TransactionWindow
from commitlog.log import PutStatus
from commitlog.record import Message, Record, decode_record, encode_record, get_property
from tests.support.fake_log import FakeLog
from tests.support.transaction_bench import (
    COMMIT,
    ROLLBACK,
    SECOND,
    TransactionBench,
    make_transaction_bench,
)
from tests.unit.broker.consume_bench import ignore


@pytest.fixture
async def bench(tmp_path: Path) -> TransactionBench:
    return await make_transaction_bench(tmp_path)


def log_of(messages: list[Message]) -> FakeLog:
    """A log that holds these and no more: another leader's, as a node has it that takes over."""
    log = FakeLog()
    log.put(messages, ignore)
    log.commit()
    return log


async def taken_over(bench: TransactionBench, messages: list[Message]) -> TransactionBench:
    return await bench.next_leader(log_of(messages))


async def test_what_has_ended_has_ended_for_the_next_leader(bench: TransactionBench) -> None:
    halves = [await bench.prepare(body) for body in (b"commit", b"rollback", b"open")]
    await bench.end(halves[0], COMMIT)
    await bench.end(halves[1], ROLLBACK)
    new = await bench.next_leader()
    assert (await new.end(halves[0], COMMIT)).code == 0
    assert (await new.end(halves[0], ROLLBACK)).code == 1
    assert (await new.end(halves[1], COMMIT)).code == 1
    assert (await new.end(halves[2], COMMIT)).code == 0
    assert new.delivered == [b"commit", b"open"]


async def test_a_commit_that_was_not_committed_is_as_if_it_had_not_come(bench: TransactionBench) -> None:
    half = await bench.prepare()
    committed = bench.log.messages
    bench.log.auto_commit = False
    bench.send_end(bench.end_request(half, COMMIT))
    new = await taken_over(bench, committed)
    assert new.delivered == []
    new.at(6 * SECOND)
    new.connect()
    assert [record.body for record in await new.run_round()] == [b"hello"]
    await new.end(half, COMMIT)
    assert new.delivered == [b"hello"]


async def test_a_commit_of_which_only_the_first_record_is_there_is_finished_once(
    bench: TransactionBench,
) -> None:
    half = await bench.prepare()
    await bench.end(half, COMMIT)
    messages = bench.log.messages
    assert [message.topic for message in messages[-2:]] == [OP_HALF_TOPIC, "t"]
    new = await taken_over(bench, messages[:-1])
    assert new.delivered == [b"hello"]
    await new.end(half, COMMIT)
    assert (await new.end(half, ROLLBACK)).code == 1
    assert (await new.next_leader()).delivered == [b"hello"]


async def test_one_put_aside_of_which_only_the_first_record_is_there_is_put_aside_once(
    tmp_path: Path,
) -> None:
    bench = await make_transaction_bench(tmp_path, transactionCheckMax=0)
    await bench.prepare()
    bench.at(6 * SECOND)
    await bench.run_round()
    at = next(i for i, each in enumerate(bench.log.messages) if each.topic == CHECK_MAX_TIME_TOPIC)
    new = await taken_over(bench, bench.log.messages[:at])
    assert new.put_aside == [b"hello"]
    assert (await new.next_leader()).put_aside == [b"hello"]


async def test_any_prefix_of_the_log_ends_each_transaction_at_most_once(bench: TransactionBench) -> None:
    """Three leaders in a row, each of which may find the log of the one before cut off anywhere."""
    rng = random.Random(11)
    halves = [await bench.prepare(b"%d" % number) for number in range(8)]
    prepared = len(bench.log.messages)
    bench.connect()
    bench.at(6 * SECOND)
    await bench.run_round()
    bench.send_end(*[bench.end_request(half, rng.choice((COMMIT, ROLLBACK))) for half in halves[:6]])
    await bench.settle()
    first = bench.log.messages
    for cut in range(prepared, len(first) + 1):
        second = await taken_over(bench, first[:cut])
        check_once(second)
        second.send_end(*[second.end_request(half, COMMIT) for half in halves])
        await second.settle()
        check_once(second)
        whole = second.log.messages
        for second_cut in range(cut, len(whole) + 1):
            third = await taken_over(second, whole[:second_cut])
            third.send_end(*[third.end_request(half, COMMIT) for half in halves])
            await third.settle()
            check_once(third)
            assert third.open_count == 0


def check_once(bench: TransactionBench) -> None:
    """No body is delivered twice, none that the log says was rolled back, each that it says was committed."""
    queue = bench.log.queues.get(OP_HALF_TOPIC, 0)
    units = queue.units(0, queue.max_offset) if queue is not None else []
    ops = [decode_op(decode_record(bench.log.read(position, size))) for position, size, _ in units]
    ended = [op for op in ops if isinstance(op, Ended)]
    commits = {op.offset for op in ended if op.ending is Ending.COMMIT}
    rollbacks = {op.offset for op in ended if op.ending is Ending.ROLLBACK}
    assert not commits & rollbacks
    assert sorted(bench.delivered) == sorted(b"%d" % offset for offset in commits)


async def test_checks_are_counted_on(bench: TransactionBench) -> None:
    await bench.prepare()
    bench.connect()
    bench.at(6 * SECOND)
    for check in (1, 2):
        (record,) = await bench.run_round()
        assert get_property(record.properties, b"TRANSACTION_CHECK_TIMES") == b"%d" % check
    new = await bench.next_leader()
    new.connect()
    (record,) = await new.run_round()
    assert get_property(record.properties, b"TRANSACTION_CHECK_TIMES") == b"3"


async def test_a_new_leader_begins_with_a_snapshot_if_anything_has_happened(bench: TransactionBench) -> None:
    new = await bench.next_leader()
    assert new.ops == []
    await new.prepare()
    newer = await new.next_leader()
    newest = await newer.next_leader()
    assert [get_property(each.properties, b"TAGS") for each in newest.ops] == [b"s"]
    assert newest.open_count == 1


async def test_a_new_leader_reads_no_further_back_than_the_last_snapshot(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commitlog.log_machine.SNAPSHOT_CHANGES_MIN", 10)
    for number in range(40):
        half = await bench.prepare(b"%d" % number)
        if number % 7:
            await bench.end(half, COMMIT if number % 2 else ROLLBACK)
    before = list(bench.ledger.window.open_halves()) if bench.ledger.window is not None else []
    tags = [get_property(each.properties, b"TAGS") for each in bench.ops]
    last = len(tags) - 1 - tags[::-1].index(b"s")
    assert tags.count(b"s") > 2
    for offset in range(last):
        position, size, tags_code = bench.log.fake_queues.by_key[OP_HALF_TOPIC, 0].rows[offset]
        bench.log.fake_queues.by_key[OP_HALF_TOPIC, 0].rows[offset] = (position + 1, size, tags_code)
    new = await bench.next_leader()
    assert new.ledger.window is not None
    assert list(new.ledger.window.open_halves()) == before


async def test_a_snapshot_cut_off_is_passed_over(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transactions.ops.PART_ROWS_MAX", 1)
    monkeypatch.setattr("broker.transactions.window.PIECE", 3)
    monkeypatch.setattr("broker.transactions.window.ROW_BYTES", 11)
    monkeypatch.setattr("broker.transactions.ops.ROW_BYTES", 11)
    halves = [await bench.prepare(b"%d" % number) for number in range(5)]
    await bench.end(halves[3], COMMIT)
    bench.ledger.snapshot()
    await bench.settle()
    messages = bench.log.messages
    tags = [get_property(message.properties, b"TAGS") for message in messages]
    parts = [number for number, tag in enumerate(tags) if tag == b"s"]
    assert len(parts) == 2
    for end in (parts[0] + 1, parts[1] + 1):
        new = await taken_over(bench, messages[:end])
        assert new.ledger.window is not None
        assert [offset for offset, _ in new.ledger.window.open_halves()] == [0, 1, 2, 4]


async def test_the_table_is_not_there_before_the_log_took_the_snapshot(bench: TransactionBench) -> None:
    await bench.prepare()
    log = bench.log.reopened()
    log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    new = await bench.next_leader(log)
    assert (new.ledger.window, new.ledger.is_loading) == (None, True)
    new.log.set_writable(False)
    new.log.next_status = PutStatus.PUT_OK
    new.log.set_writable(True)
    await new.settle()
    assert new.open_count == 1


async def test_a_record_of_a_later_version_keeps_all_open(bench: TransactionBench) -> None:
    await bench.prepare()
    half = await bench.prepare(b"two")
    log = bench.log.reopened()
    log.put([Message(OP_HALF_TOPIC, 0, b"?", b"TAGS\x01z\x02")], ignore)
    log.commit()
    new = await bench.next_leader(log)
    assert (new.ledger.window, new.ledger.is_loading) == (None, False)
    assert (await new.end(half, COMMIT)).code != 0
    assert new.delivered == []


async def test_half_messages_that_retention_took_are_not_open(bench: TransactionBench) -> None:
    await bench.prepare(b"one")
    await bench.prepare(b"two")
    log = bench.log.reopened()
    log.fake_queues.by_key[HALF_TOPIC, 0].drop_before(1)
    new = await bench.next_leader(log)
    assert new.open_count == 1


@pytest.mark.parametrize(
    ("begin", "open_count"), [(0, 0), (4_096, 0), (4_097, 0), (5_000, 1), (5_000, 9_000)]
)
def test_a_snapshot_is_read_as_it_was_written(
    begin: int, open_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transactions.ops.PART_ROWS_MAX", 3)
    window = TransactionWindow(begin)
    window.extend(begin + 2 * open_count)
    for offset in range(begin, window.end, 2):
        window.finish(offset, Ending.COMMIT)
    messages = OpWriter(bytes(8)).snapshot(window, 1)
    parts = [decode_op(record_of(message)) for message in messages]
    assert all(isinstance(part, SnapshotPart) for part in parts)
    again = join_parts(parts)
    assert again is not None
    assert list(again.open_halves()) == list(window.open_halves())
    assert again.end == window.end
    assert join_parts(parts[:-1]) is None or len(parts) == 1
    assert join_parts(list(reversed(parts))) is None or len(parts) == 1
    assert join_parts([]) is None


@pytest.mark.parametrize(
    ("properties", "body"),
    [
        (b"", b"1,"),
        (b"TAGS\x01d\x02", b"1,"),
        (b"TAGS\x01d\x02LMQ_ENDING\x01COMMIT\x02", b"1,2,"),
        (b"TAGS\x01d\x02LMQ_ENDING\x01COMMIT\x02", b"x"),
        (b"TAGS\x01d\x02LMQ_ENDING\x01PERHAPS\x02", b"1,"),
        (b"TAGS\x01c\x02", b"1,x"),
        (b"TAGS\x01s\x02", b""),
        (b"TAGS\x01s\x02", struct.pack(">BIIq", 2, 0, 1, 0) + zlib.compress(b"")),
        (b"TAGS\x01s\x02", struct.pack(">BIIq", 1, 0, 1, 0) + b"?"),
    ],
)
def test_records_that_no_broker_wrote_are_told(properties: bytes, body: bytes) -> None:
    with pytest.raises(OpRecordError):
        decode_op(record_of(Message(OP_HALF_TOPIC, 0, body, properties)))


def record_of(message: Message) -> Record:
    return decode_record(encode_record(message, 0, 1))


def test_a_snapshot_whose_rows_cannot_be_is_told() -> None:
    with pytest.raises(OpRecordError):
        join_parts([SnapshotPart(0, 1, 5, bytes(7))])
