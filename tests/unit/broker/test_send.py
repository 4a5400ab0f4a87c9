"""The send processor: what is stored, what is answered, and in which order."""

import asyncio
import struct
from pathlib import Path

import pytest

from broker.context import BrokerContext
from broker.processors.send import SendProcessor
from broker.state.changes import PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import STATE_TOPIC, TopicConfig
from commitlog.log import PutStatus
from commitlog.record import Message, parse_properties
from remoting.codes import RequestCode
from remoting.command import ONEWAY_FLAG, RemotingCommand
from remoting.headers import SendMessageRequestHeader
from tests.support.broker_context import NOW_MS, FakeEngine, make_context
from tests.support.fake_connection import FakeConnection
from tests.support.fake_log import FakeLog

KEY = "7F00000100002A9F0000000000000001"


def send_request(
    topic: str = "t", body: bytes = b"hello", opaque: int = 1, **changes: object
) -> RemotingCommand:
    """A send as Java makes it; `changes` are header fields by their Python names."""
    fields: dict[str, object] = {
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp_ms": NOW_MS,
        "properties": f"UNIQ_KEY\x01{KEY}\x02TAGS\x01a\x02",
        **changes,
    }
    header = SendMessageRequestHeader(producer_group="p", topic=topic, **fields)  # type: ignore[arg-type]
    return RemotingCommand(RequestCode.SEND_MESSAGE, opaque, ext_fields=header.ext_fields(), body=body)


class Bench:
    """A send processor over a fake log, with the topic `t` of 4 queues and the group `g`."""

    def __init__(self, context: BrokerContext, log: FakeLog) -> None:
        self.context = context
        self.log = log
        self.processor = SendProcessor(context)
        self.connection = FakeConnection()

    def handle(self, *requests: RemotingCommand, connection: FakeConnection | None = None) -> None:
        target = (connection or self.connection).as_connection
        self.processor.handle([(target, request) for request in requests])

    async def answer(self, request: RemotingCommand) -> RemotingCommand:
        """The one answer to a send, once it is there."""
        self.handle(request)
        await self.settle()
        (answer,) = self.connection.take_answers()
        assert answer.opaque == request.opaque
        return answer

    async def settle(self) -> None:
        for _ in range(24):
            await asyncio.sleep(0)

    @property
    def stored(self) -> list[Message]:
        return [message for message in self.log.messages if message.topic != STATE_TOPIC]


async def make_bench(tmp_path: Path, **values: object) -> Bench:
    log = FakeLog()
    context = make_context(tmp_path, log, FakeEngine(), **values)
    await context.state.propose(
        PutTopic(TopicConfig("t", 4, 4)), PutGroup(SubscriptionGroupConfig("g", retry_max_times=3))
    )
    return Bench(context, log)


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
    assert message.store_host == bench.context.store_host
    assert parse_properties(message.properties) == {"UNIQ_KEY": KEY, "TAGS": "a", "CLUSTER": "DefaultCluster"}
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
    bench.processor.handle(items)
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
    bench = Bench(make_context(tmp_path, log, engine), log)
    answer = await bench.answer(send_request("unknown"))
    assert answer.code == 14
    assert "n1 at 10.0.0.2:10921" in str(answer.remark)
    assert log.messages == []


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
        (send_request(properties=f"UNIQ_KEY\x01{KEY}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"), 16),
        (send_request(sys_flag=4), 16),
        (send_request(sys_flag=0xC), 16),
        (send_request(sys_flag=0x80), 13),
        (send_request(properties=f"UNIQ_KEY\x01{KEY}\x02TIMER_DELAY_SEC\x0110\x02"), 1),
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
        "CLUSTER": "DefaultCluster",
    }


async def test_a_clients_cluster_property_is_replaced(bench: Bench) -> None:
    await bench.answer(send_request(properties=f"UNIQ_KEY\x01{KEY}\x02CLUSTER\x01other\x02"))
    assert parse_properties(bench.stored[0].properties)["CLUSTER"] == "DefaultCluster"
    assert bench.stored[0].properties.count(b"CLUSTER") == 1


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
    assert {(m.flag, m.properties, m.queue_id) for m in bench.stored[1:4]} == {(7, b"TAGS\x01a\x02", 1)}
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
    created = bench.context.state.topics["new"]
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
    assert bench.context.state.topics["%RETRY%g"].write_queue_nums == 1


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
        assert "%DLQ%g" in bench.context.state.topics


async def test_a_topic_deleted_or_narrowed_is_seen_at_once(bench: Bench) -> None:
    assert (await bench.answer(send_request(queue_id=3))).code == 0
    await bench.context.state.propose(PutTopic(TopicConfig("t", 2, 2)))
    assert (await bench.answer(send_request(queue_id=3))).code == 29
    await bench.context.state.propose(PutTopic(TopicConfig("t", 2, 2, perm=0)))
    assert (await bench.answer(send_request(queue_id=1))).code == 16


async def test_multi_tag_topics_mark_their_messages(bench: Bench) -> None:
    await bench.context.state.propose(PutTopic(TopicConfig("t", 2, 2, topic_filter_type="MULTI_TAG")))
    await bench.answer(send_request())
    assert bench.stored[0].sys_flag == 2
