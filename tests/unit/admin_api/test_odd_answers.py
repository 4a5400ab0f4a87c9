"""Brokers that answer nonsense: its part is missing, and nothing else breaks."""

import pytest

from remoting.codes import RequestCode
from tests.unit.admin_api.fake_brokers import FakeBroker, FakeBrokers
from tests.unit.admin_api.serving import asking

A = "127.0.0.1:10911"
LONG = b" " * (16 * 1024 * 1024 + 1)
BODIES = [b"", b"{", b"[]", b"\xff", b"null", LONG]
TOPICS = [
    b'{"topicConfigTable": []}',
    b'{"topicConfigTable": {"a": 3}}',
    b'{"topicConfigTable": {"a": {"topicName": "a", "perm": "x"}}}',
    b'{"topicConfigTable": {"a": {"topicName": "a", "readQueueNums": -1}}}',
]
PATHS = {
    RequestCode.GET_ALL_TOPIC_CONFIG: ("/topics", "/topics/orders"),
    RequestCode.GET_TOPIC_STATS_INFO: ("/topics/orders/queues",),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: ("/topics/orders",),
    RequestCode.VIEW_BROKER_STATS_DATA: ("/topics/orders/stats",),
    RequestCode.GET_ALL_PRODUCER_INFO: ("/producer-groups",),
    RequestCode.GET_BROKER_RUNTIME_INFO: ("/brokers", f"/brokers/{A}/runtime", f"/brokers/{A}/storage"),
    RequestCode.GET_BROKER_CONFIG: (f"/brokers/{A}/config", f"/brokers/{A}/storage"),
    RequestCode.LEDGERMQ_NODE_STATUS: ("/brokers", "/topics"),
}
ODD = {
    RequestCode.GET_ALL_TOPIC_CONFIG: TOPICS,
    RequestCode.GET_TOPIC_STATS_INFO: [
        b'{"offsetTable": {"x": 1}}',
        b'{"offsetTable": {"{}": {}}}',
        b'{"offsetTable": []}',
    ],
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: [b'{"groupList": [1]}', b'{"groupList": {}}'],
    RequestCode.VIEW_BROKER_STATS_DATA: [b'{"statsDay": 1}', b'{"statsDay": {"sum": "x"}}'],
    RequestCode.GET_ALL_PRODUCER_INFO: [b'{"data": []}', b'{"data": {"g": {}}}', b'{"data": {"g": [{}]}}'],
    RequestCode.GET_BROKER_RUNTIME_INFO: [
        b'{"table": []}',
        b'{"table": {"putTps": "x", "bootTimestamp": []}}',
    ],
    RequestCode.GET_BROKER_CONFIG: [b"no equals sign", b"=x"],
    RequestCode.LEDGERMQ_NODE_STATUS: [b'{"version": "x"}'],
}
CASES = [
    (code, path, body) for code in PATHS for path in PATHS[code] for body in (*BODIES, *ODD.get(code, ()))
]


@pytest.mark.parametrize(
    ("code", "path", "body"), CASES, ids=[f"{c.name}-{i}" for i, (c, *_) in enumerate(CASES)]
)
async def test_nonsense_is_a_part_missing_and_no_fault(code: RequestCode, path: str, body: bytes) -> None:
    broker = FakeBroker("broker-a", A)
    broker.add_topic("orders", attributes={"retention.ms": "9" * 5000})
    brokers = FakeBrokers(broker)
    brokers.bodies[code] = body
    async with asking(brokers) as client:
        answer = await client.get(path)
    assert answer.status_code in (200, 404, 503), answer.text
    if answer.status_code != 200:
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.json()["detail"]) < 1000


WITHOUT = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "/topics",
    RequestCode.GET_TOPIC_STATS_INFO: "/topics/orders/queues",
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "/topics/orders",
    RequestCode.VIEW_BROKER_STATS_DATA: "/topics/orders/stats",
    RequestCode.GET_ALL_PRODUCER_INFO: "/producer-groups",
    RequestCode.GET_BROKER_RUNTIME_INFO: "/brokers",
}


@pytest.mark.parametrize(("code", "path"), WITHOUT.items(), ids=[code.name for code in WITHOUT])
@pytest.mark.parametrize("body", [b"{}", b'{"table":null,"data":null,"groupList":null,"offsetTable":null}'])
async def test_answer_without_what_was_asked_for_does_not_say_that_there_is_none(
    code: RequestCode, path: str, body: bytes
) -> None:
    broker = FakeBroker("broker-a", A)
    broker.add_topic("orders")
    brokers = FakeBrokers(broker)
    brokers.bodies[code] = body
    async with asking(brokers) as client:
        told = (await client.get(path)).json()
    assert told["isPartial"] is True
    unknown = {"consumerGroups", "queues", "messageCount", "putMessages"} & told.keys()
    assert all(told[name] is None for name in unknown), told


async def test_topic_whose_groups_nobody_tells_has_no_traffic_of_none() -> None:
    broker = FakeBroker("broker-a", A)
    broker.add_topic("orders")
    brokers = FakeBrokers(broker)
    brokers.bodies[RequestCode.QUERY_TOPIC_CONSUME_BY_WHO] = b"{}"
    async with asking(brokers) as client:
        told = (await client.get("/topics/orders/stats")).json()
    assert (told["groups"], told["groupsLeftOut"], told["isPartial"]) == (None, None, True)
