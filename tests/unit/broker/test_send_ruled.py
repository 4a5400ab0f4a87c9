"""Sends that are more than one message or must wait: batches, topics to create, retries and dead letters."""

import asyncio
import struct
from pathlib import Path

import pytest

from broker.state.changes import PutSettings, PutTopic
from broker.state.topics import STATE_TOPIC, TopicConfig
from commitlog.log import PutStatus
from commitlog.record import parse_properties
from remoting.command import RemotingCommand
from tests.support.send_bench import KEY, STAMP, Bench, make_bench, send_request


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await make_bench(tmp_path)


def batch_body(*parts: bytes) -> bytes:
    one = b"TAGS\x01a\x02"
    return b"".join(
        struct.pack(">iiiii", 22 + len(part) + len(one), 0, 0, 7, len(part))
        + part
        + struct.pack(">h", len(one))
        + one
        for part in parts
    )


async def test_a_batch_becomes_messages_of_their_own(bench: Bench) -> None:
    start = bench.log.max_position
    request = send_request(
        is_batch=True, queue_id=1, body=batch_body(b"one", b"two", b"three"), properties=""
    )
    bench.handle(send_request(queue_id=1, opaque=8), request, send_request(queue_id=1, opaque=9))
    await bench.settle()
    first, batch, last = bench.connection.take_answers()
    assert [message.body for message in bench.stored] == [b"hello", b"one", b"two", b"three", b"hello"]
    assert {(m.flag, m.properties, m.queue_id) for m in bench.stored[1:4]} == {
        (7, b"TAGS\x01a\x02" + STAMP, 1)
    }
    assert [answer.ext_fields["queueOffset"] for answer in (first, batch, last)] == ["0", "1", "4"]
    ids = batch.ext_fields["msgId"].split(",")
    assert len(ids) == 3
    positions = [int(each[16:], 16) for each in ids]
    assert positions == sorted(positions)
    assert positions[0] > start
    assert bench.log.record_at(positions[2]) is not None


@pytest.mark.parametrize(
    "request_",
    [
        send_request(is_batch=True, body=batch_body(b"x")[:-1]),
        send_request(is_batch=True, body=b""),
        send_request(is_batch=True, body=batch_body(b"x"), properties="DELAY\x013\x02"),
    ],
)
async def test_bad_batches_are_illegal(bench: Bench, request_: RemotingCommand) -> None:
    assert (await bench.answer(request_)).code == 13
    assert bench.stored == []


async def test_a_batch_larger_than_any_put_can_be_is_illegal(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, maxPendingRequestsNum=10)
    answer = await bench.answer(send_request(is_batch=True, body=batch_body(*[b"x"] * 11)))
    assert answer.code == 13


async def test_a_turn_full_of_batches_is_several_puts(bench: Bench) -> None:
    body = batch_body(*[b"x"] * 900)
    bench.handle(*(send_request(is_batch=True, body=body, opaque=n) for n in range(5)))
    await bench.settle()
    assert [len(call) for call in bench.log.put_calls[1:]] == [1800, 1800, 900]
    assert [answer.code for answer in bench.connection.take_answers()] == [0] * 5


async def test_the_first_send_creates_its_topic_and_later_ones_keep_their_order(bench: Bench) -> None:
    bench.handle(*(send_request("new", b"%d" % n, opaque=n) for n in range(3)), send_request(opaque=50))
    await asyncio.sleep(0)
    bench.handle(*(send_request("new", b"%d" % n, opaque=n) for n in range(3, 6)))
    await bench.settle()
    bench.handle(send_request("new", b"6", opaque=6))
    await bench.settle()
    created = bench.parts.state.topics["new"]
    assert (created.read_queue_nums, created.write_queue_nums, created.perm) == (4, 4, 6)
    assert [message.body for message in bench.stored if message.topic == "new"] == [
        b"%d" % n for n in range(7)
    ]
    codes = {answer.opaque: answer.code for answer in bench.connection.take_answers()}
    assert codes == dict.fromkeys([*range(7), 50], 0)
    assert sum(message.topic == STATE_TOPIC for message in bench.log.messages) == 2


async def test_a_topic_that_cannot_be_created_fails_all_that_waited(bench: Bench) -> None:
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    bench.handle(send_request("new", opaque=1), send_request("new", opaque=2))
    await bench.settle()
    assert [answer.code for answer in bench.connection.take_answers()] == [2, 2]
    bench.log.next_status = PutStatus.PUT_OK
    assert (await bench.answer(send_request("new", opaque=3))).code == 0


async def test_held_sends_are_bounded(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, heldSendsMax=2)
    bench.handle(*(send_request(topic, opaque=n) for n, topic in enumerate(("a", "a", "a", "b"))))
    await bench.settle()
    codes = {answer.opaque: answer.code for answer in bench.connection.take_answers()}
    assert codes == {0: 0, 1: 0, 2: 2, 3: 2}
    assert (await bench.answer(send_request("b", opaque=9))).code == 0


async def test_a_retry_within_the_groups_limit_goes_to_the_retry_topic(bench: Bench) -> None:
    answer = await bench.answer(send_request("%RETRY%g", reconsume_times=3))
    assert answer.code == 0
    assert [message.topic for message in bench.stored] == ["%RETRY%g"]
    assert bench.parts.state.topics["%RETRY%g"].write_queue_nums == 1


@pytest.mark.parametrize(
    ("limit", "times", "topic"), [(None, 4, "%DLQ%g"), (5, 4, "%RETRY%g"), (2, 3, "%DLQ%g")]
)
async def test_a_message_retried_in_vain_goes_to_the_dead_letters(
    bench: Bench, limit: int | None, times: int, topic: str
) -> None:
    request = send_request(
        "%RETRY%g",
        reconsume_times=times,
        max_reconsume_times=limit,
        properties=f"UNIQ_KEY\x01{KEY}\x02DELAY\x01{3 + times}\x02",
    )
    assert (await bench.answer(request)).code == 0
    (message,) = bench.stored
    real = parse_properties(message.properties).get("REAL_TOPIC", message.topic)
    assert real == topic
    if topic == "%DLQ%g":
        assert parse_properties(message.properties)["DELAY"] == "-1"
        assert "%DLQ%g" in bench.parts.state.topics


async def test_a_broker_that_may_not_be_written_takes_nothing_for_ordered_topics(tmp_path: Path) -> None:
    """Those are sent to by fixed queues; for others the route keeps clients away."""
    bench = await make_bench(tmp_path, brokerPermission="4")
    await bench.parts.state.propose(PutTopic(TopicConfig("ordered", 4, 4, is_ordered=True)))
    answer = await bench.answer(send_request("ordered"))
    assert (answer.code, answer.remark) == (16, "the broker[127.0.0.1] sending message is forbidden")
    assert (await bench.answer(send_request("t"))).code == 0


async def test_a_broker_that_is_to_be_removed_takes_only_retries(tmp_path: Path) -> None:
    """Stock producers try another broker after code 14; a consumer sends back what it got from this one."""
    bench = await make_bench(tmp_path)
    assert (await bench.answer(send_request("t"))).code == 0
    await bench.parts.state.propose(PutSettings({"refuseMessages": "true"}))
    for topic in ("t", "new"):
        answer = await bench.answer(send_request(topic))
        assert (answer.code, "to be removed" in (answer.remark or "")) == (14, True)
    assert "new" not in bench.parts.state.topics
    assert (await bench.answer(send_request("%RETRY%g", reconsume_times=1))).code == 0
    await bench.parts.state.propose(PutSettings({"refuseMessages": "false"}))
    assert (await bench.answer(send_request("t"))).code == 0


async def test_without_creation_of_topics_only_those_that_are_there_take_messages(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path, autoCreateTopicEnable="false")
    answer = await bench.answer(send_request("new"))
    assert (answer.code, "not exist" in (answer.remark or "")) == (17, True)
    assert (await bench.answer(send_request("t"))).code == 0
    assert "new" not in bench.parts.state.topics


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"])
async def test_the_type_of_a_topic_binds_no_send(bench: Bench, kind: str) -> None:
    """RocketMQ leaves the check to its proxy."""
    await bench.parts.state.propose(PutTopic(TopicConfig("typed", 1, 1, attributes={"message.type": kind})))
    assert (await bench.answer(send_request("typed"))).code == 0


@pytest.mark.parametrize("flags", [0x101, 0x201, 0x301])
async def test_compression_flags_and_bodies_are_stored_as_they_came(bench: Bench, flags: int) -> None:
    assert (await bench.answer(send_request(body=b"\x04\x22 not unpacked", sys_flag=flags))).code == 0
    (message,) = [each for each in bench.stored if each.topic == "t"]
    assert (message.sys_flag, message.body) == (flags, b"\x04\x22 not unpacked")


@pytest.mark.parametrize(
    ("properties", "queue_id", "keeps_priority"),
    [
        ("_SYS_MSG_PRIORITY_\x012\x02", 2, True),
        ("_SYS_MSG_PRIORITY_\x010\x02", 0, True),
        ("_SYS_MSG_PRIORITY_\x01999999999\x02", 3, True),
        ("_SYS_MSG_PRIORITY_\x01-1\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x01" + "9" * 5_000 + "\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x012\x02__SHARDINGKEY\x01k\x02", 1, False),
    ],
)
async def test_a_priority_names_the_queue(
    bench: Bench, properties: str, queue_id: int, keeps_priority: bool
) -> None:
    await bench.answer(send_request(queue_id=1, properties=f"UNIQ_KEY\x01{KEY}\x02{properties}"))
    (message,) = bench.stored
    assert message.queue_id == queue_id
    assert (b"_SYS_MSG_PRIORITY_\x01" in message.properties) == keeps_priority


async def test_a_delayed_message_has_no_priority(bench: Bench) -> None:
    await bench.answer(send_request(queue_id=1, properties="_SYS_MSG_PRIORITY_\x012\x02DELAY\x011\x02"))
    (message,) = bench.stored
    assert b"REAL_QID\x011\x02" in message.properties
    assert b"PRIORITY" not in message.properties
