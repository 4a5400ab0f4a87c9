"""What operators ask running clients through the broker, and who consumes what."""

from pathlib import Path

import orjson
import pytest

from broker.admin import consumers
from broker.state.changes import CommitOffsets, PutGroup, PutTopic
from broker.state.groups import SubscriptionGroupConfig
from broker.state.topics import TopicConfig
from commitlog.record import offset_msg_id
from remoting.codes import RequestCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingClosedError
from remoting.fastjson import loads
from tests.support.broker_parts import NOW_MS, FakeEngine
from tests.support.fake_connection import FakeConnection
from tests.support.operator import Operator, connect_client

DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
CLIENTS = RequestCode.LEDGERMQ_GRPC_CLIENTS


@pytest.fixture
async def operator(tmp_path: Path) -> Operator:
    made = Operator(tmp_path, FakeEngine())
    await made.parts.state.propose(
        PutTopic(TopicConfig("t", 2, 2, topic_sys_flag=1)),
        PutGroup(SubscriptionGroupConfig("g", group_sys_flag=2)),
        CommitOffsets("h", "t", {0: 1}),
    )
    await made.store("t", 0, 1)
    return made


async def test_running_info_is_the_clients_own_answer(operator: Operator) -> None:
    client = connect_client(operator)
    client.replies.append(RemotingCommand(0, body=b'{"mqTable":{}}', remark="fine"))
    asked = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"}
    answer = await operator.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **asked)
    assert (answer.code, answer.body, answer.remark) == (0, b'{"mqTable":{}}', "fine")
    (request,) = client.requests
    assert (request.code, request.ext_fields) == (307, asked)


async def test_a_silent_client_is_said_so(operator: Operator) -> None:
    client = connect_client(operator)
    asked = {"consumerGroup": "g", "clientId": "c1"}
    assert (await operator.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **asked)).code == 207
    client.replies.append(RemotingClosedError("gone"))
    assert (await operator.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **asked)).code == 1


@pytest.mark.parametrize("asked", [{"consumerGroup": "x", "clientId": "c1"}, {"consumerGroup": "g"}])
async def test_who_is_not_connected_cannot_be_asked(operator: Operator, asked: dict[str, str]) -> None:
    connect_client(operator)
    answer = await operator.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, **asked)
    assert (answer.code, "not online" in (answer.remark or "")) == (1, True)


async def test_a_message_is_handed_to_a_client_with_the_flags_of_its_topic_and_group(
    operator: Operator,
) -> None:
    client = connect_client(operator)
    client.replies.append(RemotingCommand(0, body=b'{"consumeResult":"CR_SUCCESS"}'))
    (position,) = (row[0] for row in operator.log.fake_queues.by_key["t", 0].rows)
    message_id = offset_msg_id(operator.parts.store_host, position)
    asked = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id, "topic": "t"}
    assert (await operator.ask(DIRECTLY, **asked)).body == b'{"consumeResult":"CR_SUCCESS"}'
    (request,) = client.requests
    assert request.body == operator.log.record_at(position)
    added = {"brokerName": "broker-a", "topicSysFlag": "1", "groupSysFlag": "2"}
    assert request.ext_fields == {**asked, **added}


@pytest.mark.parametrize("message_id", ["", "no id", "00" * 16, "FF" * 16, "7F00000100002A9F" + "0" * 12])
async def test_an_id_of_no_message_is_refused(operator: Operator, message_id: str) -> None:
    client = connect_client(operator)
    asked = {"consumerGroup": "g", "clientId": "c1", "msgId": message_id}
    assert (await operator.ask(DIRECTLY, **asked)).code == 1
    assert client.requests == []


async def test_offsets_of_consumers_come_in_the_form_java_reads(operator: Operator) -> None:
    client = connect_client(operator)
    table = b'{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:7}}'
    client.replies.append(RemotingCommand(0, body=table))
    answer = await operator.ask(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="t", group="g", clientAddr=""
    )
    row = b'{{"brokerName":"broker-a","queueId":0,"topic":"t"}:7}'
    assert answer.body == b'{"consumerTable":{"c1":%s}}' % row


@pytest.mark.parametrize("body", [b"", b"[]", b'{"messageQueueTable":[]}', b'{"messageQueueTable":{"x":1}}'])
async def test_what_a_client_answers_amiss_is_left_out(operator: Operator, body: bytes) -> None:
    client = connect_client(operator)
    client.replies.append(RemotingCommand(0, body=body))
    asked = {"topic": "t", "group": "g"}
    read = await operator.read(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **asked)
    assert read == {"consumerTable": {}}


async def test_a_group_without_consumers_has_no_status(operator: Operator) -> None:
    asked = {"topic": "t", "group": "g"}
    assert (await operator.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **asked)).code == 1


async def test_who_consumes_what_is_told(operator: Operator) -> None:
    connect_client(operator)
    groups = await operator.read(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="t")
    assert groups == {"groupList": ["g", "h"]}
    topics = await operator.read(RequestCode.QUERY_TOPICS_BY_CONSUMER, group="h")
    assert topics["topicList"] == ["t"]
    found = await operator.read(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="t")
    assert found["subscriptionData"]["subString"] == "*"
    absent = await operator.read(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="h", topic="t")
    assert absent == {"group": "h", "topic": "t"}


def endpoint_at(operator: Operator, address: str) -> FakeConnection:
    """A gRPC endpoint that has announced itself."""
    made = FakeConnection(7, "10.0.0.5")
    request = RemotingCommand(RequestCode.LEDGERMQ_GRPC_ENDPOINT, ext_fields={"address": address})
    operator.parts.router.dispatch([(made.as_connection, [request], request.code)])
    return made


async def test_a_grpc_endpoint_is_asked_for_its_clients(operator: Operator) -> None:
    one, other = endpoint_at(operator, "10.0.0.5:8081"), endpoint_at(operator, "10.0.0.6:8081")
    assert [each.code for each in one.take_answers()] == [0]
    one.replies.append(RemotingCommand(0, body=b'{"total":21,"clients":[{}]}'))
    asked = {"address": "10.0.0.5:8081", "skipped": "20", "count": "10"}
    signed = asked | {"AccessKey": "root", "Signature": "x"}
    answer = await operator.ask(CLIENTS, **signed)
    assert (answer.code, answer.body) == (0, b'{"total":21,"clients":[{}]}')
    (request,) = one.requests
    assert (request.code, request.ext_fields) == (CLIENTS, asked), "without the operator's signature"
    assert other.requests == []


async def test_a_grpc_endpoint_that_is_silent_or_gone_is_said_so(operator: Operator) -> None:
    one = endpoint_at(operator, "10.0.0.5:8081")
    silent = await operator.ask(CLIENTS, address="10.0.0.5:8081")
    assert (silent.code, silent.remark) == (
        1,
        "the gRPC endpoint 10.0.0.5:8081 gives no answer: no answer in time",
    )
    again = endpoint_at(operator, "10.0.0.5:8081")
    operator.parts.close_connection(one.as_connection)
    again.replies.append(RemotingCommand(0, body=b'{"total":0,"clients":[]}'))
    assert (await operator.ask(CLIENTS, address="10.0.0.5:8081")).code == 0, "started again"
    for body in (b"", b"[]", b'{"total":0}', b'{"total":null,"clients":[]}'):
        again.replies.append(RemotingCommand(0, body=body))
        unreadable = await operator.ask(CLIENTS, address="10.0.0.5:8081")
        assert unreadable.code == 1
    again.replies.append(RemotingCommand(2, remark="not now"))
    refused = await operator.ask(CLIENTS, address="10.0.0.5:8081")
    assert refused.remark == "the gRPC endpoint 10.0.0.5:8081 gives no answer: code 2, not now"
    operator.parts.close_connection(again.as_connection)
    gone = await operator.ask(CLIENTS, address="10.0.0.5:8081")
    assert (gone.code, gone.remark) == (22, "the gRPC endpoint 10.0.0.5:8081 is not connected to this node")


async def test_the_workers_of_a_grpc_endpoint_are_asked_one_after_the_other(operator: Operator) -> None:
    one, other = endpoint_at(operator, "10.0.0.5:8081"), endpoint_at(operator, "10.0.0.5:8081")
    one.replies.append(RemotingCommand(0, body=b'{"total":3,"clients":["b","c"]}'))
    other.replies.append(RemotingCommand(0, body=b'{"total":4,"clients":["d"]}'))
    answer = await operator.ask(CLIENTS, address="10.0.0.5:8081", skipped="1", count="3")
    assert orjson.loads(answer.body) == {"total": 7, "clients": ["b", "c", "d"]}
    assert [each.requests[0].ext_fields["skipped"] for each in (one, other)] == ["1", "0"]
    assert [each.requests[0].ext_fields["count"] for each in (one, other)] == ["3", "1"]


async def test_grpc_endpoints_are_bounded(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "ENDPOINTS_MAX", 1)
    for address, code in (("a" * 301, 1), ("", 1), ("a:1", 0), ("b:1", 2), ("a:1", 0)):
        (answer,) = endpoint_at(operator, address).take_answers()
        assert answer.code == code


async def test_all_producers_are_listed(operator: Operator) -> None:
    assert await operator.read(RequestCode.GET_ALL_PRODUCER_INFO) == {"data": {}}
    connect_client(operator)
    operator.parts.monotonic_ms = lambda: NOW_MS + 5
    row = {
        "clientId": "c1",
        "language": "JAVA",
        "lastUpdateTimestamp": NOW_MS - 5,
        "remoteIP": "10.0.0.9:1234",
        "version": 409,
    }
    assert await operator.read(RequestCode.GET_ALL_PRODUCER_INFO) == {"data": {"p": [row]}}


def test_the_dialect_is_what_the_clients_send() -> None:
    assert loads(b'{{"queueId":0}:7}') == {'{"queueId":0}': 7}
