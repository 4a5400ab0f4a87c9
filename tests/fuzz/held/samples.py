"""A valid request of every code, over the content that `content` makes. `SALT` in it stands for digits that
are others each time a request is sent, so that no cache has seen it.
"""

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from remoting.codes import RequestCode as Code

SALT: Final = "5A175A17"
TOPIC, WIDE, GROUP = "Busy", "Wide", "Readers"
KEY, TAG = "key", "tag"
PROPERTIES: Final = f"UNIQ_KEY\x01AC11{SALT}\x02KEYS\x01{KEY}\x02TAGS\x01{TAG}\x02a\x015\x02"
FAR_MS: Final = 2**62
CLIENT: Final = "10.0.0.1@4711"


@dataclass(frozen=True, slots=True)
class Sample:
    """`label` says which one of a code's it is."""

    code: int
    ext: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    label: str = "valid"


def sub_message(properties: str = "UNIQ_KEY\x01m\x02", body: bytes = b"b", queue_id: int = 0) -> bytes:
    """One message of a batch."""
    rest = struct.pack(">iiii", queue_id, 0, 0, len(body)) + body
    rest += struct.pack(">h", len(properties)) + properties.encode()
    return struct.pack(">i", 4 + len(rest)) + rest


def send_ext(topic: str = TOPIC, properties: str = PROPERTIES, **letters: str) -> dict[str, str]:
    """The header of a send in its one-letter form."""
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"}
    return ext | {"i": properties} | letters


def long_send_ext(**fields: str) -> dict[str, str]:
    """And with full names."""
    ext = {"producerGroup": "P", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    ext |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "properties": PROPERTIES}
    return ext | fields


def pull_ext(**fields: str) -> dict[str, str]:
    ext = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1024"}
    ext |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
    return ext | {"expressionType": "TAG", "subVersion": "0"} | fields


def pop_ext(topic: str = TOPIC, **fields: str) -> dict[str, str]:
    ext = {"consumerGroup": "Poppers", "topic": topic, "queueId": "-1", "maxMsgNums": "32"}
    ext |= {"invisibleTime": "60000", "pollTime": "0", "initMode": "0", "bornTime": "0"}
    return ext | fields


def queue_ext(**fields: str) -> dict[str, str]:
    return {"topic": TOPIC, "queueId": "0"} | fields


def heartbeat(consumers: list[dict[str, Any]], client_id: str = f"{CLIENT}#{SALT}") -> bytes:
    return orjson.dumps(
        {"clientID": client_id, "consumerDataSet": consumers, "producerDataSet": [{"groupName": "P"}]}
    )


def consumer(group: str, *expressions: str, kind: str = "TAG") -> dict[str, Any]:
    """The part of one group in a heartbeat, with a topic for each expression."""
    subscriptions = [
        {"topic": f"{TOPIC}{at or ''}", "subString": text, "subVersion": 1, "expressionType": kind}
        for at, text in enumerate(expressions)
    ]
    names = {"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    return {"groupName": group, "subscriptionDataSet": subscriptions, **names}


def _json(**fields: Any) -> bytes:
    return orjson.dumps(fields)


def _queues(topic: str, count: int) -> list[dict[str, Any]]:
    return [{"brokerName": "broker-a", "queueId": at, "topic": topic} for at in range(count)]


def _locks(topic: str, count: int) -> bytes:
    return _json(consumerGroup=f"L{SALT}", clientId=CLIENT, mqSet=_queues(topic, count))


def _ack(topic: str = TOPIC, bits: bytes = b"\x01") -> dict[str, Any]:
    text = base64.b64encode(bits).decode()
    return {"c": "Poppers", "t": topic, "r": "0", "q": 0, "so": 0, "rq": 0, "pt": 1, "it": 60000, "b": text}


def _topic_row(name: str) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}


def _policies(entries: list[dict[str, Any]]) -> bytes:
    return _json(subject="User:reader", policies=[{"policyType": "Custom", "entries": entries}])


def _entry(resource: str) -> dict[str, Any]:
    actions = ["Pub", "Sub"]
    return {"resource": resource, "actions": actions, "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}


_HANDLE = "0 1 60000 0 0 broker-a 0 0"
_ACK = {"consumerGroup": "Poppers", **queue_ext(), "extraInfo": _HANDLE, "offset": "0"}
_CREATED_TOPIC = {"topic": f"Made{SALT}", "defaultTopic": "TBW102", "readQueueNums": "4"}
_CREATED_TOPIC |= {"writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "attributes": ""}
_GROUP = {"group": GROUP}
_CONSUMER_GROUP = {"consumerGroup": GROUP}
_TOPIC = {"topic": TOPIC}
_SUBSCRIPTION = {"topic": TOPIC, "subString": "TagA||TagB", "subVersion": "1", "expressionType": "TAG"}
_SEQUENCED = long_send_ext(writerId=f"w{SALT}", partition="0", batchId="1", sequence="0")
_HALF = {"producerGroup": "P", "tranStateTableOffset": "0", "commitLogOffset": "48"}
_HALF |= {"commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "", "transactionId": ""}
_ID = "7F0000010000277800000000000000" + "30"
_ACCOUNT = {"accessKey": "someone", "secretKey": "123456789", "topicPerms": "a=PUB", "groupPerms": "b=SUB"}
_ELECTION = {"clusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": "0"}

BROKER_SAMPLES: Final = (
    Sample(Code.SEND_MESSAGE, long_send_ext(), b"body"),
    Sample(Code.SEND_MESSAGE_V2, send_ext(), b"body"),
    Sample(Code.SEND_MESSAGE_V2, send_ext(f"New{SALT}"), b"body", "of a new topic"),
    Sample(Code.SEND_MESSAGE_V2, send_ext(properties=f"{PROPERTIES}DELAY\x013\x02"), b"body", "delayed"),
    Sample(Code.SEND_MESSAGE_V2, send_ext(properties=f"{PROPERTIES}TIMER_DELAY_SEC\x019\x02"), b"b", "timer"),
    Sample(
        Code.SEND_MESSAGE_V2, send_ext(properties=f"{PROPERTIES}TRAN_MSG\x01true\x02", f="4"), b"b", "half"
    ),
    Sample(Code.SEND_BATCH_MESSAGE, send_ext(m="true"), sub_message() * 3),
    Sample(Code.SEND_REPLY_MESSAGE, long_send_ext(properties=f"{PROPERTIES}REPLY_TO_CLIENT\x01c\x02"), b"b"),
    Sample(Code.SEND_REPLY_MESSAGE_V2, send_ext(properties=f"{PROPERTIES}REPLY_TO_CLIENT\x01c\x02"), b"b"),
    Sample(
        Code.CONSUMER_SEND_MSG_BACK, {"offset": "48", "group": GROUP, "delayLevel": "3", "originMsgId": _ID}
    ),
    Sample(Code.LEDGERMQ_SEND_SEQUENCED, _SEQUENCED, sub_message() * 3),
    Sample(
        Code.LEDGERMQ_END_BATCH,
        {},
        _json(batchId=1, isChecked=False, isOver=True, writers={"w": {"0": [3, ""]}}),
    ),
    Sample(Code.PULL_MESSAGE, pull_ext()),
    Sample(Code.PULL_MESSAGE, pull_ext(subscription="Other"), label="of another tag"),
    Sample(Code.PULL_MESSAGE, pull_ext(subscription=f"a > 1{SALT}", expressionType="SQL92"), label="SQL92"),
    Sample(Code.LITE_PULL_MESSAGE, pull_ext(sysFlag="20")),
    Sample(Code.POP_MESSAGE, pop_ext()),
    Sample(Code.POP_MESSAGE, pop_ext(WIDE), label="of many queues"),
    Sample(Code.POP_MESSAGE, pop_ext(exp=f"a > 1{SALT}", expType="SQL92"), label="SQL92"),
    Sample(Code.PEEK_MESSAGE, pop_ext()),
    Sample(Code.PEEK_MESSAGE, pop_ext(WIDE), label="of many queues"),
    Sample(Code.NOTIFICATION, pop_ext()),
    Sample(Code.NOTIFICATION, pop_ext(WIDE), label="of many queues"),
    Sample(Code.POLLING_INFO, pop_ext()),
    Sample(Code.ACK_MESSAGE, _ACK),
    Sample(Code.BATCH_ACK_MESSAGE, {}, _json(brokerName="broker-a", acks=[_ack(), _ack(WIDE)])),
    Sample(
        Code.BATCH_ACK_MESSAGE, {}, _json(brokerName="b", acks=[_ack(bits=b"\xff" * 4096)] * 2), "of many"
    ),
    Sample(Code.CHANGE_MESSAGE_INVISIBLETIME, {**_ACK, "invisibleTime": "60000"}),
    Sample(Code.HEART_BEAT, {}, heartbeat([consumer(GROUP, "TagA || TagB")])),
    Sample(Code.HEART_BEAT, {}, heartbeat([consumer(f"H{SALT}", "a > 1", kind="SQL92")]), "SQL92"),
    Sample(Code.UNREGISTER_CLIENT, {"clientID": CLIENT, "producerGroup": "P", "consumerGroup": GROUP}),
    Sample(Code.GET_CONSUMER_LIST_BY_GROUP, _CONSUMER_GROUP),
    Sample(Code.CHECK_CLIENT_CONFIG, {}, _json(clientId="c", group=GROUP, subscriptionData=_SUBSCRIPTION)),
    Sample(Code.LOCK_BATCH_MQ, {}, _locks(TOPIC, 4)),
    Sample(Code.LOCK_BATCH_MQ, {}, _locks(WIDE, 4_096), "of many queues"),
    Sample(Code.UNLOCK_BATCH_MQ, {}, _locks(TOPIC, 4)),
    Sample(Code.UNLOCK_BATCH_MQ, {}, _locks(WIDE, 4_096), "of many queues"),
    Sample(
        Code.QUERY_ASSIGNMENT,
        {},
        _json(topic=TOPIC, consumerGroup=GROUP, clientId="c", strategyName="AVG", messageModel="CLUSTERING"),
    ),
    Sample(
        Code.QUERY_ASSIGNMENT,
        {},
        _json(topic=WIDE, consumerGroup=GROUP, clientId="c", messageModel="BROADCASTING"),
        "of many queues",
    ),
    Sample(
        Code.SET_MESSAGE_REQUEST_MODE,
        {},
        _json(topic=TOPIC, consumerGroup=GROUP, mode="PULL", popShareQueueNum=0),
    ),
    Sample(Code.GET_ALL_MESSAGE_REQUEST_MODE),
    Sample(Code.QUERY_CONSUMER_OFFSET, {**_CONSUMER_GROUP, **queue_ext()}),
    Sample(Code.UPDATE_CONSUMER_OFFSET, {**_CONSUMER_GROUP, **queue_ext(), "commitOffset": "5"}),
    Sample(Code.SEARCH_OFFSET_BY_TIMESTAMP, queue_ext(timestamp="1700000000000")),
    Sample(Code.GET_MAX_OFFSET, queue_ext()),
    Sample(Code.GET_MIN_OFFSET, queue_ext()),
    Sample(Code.GET_EARLIEST_MSG_STORETIME, queue_ext()),
    Sample(
        Code.QUERY_MESSAGE,
        {**_TOPIC, "key": KEY, "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(FAR_MS)},
    ),
    Sample(
        Code.QUERY_MESSAGE,
        {**_TOPIC, "key": KEY, "maxNum": "100000", "beginTimestamp": "0", "endTimestamp": str(FAR_MS)},
        label="all",
    ),
    Sample(Code.VIEW_MESSAGE_BY_ID, {"offset": "48", **_TOPIC}),
    Sample(Code.END_TRANSACTION, _HALF),
    Sample(Code.RESUME_CHECK_HALF_MESSAGE, {"msgId": _ID, **_TOPIC}),
    Sample(
        Code.RECALL_MESSAGE, {**_TOPIC, "recallHandle": base64.b64encode(b"v1 Busy broker-a 1 x").decode()}
    ),
    Sample(Code.UPDATE_AND_CREATE_TOPIC, _CREATED_TOPIC),
    Sample(
        Code.UPDATE_AND_CREATE_TOPIC,
        _CREATED_TOPIC | {"readQueueNums": "4096", "writeQueueNums": "4096"},
        label="of many queues",
    ),
    Sample(Code.UPDATE_AND_CREATE_TOPIC_LIST, {}, _json(topicConfigList=[_topic_row(f"Made{SALT}")])),
    Sample(Code.DELETE_TOPIC_IN_BROKER, {"topic": f"Made{SALT}"}),
    Sample(Code.GET_ALL_TOPIC_CONFIG),
    Sample(Code.GET_TOPIC_CONFIG, _TOPIC),
    Sample(Code.GET_TOPIC_STATS_INFO, _TOPIC),
    Sample(Code.GET_TOPIC_STATS_INFO, {"topic": WIDE}, label="of many queues"),
    Sample(Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    Sample(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        _json(groupName=f"Made{SALT}", retryQueueNums=1, attributes={}),
    ),
    Sample(
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        {},
        _json(groupConfigList=[{"groupName": f"Made{SALT}"}]),
    ),
    Sample(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": f"Made{SALT}", "cleanOffset": "true"}),
    Sample(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
    Sample(Code.GET_SUBSCRIPTIONGROUP_CONFIG, _GROUP),
    Sample(Code.GET_CONSUMER_CONNECTION_LIST, _CONSUMER_GROUP),
    Sample(Code.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "P"}),
    Sample(Code.GET_CONSUME_STATS, {**_CONSUMER_GROUP, **_TOPIC, "topicList": ""}),
    Sample(Code.GET_CONSUME_STATS, {**_CONSUMER_GROUP, "topic": WIDE}, label="of many queues"),
    Sample(
        Code.GET_CONSUME_STATS, {**_CONSUMER_GROUP, "topicList": f"{TOPIC};" * 50_000}, label="of many topics"
    ),
    Sample(Code.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}),
    Sample(Code.LEDGERMQ_GROUP_PROGRESS),
    Sample(Code.LEDGERMQ_READ_INDEX, {"brokerId": "2", "zone": "z" * 60_000}),
    Sample(Code.LEDGERMQ_GRPC_ENDPOINT, {"address": "127.0.0.1:8081"}),
    Sample(Code.LEDGERMQ_GRPC_CLIENTS, {"address": "127.0.0.1:8081", "skipped": "0", "count": "100"}),
    Sample(
        Code.QUERY_CONSUME_QUEUE, {**queue_ext(), "index": "0", "count": "100000", "consumerGroup": GROUP}
    ),
    Sample(Code.INVOKE_BROKER_TO_RESET_OFFSET, {**_GROUP, **_TOPIC, "timestamp": "0", "isForce": "true"}),
    Sample(
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        {**_GROUP, "topic": WIDE, "timestamp": "0", "isForce": "true"},
        label="of many queues",
    ),
    Sample(
        Code.CLONE_GROUP_OFFSET, {"srcGroup": GROUP, "destGroup": f"Made{SALT}", **_TOPIC, "offline": "false"}
    ),
    Sample(
        Code.CLONE_GROUP_OFFSET,
        {"srcGroup": GROUP, "destGroup": f"Made{SALT}", "topic": WIDE},
        label="of many queues",
    ),
    Sample(Code.GET_ALL_CONSUMER_OFFSET),
    Sample(Code.GET_ALL_DELAY_OFFSET),
    Sample(Code.QUERY_CONSUME_TIME_SPAN, {**_GROUP, **_TOPIC}),
    Sample(Code.QUERY_CONSUME_TIME_SPAN, {**_GROUP, "topic": WIDE}, label="of many queues"),
    Sample(Code.QUERY_CORRECTION_OFFSET, {"topic": WIDE, "compareGroup": GROUP, "filterGroups": "a,b"}),
    Sample(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {**_GROUP, **_TOPIC, "clientAddr": "nobody"}),
    Sample(Code.GET_CONSUMER_RUNNING_INFO, {**_CONSUMER_GROUP, "clientId": "nobody"}),
    Sample(Code.CONSUME_MESSAGE_DIRECTLY, {**_CONSUMER_GROUP, "clientId": "nobody", "msgId": _ID, **_TOPIC}),
    Sample(Code.QUERY_TOPIC_CONSUME_BY_WHO, _TOPIC),
    Sample(Code.QUERY_TOPICS_BY_CONSUMER, _GROUP),
    Sample(Code.QUERY_SUBSCRIPTION_BY_CONSUMER, {**_GROUP, **_TOPIC}),
    Sample(Code.GET_ALL_PRODUCER_INFO),
    Sample(Code.UPDATE_BROKER_CONFIG, {}, b"slowPutMs=500\n"),
    Sample(Code.GET_BROKER_CONFIG),
    Sample(Code.GET_BROKER_RUNTIME_INFO),
    Sample(Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": TOPIC}),
    Sample(Code.CLEAN_EXPIRED_CONSUMEQUEUE),
    Sample(Code.CLEAN_UNUSED_TOPIC),
    Sample(Code.DELETE_EXPIRED_COMMITLOG),
    Sample(Code.GET_COLD_DATA_FLOW_CTR_INFO),
    Sample(Code.LEDGERMQ_NODE_STATUS),
    Sample(Code.LEDGERMQ_TRANSFER_LEADER, {"transferee": "n7"}),
    Sample(
        Code.LEDGERMQ_CHANGE_MEMBERS,
        {},
        b'{"change":"add","id":"n7","address":"127.0.0.1:1","dryRun":true}',
    ),
    Sample(Code.GET_BROKER_HA_STATUS),
    Sample(Code.CONTROLLER_ELECT_MASTER, _ELECTION),
    Sample(Code.CONTROLLER_GET_METADATA_INFO),
    Sample(Code.CONTROLLER_GET_SYNC_STATE_DATA, {}, b'["broker-a"]'),
    Sample(Code.GET_BROKER_EPOCH_CACHE),
    Sample(Code.GET_CONTROLLER_CONFIG),
    Sample(Code.AUTH_CREATE_USER, {"username": f"user{SALT}"}, _json(password="secret", userType="Normal")),
    Sample(Code.AUTH_UPDATE_USER, {"username": "reader"}, _json(password="secret", userType="Normal")),
    Sample(Code.AUTH_DELETE_USER, {"username": f"user{SALT}"}),
    Sample(Code.AUTH_GET_USER, {"username": "reader"}),
    Sample(Code.AUTH_LIST_USER, {"filter": ""}),
    Sample(Code.AUTH_CREATE_ACL, {"subject": "User:reader"}, _policies([_entry("Topic:a*")])),
    Sample(
        Code.AUTH_CREATE_ACL,
        {"subject": "User:reader"},
        _policies([_entry(f"Topic:r{at}") for at in range(1_000)]),
        "of many entries",
    ),
    Sample(Code.AUTH_UPDATE_ACL, {"subject": "User:reader"}, _policies([_entry("Group:a")])),
    Sample(
        Code.AUTH_DELETE_ACL, {"subject": "User:reader", "policyType": "Custom", "resource": "Topic:gone"}
    ),
    Sample(Code.AUTH_GET_ACL, {"subject": "User:reader"}),
    Sample(Code.AUTH_LIST_ACL, {"subjectFilter": "", "resourceFilter": ""}),
)

_REGISTER = {
    "brokerName": f"b{SALT}",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
}
_IDENTITY = {**_REGISTER, "brokerName": "known", "brokerAddr": "10.0.0.9:10911"}
_ROUTE = {"brokerDatas": [{"brokerAddrs": {"0": "h:1"}, "brokerName": "known", "cluster": "c"}]}
_ROUTE |= {"queueDatas": [{"brokerName": "known", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}]}  # type: ignore[dict-item]


def registration(topics: Iterable[str]) -> bytes:
    """The body by which a broker registers."""
    table = {name: {"topicName": name, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4} for name in topics}
    wrapper = {"dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1}, "topicConfigTable": table}
    return _json(filterServerList=[], topicConfigSerializeWrapper=wrapper)


def compressed_registration(topics: int) -> bytes:
    """As brokers with compressedRegister send it."""
    version = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    rows = [f"T{at} 4 4 6 SINGLE_TAG".encode() for at in range(topics)]
    head = len(version).to_bytes(4, "big") + version + topics.to_bytes(4, "big")
    body = head + b"".join(len(row).to_bytes(4, "big") + row for row in rows)
    return zlib.compress(body + len(b"[]").to_bytes(4, "big") + b"[]", 1)


NAME_SERVER_SAMPLES: Final = (
    Sample(Code.PUT_KV_CONFIG, {"namespace": "N", "key": f"k{SALT}", "value": "v"}),
    Sample(Code.GET_KV_CONFIG, {"namespace": "N", "key": "k"}),
    Sample(Code.DELETE_KV_CONFIG, {"namespace": "N", "key": f"k{SALT}"}),
    Sample(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "N"}),
    Sample(Code.REGISTER_BROKER, _REGISTER, registration(["T"])),
    Sample(
        Code.REGISTER_BROKER,
        _REGISTER | {"compressed": "true"},
        compressed_registration(40_000),
        "of many topics",
    ),
    Sample(Code.UNREGISTER_BROKER, _IDENTITY),
    Sample(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"}),
    Sample(Code.GET_BROKER_CLUSTER_INFO),
    Sample(Code.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "known"}),
    Sample(Code.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "known"}),
    Sample(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    Sample(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "T0", "clusterName": ""}),
    Sample(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": f"T{SALT}"}, orjson.dumps(_ROUTE)),
    Sample(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
    Sample(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    Sample(Code.GET_UNIT_TOPIC_LIST),
    Sample(Code.GET_HAS_UNIT_SUB_TOPIC_LIST),
    Sample(Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    Sample(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=false\n"),
    Sample(Code.GET_NAMESRV_CONFIG),
    Sample(Code.QUERY_DATA_VERSION, _IDENTITY, b'{"counter":1,"stateVersion":2,"timestamp":3}'),
    Sample(Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "known"}),
    Sample(Code.BROKER_HEARTBEAT, _IDENTITY),
)
