"""What messages and dead letters look like in the description."""

from typing import Any, Final

from fastapi.openapi.models import Example

_ID: Final = "7F00000100002A9F0000000000000BB8"
_SUMMARY: Final[dict[str, Any]] = {
    "id": _ID,
    "uniqueKey": "C0A80001000018B4AAC2549A1B2C0000",
    "topic": "orders",
    "brokerName": "broker-a",
    "queueId": 3,
    "queueOffset": 120,
    "tags": "paid",
    "keys": ["order-7"],
    "bornAtMs": 1769860800000,
    "storedAtMs": 1769860800003,
    "reconsumeTimes": 0,
    "storedBytes": 14,
    "preview": '{"order":"7"}',
}
WINDOW_EXAMPLE: Final[dict[str, Any]] = {
    "isPartial": False,
    "problems": [],
    "items": [_SUMMARY],
    "nextCursor": "eJyLVsovSkktKlbSMTQAAUOdaKUkBRAA",
    "examined": 128,
}
MESSAGE_EXAMPLE: Final[dict[str, Any]] = _SUMMARY | {
    "position": 3000,
    "bornHost": "127.0.0.1:40312",
    "storeHost": "127.0.0.1:10911",
    "flag": 0,
    "sysFlag": 0,
    "transaction": None,
    "preparedTransactionOffset": 0,
    "bodyCrc": 1095738169,
    "isCrcRight": True,
    "properties": {"KEYS": "order-7", "TAGS": "paid", "UNIQ_KEY": "C0A80001000018B4AAC2549A1B2C0000"},
    "body": {
        "format": "json",
        "content": '{\n  "order": "7"\n}',
        "bodyBytes": 14,
        "storedBytes": 14,
        "compression": None,
        "isText": True,
        "isBodyCut": False,
        "problem": None,
    },
    "copies": [],
}
TRACE_EXAMPLE: Final[dict[str, Any]] = {
    "isPartial": False,
    "problems": [],
    "id": "C0A80001000018B4AAC2549A1B2C0000",
    "traceTopic": "RMQ_SYS_TRACE_TOPIC",
    "spans": [
        {
            "kind": "consume",
            "atMs": 1769860800005,
            "costMs": 12,
            "isSuccess": True,
            "status": "success",
            "group": "billing",
            "clientHost": "10.0.0.7",
            "topic": None,
            "storeHost": None,
            "offsetId": None,
            "messageType": None,
            "retryTimes": 0,
            "transactionState": None,
            "isFromCheck": None,
        }
    ],
}
TRACK_EXAMPLE: Final[dict[str, Any]] = {
    "isPartial": False,
    "problems": [],
    "id": _ID,
    "items": [
        {"group": "billing", "state": "consumed", "offset": 121, "isOnline": True, "problem": None},
        {"group": "audit", "state": "offline", "offset": 57, "isOnline": False, "problem": None},
    ],
}
DLQ_GROUP_EXAMPLE: Final[dict[str, Any]] = {
    "group": "billing",
    "topic": "%DLQ%billing",
    "count": 3,
    "oldestAtMs": 1769860800003,
    "newestAtMs": 1769861100000,
    "isPartial": False,
}
DLQ_WINDOW_EXAMPLE: Final[dict[str, Any]] = {
    "isPartial": False,
    "problems": [],
    "group": "billing",
    "items": [
        _SUMMARY
        | {
            "topic": "%DLQ%billing",
            "queueId": 0,
            "reconsumeTimes": 17,
            "originalTopic": "orders",
            "originalId": "7F00000100002A9F00000000000003E8",
            "ageMs": 86400000,
        }
    ],
    "nextCursor": None,
    "examined": 3,
}
NEW_MESSAGE_EXAMPLES: Final[dict[str, Example]] = {
    "text": {
        "value": {
            "text": '{"order":"7"}',
            "keys": ["order-7"],
            "tags": "paid",
            "properties": {"color": "red"},
        }
    },
    "bytes, delayed": {"value": {"base64": "AAEC", "delayLevel": 3}},
}
RESEND_EXAMPLES: Final[dict[str, Example]] = {
    "to its topic": {"value": {"target": "topic"}},
    "to a consumer": {"value": {"target": "consumer", "consumerGroup": "billing"}},
}
DLQ_RESEND_EXAMPLES: Final[dict[str, Example]] = {
    "one, to its group": {"value": {"target": "group", "ids": [_ID]}},
    "a window, to the original topic": {
        "value": {"target": "topic", "fromMs": 1769860800000, "toMs": 1769864400000, "limit": 100}
    },
}


def ok(example: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """The answer 200 with an example."""
    return {200: {"content": {"application/json": {"example": example}}}}
