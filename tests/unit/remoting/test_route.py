"""Route and cluster bodies: the one form that suits all clients, and those of Java name servers."""

import orjson
import pytest

from remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    RouteError,
    TopicRoute,
    format_cluster_info,
    format_topic_route,
    parse_cluster_info,
    parse_topic_route,
)

_ROUTE = TopicRoute(
    (QueueData("broker-a", 8, 4, 6, 1),),
    (BrokerData("DefaultCluster", "broker-a", {1: "10.0.0.2:10911", 0: "10.0.0.1:10911"}),),
)


def test_route_is_written_compact_with_quoted_ids_and_plain_numbers() -> None:
    assert format_topic_route(_ROUTE) == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":8,"topicSysFlag":1,"writeQueueNums":4}]}'
    )


def test_route_survives_the_round_trip() -> None:
    assert parse_topic_route(format_topic_route(_ROUTE)) == _ROUTE
    ordered = TopicRoute(_ROUTE.queue_datas, _ROUTE.broker_datas, "broker-a:4")
    assert parse_topic_route(format_topic_route(ordered)) == ordered


def test_route_of_an_old_java_name_server_is_read() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",2:"10.0.0.3:10911"},"brokerName":"b","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":0,'
        b'"writeQueueNums":4}]}'
    )
    route = parse_topic_route(body)
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 2: "10.0.0.3:10911"}
    assert route.broker_datas[0].master_addr == "10.0.0.1:10911"
    assert route.queue_datas == (QueueData("b", 4, 4, 6),)


def test_cluster_info_survives_the_round_trip() -> None:
    info = ClusterInfo({"broker-a": _ROUTE.broker_datas[0]}, {"DefaultCluster": ("broker-a",)})
    assert parse_cluster_info(format_cluster_info(info)) == info
    assert orjson.loads(format_cluster_info(ClusterInfo())) == {"brokerAddrTable": {}, "clusterAddrTable": {}}


def test_broker_without_id_0_has_no_master() -> None:
    assert BrokerData("c", "b", {1: "10.0.0.2:10911"}).master_addr is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"queueDatas":[{}]}',
        b'{"queueDatas":[1]}',
        b'{"queueDatas":7}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{"x":"y"}}]}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":[]}],"queueDatas":[{"brokerName":"b","perm":"?"}]}',
    ],
)
def test_route_body_unreadable_raises(body: bytes) -> None:
    with pytest.raises(RouteError):
        parse_topic_route(body)


@pytest.mark.parametrize(
    "body",
    [b"", b'{"brokerAddrTable":[1]}', b'{"brokerAddrTable":{"b":{}}}', b'{"clusterAddrTable":{"c":1}}'],
)
def test_cluster_body_unreadable_raises(body: bytes) -> None:
    with pytest.raises(RouteError):
        parse_cluster_info(body)
