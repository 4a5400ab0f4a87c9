"""Pops, acknowledgements and changes of invisible time, as clients send them."""

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from broker.pop.ops import POP_TOPIC, GroupQueueKey, Sought
from broker.pop.peek import FILTERED_MAX
from broker.state.changes import DeleteTopic, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig, may_send_to
from commitlog.log import PutStatus
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from tests.support.broker_parts import FakeEngine
from tests.support.polling import until
from tests.support.pop_bench import INVISIBLE_MS, SECOND, PopBench, PoppedMessage, make_pop_bench, messages_of

RETRY = "%RETRY%g_t"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[PopBench]:
    made = await make_pop_bench(tmp_path)
    yield made
    await made.stop()


async def test_a_popped_message_is_invisible_and_an_acknowledged_one_gone(bench: PopBench) -> None:
    await bench.put(b"a", b"b")
    popped = await bench.pop()
    assert [message.body for message in popped] == [b"a", b"b"]
    assert await bench.pop() == []
    assert [await bench.ack(message) for message in popped] == [0, 0]
    bench.at(INVISIBLE_MS + SECOND)
    await bench.revive()
    assert await bench.pop() == []
    assert bench.floor() == 2


async def test_a_pop_takes_messages_of_all_queues_and_one_of_one_queue_only(bench: PopBench) -> None:
    await bench.put(b"a", queue_id=0)
    await bench.put(b"b", queue_id=1)
    (only,) = await bench.pop(queueId=1)
    assert only.body == b"b"
    await bench.put(b"c", queue_id=1)
    assert sorted(message.body for message in await bench.pop()) == [b"a", b"c"]


async def test_the_answer_waits_for_the_commit_and_shares_a_record(bench: PopBench) -> None:
    await bench.put(b"a", b"b", b"c")
    bench.log.auto_commit = False
    requests = [bench.pop_request(maxMsgNums=1) for _ in range(3)]
    bench.start(*requests)
    await bench.settle()
    assert bench.connection.take_answers() == []
    assert len(bench.records) == 1
    bench.log.commit()
    answers = bench.connection.take_answers()
    assert [messages_of(answer)[0].body for answer in answers] == [b"a", b"b", b"c"]


async def test_what_is_not_acknowledged_in_time_comes_back_with_its_count(bench: PopBench) -> None:
    await bench.put(b"a", b"b", tag="x")
    first, second = await bench.pop()
    await bench.ack(second)
    bench.at(INVISIBLE_MS + SECOND)
    await bench.revive()
    (again,) = await bench.pop()
    assert (again.body, again.record.topic, again.record.reconsume_times) == (b"a", RETRY, 1)
    assert again.handle.split(" ")[4] == "1"
    assert bench.floor() == 2
    assert await bench.ack(first) == ResponseCode.NO_MESSAGE
    assert await bench.ack(again) == 0
    bench.at(3 * INVISIBLE_MS)
    await bench.revive()
    assert await bench.pop() == []
    assert bench.ledger.table is not None
    assert bench.ledger.table.in_flight == 0


async def test_after_too_many_tries_a_message_goes_to_the_dead_letters(bench: PopBench) -> None:
    await bench.put(b"a")
    counts = []
    for turn in range(6):
        bench.at(turn * 2 * INVISIBLE_MS)
        await bench.revive()
        counts += [message.record.reconsume_times for message in await bench.pop()]
    assert counts == [0, 1, 2, 3]
    (dead,) = bench.stored("%DLQ%g")
    assert (dead.body, dead.reconsume_times) == (b"a", 4)
    assert b"RETRY_TOPIC\x01t\x02" in dead.properties


async def test_a_change_of_invisible_time_holds_a_message_back_or_gives_it_up(bench: PopBench) -> None:
    await bench.put(b"longer", b"shorter")
    longer, shorter = await bench.pop()
    answer = await bench.change(longer, 10 * INVISIBLE_MS)
    assert answer.code == 0
    assert int(answer.ext_fields["invisibleTime"]) == 10 * INVISIBLE_MS
    bench.at(1)
    assert (await bench.change(shorter, 0)).code == 0
    bench.at(SECOND)
    await bench.revive()
    assert [message.body for message in await bench.pop()] == [b"shorter"]
    bench.at(2 * INVISIBLE_MS)
    await bench.revive()
    assert [message.body for message in await bench.pop()] == [b"shorter"]
    handle = longer.handle.split(" ")
    handle[1] = answer.ext_fields["popTime"]
    assert await bench.ack(longer, extraInfo=" ".join(handle)) == 0


async def test_a_handle_from_before_the_change_holds_no_more(bench: PopBench) -> None:
    await bench.put(b"a")
    (message,) = await bench.pop()
    bench.at(SECOND)
    await bench.change(message, INVISIBLE_MS)
    assert await bench.ack(message) == ResponseCode.NO_MESSAGE
    assert (await bench.change(message, 0)).code == ResponseCode.NO_MESSAGE


async def test_a_pop_waits_for_a_message_and_for_its_time_to_be_up(bench: PopBench) -> None:
    bench.start(bench.pop_request(pollTime=15_000), bench.pop_request(pollTime=15_000))
    await bench.settle()
    assert bench.connection.take_answers() == []
    info = await bench.ask(bench.request(RequestCode.POLLING_INFO, consumerGroup="g", topic="t", queueId=-1))
    assert info.ext_fields["pollingNum"] == "2"
    await bench.put(b"a")
    (answer,) = bench.connection.take_answers()
    assert [message.body for message in messages_of(answer)] == [b"a"]
    bench.at(16_000)
    bench.service.long_polling._expire()
    (late,) = bench.connection.take_answers()
    assert late.code == ResponseCode.POLLING_TIMEOUT
    assert {"popTime", "invisibleTime", "reviveQid", "restNum"} <= set(late.ext_fields)


async def test_a_waiting_pop_gets_what_is_revived(bench: PopBench) -> None:
    await bench.put(b"a")
    await bench.pop()
    bench.start(bench.pop_request(pollTime=60_000))
    bench.at(INVISIBLE_MS + SECOND)
    await bench.revive()
    (answer,) = bench.connection.take_answers()
    assert messages_of(answer)[0].record.reconsume_times == 1


async def test_only_what_is_wanted_is_popped(bench: PopBench) -> None:
    await bench.put(b"a", tag="A")
    await bench.put(b"b", tag="B", price="5")
    await bench.put(b"c", tag="A", price="7")
    assert [message.body for message in await bench.pop(exp="B||C")] == [b"b"]
    await bench.put(b"d", tag="A", price="8")
    bench.parts.state.propose(PutGroup(SubscriptionGroupConfig("h")))
    await bench.settle()
    found = await bench.pop(consumerGroup="h", expType="SQL92", exp="price > 6")
    assert [message.body for message in found] == [b"c", b"d"]
    assert bench.floor() == 1
    bad = await bench.ask(bench.pop_request(expType="SQL92", exp="price >"))
    assert bad.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_waiting_pop_passes_over_what_it_does_not_want(bench: PopBench) -> None:
    bench.start(bench.pop_request(pollTime=15_000, exp="B"))
    await bench.put(b"a", tag="A")
    assert bench.connection.take_answers() == []
    await bench.put(b"b", tag="B")
    assert [messages_of(answer)[0].body for answer in bench.connection.take_answers()] == [b"b"]


async def test_batches_of_acknowledgements(bench: PopBench) -> None:
    await bench.put(b"a", b"b", b"c")
    first, _, third = await bench.pop()
    parts = first.handle.split(" ")
    entry = {"c": "g", "t": "t", "r": "0", "so": 0, "q": 0, "rq": int(parts[3])}
    entry |= {"pt": int(parts[1]), "it": int(parts[2]), "b": base64.b64encode(b"\x05").decode()}
    body = orjson.dumps({"brokerName": "broker-a", "acks": [entry]})
    request = bench.request(RequestCode.BATCH_ACK_MESSAGE, body)
    assert (await bench.ask(request)).code == 0
    assert await bench.ack(third) == ResponseCode.NO_MESSAGE
    request = bench.request(RequestCode.BATCH_ACK_MESSAGE, body)
    assert (await bench.ask(request)).code == ResponseCode.NO_MESSAGE
    bench.at(INVISIBLE_MS + SECOND)
    await bench.revive()
    assert [message.body for message in await bench.pop()] == [b"b"]


async def test_retry_topics_of_the_second_version(tmp_path: Path) -> None:
    """With the first version's still popped, as after a change of the setting."""
    old = await make_pop_bench(tmp_path)
    await old.put(b"first")
    await old.pop()
    old.at(INVISIBLE_MS + SECOND)
    await old.revive()
    bench = await old.next_leader(enableRetryTopicV2=True)
    await bench.put(b"second")
    await bench.pop(queueId=0, maxMsgNums=1)
    bench.at(2 * INVISIBLE_MS + 2 * SECOND)
    await bench.revive()
    found = {message.record.topic: message for message in await bench.pop()}
    assert set(found) == {"%RETRY%g+t", RETRY}
    for topic, mark in ((RETRY, "1"), ("%RETRY%g+t", "2")):
        assert found[topic].handle.split(" ")[4] == mark
        body = orjson.dumps({"acks": [_batch_entry(found[topic], mark)]})
        assert (await bench.ask(bench.request(RequestCode.BATCH_ACK_MESSAGE, body))).code == 0
    bench.at(9 * INVISIBLE_MS)
    await bench.revive()
    assert await bench.pop() == []
    await bench.stop()


def _batch_entry(message: PoppedMessage, mark: str) -> dict[str, object]:
    parts = message.handle.split(" ")
    entry: dict[str, object] = {"c": "g", "t": "t", "r": mark, "so": message.record.queue_offset}
    entry |= {"q": message.record.queue_id, "rq": int(parts[3]), "pt": int(parts[1]), "it": int(parts[2])}
    return entry | {"b": base64.b64encode(b"\x01").decode()}


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b'{"acks":[]}', b'{"acks":[1]}', b'{"acks":[{"c":"g"}]}', b"\xff"]
)
async def test_unreadable_batches_are_refused(bench: PopBench, body: bytes) -> None:
    answer = await bench.ask(bench.request(RequestCode.BATCH_ACK_MESSAGE, body))
    assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.NO_MESSAGE)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 0}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 1 << 40}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumerGroup": "bad group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": "g" * 130}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": None}, ResponseCode.SYSTEM_ERROR),
        ({"topic": "t", "attemptId": "x" * 300}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_bad_pops_are_refused(bench: PopBench, fields: dict[str, object], code: int) -> None:
    assert (await bench.ask(bench.pop_request(**fields))).code == code


async def test_bad_acknowledgements_are_refused(bench: PopBench) -> None:
    await bench.put(b"a")
    (message,) = await bench.pop()
    assert await bench.ack(message, topic="unknown") == ResponseCode.TOPIC_NOT_EXIST
    assert await bench.ack(message, queueId=7) == ResponseCode.MESSAGE_ILLEGAL
    assert await bench.ack(message, offset=1) == ResponseCode.NO_MESSAGE
    assert await bench.ack(message, extraInfo="0 1 2") == ResponseCode.SYSTEM_ERROR
    assert await bench.ack(message, extraInfo="a b c d e f g") == ResponseCode.SYSTEM_ERROR
    assert (await bench.change(message, -1)).code == ResponseCode.INVALID_PARAMETER
    assert await bench.ack(message) == 0


async def test_no_more_is_handed_out_than_may_be_out(tmp_path: Path) -> None:
    bench = await make_pop_bench(tmp_path, popInflightMessageThreshold=2, popInflightTotal=3)
    await bench.put(b"a", b"b", b"c")
    await bench.put(b"d", b"e", queue_id=1)
    popped = await bench.pop(queueId=0)
    assert [message.body for message in popped] == [b"a", b"b"]
    full = await bench.ask(bench.pop_request(queueId=0, pollTime=15_000))
    assert full.code == ResponseCode.POLLING_FULL
    assert "popInflightMessageThreshold" in (full.remark or "")
    assert [message.body for message in await bench.pop(queueId=1)] == [b"d"]
    assert (await bench.ask(bench.pop_request(queueId=1))).code == ResponseCode.POLLING_FULL
    assert await bench.ack(popped[0]) == 0
    assert [message.body for message in await bench.pop(queueId=0)] == [b"c"]
    await bench.stop()


async def test_a_log_that_takes_nothing_delays_answers_and_loses_none(bench: PopBench) -> None:
    await bench.put(b"a")
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.start(bench.pop_request())
    await bench.settle()
    assert bench.connection.take_answers() == []
    bench.log.next_status = PutStatus.PUT_OK
    await until(lambda: bench.connection.answers)
    assert [messages_of(answer)[0].body for answer in bench.connection.take_answers()] == [b"a"]


async def test_the_commit_of_an_earlier_record_answers_no_pop(bench: PopBench) -> None:
    """Not even one whose record the log did not take at first."""
    await bench.put(b"a", b"b")
    assert len(await bench.pop(maxMsgNums=1)) == 1
    bench.log.auto_commit = False
    bench.ledger.record(Sought(GroupQueueKey("g", "t", 0), 1))
    bench.ledger.flush()
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.start(bench.pop_request())
    await bench.settle()
    bench.log.next_status = PutStatus.PUT_OK
    bench.log.commit()
    await bench.settle()
    assert bench.connection.take_answers() == []


async def test_a_pop_that_no_majority_has_is_an_error(bench: PopBench) -> None:
    await bench.put(b"a")
    bench.log.auto_commit = False
    bench.start(bench.pop_request())
    bench.log.fail(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_a_group_that_is_moved_goes_on_there(bench: PopBench) -> None:
    await bench.put(b"a", b"b")
    first, _ = await bench.pop(queueId=0)
    assert bench.floor() == 0
    move = bench.request(
        RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="g", topic="t", queueId=0, commitOffset=1
    )
    assert (await bench.ask(move)).code == 0
    assert await bench.ack(first) == ResponseCode.NO_MESSAGE
    assert [message.body for message in await bench.pop(queueId=0)] == [b"b"]


async def test_a_group_that_is_reset_goes_on_there_and_is_not_moved_again(bench: PopBench) -> None:
    await bench.put(b"a", b"b")
    for message in await bench.pop(queueId=0):
        await bench.ack(message)
    bench.commits.reset("g", "t", {0: 1}, has_consumers=False)
    bench.parts.consumers.resets.mark("g", "t", {0: 1})
    await bench.settle()
    assert [message.body for message in await bench.pop(queueId=0)] == [b"b"]
    assert len(bench.parts.consumers.resets) == 0


async def test_the_queues_of_a_deleted_topic_are_forgotten(bench: PopBench) -> None:
    await bench.put(b"a")
    await bench.pop()
    await bench.parts.state.propose(DeleteTopic("t"))
    await bench.settle()
    assert bench.ledger.table is not None
    assert (bench.ledger.table.in_flight, bench.ledger.table.group_queues) == (0, {})
    bench.at(INVISIBLE_MS + SECOND)
    await bench.revive()
    assert bench.stored(RETRY) == []


async def test_peeking_takes_nothing(bench: PopBench) -> None:
    await bench.put(b"a", b"b")
    request = bench.request(RequestCode.PEEK_MESSAGE, consumerGroup="g", topic="t", queueId=-1, maxMsgNums=1)
    peeked = await bench.ask(request)
    assert (peeked.code, peeked.ext_fields["restNum"]) == (0, "2")
    assert [message.body for message in await bench.pop()] == [b"a", b"b"]
    request = bench.request(RequestCode.PEEK_MESSAGE, consumerGroup="g", topic="t", queueId=-1, maxMsgNums=1)
    assert (await bench.ask(request)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_notification_comes_with_a_message(bench: PopBench) -> None:
    def request(poll_ms: int) -> RemotingCommand:
        return bench.request(
            RequestCode.NOTIFICATION, consumerGroup="g", topic="t", queueId=-1, pollTime=poll_ms, bornTime=0
        )

    assert (await bench.ask(request(0))).ext_fields["hasMsg"] == "false"
    bench.start(request(15_000))
    await bench.settle()
    assert bench.connection.take_answers() == []
    await bench.put(b"a")
    (answer,) = bench.connection.take_answers()
    assert answer.ext_fields == {"hasMsg": "true", "pollingFull": "false"}
    assert len(await bench.pop()) == 1


async def test_a_notification_looks_at_the_tags_it_names(bench: PopBench) -> None:
    def request(poll_ms: int = 0, exp: str = "red || blue", kind: str = "TAG") -> RemotingCommand:
        return bench.request(
            RequestCode.NOTIFICATION,
            consumerGroup="g",
            topic="t",
            queueId=-1,
            pollTime=poll_ms,
            expType=kind,
            exp=exp,
        )

    bench.start(request(15_000))
    await bench.put(b"g", tag="green")
    assert bench.connection.take_answers() == []
    assert (await bench.ask(request())).ext_fields["hasMsg"] == "false"
    assert (await bench.ask(request(exp="a = 1", kind="SQL92"))).ext_fields["hasMsg"] == "true"
    await bench.put(b"r", tag="red")
    (answer,) = bench.connection.take_answers()
    assert answer.ext_fields["hasMsg"] == "true"
    assert (await bench.ask(request(exp="green"))).ext_fields["hasMsg"] == "true"
    refused = await bench.ask(request(exp="a = ", kind="SQL92"))
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_notification_looks_at_no_tags_of_many_messages(bench: PopBench) -> None:
    await bench.put(*[b"g"] * FILTERED_MAX, tag="green")
    answer = await bench.ask(
        bench.request(
            RequestCode.NOTIFICATION, consumerGroup="g", topic="t", queueId=0, expType="TAG", exp="red"
        )
    )
    assert answer.ext_fields["hasMsg"] == "true"


async def put_by_priority(bench: PopBench, **attributes: str) -> None:
    """A topic of type PRIORITY, with a message of each of its queues."""
    kind = {"message.type": "PRIORITY"}
    group = SubscriptionGroupConfig("g", attributes=attributes)
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 4, 4, attributes=kind)), PutGroup(group))
    for queue_id in range(4):
        await bench.put(b"%d" % queue_id, queue_id=queue_id)


async def test_a_topic_of_priorities_is_popped_by_them(bench: PopBench) -> None:
    await put_by_priority(bench)
    highest, second = await bench.pop(maxMsgNums=2)
    assert (highest.body, second.body) == (b"3", b"2")
    await bench.put(b"3", queue_id=3)
    bench.at(INVISIBLE_MS)
    await bench.revive()
    rest = await bench.pop()
    assert [message.body for message in rest] == [b"3", b"1", b"0", b"3", b"2"], "retries are the last"


async def test_a_groups_factor_says_how_many_pops_look_at_priorities(bench: PopBench) -> None:
    await put_by_priority(bench, **{"priority.factor": "25"})
    firsts = []
    for _ in range(100):
        (message,) = await bench.pop(maxMsgNums=1)
        firsts.append(message.body)
        await bench.put(message.body, queue_id=int(message.body))
    assert 25 + 15 <= firsts.count(b"3") <= 25 + 23, "a quarter, and of the others one in four"


async def test_the_first_queue_may_be_the_highest_priority(tmp_path: Path) -> None:
    bench = await make_pop_bench(tmp_path, priorityOrderAsc=False)
    await put_by_priority(bench)
    assert [message.body for message in await bench.pop()] == [b"0", b"1", b"2", b"3"]
    await bench.stop()


async def test_followers_refuse_and_say_who_leads(bench: PopBench) -> None:
    bench.start(bench.pop_request(pollTime=15_000))
    await bench.settle()
    assert isinstance(bench.parts.engine, FakeEngine)
    bench.parts.engine.leader_id = "n1"
    bench.log.set_writable(False)
    (held,) = bench.connection.take_answers()
    assert held.code == ResponseCode.SERVICE_NOT_AVAILABLE
    refused = await bench.ask(bench.pop_request())
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "n1" in (refused.remark or "")


def test_nobody_else_may_write_what_is_out() -> None:
    assert not may_send_to(POP_TOPIC)
