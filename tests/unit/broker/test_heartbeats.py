import orjson
import pytest

from broker.consume.heartbeats import (
    ConsumeFromWhere,
    ConsumeType,
    HeartbeatError,
    MessageModel,
    parse_client_config,
    parse_heartbeat,
    version_ms,
)
from remoting.tag_filters import FilterError
from tests.unit.broker.heartbeat_samples import CPP_CONSUMER, CPP_PRODUCER, GO_CONSUMER, JAVA_CONSUMER


def test_cpp_sends_ordinals_and_a_version_in_quotes() -> None:
    heartbeat = parse_heartbeat(CPP_CONSUMER)
    assert heartbeat.client_id == "127.0.0.1@4711#DEFAULT"
    assert heartbeat.producer_groups == ()
    (consumer,) = heartbeat.consumers
    assert consumer.consume_type is ConsumeType.CONSUME_PASSIVELY
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert consumer.subscriptions is not None
    assert [(each.topic, each.version_ms) for each in consumer.subscriptions] == [
        ("T", 1_700_000_000_001),
        ("%RETRY%CID", 1_700_000_000_002),
    ]
    assert all(each.expression_type == "TAG" for each in consumer.subscriptions)


def test_cpp_producer_leaves_the_consumers_out() -> None:
    heartbeat = parse_heartbeat(CPP_PRODUCER)
    assert heartbeat.producer_groups == ("PID",)
    assert heartbeat.consumers == ()


def test_go_version_is_brought_to_ms_and_its_codes_are_computed_anew() -> None:
    (consumer,) = parse_heartbeat(GO_CONSUMER).consumers
    assert consumer.message_model is MessageModel.CLUSTERING
    assert consumer.subscriptions is not None
    (subscription,) = consumer.subscriptions
    assert subscription.version_ms == 1_700_000_000_003
    assert subscription.filter is not None
    assert subscription.filter.codes == frozenset({2598919, 2598920})


def test_java_names_producers_and_consumers() -> None:
    heartbeat = parse_heartbeat(JAVA_CONSUMER)
    assert heartbeat.producer_groups == ("CLIENT_INNER_PRODUCER",)
    (consumer,) = heartbeat.consumers
    assert consumer.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert consumer.subscriptions is not None
    assert consumer.subscriptions[0].to_json() == {
        "classFilterMode": False,
        "codeSet": [2598919],
        "expressionType": "TAG",
        "subString": "TagA",
        "subVersion": 1700000000004,
        "tagsSet": ["TagA"],
        "topic": "T",
    }


def test_a_heartbeat_without_subscriptions_leaves_them_open() -> None:
    body = (
        b'{"clientID":"c","withoutSub":true,"consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
    )
    assert parse_heartbeat(body).consumers[0].subscriptions is None


def test_an_expression_of_another_type_has_no_tag_filter() -> None:
    body = orjson.dumps(
        {
            "clientID": "c",
            "consumerDataSet": [
                {
                    "groupName": "G",
                    "subscriptionDataSet": [
                        {"topic": "T", "subString": "a > 1", "expressionType": "SQL92", "subVersion": 1}
                    ],
                }
            ],
        }
    )
    subscriptions = parse_heartbeat(body).consumers[0].subscriptions
    assert subscriptions is not None
    assert subscriptions[0].filter is None
    assert subscriptions[0].expression_type == "SQL92"


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b"{}", "clientID"),
        (b'{"clientID":7}', "clientID"),
        (b'{"clientID":"c","producerDataSet":7}', "producerDataSet"),
        (b'{"clientID":"c","producerDataSet":["x"]}', "producerDataSet"),
        (b'{"clientID":"c","producerDataSet":[{"groupName":""}]}', "groupName"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"G","messageModel":9}]}', "messageModel"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":"x"}]}', "consumeType"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"G","consumeType":true}]}', "consumeType"),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T",'
            b'"subVersion":"x"}]}]}',
            "subVersion",
        ),
        (
            b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T",'
            b'"subString":[]}]}]}',
            "subString",
        ),
    ],
)
def test_an_unreadable_heartbeat_names_its_field(body: bytes, names: str) -> None:
    with pytest.raises(HeartbeatError, match=names):
        parse_heartbeat(body)


def test_versions_in_ms_stay_as_they_are() -> None:
    assert version_ms(0) == 0
    assert version_ms(1_700_000_000_000) == 1_700_000_000_000


def test_client_config_tells_group_and_subscription() -> None:
    body = b'{"clientId":"c","group":"G","subscriptionData":{"topic":"T","subString":"A"}}'
    group, subscription = parse_client_config(body)
    assert group == "G"
    assert subscription.topic == "T"


def test_client_config_with_an_empty_expression_of_tags_is_refused() -> None:
    body = b'{"clientId":"c","group":"G","subscriptionData":{"topic":"T","subString":"||"}}'
    with pytest.raises(FilterError):
        parse_client_config(body)


def test_client_config_without_subscription_is_refused() -> None:
    with pytest.raises(HeartbeatError, match="subscriptionData"):
        parse_client_config(b'{"clientId":"c","group":"G"}')


def test_a_body_of_millions_of_values_is_refused_before_it_is_read() -> None:
    with pytest.raises(HeartbeatError, match="values; 65536 are possible"):
        parse_heartbeat(b'{"clientID":"c","producerDataSet":[' + b"[]," * 500_000 + b"[]]}")
