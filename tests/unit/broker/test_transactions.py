"""Half messages and how their transactions end."""

import asyncio
from pathlib import Path

import pytest

from broker.transactions.half import half_properties, is_half
from broker.transactions.window import PIECE
from commitlog.log import PutStatus
from commitlog.record import Message, format_properties, parse_properties
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.support.fake_connection import FakeConnection
from tests.support.transaction_bench import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    TransactionBench,
    make_transaction_bench,
)


@pytest.fixture
async def bench(tmp_path: Path) -> TransactionBench:
    return await make_transaction_bench(tmp_path)


async def test_a_half_message_is_put_aside_and_answered_as_if_it_stood_in_its_queue(
    bench: TransactionBench,
) -> None:
    await bench.prepare(b"zero")
    answer = await bench.prepare(b"one")
    (_, half) = bench.halves
    assert bench.delivered == []
    assert (half.queue_id, half.body, half.sys_flag) == (0, b"one", 0)
    assert parse_properties(half.properties) == {
        "TRAN_MSG": "true",
        "PGROUP": "p",
        "UNIQ_KEY": "K6f6e65",
        "TAGS": "a",
        "CLUSTER": "DefaultCluster",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "REAL_TOPIC": "t",
        "REAL_QID": "2",
        "__transactionId__": "K6f6e65",
    }
    assert answer.code == 0
    assert answer.ext_fields["queueId"] == "2"
    assert answer.ext_fields["queueOffset"] == "1"
    assert answer.ext_fields["transactionId"] == "K6f6e65"


async def test_a_committed_one_is_delivered_as_it_was_sent(bench: TransactionBench) -> None:
    half = await bench.prepare(b"one", sys_flag=5, flag=7)
    answer = await bench.end(half, COMMIT)
    assert answer.code == 0
    (message,) = bench.stored("t")
    position = int(half.ext_fields["msgId"][16:], 16)
    assert (message.queue_id, message.body, message.flag, message.sys_flag) == (2, b"one", 7, 1 | 8)
    assert message.prepared_transaction_offset == position
    assert parse_properties(message.properties)["TRAN_MSG"] == "true"
    assert message.born_host == bench.producer.born_host
    assert bench.open_count == 0


async def test_a_rolled_back_one_is_never_delivered(bench: TransactionBench) -> None:
    half = await bench.prepare()
    assert (await bench.end(half, ROLLBACK)).code == 0
    assert (await bench.end(half, ROLLBACK)).code == 0
    again = await bench.end(half, COMMIT)
    assert (again.code, bench.delivered) == (ResponseCode.SYSTEM_ERROR, [])
    assert "ROLLBACK" in again.remark if again.remark else False


async def test_a_commit_sent_again_delivers_once(bench: TransactionBench) -> None:
    half = await bench.prepare()
    requests = [bench.end_request(half, COMMIT) for _ in range(3)]
    bench.send_end(*requests)
    await bench.settle()
    codes = [answer.code for answer in bench.producer.take_answers()]
    assert (codes, bench.delivered) == ([0, 0, 0], [b"hello"])
    assert (await bench.end(half, COMMIT)).code == 0
    assert (await bench.end(half, ROLLBACK)).code == ResponseCode.SYSTEM_ERROR
    assert bench.delivered == [b"hello"]


async def test_one_that_does_not_know_stays_open(bench: TransactionBench) -> None:
    half = await bench.prepare()
    assert (await bench.end(half, UNKNOWN)).code == 0
    assert (bench.ops, bench.open_count) == ([], 1)
    assert (await bench.end(half, COMMIT)).code == 0
    assert bench.delivered == [b"hello"]


async def test_all_that_end_in_a_turn_are_one_put(bench: TransactionBench) -> None:
    halves = [await bench.prepare(b"%d" % number) for number in range(20)]
    calls = len(bench.log.put_calls)
    bench.send_end(*[bench.end_request(half, COMMIT if i % 2 else ROLLBACK) for i, half in enumerate(halves)])
    await bench.settle()
    assert [answer.code for answer in bench.producer.take_answers()] == [0] * 20
    assert len(bench.log.put_calls) == calls + 1
    assert bench.delivered == [b"%d" % number for number in range(1, 20, 2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"producerGroup": "other"},
        {"tranStateTableOffset": 1},
        {"commitLogOffset": 0},
        {"commitLogOffset": -1},
        {"commitLogOffset": 2**62},
        {"commitOrRollback": 4},
        {"commitOrRollback": "x"},
    ],
)
async def test_a_request_that_does_not_mean_this_half_message_changes_nothing(
    bench: TransactionBench, changes: dict[str, object]
) -> None:
    half = await bench.prepare()
    answer = await bench.end(half, COMMIT, **changes)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert (bench.delivered, bench.open_count) == ([], 1)


async def test_only_half_messages_can_be_committed(bench: TransactionBench) -> None:
    """The committed message has the same properties as its half message, and a position too."""
    half = await bench.prepare()
    await bench.end(half, COMMIT)
    queue = bench.log.queues.get("t", 2)
    assert queue is not None
    ((position, _, _),) = queue.units(0, 1)
    answer = await bench.end(half, COMMIT, commitLogOffset=position)
    assert (answer.code, bench.delivered) == (ResponseCode.SYSTEM_ERROR, [b"hello"])


async def test_a_oneway_request_is_not_answered(bench: TransactionBench) -> None:
    half = await bench.prepare()
    request = bench.end_request(half, COMMIT)
    request.flag = 2
    bench.send_end(request)
    await bench.settle()
    assert (bench.producer.take_answers(), bench.delivered) == ([], [b"hello"])


async def test_a_delay_level_counts_from_the_commit(bench: TransactionBench) -> None:
    half = await bench.prepare(properties="DELAY\x013\x02")
    assert bench.stored("SCHEDULE_TOPIC_XXXX") == []
    await bench.end(half, COMMIT)
    (message,) = bench.stored("SCHEDULE_TOPIC_XXXX")
    properties = parse_properties(message.properties)
    assert (message.queue_id, properties["REAL_TOPIC"], properties["REAL_QID"]) == (2, "t", "2")


async def test_a_log_that_is_full_is_asked_again(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.send_end(bench.end_request(half, COMMIT))
    await bench.settle()
    assert (bench.producer.take_answers(), bench.open_count) == ([], 1)
    bench.log.next_status = PutStatus.PUT_OK
    bench.ends._flush()
    await bench.settle()
    assert [answer.code for answer in bench.producer.take_answers()] == [0]
    assert bench.delivered == [b"hello"]


async def test_a_commit_without_a_majority_in_time_is_not_made_twice(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.log.auto_commit = False
    bench.send_end(bench.end_request(half, COMMIT))
    bench.log.time_out()
    await bench.settle()
    (answer,) = bench.producer.take_answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    bench.send_end(bench.end_request(half, COMMIT))
    bench.log.commit()
    await bench.settle()
    assert bench.delivered == [b"hello"]


async def test_a_message_that_became_too_large_is_refused_alone(bench: TransactionBench) -> None:
    halves = [await bench.prepare(body) for body in (b"one", b"two")]
    bench.log.next_status = PutStatus.MESSAGE_ILLEGAL
    bench.send_end(*[bench.end_request(half, COMMIT) for half in halves])
    await bench.settle()
    codes = [answer.code for answer in bench.producer.take_answers()]
    assert codes == [ResponseCode.MESSAGE_ILLEGAL] * 2
    assert bench.open_count == 2


async def test_a_follower_refuses(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.follow()
    answer = await bench.end(half, COMMIT)
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE


async def test_a_half_message_that_others_have_and_this_node_not_yet_is_waited_for(
    bench: TransactionBench,
) -> None:
    """A leader whose own disk is slow acknowledges what it cannot read yet."""
    bench.log.auto_commit = False
    result = bench.log.put([bench_half()], lambda _: None)
    end_position = result.positions[0] + 1_000
    bench.parts.end_position = lambda: end_position
    ext = {"producerGroup": "p", "tranStateTableOffset": "0", "commitOrRollback": str(COMMIT)}
    ext["commitLogOffset"] = str(result.positions[0])
    bench.send_end(RemotingCommand(RequestCode.END_TRANSACTION, 1, ext_fields=ext))
    await bench.settle()
    assert bench.producer.take_answers() == []
    bench.log.auto_commit = True
    bench.log.commit()
    await asyncio.sleep(0)
    await bench.settle()
    assert [answer.code for answer in bench.producer.take_answers()] == [0]
    assert bench.delivered == [b"hello"]


async def test_a_position_behind_the_log_is_not_waited_for(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.parts.end_position = lambda: bench.log.max_position + 10
    assert (await bench.end(half, COMMIT, commitLogOffset=bench.log.max_position + 10)).code == 1
    bench.send_end(bench.end_request(half, COMMIT, commitLogOffset=bench.log.max_position + 9))
    bench.follow()
    await bench.settle()
    assert [answer.code for answer in bench.producer.take_answers()] == [ResponseCode.SLAVE_NOT_AVAILABLE]


def bench_half() -> Message:
    properties = half_properties({"TRAN_MSG": "true", "UNIQ_KEY": "K"}, "t", 2, "p", "K")
    return Message("RMQ_SYS_TRANS_HALF_TOPIC", 0, b"hello", format_properties(properties))


async def test_requests_wait_while_the_table_is_read(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.log.set_writable(False)
    bench.log.set_writable(True)
    bench.send_end(bench.end_request(half, COMMIT))
    assert bench.ledger.window is None
    await bench.settle()
    assert [answer.code for answer in bench.producer.take_answers()] == [0]
    assert bench.delivered == [b"hello"]


async def test_requests_that_wait_are_refused_when_leadership_is_lost(bench: TransactionBench) -> None:
    half = await bench.prepare()
    bench.log.set_writable(False)
    bench.log.set_writable(True)
    bench.send_end(bench.end_request(half, COMMIT))
    bench.follow()
    await bench.settle()
    assert [answer.code for answer in bench.producer.take_answers()] == [ResponseCode.SLAVE_NOT_AVAILABLE]
    await bench.settle()
    assert bench.delivered == []


async def test_too_many_requests_at_once_are_refused(
    bench: TransactionBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.transactions.ends.HELD_MAX", 2)
    halves = [await bench.prepare(body) for body in (b"1", b"2", b"3")]
    bench.log.set_writable(False)
    bench.log.set_writable(True)
    bench.send_end(*[bench.end_request(half, COMMIT) for half in halves])
    assert [answer.code for answer in bench.producer.take_answers()] == [ResponseCode.SYSTEM_BUSY]
    await bench.settle()
    assert bench.delivered == [b"1", b"2"]


async def test_half_messages_are_refused_while_too_many_are_open(bench: TransactionBench) -> None:
    bench.ledger._window_bytes_max = PIECE
    half = await bench.prepare(b"one")
    refused = await bench.prepare(b"two")
    assert (refused.code, len(bench.halves)) == (ResponseCode.SYSTEM_BUSY, 1)
    bench.ledger._window_bytes_max = PIECE + 1
    assert (await bench.prepare(b"two")).code == 0
    assert (await bench.end(half, COMMIT)).code == 0


async def test_transactions_can_be_forbidden(tmp_path: Path) -> None:
    bench = await make_transaction_bench(tmp_path, rejectTransactionMessage=True)
    assert (await bench.prepare()).code == ResponseCode.NO_PERMISSION
    assert bench.halves == []


@pytest.mark.parametrize(
    ("sys_flag", "properties", "reconsume_times", "expected"),
    [
        (4, {"TRAN_MSG": "true"}, 0, True),
        (0, {"TRAN_MSG": "true"}, 0, True),
        (0, {"TRAN_MSG": "True"}, 0, True),
        (4, {}, 0, True),
        (0, {"TRAN_MSG": "false"}, 0, False),
        (8, {}, 0, False),
        (4, {"TRAN_MSG": "true", "DELAY": "3"}, 1, False),
        (4, {"TRAN_MSG": "true", "DELAY": "3"}, 0, True),
        (4, {"TRAN_MSG": "true"}, 1, True),
    ],
)
def test_which_sends_prepare_a_transaction(
    sys_flag: int, properties: dict[str, str], reconsume_times: int, expected: bool
) -> None:
    assert is_half(sys_flag, properties, reconsume_times) is expected


async def test_a_half_message_without_a_group_is_its_senders(bench: TransactionBench) -> None:
    half = await bench.prepare(properties="PGROUP\x01\x02")
    assert parse_properties(bench.halves[0].properties)["PGROUP"] == "p"
    assert (await bench.end(half, COMMIT)).code == 0


async def test_another_connection_of_the_group_may_end_it(bench: TransactionBench) -> None:
    half = await bench.prepare()
    other = FakeConnection(2, port=50001)
    bench.ends.handle([(other.as_connection, [bench.end_request(half, COMMIT)])])
    await bench.settle()
    assert [answer.code for answer in other.take_answers()] == [0]
    assert bench.delivered == [b"hello"]
