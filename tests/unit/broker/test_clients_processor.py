"""Heartbeats, goodbyes and notices, as the three families of clients see them."""

from pathlib import Path

import orjson
import pytest

from broker.consume.client_requests import ClientProcessor
from broker.state.changes import PutGroup
from broker.state.groups import SubscriptionGroupConfig
from commitlog.log import PutStatus
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.slices import Steps
from tests.support.fake_connection import FakeConnection
from tests.unit.broker.consume_bench import ConsumeBench, make_bench, request
from tests.unit.broker.heartbeat_samples import CPP_CONSUMER, CPP_PRODUCER, GO_CONSUMER, JAVA_CONSUMER


@pytest.fixture
async def bench(tmp_path: Path) -> ConsumeBench:
    return await make_bench(tmp_path)


def beat(body: bytes, language: str = "JAVA") -> RemotingCommand:
    return request(RequestCode.HEART_BEAT, body, language)


def notices(connection: FakeConnection) -> list[str]:
    """The groups the connection was told of since the last look."""
    sent = connection.take_answers()
    told = [each for each in sent if each.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED]
    assert all(each.is_oneway for each in told)
    return [each.ext_fields["consumerGroup"] for each in told]


async def consumers(bench: ConsumeBench, group: str = "CID") -> list[str]:
    asked = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=group)
    answer = await bench.ask(asked, FakeConnection(99))
    assert answer.code in (0, 1)
    return list(orjson.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []


@pytest.mark.parametrize(
    ("body", "language"), [(CPP_CONSUMER, "CPP"), (GO_CONSUMER, "GO"), (JAVA_CONSUMER, "JAVA")]
)
async def test_a_heartbeat_is_answered_once_its_group_and_retry_topic_are_there(
    bench: ConsumeBench, body: bytes, language: str
) -> None:
    bench.log.auto_commit = False
    bench.start(beat(body, language))
    await bench.settle()
    assert [each.code for each in bench.connection.take_answers()] == [
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    ]
    for _ in range(2):
        bench.log.commit()
        await bench.settle()
    (answer,) = bench.connection.take_answers()
    assert (answer.code, answer.is_response) == (0, True)
    assert answer.version >= 232
    assert bench.parts.state.groups["CID"].retry_max_times == 16
    topic = bench.parts.state.topics["%RETRY%CID"]
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


async def test_the_first_heartbeat_tells_the_client_itself_and_the_next_one_nobody(
    bench: ConsumeBench,
) -> None:
    bench.start(beat(CPP_CONSUMER))
    await bench.settle()
    assert notices(bench.connection) == ["CID"]
    bench.start(beat(CPP_CONSUMER))
    await bench.settle()
    assert notices(bench.connection) == []


async def test_a_group_that_changes_often_before_its_turn_gets_one_notice(bench: ConsumeBench) -> None:
    is_free = False

    def others_work() -> Steps[None]:
        while not is_free:
            yield

    bench.parts.router.in_slices(others_work(), "")
    other_group = b'{"clientID":"c","consumerDataSet":[{"groupName":"n"}]}'
    for body in (JAVA_CONSUMER, GO_CONSUMER, other_group, CPP_CONSUMER):
        bench.start(beat(body))
        await bench.settle()
    assert notices(bench.connection) == []
    is_free = True
    await bench.settle()
    assert notices(bench.connection) == ["CID", "n"]
    assert len(await consumers(bench)) == 3


async def test_a_known_group_is_answered_at_once(bench: ConsumeBench) -> None:
    await bench.ask(beat(JAVA_CONSUMER))
    puts = bench.state_puts
    bench.start(beat(JAVA_CONSUMER))
    assert [each.code for each in bench.connection.take_answers()] == [0]
    assert bench.state_puts == puts


async def test_everyone_in_the_group_is_told_of_a_new_member(bench: ConsumeBench) -> None:
    first, second = FakeConnection(1), FakeConnection(2)
    await bench.ask(beat(JAVA_CONSUMER), first)
    bench.start(beat(CPP_CONSUMER), second)
    assert notices(first) == ["CID"]
    assert notices(second) == ["CID"]
    assert await consumers(bench) == ["10.0.0.1@4711#99", "127.0.0.1@4711#DEFAULT"]


async def test_a_goodbye_and_a_closed_connection_are_told_to_the_rest(bench: ConsumeBench) -> None:
    java, cpp, go = FakeConnection(1), FakeConnection(2), FakeConnection(3)
    for connection, body in ((java, JAVA_CONSUMER), (cpp, CPP_CONSUMER), (go, GO_CONSUMER)):
        await bench.ask(beat(body), connection)
    java.take_answers()
    goodbye = request(
        RequestCode.UNREGISTER_CLIENT,
        clientID="127.0.0.1@4711#DEFAULT",
        producerGroup="",
        consumerGroup="CID",
    )
    assert (await bench.ask(goodbye, cpp)).code == 0
    assert notices(java) == ["CID"]
    bench.parts.close_connection(go.as_connection)
    assert notices(java) == ["CID"]
    assert await consumers(bench) == ["10.0.0.1@4711#99"]


async def test_a_group_without_consumers_is_an_error_and_no_empty_list(bench: ConsumeBench) -> None:
    answer = await bench.ask(
        request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="nobody"), FakeConnection(5)
    )
    assert (answer.code, answer.remark) == (1, "no consumer for this group, nobody")


async def test_a_producer_is_registered_without_creating_anything(bench: ConsumeBench) -> None:
    puts = bench.state_puts
    await bench.ask(beat(CPP_PRODUCER, "CPP"))
    (member,) = bench.parts.clients.producer_groups["PID"].values()
    assert (member.client.language, member.client.version) == ("CPP", 409)
    assert bench.state_puts == puts


async def test_a_broadcasting_group_is_not_told(bench: ConsumeBench) -> None:
    await bench.ask(beat(b'{"clientID":"c","consumerDataSet":[{"groupName":"b","messageModel":0}]}'))
    assert notices(bench.connection) == []


async def test_a_group_may_be_configured_not_to_be_told(bench: ConsumeBench) -> None:
    quiet = SubscriptionGroupConfig("q", notify_consumer_ids_changed_enable=False)
    await bench.parts.state.propose(PutGroup(quiet))
    bench.start(beat(b'{"clientID":"c","consumerDataSet":[{"groupName":"q"}]}'))
    await bench.settle()
    assert notices(bench.connection) == []


async def test_two_members_on_one_connection_are_told_once(bench: ConsumeBench) -> None:
    for client_id in ("a", "b"):
        body = b'{"clientID":"%s","consumerDataSet":[{"groupName":"g"}]}' % client_id.encode()
        bench.start(beat(body))
        await bench.settle()
        assert notices(bench.connection) == ["g"]


async def test_a_follower_registers_and_creates_what_is_missing_when_it_leads(bench: ConsumeBench) -> None:
    bench.follow()
    assert (await bench.ask(beat(GO_CONSUMER))).code == 0
    assert await consumers(bench) == ["10.0.0.2@DEFAULT"]
    assert "CID" not in bench.parts.state.groups
    bench.lead()
    await bench.settle()
    assert "CID" in bench.parts.state.groups
    assert "%RETRY%CID" in bench.parts.state.topics


async def test_a_heartbeat_whose_group_cannot_be_created_is_answered_all_the_same(
    bench: ConsumeBench,
) -> None:
    """C++ closes its connection when a heartbeat is not answered."""
    bench.log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    assert (await bench.ask(beat(CPP_CONSUMER, "CPP"))).code == 0


async def test_a_group_without_retry_queues_gets_no_retry_topic(bench: ConsumeBench) -> None:
    await bench.parts.state.propose(PutGroup(SubscriptionGroupConfig("n", retry_queue_nums=0)))
    await bench.ask(beat(b'{"clientID":"c","consumerDataSet":[{"groupName":"n"}]}'))
    assert "%RETRY%n" not in bench.parts.state.topics


async def test_an_unreadable_heartbeat_is_answered_1(bench: ConsumeBench) -> None:
    answer = await bench.ask(beat(b"{"))
    assert answer.code == 1
    assert "heartbeat refused" in (answer.remark or "")


async def test_a_full_registry_is_answered_busy(tmp_path: Path) -> None:
    bench = await make_bench(tmp_path)
    bench.parts.clients._memberships_max = 0
    assert (await bench.ask(beat(CPP_PRODUCER))).code == 2


async def test_silent_clients_are_dropped_and_their_connections_closed(bench: ConsumeBench) -> None:
    silent, lively = FakeConnection(1), FakeConnection(2)
    await bench.ask(beat(JAVA_CONSUMER), silent)
    bench.now_ms += 100_000
    await bench.ask(beat(GO_CONSUMER), lively)
    bench.now_ms += 30_000
    (processor,) = [each for each in bench.parts.features.services if isinstance(each, ClientProcessor)]
    processor.expire()
    assert notices(lively) == ["CID"]
    assert await consumers(bench) == ["10.0.0.2@DEFAULT"]
    assert not silent.is_open
    assert lively.is_open
    await processor.stop()


async def test_a_wall_clock_that_is_set_ahead_makes_nobody_silent(bench: ConsumeBench) -> None:
    lively = FakeConnection(1)
    await bench.ask(beat(JAVA_CONSUMER), lively)
    bench.wall_step_ms = 3_600_000
    (processor,) = [each for each in bench.parts.features.services if isinstance(each, ClientProcessor)]
    processor.expire()
    assert lively.is_open
    await processor.stop()


async def test_the_check_of_a_subscription(bench: ConsumeBench) -> None:
    async def code(expression: str, expression_type: str) -> int:
        subscription = {"topic": "t", "subString": expression, "expressionType": expression_type}
        body = orjson.dumps({"clientId": "c", "group": "g", "subscriptionData": subscription})
        return (await bench.ask(request(RequestCode.CHECK_CLIENT_CONFIG, body))).code

    assert await code("TagA || TagB", "TAG") == 0
    assert await code("||", "TAG") == 23
    assert await code("a > 1", "SQL92") == 1
    assert (await bench.ask(request(RequestCode.CHECK_CLIENT_CONFIG, b"{}"))).code == 1


async def test_a_group_whose_name_leaves_no_room_for_a_retry_topic_is_asked_for_once(
    bench: ConsumeBench, caplog: pytest.LogCaptureFixture
) -> None:
    name = "g" * 121
    for _ in range(3):
        assert (
            await bench.ask(beat(b'{"clientID":"c","consumerDataSet":[{"groupName":"%s"}]}' % name.encode()))
        ).code == 0
    assert name in bench.parts.state.groups
    assert caplog.messages == []
