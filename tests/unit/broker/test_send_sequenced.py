"""Sequenced sends through the send processor: what is stored, what is answered, and that a new leader knows
what an old one stored.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.admin.feature import make_runtime_info
from broker.send.feature import make_send_back
from broker.state.state import ReplicatedState
from broker.state.topics import STATE_TOPIC
from broker.state.writers import Progress
from broker.timer.feature import make_delays
from broker.timer.scheduling import SCHEDULE_TOPIC
from commitlog.log import PutStatus
from commitlog.record import Message, get_property
from remoting.codes import RequestCode, ResponseCode
from remoting.command import ONEWAY_FLAG, RemotingCommand
from remoting.headers.consume import ConsumerSendMsgBackRequestHeader
from tests.support.broker_parts import NOW_MS
from tests.support.send_bench import STAMP, Bench, make_bench, send_request
from tests.support.sequenced import batch_body, numbers_of, sequenced_send


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await make_bench(tmp_path)


async def test_messages_are_stored_with_their_numbers_and_answered_with_their_place(bench: Bench) -> None:
    answer = await bench.answer(sequenced_send(0, [b"a", b"b"]))
    first, second = bench.stored
    assert (first.topic, first.queue_id, first.body, first.flag, first.born_timestamp_ms) == (
        "t",
        1,
        b"a",
        3,
        5,
    )
    assert first.born_host == bench.connection.born_host
    assert first.store_host == bench.parts.store_host
    assert first.properties == b"LEDGERMQ_SEQ\x01w|0|1|0\x02UNIQ_KEY\x01k\x02" + STAMP
    assert second.properties == b"LEDGERMQ_SEQ\x01w|0|1|1\x02UNIQ_KEY\x01k\x02" + STAMP
    assert answer.code == 0
    assert (answer.ext_fields["queueOffset"], answer.ext_fields["repeats"]) == ("0", "0")
    assert bench.parts.state.writers.get(b"w|0") == Progress(1, 2)


async def test_a_message_of_just_maxmessagesize_fits_with_its_properties(bench: Bench) -> None:
    size = bench.parts.config.max_message_bytes
    assert size == 4 * 1024 * 1024
    properties = b"K\x01" + b"v" * 32_000 + b"\x02"
    for more, code in ((1, 13), (0, 0)):
        request = sequenced_send(0, [])
        request.body = batch_body([bytes(size + more)], properties)
        assert (await bench.answer(request)).code == code
    request = sequenced_send(1, [])
    request.body = batch_body([bytes(size // 2)] * 3)
    assert (await bench.answer(request)).code == 13
    assert [len(message.body) for message in bench.stored] == [size]


async def test_each_message_names_its_queue(bench: Bench) -> None:
    body = batch_body([b"a"], queue_id=2) + batch_body([b"b"], queue_id=0) + batch_body([b"c"], queue_id=2)
    request = sequenced_send(0, [])
    request.body = body
    assert (await bench.answer(request)).code == 0
    assert [(message.queue_id, message.body) for message in bench.stored] == [(2, b"a"), (0, b"b"), (2, b"c")]
    assert numbers_of(bench.stored) == [0, 1, 2]


async def test_a_repeat_is_answered_and_not_stored(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a", b"b"]))
    answer = await bench.answer(sequenced_send(0, [b"a", b"b"]))
    assert (answer.code, answer.ext_fields["queueOffset"], answer.ext_fields["repeats"]) == (0, "-1", "2")
    answer = await bench.answer(sequenced_send(1, [b"b", b"c"]))
    assert (answer.code, answer.ext_fields["queueOffset"], answer.ext_fields["repeats"]) == (0, "2", "1")
    assert [message.body for message in bench.stored] == [b"a", b"b", b"c"]
    assert numbers_of(bench.stored) == [0, 1, 2]


async def test_a_repeat_of_what_is_on_its_way_is_answered_with_it(bench: Bench) -> None:
    bench.log.auto_commit = False
    bench.handle(sequenced_send(0, [b"a"], 1), sequenced_send(0, [b"a"], 2))
    bench.handle(sequenced_send(0, [b"a"], 3))
    await bench.settle()
    assert bench.connection.answers == []
    bench.log.commit()
    answers = bench.connection.take_answers()
    assert {answer.opaque: (answer.code, answer.ext_fields["repeats"]) for answer in answers} == {
        1: (0, "0"),
        2: (0, "1"),
        3: (0, "1"),
    }
    assert len(bench.stored) == 1


@pytest.mark.parametrize("status", [PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, PutStatus.UNKNOWN_ERROR])
async def test_a_repeat_shares_the_failure_of_what_it_repeats(bench: Bench, status: PutStatus) -> None:
    bench.log.auto_commit = False
    bench.handle(sequenced_send(0, [b"a"], 1), sequenced_send(0, [b"a"], 2))
    bench.log.fail(status)
    assert [(answer.opaque, answer.code) for answer in bench.connection.take_answers()] == [(2, 1), (1, 1)]


async def test_after_a_time_out_a_repeat_waits_for_the_commit(bench: Bench) -> None:
    bench.log.auto_commit = False
    bench.handle(sequenced_send(0, [b"a"], 1))
    bench.log.time_out()
    bench.handle(sequenced_send(0, [b"a"], 2))
    assert [answer.code for answer in bench.connection.take_answers()] == [1, 1]
    bench.log.commit()
    bench.handle(sequenced_send(0, [b"a"], 3))
    (answer,) = bench.connection.take_answers()
    assert (answer.code, answer.ext_fields["repeats"], len(bench.stored)) == (0, "1", 1)


async def test_a_gap_and_a_batch_that_is_over_are_refused_with_what_is_expected(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a", b"b"]))
    answer = await bench.answer(sequenced_send(3, [b"d"]))
    assert answer.code == ResponseCode.LEDGERMQ_SEQUENCE_GAP
    assert (answer.ext_fields["batchId"], answer.ext_fields["expectedSequence"]) == ("1", "2")
    answer = await bench.answer(sequenced_send(0, [b"a"], batch_id=0))
    assert answer.code == ResponseCode.LEDGERMQ_SEQUENCE_OVER
    answer = await bench.answer(sequenced_send(1, [b"a"], batch_id=2))
    assert answer.code == ResponseCode.LEDGERMQ_SEQUENCE_GAP
    assert len(bench.stored) == 2


async def test_what_follows_a_refused_send_is_refused_too(bench: Bench) -> None:
    """Pipelined sends of which one is refused for flow control: nothing may overtake it."""
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.handle(sequenced_send(0, [b"a"], 1), sequenced_send(1, [b"b"], 2), sequenced_send(0, [b"a"], 3))
    answers = bench.connection.take_answers()
    assert {(answer.opaque, answer.code) for answer in answers} == {(1, 2), (2, 2), (3, 2)}
    bench.log.next_status = PutStatus.PUT_OK
    answer = await bench.answer(sequenced_send(1, [b"b"], 4))
    assert answer.code == ResponseCode.LEDGERMQ_SEQUENCE_GAP
    assert (await bench.answer(sequenced_send(0, [b"a", b"b"], 5))).code == 0
    assert numbers_of(bench.stored) == [0, 1]


async def test_what_was_refused_behind_sends_on_their_way_is_expected_still(bench: Bench) -> None:
    bench.log.auto_commit = False
    bench.handle(sequenced_send(0, [b"a"], 1))
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.handle(sequenced_send(1, [b"b"], 2))
    bench.log.next_status = PutStatus.PUT_OK
    bench.handle(sequenced_send(2, [b"c"], 3), sequenced_send(1, [b"b"], 4))
    bench.log.commit()
    codes = {answer.opaque: answer.code for answer in bench.connection.take_answers()}
    assert codes == {1: 0, 2: ResponseCode.SYSTEM_BUSY, 3: ResponseCode.LEDGERMQ_SEQUENCE_GAP, 4: 0}
    assert numbers_of(bench.stored) == [0, 1]


async def test_a_turn_of_more_than_one_put_stops_at_the_first_that_is_refused(bench: Bench) -> None:
    bench.processor._put_max = 3
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.handle(*(sequenced_send(2 * n, [b"a", b"b"], n) for n in range(3)))
    codes = {answer.opaque: answer.code for answer in bench.connection.take_answers()}
    assert codes == {0: 2, 1: ResponseCode.LEDGERMQ_SEQUENCE_GAP, 2: ResponseCode.LEDGERMQ_SEQUENCE_GAP}


async def test_sequenced_and_ordinary_sends_share_a_turn_in_order(bench: Bench) -> None:
    bench.handle(
        send_request(body=b"1", opaque=1),
        sequenced_send(0, [b"2", b"3"], 2),
        send_request(body=b"4", opaque=3),
    )
    await bench.settle()
    assert [message.body for message in bench.stored] == [b"1", b"2", b"3", b"4"]
    assert len(bench.log.put_calls) == 2
    answers = bench.connection.take_answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0), (3, 0)]
    assert [answer.ext_fields["queueOffset"] for answer in answers] == ["0", "0", "1"]


async def test_another_leader_and_a_restart_know_what_was_stored(bench: Bench) -> None:
    await bench.answer(sequenced_send(0, [b"a", b"b", b"c"]))
    await bench.parts.state.start()
    await bench.parts.state.stop()  # writes the snapshot
    for keeps_snapshot in (True, False):
        if not keeps_snapshot:
            (bench.parts.config.store_path_root_dir / "state" / "snapshot").unlink()
        log = bench.log.reopened()
        state = ReplicatedState(bench.parts.config, log, lambda: NOW_MS)
        state.restore()
        await log.start()
        assert state.writers.get(b"w|0") == Progress(1, 3)


async def test_a_writer_forgets_nothing_when_the_node_leads_anew(bench: Bench) -> None:
    bench.log.auto_commit = False
    bench.handle(sequenced_send(0, [b"a"], 1))
    bench.log.fail(PutStatus.UNKNOWN_ERROR)  # the tail was cut off
    bench.log.set_writable(False)
    bench.log.set_writable(True)
    bench.connection.take_answers()
    bench.handle(sequenced_send(0, [b"a"], 2))
    bench.log.commit()
    (answer,) = bench.connection.take_answers()
    assert (answer.code, answer.ext_fields["repeats"]) == (0, "0")


async def test_a_message_may_be_delayed_and_its_delivery_is_an_ordinary_message(bench: Bench) -> None:
    properties = b"UNIQ_KEY\x01k\x02DELAY\x011\x02"
    assert (await bench.answer(sequenced_send(0, [b"a"], properties=properties))).code == 0
    (waiting,) = bench.stored
    assert (waiting.topic, numbers_of([waiting])) == (SCHEDULE_TOPIC, [0])
    delivery = make_delays(bench.parts.core)
    bench.parts.clock = lambda: NOW_MS + 2_000
    await delivery.start()
    delivery.deliver_due()
    await bench.settle()
    await delivery.stop()
    delivered = bench.stored[-1]
    assert (delivered.topic, delivered.prepared_transaction_offset) == ("t", 0)
    assert bench.parts.state.writers.get(b"w|0") == Progress(1, 1)


async def test_copies_of_a_sequenced_message_are_ordinary_messages(bench: Bench) -> None:
    """What a consumer sends on, or back, has the property: it must neither be dropped nor be counted."""
    await bench.answer(sequenced_send(0, [b"a"]))
    original = bench.stored[0]
    for _ in range(2):
        assert (await bench.answer(send_request(properties=original.properties.decode()))).code == 0
    header = ConsumerSendMsgBackRequestHeader(
        position=_position_of(bench, original), group="g", delay_level=0
    )
    request = RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, 7, ext_fields=header.ext_fields())
    result = make_send_back(bench.parts.core).handle(request, bench.connection.as_connection)
    if result is not None:
        await result  # type: ignore[misc]
    await bench.settle()
    copies = [message for message in bench.log.messages if message.topic != STATE_TOPIC][1:]
    assert len(copies) == 3
    assert all(get_property(copy.properties, b"LEDGERMQ_SEQ") == b"w|0|1|0" for copy in copies)
    assert [copy.prepared_transaction_offset for copy in copies] == [0, 0, 0]
    assert bench.parts.state.writers.get(b"w|0") == Progress(1, 1)


def _position_of(bench: Bench, message: Message) -> int:
    return next(p for p in bench.log._records if bench.log._records[p].endswith(message.properties))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"writer_id": "a|b"}, ResponseCode.INVALID_PARAMETER),
        ({"writer_id": ""}, ResponseCode.INVALID_PARAMETER),
        ({"writer_id": "x" * 65}, ResponseCode.INVALID_PARAMETER),
        ({"partition": -1}, ResponseCode.INVALID_PARAMETER),
        ({"batch_id": -1}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER),
        ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ({"sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "%RETRY%g", "queue_id": 0}, ResponseCode.MESSAGE_ILLEGAL),
        ({"topic": "rmq_sys_LEDGERMQ_STATE"}, ResponseCode.NO_PERMISSION),
        ({"properties": b"x" * 32_700}, ResponseCode.MESSAGE_ILLEGAL),
        ({"properties": b"TIMER_DELAY_MS\x01x\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"bodies": []}, ResponseCode.MESSAGE_ILLEGAL),
        ({"bodies": [b"x" * (5 << 20)]}, ResponseCode.MESSAGE_ILLEGAL),
        ({"sequence": 2**31 - 1, "bodies": [b"a", b"b"]}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_what_cannot_be_stored_is_refused(bench: Bench, changes: dict[str, object], code: int) -> None:
    values: dict[str, object] = {"sequence": 0, "bodies": [b"a"], **changes}
    if str(changes.get("topic", "")).startswith("%RETRY%"):
        await bench.answer(send_request("%RETRY%g"))
    before = len(bench.stored)
    answer = await bench.answer(sequenced_send(**values))  # type: ignore[arg-type]
    assert answer.code == code, answer.remark
    assert len(bench.stored) == before


async def test_a_value_may_say_what_a_timers_name_begins_with(bench: Bench) -> None:
    bench.handle(sequenced_send(0, [b"a"], properties=b"KEYS\x01TIMER_DAILY_7\x02"))
    await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [0]


async def test_the_topic_is_made_as_for_any_send(bench: Bench) -> None:
    answers = [sequenced_send(n, [b"%d" % n], n, topic="new", queue_id=3) for n in range(3)]
    bench.handle(*answers)
    await bench.settle()
    assert [(answer.opaque, answer.code) for answer in bench.connection.take_answers()] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert bench.parts.state.topics["new"].write_queue_nums == 4
    assert numbers_of(bench.stored) == [0, 1, 2]


async def test_a_oneway_is_stored_and_never_answered(bench: Bench) -> None:
    request = sequenced_send(0, [b"a"])
    request.flag = ONEWAY_FLAG
    bench.handle(request, request, sequenced_send(9, [b"z"]))
    await bench.settle()
    assert len(bench.stored) == 1
    assert [answer.code for answer in bench.connection.take_answers()] == [ResponseCode.LEDGERMQ_SEQUENCE_GAP]


async def test_a_header_that_cannot_be_read_is_refused(bench: Bench) -> None:
    request = sequenced_send(0, [b"a"])
    del request.ext_fields["batchId"]
    answer = await bench.answer(request)
    assert (answer.code, answer.remark) == (1, "the custom field <batchId> is null")


async def test_the_runtime_info_announces_it(bench: Bench) -> None:
    info = make_runtime_info(bench.parts.core)
    await bench.answer(sequenced_send(0, [b"a"]))
    table = info.table()
    assert (table["sequencedSends"], table["sequencedWriters"]) == ("true", "1")
