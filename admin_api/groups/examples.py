"""Examples of consumer and producer groups for the OpenAPI description."""

from typing import Any, Final

_MEMBER: Final[dict[str, Any]] = {
    "clientId": "127.0.0.1@4711",
    "address": "127.0.0.1:50412",
    "language": "JAVA",
    "version": "4.9.8",
    "brokers": ["broker-a"],
}
_SUBSCRIPTION: Final[dict[str, Any]] = {
    "topic": "orders",
    "expression": "paid || sent",
    "expressionType": "TAG",
}
_ONLINE: Final[dict[str, Any]] = {
    "group": "billing",
    "presence": "online",
    "messageModel": "CLUSTERING",
    "consumeType": "CONSUME_PASSIVELY",
}
_WHOLE: Final[dict[str, Any]] = {"isPartial": False, "problems": []}

PAGE_EXAMPLE: Final[dict[str, Any]] = {
    "items": [
        {
            **_ONLINE,
            "brokers": ["broker-a"],
            "isSystem": False,
            "members": 1,
            "consumeEnabled": True,
            "lag": 63,
            "isLagPartial": False,
            "unknownQueues": 0,
            "lagByTopic": {"orders": 63},
            "consumeTps": 118.5,
            "popInFlight": 0,
        }
    ],
    "page": 1,
    "pageSize": 50,
    "total": 1,
    **_WHOLE,
}
GROUP_EXAMPLE: Final[dict[str, Any]] = {
    **_ONLINE,
    "isSystem": False,
    "isBroadcast": False,
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "memberCount": 1,
    "lag": 63,
    "unknownQueues": 0,
    "consumeTps": 118.5,
    "popInFlight": 0,
    "hasSameSettings": True,
    "brokers": [
        {
            "brokerName": "broker-a",
            "settings": {
                "consumeEnabled": True,
                "consumeFromMinEnabled": True,
                "consumeBroadcastEnabled": True,
                "isOrderly": False,
                "retryQueues": 1,
                "retryMaxTimes": 16,
                "notifyConsumerIdsChanged": True,
                "consumeTimeoutMinutes": 15,
            },
        }
    ],
    "consumeModes": [{"topic": "orders", "brokerName": "broker-a", "mode": "POP", "popShareQueues": 0}],
    "members": [_MEMBER],
    "subscriptions": [_SUBSCRIPTION],
    **_WHOLE,
}
MEMBERS_EXAMPLE: Final[dict[str, Any]] = {
    **_ONLINE,
    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
    "members": [_MEMBER],
    "subscriptions": [_SUBSCRIPTION],
    **_WHOLE,
}
PROGRESS_EXAMPLE: Final[dict[str, Any]] = {
    "group": "billing",
    "presence": "online",
    "isBroadcast": False,
    "asOfMs": 1767225600000,
    "lag": 63,
    "consumeTps": 118.5,
    "topics": [
        {
            "topic": "orders",
            "isRetry": False,
            "lag": 63,
            "unknownQueues": 0,
            "queues": [
                {
                    "brokerName": "broker-a",
                    "queueId": 3,
                    "minOffset": 0,
                    "maxOffset": 120,
                    "offset": 57,
                    "lag": 63,
                    "inFlight": None,
                    "lastConsumedAtMs": 1767225598000,
                    "delayMs": 1900,
                    "clientId": "127.0.0.1@4711",
                }
            ],
        }
    ],
    **_WHOLE,
}
RUNNING_EXAMPLE: Final[dict[str, Any]] = {
    "group": "billing",
    "clientId": "127.0.0.1@4711",
    "brokerName": "broker-a",
    "properties": {"PROP_CONSUMEORDERLY": "false", "PROP_THREADPOOL_CORE_SIZE": "20"},
    "subscriptions": [_SUBSCRIPTION],
    "queues": [
        {
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": 3,
            "isPop": False,
            "commitOffset": 57,
            "cachedMessages": 63,
            "cachedMib": 0,
            "cachedMinOffset": 57,
            "cachedMaxOffset": 119,
            "unacknowledged": None,
            "isLocked": False,
            "isDropped": False,
            "lastPullAtMs": 1767225599000,
            "lastConsumeAtMs": 1767225599500,
        }
    ],
    "rates": [
        {
            "topic": "orders",
            "pullMs": 3.0,
            "pullTps": 4.5,
            "consumeMs": 1.2,
            "consumeOkTps": 118.5,
            "consumeFailedTps": 0.0,
            "consumeFailedMessages": 0,
        }
    ],
    "stack": None,
}
RESET_EXAMPLES: Final[dict[str, Any]] = {
    "time": {"value": {"topic": "orders", "to": "time", "time": "2026-01-01T00:00:00Z"}},
    "earliest": {"value": {"topic": "orders", "to": "earliest"}},
    "one queue": {
        "value": {
            "topic": "orders",
            "to": "offset",
            "queues": [{"brokerName": "broker-a", "queueId": 3, "offset": 57}],
        }
    },
}
RESET_RESULT_EXAMPLE: Final[dict[str, Any]] = {
    "action": "offset.reset",
    "target": "billing",
    "isDryRun": True,
    "isDestructive": True,
    "effects": [{"subject": "broker-a/3", "before": "120", "after": "57, 63 messages again"}],
    "warnings": ["its consumers run: they are sent to the new offsets while they work"],
    "confirmation": "1767225900.5d41402abc4b2a76.9f86d081884c7d659a2feaa0c55ad015",
    "outcomes": [],
    "isPartial": False,
}
PRODUCERS_EXAMPLE: Final[dict[str, Any]] = {
    "items": [
        {
            "group": "shop",
            "clients": [
                {
                    "clientId": "127.0.0.1@4711",
                    "address": "127.0.0.1:50412",
                    "language": "JAVA",
                    "version": "4.9.8",
                    "lastHeartbeatAtMs": 1_767_225_600_000,
                    "brokers": ["broker-a"],
                }
            ],
        }
    ],
    "page": 1,
    "pageSize": 100,
    "total": 1,
    **_WHOLE,
}


def shown(example: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a route."""
    return {200: {"content": {"application/json": {"example": example}}}}
