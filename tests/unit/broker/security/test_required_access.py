"""Which rights each request needs (RocketMQ's DefaultAuthorizationContextBuilderTest), and where it is
stricter.
"""

from typing import Any

import orjson
import pytest

from broker.app import install_features
from broker.security.required_access import UnreadableRequestError, required_access
from remoting.codes import RequestCode as Code
from remoting.command import RemotingCommand
from remoting.headers.send import SendMessageRequestHeader, SendRequest
from remoting.router import Router
from tests.support.broker_parts import FakeEngine, make_parts
from tests.support.fake_log import FakeLog


def needs(code: int, body: Any = None, /, **fields: str) -> list[str]:
    """Such as `Topic:t Pub,Get`."""
    data = b"" if body is None else orjson.dumps(body)
    request = RemotingCommand(code, ext_fields=fields, body=data)
    return [
        f"{access.type.value}:{access.name} {','.join(action.value for action in access.actions)}"
        for access in required_access(request, "c1")
    ]


V1 = {"topic": "t", "producerGroup": "p"}
V2 = {"b": "t", "a": "p"}


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (Code.SEND_MESSAGE, V1, ["Topic:t Pub"]),
        (Code.SEND_MESSAGE_V2, V2, ["Topic:t Pub"]),
        (Code.SEND_BATCH_MESSAGE, V2, ["Topic:t Pub"]),
        (Code.LEDGERMQ_SEND_SEQUENCED, V1, ["Topic:t Pub"]),
        (Code.SEND_MESSAGE_V2, {"b": "%RETRY%g", "a": "other"}, ["Group:g Sub"]),
        (Code.RECALL_MESSAGE, {"topic": "t"}, ["Topic:t Pub"]),
        (Code.END_TRANSACTION, {"topic": "t"}, ["Topic:t Pub"]),
        (Code.END_TRANSACTION, {}, []),
        (Code.CONSUMER_SEND_MSG_BACK, {"group": "g", "originTopic": "t"}, ["Group:g Sub"]),
        (Code.PULL_MESSAGE, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Sub", "Group:g Sub"]),
        (Code.PULL_MESSAGE, {"topic": "%RETRY%g", "consumerGroup": "g"}, ["Group:g Sub", "Group:g Sub"]),
        (Code.LITE_PULL_MESSAGE, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Sub", "Group:g Sub"]),
        (Code.QUERY_MESSAGE, {"topic": "t"}, ["Topic:t Sub,Get"]),
        (Code.UNREGISTER_CLIENT, {"consumerGroup": "g"}, ["Group:g Sub"]),
        (Code.UNREGISTER_CLIENT, {"producerGroup": "p", "consumerGroup": ""}, []),
        (Code.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"}, ["Group:g Sub,Get"]),
        (
            Code.QUERY_CONSUMER_OFFSET,
            {"topic": "t", "consumerGroup": "g"},
            ["Topic:t Sub,Get", "Group:g Sub,Get"],
        ),
        (
            Code.UPDATE_CONSUMER_OFFSET,
            {"topic": "%RETRY%g", "consumerGroup": "g"},
            ["Group:g Sub,Update", "Group:g Sub,Update"],
        ),
        (Code.UPDATE_AND_CREATE_TOPIC, {"topic": "t"}, ["Topic:t Create"]),
        (Code.DELETE_TOPIC_IN_BROKER, {"topic": "t"}, ["Topic:t Delete"]),
        (Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}, ["Group:g Delete"]),
        (Code.GET_MAX_OFFSET, {"topic": "t"}, ["Topic:t Get"]),
        (
            Code.GET_CONSUME_STATS,
            {"consumerGroup": "g", "topicList": "a;b"},
            ["Topic:a Get", "Topic:b Get", "Group:g Get"],
        ),
        (
            Code.QUERY_CORRECTION_OFFSET,
            {"topic": "t", "compareGroup": "g", "filterGroups": "x,y"},
            ["Topic:t Get", "Group:g Get", "Group:x Get", "Group:y Get"],
        ),
        (Code.POP_MESSAGE, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Sub", "Group:g Sub"]),
        (Code.ACK_MESSAGE, {"topic": "%RETRY%g_t", "consumerGroup": "g"}, ["Group:g Sub"]),
        (Code.VIEW_MESSAGE_BY_ID, {"topic": "t"}, ["Topic:t Get"]),
        (Code.VIEW_MESSAGE_BY_ID, {}, ["Cluster:c1 Get"]),
        (Code.AUTH_CREATE_USER, {"username": "u"}, ["Cluster:c1 Update"]),
        (Code.AUTH_GET_ACL, {"subject": "User:u"}, ["Cluster:c1 Get"]),
        (Code.UPDATE_BROKER_CONFIG, {}, ["Cluster:c1 Update"]),
        (Code.GET_BROKER_CONFIG, {}, ["Cluster:c1 Get"]),
        (Code.LEDGERMQ_TRANSFER_LEADER, {"transferee": "n1"}, ["Cluster:c1 Update"]),
        (Code.LEDGERMQ_CHANGE_MEMBERS, {}, ["Cluster:c1 Update"]),
        (Code.LEDGERMQ_NODE_STATUS, {}, ["Cluster:c1 Get"]),
        (Code.LEDGERMQ_GRPC_ENDPOINT, {"address": "h:1"}, ["Cluster:c1 Update"]),
        (Code.LEDGERMQ_GRPC_CLIENTS, {"address": "h:1"}, ["Cluster:c1 Get"]),
        (Code.CHECK_CLIENT_CONFIG, {}, []),
        (Code.SEND_REPLY_MESSAGE_V2, V2, []),
        (99_999, {}, ["Cluster:c1 Update"]),
    ],
)
def test_by_fields(code: int, fields: dict[str, str], expected: list[str]) -> None:
    assert needs(code, **fields) == expected


QUEUES = [{"topic": "t", "brokerName": "b", "queueId": number} for number in (0, 1)]


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (
            Code.HEART_BEAT,
            {
                "consumerDataSet": [
                    {
                        "groupName": "g",
                        "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}],
                    },
                    {"groupName": "h", "subscriptionDataSet": None},
                ]
            },
            ["Group:g Sub", "Topic:t Sub", "Group:h Sub"],
        ),
        (Code.HEART_BEAT, {"producerDataSet": [{"groupName": "p"}]}, []),
        (Code.LOCK_BATCH_MQ, {"consumerGroup": "g", "mqSet": QUEUES}, ["Group:g Sub", "Topic:t Sub"]),
        (Code.UNLOCK_BATCH_MQ, {"consumerGroup": "g"}, ["Group:g Sub"]),
        (Code.QUERY_ASSIGNMENT, {"consumerGroup": "g", "topic": "t"}, ["Group:g Sub", "Topic:t Sub"]),
        (
            Code.BATCH_ACK_MESSAGE,
            {"acks": [{"c": "g", "t": "t"}, {"consumerGroup": "g", "topic": "t"}]},
            ["Group:g Sub", "Topic:t Sub"],
        ),
        (Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"}, ["Group:g Create"]),
    ],
)
def test_by_bodies(code: int, body: Any, expected: list[str]) -> None:
    assert needs(code, body) == expected


def test_a_send_is_for_the_topic_that_its_handler_writes_to() -> None:
    """The one-letter form counts whatever the code: a name that is only shown would open every topic."""
    assert needs(Code.SEND_MESSAGE, topic="mine", b="theirs") == ["Topic:theirs Pub"]
    header = SendMessageRequestHeader("p", "t", "TBW102", 4, 0, 0, 1)
    read_at_once = SendRequest(Code.SEND_MESSAGE_V2, ext_fields=header.ext_fields())
    (access,) = required_access(read_at_once, "c1")
    assert access.name == "t"


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (Code.HEART_BEAT, b"{"),
        (Code.HEART_BEAT, b"[]"),
        (Code.HEART_BEAT, b'{"consumerDataSet":[{}]}'),
        (Code.LOCK_BATCH_MQ, b'{"consumerGroup":1}'),
        (Code.BATCH_ACK_MESSAGE, b'{"acks":5}'),
        (Code.SEND_MESSAGE, b""),
    ],
)
def test_what_cannot_be_read_is_no_right(code: int, body: bytes) -> None:
    with pytest.raises(UnreadableRequestError):
        required_access(RemotingCommand(code, body=body), "c1")


async def test_no_request_needs_nothing_unless_it_is_known_to(tmp_path: Any) -> None:
    """A handler that is added later is not open by mistake."""
    parts = make_parts(tmp_path, FakeLog(), FakeEngine())
    core = parts.core
    install_features(core)
    free = set()
    for code in core.router.codes:
        try:
            if not required_access(RemotingCommand(code), "c1"):
                free.add(Code(code))
        except UnreadableRequestError:
            continue
    assert free == {
        Code.UNREGISTER_CLIENT,
        Code.END_TRANSACTION,
        Code.CHECK_CLIENT_CONFIG,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.LEDGERMQ_END_BATCH,
    }
    assert isinstance(core.router, Router)
