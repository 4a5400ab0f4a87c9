"""A new leader knows what is out as the old one did, wherever the log ends."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.pop.ops import POP_TOPIC, PopRecordError, decode_record_body
from broker.pop.table import PopTable
from broker.state.changes import DeleteTopic, PutTopic
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from commitlog.record import Message
from remoting.codes import RequestCode, ResponseCode
from tests.support.fake_log import FakeLog
from tests.support.pop_bench import (
    INVISIBLE_MS,
    SECOND,
    PopBench,
    PoppedMessage,
    make_pop_bench,
    messages_of,
)


def _ignore(status: PutStatus) -> None:
    """How a put ends is of no interest."""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PopBench]:
    made = await make_pop_bench(tmp_path)
    yield made
    await made.stop()


def log_of(messages: list[Message]) -> FakeLog:
    """A log that holds these and no more: another leader's, as a node has it that takes over."""
    log = FakeLog()
    log.put(messages, _ignore)
    log.commit()
    return log


def shown(table: PopTable | None) -> list[str]:
    assert table is not None
    return sorted(repr(row) for row in table.rows())


async def test_what_is_out_stays_out_and_what_was_acknowledged_is_gone(bench: PopBench) -> None:
    await bench.put(b"a", b"b", b"c")
    first, second, _ = await bench.pop()
    await bench.ack(second)
    new = await bench.next_leader()
    assert await new.pop() == []
    assert await new.ack(first) == 0
    assert await new.ack(second) == ResponseCode.NO_MESSAGE
    new.at(INVISIBLE_MS + SECOND)
    await new.revive()
    assert [message.body for message in await new.pop()] == [b"c"]
    await new.stop()


async def test_a_pop_that_was_not_committed_is_as_if_it_had_not_come(bench: PopBench) -> None:
    await bench.put(b"a")
    committed = bench.log.messages
    bench.log.auto_commit = False
    bench.start(bench.pop_request())
    await bench.settle()
    new = await bench.next_leader(log_of(committed))
    bench.log.fail(PutStatus.UNKNOWN_ERROR)
    (answer,) = bench.connection.take_answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert [message.body for message in await new.pop()] == [b"a"]
    await new.stop()


async def test_an_acknowledgement_that_was_not_committed_was_not_answered(bench: PopBench) -> None:
    await bench.put(b"a")
    (message,) = await bench.pop()
    committed = bench.log.messages
    bench.log.auto_commit = False
    bench.start(bench.ack_request(message))
    await bench.settle()
    assert bench.connection.take_answers() == []
    new = await bench.next_leader(log_of(committed))
    new.at(INVISIBLE_MS + SECOND)
    await new.revive()
    assert [again.body for again in await new.pop()] == [b"a"]
    await new.stop()


async def test_what_is_out_of_a_topic_that_was_deleted_and_made_again_is_not(bench: PopBench) -> None:
    """The leader that forgot it may have died before it said so in the log."""
    await bench.put(b"a", b"b")
    await bench.pop()
    bench.log.auto_commit = False
    done = bench.parts.state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t", 4, 4)))
    await asyncio.sleep(0)
    bench.log.commit()
    assert (await done) is PutStatus.PUT_OK
    await bench.settle()
    bench.log.fail(PutStatus.UNKNOWN_ERROR)
    bench.log.auto_commit = True
    new = await bench.next_leader()
    await new.put(b"c")
    assert [message.body for message in await new.pop()] == [b"c"]
    new.at(INVISIBLE_MS + SECOND)
    await new.revive()
    assert [message.body for message in await new.pop()] == [b"c"]
    await new.stop()


async def test_what_is_out_of_a_topic_made_again_at_once_is_forgotten(bench: PopBench) -> None:
    await bench.put(b"a", b"b")
    await bench.pop()
    await bench.parts.state.propose(DeleteTopic("t"), PutTopic(TopicConfig("t", 4, 4)))
    await bench.settle()
    await bench.put(b"c")
    assert [message.body for message in await bench.pop()] == [b"c"]


async def test_a_revival_that_ends_before_its_record_is_made_again(bench: PopBench) -> None:
    await bench.put(b"a")
    await bench.pop()
    bench.at(INVISIBLE_MS + SECOND)
    await bench.revive()
    messages = bench.log.messages
    at = next(index for index, each in enumerate(messages) if each.topic == "%RETRY%g_t")
    assert messages[at + 1].topic == POP_TOPIC
    new = await bench.next_leader(log_of(messages[: at + 1]))
    new.at(INVISIBLE_MS + SECOND)
    await new.revive()
    assert [message.body for message in await new.pop()] == [b"a", b"a"]
    await new.stop()


async def test_a_new_leader_waits_for_what_is_left_of_the_invisible_time(bench: PopBench) -> None:
    await bench.put(b"a")
    await bench.pop()
    bench.at(INVISIBLE_MS - SECOND)
    new = await bench.next_leader()
    new.at(INVISIBLE_MS - 100)
    await new.revive()
    assert await new.pop() == []
    new.at(INVISIBLE_MS + 100)
    await new.revive()
    assert len(await new.pop()) == 1
    await new.stop()


async def test_a_leader_whose_clock_is_behind_waits_once_more_at_most(bench: PopBench) -> None:
    bench.at(10**9)
    await bench.put(b"a")
    await bench.pop()
    bench.at(0)
    new = await bench.next_leader()
    new.at(INVISIBLE_MS + 100)
    await new.revive()
    assert len(await new.pop()) == 1
    await new.stop()


async def test_changed_times_and_moves_are_known_to_the_next_leader(bench: PopBench) -> None:
    await bench.put(b"a", b"b", b"c")
    first, _, _ = await bench.pop()
    await bench.change(first, 10 * INVISIBLE_MS)
    new = await bench.next_leader()
    new.at(INVISIBLE_MS + SECOND)
    await new.revive()
    assert [message.body for message in await new.pop()] == [b"b", b"c"]
    move = new.request(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0, commitOffset=2
    )
    await new.ask(move)
    last = await new.next_leader()
    assert [message.body for message in await last.pop()] == [b"c"]
    await new.stop()
    await last.stop()


async def test_order_is_known_to_the_next_leader(bench: PopBench) -> None:
    await bench.put(b"a", b"b", b"c")
    first, second = await bench.pop(order="true", maxMsgNums=2, queueId=0)
    await bench.ack(second)
    new = await bench.next_leader()
    assert await new.pop(order="true", queueId=0) == []
    assert await new.ack(first) == 0
    assert [message.body for message in await new.pop(order="true", queueId=0)] == [b"c"]
    await new.stop()


async def test_what_is_acknowledged_of_a_batch_in_order_is_known_to_the_next_leader(bench: PopBench) -> None:
    await bench.put(b"a", b"b", b"c", b"d")
    first, second, _ = await bench.pop(order="true", maxMsgNums=3, queueId=0)
    await bench.ack(second)
    bench.ledger.snapshot()
    new = await bench.next_leader()
    assert await new.ack(second) == 0
    new.at(INVISIBLE_MS + SECOND)
    again = await new.pop(order="true", maxMsgNums=3, queueId=0)
    assert [(each.body, each.count) for each in again] == [(b"a", 1), (b"b", 1), (b"c", 1)]
    assert await new.ack(first) == ResponseCode.NO_MESSAGE
    await new.stop()


def test_rows_of_earlier_versions_can_be_read() -> None:
    """They name what was acknowledged behind what was not; it is handed out again with that, as all is."""
    rows = [["l", "g", "t", 0, 4, [2, 3]], ["o", 1_000, 500, None, [1, 2, 3], [[1, 1_500]], []]]
    table = PopTable.restored(rows)
    (group_queue,) = table.group_queues.values()
    assert (group_queue.order_start, group_queue.floor, table.in_flight) == (1, 1, 1)
    assert PopTable.restored(table.rows()).group_queues[group_queue.key].order_start == 1
    table.start_clock(wall_ms=0, now_ms=7)
    assert group_queue.order is not None
    assert group_queue.order.free_at_ms(7) == 507


async def test_a_snapshot_is_all_a_reader_needs(bench: PopBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commitlog.log_machine.SNAPSHOT_CHANGES_MIN", 4)
    await bench.put(*[b"%d" % number for number in range(40)])
    for _ in range(12):
        (message,) = await bench.pop(maxMsgNums=1)
        if message.record.queue_offset % 3:
            await bench.ack(message)
    snapshots = [
        at for at, each in enumerate(bench.log.messages) if each.properties and each.topic == POP_TOPIC
    ]
    assert len(snapshots) > 2
    messages = bench.log.messages
    cut = [each for at, each in enumerate(messages) if each.topic != POP_TOPIC or at >= snapshots[-1]]
    before = shown(bench.ledger.table)
    new = await bench.next_leader(log_of(cut))
    assert shown(new.ledger.table) == before
    await new.stop()


async def test_a_snapshot_that_was_not_written_to_its_end_is_passed_over(bench: PopBench) -> None:
    await bench.put(*[b"%d" % number for number in range(40)])
    table = bench.ledger.table
    for _ in range(4):
        await bench.pop(maxMsgNums=5)
    before = shown(table)
    first_of_two = b'{"version":1,"part":0,"parts":2,"rows":[]}'
    torn = Message(POP_TOPIC, 0, first_of_two, b"TAGS\x01s\x02")
    new = await bench.next_leader(log_of([*bench.log.messages, torn]))
    assert shown(new.ledger.table) == before
    await new.stop()


async def test_a_table_that_cannot_be_read_hands_out_nothing(bench: PopBench) -> None:
    strange = Message(POP_TOPIC, 0, b'{"version":9,"ops":[]}')
    new = await bench.next_leader(log_of([*bench.log.messages, strange]))
    answer = await new.ask(new.pop_request())
    assert answer.code == ResponseCode.SYSTEM_ERROR
    await new.stop()


async def test_requests_wait_while_the_table_is_read(bench: PopBench) -> None:
    await bench.put(b"a")
    bench.log.set_writable(False)
    await bench.settle()
    bench.log.set_writable(True)
    bench.start(bench.pop_request())
    assert bench.connection.take_answers() == []
    await bench.settle()
    assert [messages_of(answer)[0].body for answer in bench.connection.take_answers()] == [b"a"]


async def test_idle_queues_are_forgotten_with_a_snapshot(bench: PopBench) -> None:
    await bench.put(b"a")
    (message,) = await bench.pop()
    await bench.ack(message)
    bench.floor()
    bench.commits.flush()
    await bench.settle()
    bench.ledger.snapshot()
    assert bench.ledger.table is not None
    assert bench.ledger.table.group_queues == {}
    assert await bench.pop() == []
    await bench.put(b"b")
    assert [each.body for each in await bench.pop()] == [b"b"]


async def test_any_history_reads_the_same_for_the_next_leader(bench: PopBench) -> None:
    """Pops, acknowledgements, changes, moves and revivals by chance."""
    rng = random.Random(7)
    node = bench
    out: list[PoppedMessage] = []
    for step in range(60):
        choice = rng.random()
        if choice < 0.3:
            await node.put(*[b"%d" % rng.randrange(99) for _ in range(3)], queue_id=rng.randrange(2))
        elif choice < 0.6:
            is_ordered = rng.random() < 0.3
            values = {"order": "true", "consumerGroup": "o"} if is_ordered else {}
            out += await node.pop(maxMsgNums=rng.randrange(1, 6), **values)
        elif choice < 0.8 and out:
            message = out.pop(rng.randrange(len(out)))
            group = "o" if " 999 " in message.handle else "g"
            await node.ack(message, consumerGroup=group)
        elif choice < 0.9 and out:
            message = rng.choice(out)
            group = "o" if " 999 " in message.handle else "g"
            await node.change(message, rng.randrange(60_000), consumerGroup=group)
        else:
            node.at(step * 10 * SECOND)
            await node.revive()
        if step % 10 == 9:
            before = shown(node.ledger.table)
            node = await node.next_leader()
            assert shown(node.ledger.table) == before
    assert node.ledger.table is not None
    group_queues = node.ledger.table.group_queues.values()
    assert node.ledger.table.in_flight == sum(group_queue.in_flight for group_queue in group_queues)
    await node.stop()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"version":2,"ops":[]}',
        b'{"version":1,"ops":[["z","g","t",0]]}',
        b'{"version":1,"ops":[["f","g","t",-1,[0,1]]]}',
        b'{"version":1,"ops":[["f","g","t",0,[0,99999999]]]}',
        b'{"version":1,"ops":[["f","g","t",0,[0]]]}',
        b'{"version":1,"ops":[["p","g","t",0,1,2]]}',
        b'{"version":1,"part":0,"rows":[]}',
    ],
)
def test_records_that_nobody_wrote_are_refused(body: bytes) -> None:
    with pytest.raises(PopRecordError):
        decode_record_body(body)


@pytest.mark.parametrize("rows", [[["c", 1, 1, [0, 1]]], [["l", "g", "t", 0, -1, []]], [["l"]], [[]]])
def test_snapshots_that_nobody_wrote_are_refused(rows: list[list[object]]) -> None:
    with pytest.raises(PopRecordError):
        PopTable.restored(rows)
