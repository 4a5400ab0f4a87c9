"""The send processor: what is stored, what is answered, and in which order."""

from pathlib import Path

import pytest

from broker.leadership import MARK
from broker.state.changes import PutSettings, PutTopic
from broker.state.topics import TopicConfig
from commitlog.log import PutStatus
from commitlog.record import parse_properties
from remoting.codes import ResponseCode
from remoting.command import ONEWAY_FLAG, RemotingCommand
from tests.support.broker_parts import NOW_MS, FakeEngine, make_parts
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog
from tests.support.send_bench import KEY, Bench, make_bench, send_request
from tests.support.sequenced import batch_body

MIB = 1024 * 1024
STAMPED = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    return await make_bench(tmp_path)


async def test_a_message_is_stored_as_it_came_and_answered_with_its_place(bench: Bench) -> None:
    position = 48 + bench.log.max_position
    answer = await bench.answer(send_request(queue_id=2, flag=5, opaque=9, reconsume_times=1, sys_flag=1))
    (message,) = bench.stored
    assert (message.topic, message.queue_id, message.body, message.flag) == ("t", 2, b"hello", 5)
    assert (message.sys_flag, message.reconsume_times, message.born_timestamp_ms) == (1, 1, NOW_MS)
    assert message.born_host == bench.connection.born_host
    assert message.store_host == bench.parts.store_host
    assert parse_properties(message.properties) == {"UNIQ_KEY": KEY, "TAGS": "a", **STAMPED}
    assert answer.code == 0
    assert answer.ext_fields == {
        "msgId": f"7F00000100002A9F{position:016X}",
        "queueId": "2",
        "queueOffset": "0",
        "transactionId": KEY,
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


async def test_all_sends_of_a_turn_are_one_put_in_order(bench: Bench) -> None:
    other = FakeConnection(2, port=50001)
    items = [
        (connection.as_connection, send_request(body=b"%d" % n, opaque=n))
        for n in range(100)
        for connection in (bench.connection, other)
    ]
    bench.processor.handle([(connection, [request]) for connection, request in items])
    await bench.settle()
    assert [len(call) for call in bench.log.put_calls[1:]] == [200]
    assert [message.body for message in bench.stored] == [b"%d" % n for n in range(100) for _ in range(2)]
    for number, connection in enumerate((bench.connection, other)):
        answers = connection.take_answers()
        assert [answer.opaque for answer in answers] == list(range(100))
        assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == list(range(number, 200, 2))


async def test_nothing_is_answered_before_the_commit(bench: Bench) -> None:
    bench.log.auto_commit = False
    bench.handle(send_request())
    await bench.settle()
    assert bench.connection.answers == []
    bench.log.commit()
    assert [answer.code for answer in bench.connection.take_answers()] == [0]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.SERVICE_NOT_AVAILABLE, 14),
        (PutStatus.OS_PAGE_CACHE_BUSY, 2),
        (PutStatus.MESSAGE_ILLEGAL, 13),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, 1),
        (PutStatus.UNKNOWN_ERROR, 1),
    ],
)
async def test_each_way_a_put_can_fail_has_its_code(bench: Bench, status: PutStatus, code: int) -> None:
    bench.log.auto_commit = False
    bench.handle(send_request(opaque=1))
    await bench.settle()
    bench.log.fail(status)
    bench.log.next_status = status
    bench.handle(send_request(opaque=2))
    answers = bench.connection.take_answers()
    assert [(answer.opaque, answer.code) for answer in answers] == [(1, code), (2, code)]
    assert all(answer.ext_fields["MSG_REGION"] == "DefaultRegion" for answer in answers)


async def test_a_follower_names_the_leader(tmp_path: Path) -> None:
    log = FakeLog(is_writable=False)
    engine = FakeEngine(leader_id="n1", client_addresses={"n1": "10.0.0.2:10921"})
    bench = Bench(make_parts(tmp_path, log, engine), log)
    forwarded = send_request("unknown")
    forwarded.ext_fields = forwarded.ext_fields | {MARK: "1"}
    answer = await bench.answer(forwarded)
    assert answer.code == 14
    assert "n1 at 10.0.0.2:10921" in str(answer.remark)
    assert log.messages == []


async def test_a_leader_that_takes_nothing_says_why(tmp_path: Path) -> None:
    """It led and said that it was not ready yet, for as long as its disk was full."""
    log = FakeLog()
    bench = Bench(make_parts(tmp_path, log, FakeEngine(leader_id="n0")), log)
    log.next_status = PutStatus.SERVICE_NOT_AVAILABLE
    answer = await bench.answer(send_request())
    assert answer.code == 14
    assert "this node leads: its disk is full" in str(answer.remark)
    assert "not ready" not in str(answer.remark)


async def test_oneway_sends_are_stored_and_never_answered(bench: Bench) -> None:
    good, bad = send_request(), send_request("bad name!")
    good.flag = bad.flag = ONEWAY_FLAG
    bench.handle(good, bad)
    await bench.settle()
    assert len(bench.stored) == 1
    assert bench.connection.answers == []


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (send_request(""), 29),
        (send_request("a b"), 29),
        (send_request("t" * 128), 29),
        (send_request("SCHEDULE_TOPIC_XXXX"), 16),
        (send_request("OFFSET_MOVED_EVENT"), 16),
        (send_request("rmq_sys_LEDGERMQ_STATE"), 16),
        (send_request("rmq_sys_LEDGERMQ_TERM"), 16),
        (send_request("new", default_topic="nothing"), 17),
        (send_request("new", default_topic="BenchmarkTest"), 17),
        (send_request(queue_id=4), 29),
        (send_request(body=bytes(4 * 1024 * 1024 + 1)), 13),
        (send_request(properties=f"UNIQ_KEY\x01{KEY}\x02K\x01{'v' * 32767}\x02"), 13),
        (send_request(properties="K\x01" + "v" * 32767), 13),
        (send_request(properties=f"UNIQ_KEY\x01{KEY}\x02TRAN_MSG\x01true\x02", is_batch=True), 13),
        (send_request(sys_flag=0xC), 13),
        (send_request(sys_flag=0x80), 13),
        (send_request(properties=f"UNIQ_KEY\x01{KEY}\x02TIMER_DELAY_SEC\x01x\x02"), 13),
        (send_request("%RETRY%absent", reconsume_times=1), 26),
    ],
)
async def test_refusals_have_rocketmqs_codes(bench: Bench, request_: RemotingCommand, code: int) -> None:
    answer = await bench.answer(request_)
    assert answer.code == code, answer
    assert answer.remark
    assert bench.stored == []


async def test_a_bad_header_is_an_error_and_its_neighbours_are_stored(bench: Bench) -> None:
    broken = send_request(opaque=2)
    del broken.ext_fields["queueId"]
    bench.handle(send_request(opaque=1), broken, send_request(opaque=3))
    await bench.settle()
    codes = {answer.opaque: answer.code for answer in bench.connection.take_answers()}
    assert codes == {1: 0, 2: 1, 3: 0}
    assert len(bench.connection.warnings) == 1


async def test_the_broker_picks_a_queue_where_the_client_asks_it_to(bench: Bench) -> None:
    for opaque in range(64):
        answer = await bench.answer(send_request(queue_id=-1, opaque=opaque))
        assert answer.ext_fields["queueId"] == str(bench.stored[-1].queue_id)
    assert {message.queue_id for message in bench.stored} == {0, 1, 2, 3}


async def test_a_missing_message_id_is_made(bench: Bench) -> None:
    first = await bench.answer(send_request(properties="TAGS\x01a"))
    second = await bench.answer(send_request(properties=""))
    keys = [parse_properties(message.properties)["UNIQ_KEY"] for message in bench.stored]
    assert [first.ext_fields["transactionId"], second.ext_fields["transactionId"]] == keys
    assert len(set(keys)) == 2
    assert all(len(key) == 32 for key in keys)
    assert parse_properties(bench.stored[0].properties)["TAGS"] == "a"


async def test_a_property_text_without_its_last_separator_keeps_all_values(bench: Bench) -> None:
    await bench.answer(send_request(properties=f"TAGS\x01a\x02UNIQ_KEY\x01{KEY}"))
    assert parse_properties(bench.stored[0].properties) == {
        "TAGS": "a",
        "UNIQ_KEY": KEY,
        **STAMPED,
    }


@pytest.mark.parametrize("name", STAMPED)
async def test_what_the_broker_says_of_a_message_replaces_what_the_client_said(
    bench: Bench, name: str
) -> None:
    await bench.answer(send_request(properties=f"UNIQ_KEY\x01{KEY}\x02{name}\x01other\x02"))
    batch = send_request(
        is_batch=True, properties="", body=batch_body([b"x"], properties=f"{name}\x01o\x02TAGS\x01a".encode())
    )
    assert (await bench.answer(batch)).code == 0
    for message in bench.stored:
        assert parse_properties(message.properties).items() >= STAMPED.items()
        assert message.properties.count(name.encode()) == 1
    assert parse_properties(bench.stored[1].properties)["TAGS"] == "a"


async def test_every_way_in_says_region_and_trace(bench: Bench) -> None:
    """A consumer that traces drops the trace of a message without region."""
    await bench.answer(send_request())
    await bench.answer(send_request(properties=""))
    for properties in ("DELAY\x013\x02", "TIMER_DELAY_SEC\x019\x02", "TRAN_MSG\x01true\x02PGROUP\x01p\x02"):
        await bench.answer(send_request(properties=f"UNIQ_KEY\x01{KEY}\x02{properties}"))
    for sent in (b"", b"TAGS\x01a", b"TAGS\x01a\x02"):
        await bench.answer(
            send_request(is_batch=True, properties="", body=batch_body([b"x", b"y"], properties=sent))
        )
    await bench.answer(send_request("%RETRY%g", reconsume_times=1))
    await bench.answer(send_request("%RETRY%g", reconsume_times=9))
    assert len(bench.stored) == 13
    for message in bench.stored:
        assert parse_properties(message.properties).items() >= STAMPED.items()


async def test_trace_can_be_switched_off_while_it_runs(bench: Bench) -> None:
    await bench.answer(send_request())
    await bench.parts.state.propose(PutSettings({"traceOn": "false"}))
    answer = await bench.answer(send_request())
    assert answer.ext_fields["TRACE_ON"] == "false"
    refused = await bench.answer(send_request("a b"))
    assert refused.ext_fields["TRACE_ON"] == "false"
    stored = [parse_properties(message.properties)["TRACE_ON"] for message in bench.stored]
    assert stored == ["true", "false"]


async def test_a_body_may_have_just_maxmessagesize_and_that_can_change(bench: Bench) -> None:
    async def codes(*sizes: int) -> list[int]:
        """Of a message, of one with a rule of its own, and of a batch, of each of these sizes."""
        found = []
        for size in sizes:
            batch = batch_body([bytes(size - len(batch_body([b""], properties=b"")))], properties=b"")
            for request in (
                send_request(body=bytes(size)),
                send_request(body=bytes(size), properties="DELAY\x013\x02"),
                send_request(is_batch=True, body=batch, properties=""),
            ):
                answer = await bench.answer(request)
                found.append(answer.code)
        return found

    assert await codes(4 * MIB, 4 * MIB + 1) == [0, 0, 0, 13, 13, 13]
    await bench.parts.state.propose(PutSettings({"maxMessageSize": "1000"}))
    assert await codes(1000, 1001) == [0, 0, 0, 13, 13, 13]
    await bench.parts.state.propose(PutSettings({"maxMessageSize": "2000"}))
    assert await codes(2000, 2001) == [0, 0, 0, 13, 13, 13]


async def test_topics_are_made_by_sends_only_while_that_is_allowed(bench: Bench) -> None:
    state = bench.parts.state
    for setting, code in (("false", 17), ("true", 0), ("false", 17)):
        version = state.data_version
        await state.propose(PutSettings({"autoCreateTopicEnable": setting}))
        assert (await bench.answer(send_request(f"new-{setting}-{code}"))).code == (
            code if f"new-{setting}-{code}" not in state.topics else 0
        )
        assert ("TBW102" in state.topics) == (setting == "true")
        assert state.data_version.counter > version.counter, "name servers keep what has the same version"


async def test_a_key_within_another_propertys_name_is_no_message_id(bench: Bench) -> None:
    answer = await bench.answer(send_request(properties=f"MY_UNIQ_KEY\x01{KEY}\x02"))
    assert answer.ext_fields["transactionId"] != KEY
    assert len(answer.ext_fields["transactionId"]) == 32


@pytest.mark.parametrize(("asked", "level"), [("1", 1), ("3", 3), ("18", 18), ("99", 18)])
async def test_a_delayed_message_waits_in_the_schedule_topic(bench: Bench, asked: str, level: int) -> None:
    request = send_request(queue_id=2, properties=f"UNIQ_KEY\x01{KEY}\x02DELAY\x01{asked}\x02")
    answer = await bench.answer(request)
    (message,) = bench.stored
    assert (message.topic, message.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    properties = parse_properties(message.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("t", "2")
    assert properties["DELAY"] == str(level)
    assert answer.ext_fields["queueId"] == "2"


@pytest.mark.parametrize("asked", ["0", "-1", "soon"])
async def test_no_delay_is_no_delay(bench: Bench, asked: str) -> None:
    await bench.answer(send_request(properties=f"UNIQ_KEY\x01{KEY}\x02DELAY\x01{asked}\x02"))
    assert bench.stored[0].topic == "t"


async def test_a_topic_deleted_or_narrowed_is_seen_at_once(bench: Bench) -> None:
    assert (await bench.answer(send_request(queue_id=3))).code == 0
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 2, 2)))
    assert (await bench.answer(send_request(queue_id=3))).code == 29
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 2, 2, perm=0)))
    assert (await bench.answer(send_request(queue_id=1))).code == 16


async def test_multi_tag_topics_mark_their_messages(bench: Bench) -> None:
    await bench.parts.state.propose(PutTopic(TopicConfig("t", 2, 2, topic_filter_type="MULTI_TAG")))
    await bench.answer(send_request())
    assert bench.stored[0].sys_flag == 2


async def test_sends_are_refused_while_too_many_bytes_wait_for_their_commit(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    bench.log.auto_commit = False
    bench.processor._pending_bytes_max = 100
    for oneway in (0, ONEWAY_FLAG):
        request = send_request(body=bytes(60))
        request.flag = oneway
        bench.handle(request)
    bench.handle(send_request(body=b"one too many"))
    (refused,) = bench.connection.take_answers()
    assert refused.code == ResponseCode.SYSTEM_BUSY
    bench.log.commit()
    bench.connection.take_answers()
    bench.log.auto_commit = True
    assert (await bench.answer(send_request(body=b"room again"))).code == 0


async def test_sends_of_many_connections_share_out_over_turns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a turn is full, the sends of further connections come in the next ones, in order."""
    monkeypatch.setattr("broker.send.processor.TURN_MESSAGES_MAX", 1)
    connections = [FakeConnection(number) for number in range(3)]
    batches = [(each.as_connection, [send_request(opaque=1)]) for each in connections]
    bench.processor.handle(batches)
    puts = len(bench.log.put_calls)
    bench.processor.handle([(connections[0].as_connection, [send_request(opaque=2)])])
    assert len(bench.log.put_calls) == puts, "later sends wait behind those that were put off"
    await bench.settle()
    assert [[answer.opaque for answer in each.take_answers()] for each in connections] == [[1, 2], [1], [1]]
