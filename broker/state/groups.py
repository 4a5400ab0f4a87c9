"""Subscription groups: RocketMQ's SubscriptionGroupConfig, the groups every broker has from its start, and
how a group asks for the messages of a topic when the broker assigns the queues: by pull or by pop
(MessageRequestModeManager).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.state.topics import ATTRIBUTES_MAX, QUEUE_NUMS_MAX, ConfigFormatError
from remoting.topic_names import topic_name_error

GROUP_CHARS_MAX = 255
CUSTOMIZED = "CUSTOMIZED"
EXPONENTIAL = "EXPONENTIAL"
PAUSE_MAX_MS = 12 * 3_600_000
"""The longest invisible time: no message could wait longer for its next try."""
PAUSES_MAX = 128
_PAUSES_MS = tuple(s * 1_000 for s in (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200))
_EXPONENTIAL_MS = 5_000, 7_200_000, 2
_EXPONENT_MAX = 32
_MULTIPLIER_MAX = 1_000
RETRY_TIMES_MAX = 1_000_000
_GROUP_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")

STATIC_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


@dataclass(frozen=True, slots=True)
class GroupRetryPolicy:
    """How long gRPC consumers leave a message that failed (GroupRetryPolicy.java, same defaults).

    kind: by which of the two: CUSTOMIZED, `pauses_ms` one after the other, the last again and again; or
    EXPONENTIAL, `initial_ms` times `multiplier` with each try, at most `max_ms`.
    """

    kind: str = CUSTOMIZED
    pauses_ms: tuple[int, ...] = _PAUSES_MS
    initial_ms: int = _EXPONENTIAL_MS[0]
    max_ms: int = _EXPONENTIAL_MS[1]
    multiplier: int = _EXPONENTIAL_MS[2]

    def pause_ms(self, tried: int) -> int:
        """After a message was handed out again `tried` times (nextDelayDuration). The customized steps begin
        at the third, as the levels of sent back messages do.
        """
        if self.kind == EXPONENTIAL:
            factor: int = self.multiplier ** min(max(tried, 0), _EXPONENT_MAX)
            return min(self.max_ms, self.initial_ms * factor)
        return self.pauses_ms[min(max(tried, 0) + 2, len(self.pauses_ms) - 1)]

    def to_json(self) -> dict[str, Any]:
        exponential = {"initial": self.initial_ms, "max": self.max_ms, "multiplier": self.multiplier}
        return {
            "customizedRetryPolicy": {"next": list(self.pauses_ms)},
            "exponentialRetryPolicy": exponential,
            "type": self.kind,
        }

    @classmethod
    def from_json(cls, data: object) -> "GroupRetryPolicy":
        """Read the wire form; what is left out or null has its default. Raises ConfigFormatError."""
        policy = _table(data, "groupRetryPolicy")
        kind = policy.get("type") or CUSTOMIZED
        if kind not in (CUSTOMIZED, EXPONENTIAL):
            raise ConfigFormatError(f"groupRetryPolicy.type is neither {CUSTOMIZED} nor {EXPONENTIAL}")
        exponential = _table(policy.get("exponentialRetryPolicy"), "exponentialRetryPolicy")
        initial_ms, max_ms, multiplier = _EXPONENTIAL_MS
        pauses = _table(policy.get("customizedRetryPolicy"), "customizedRetryPolicy").get("next", _PAUSES_MS)
        if not isinstance(pauses, list | tuple) or not 0 < len(pauses) <= PAUSES_MAX:
            raise ConfigFormatError(f"customizedRetryPolicy.next is not a list of 1 to {PAUSES_MAX} numbers")
        return cls(
            kind,
            tuple(_number({"next": pause}, "next", 0, PAUSE_MAX_MS) for pause in pauses),
            _number(exponential, "initial", initial_ms, PAUSE_MAX_MS),
            _number(exponential, "max", max_ms, PAUSE_MAX_MS),
            _number(exponential, "multiplier", multiplier, _MULTIPLIER_MAX),
        )


DEFAULT_RETRY_POLICY = GroupRetryPolicy()


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig:
    """How one consumer group may consume here (SubscriptionGroupConfig.java, same defaults)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    retry_policy: GroupRetryPolicy = DEFAULT_RETRY_POLICY

    def to_json(self) -> dict[str, Any]:
        made = {
            "attributes": dict(self.attributes),
            "brokerId": self.broker_id,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeMessageOrderly": self.consume_message_orderly,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "groupName": self.name,
            "groupSysFlag": self.group_sys_flag,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "retryMaxTimes": self.retry_max_times,
            "retryQueueNums": self.retry_queue_nums,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
        }
        if self.retry_policy != DEFAULT_RETRY_POLICY:
            made["groupRetryPolicy"] = self.retry_policy.to_json()
        return made

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "SubscriptionGroupConfig":
        """Read the wire form; fields not known here are passed over. Raises ConfigFormatError."""
        name = data.get("groupName") if isinstance(data, dict) else None
        error = group_name_error(name) if isinstance(name, str) else "groupName is missing"
        if error is not None:
            raise ConfigFormatError(error)
        attributes = data.get("attributes") or {}
        if not isinstance(attributes, dict) or len(attributes) > ATTRIBUTES_MAX:
            raise ConfigFormatError(f"attributes is not a table of at most {ATTRIBUTES_MAX} texts")
        return cls(
            name=str(name),
            consume_enable=_flag(data, "consumeEnable", True),
            consume_from_min_enable=_flag(data, "consumeFromMinEnable", True),
            consume_broadcast_enable=_flag(data, "consumeBroadcastEnable", True),
            consume_message_orderly=_flag(data, "consumeMessageOrderly", False),
            retry_queue_nums=_number(data, "retryQueueNums", 1, QUEUE_NUMS_MAX),
            retry_max_times=_number(data, "retryMaxTimes", 16, RETRY_TIMES_MAX),
            broker_id=_number(data, "brokerId", 0, 2**31 - 1),
            which_broker_when_consume_slowly=_number(data, "whichBrokerWhenConsumeSlowly", 1, 2**31 - 1),
            notify_consumer_ids_changed_enable=_flag(data, "notifyConsumerIdsChangedEnable", True),
            group_sys_flag=_number(data, "groupSysFlag", 0, 2**31 - 1),
            consume_timeout_minutes=_number(data, "consumeTimeoutMinute", 15, 2**31 - 1),
            attributes={str(key): str(value) for key, value in attributes.items()},
            retry_policy=GroupRetryPolicy.from_json(data.get("groupRetryPolicy")),
        )


def group_name_error(name: str) -> str | None:
    """Why RocketMQ would refuse the name of a group, or None when it is good (Validators.checkGroup)."""
    if not name.strip():
        return "the specified group is blank"
    if len(name) > GROUP_CHARS_MAX:
        return f"the specified group is longer than group max length {GROUP_CHARS_MAX}."
    if not _GROUP_NAME.match(name):
        return "the specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    return None


def static_groups() -> dict[str, SubscriptionGroupConfig]:
    """The groups of SubscriptionGroupManager.init: there from the start, never in the log."""
    return {name: SubscriptionGroupConfig(name) for name in STATIC_GROUPS}


def _table(data: object, name: str) -> Mapping[str, Any]:
    """What is not there has no entries."""
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigFormatError(f"{name} is no table")
    return data


def _flag(data: Mapping[str, Any], key: str, default: bool) -> bool:
    value = data.get(key, default)
    if not isinstance(value, bool):
        raise ConfigFormatError(f"{key} is not true or false")
    return value


def _number(data: Mapping[str, Any], key: str, default: int, most: int) -> int:
    value = data.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigFormatError(f"{key} is not a whole number from 0 to {most}")
    return value


PULL = "PULL"
POP = "POP"
_SHARE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RequestMode:
    """SetMessageRequestModeRequestBody. `share_queue_num`: how many consumers in POP mode share the queues of
    one; 0 and below: all share all.
    """

    topic: str
    group: str
    mode: str = PULL
    share_queue_num: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "consumerGroup": self.group,
            "mode": self.mode,
            "popShareQueueNum": self.share_queue_num,
            "topic": self.topic,
        }

    @classmethod
    def from_json(cls, data: object) -> "RequestMode":
        """Read the wire form. Raises ConfigFormatError."""
        if not isinstance(data, dict):
            raise ConfigFormatError("the message request mode is no table")
        topic, group = data.get("topic"), data.get("consumerGroup")
        if not isinstance(topic, str) or not isinstance(group, str):
            raise ConfigFormatError("topic or consumerGroup is missing")
        error = topic_name_error(topic) or group_name_error(group)
        if error is not None:
            raise ConfigFormatError(error)
        mode = data.get("mode", PULL)
        if mode not in (PULL, POP):
            raise ConfigFormatError(f"mode {str(mode)[:40]!r} is neither PULL nor POP")
        share = data.get("popShareQueueNum", 0)
        if isinstance(share, bool) or not isinstance(share, int) or not -_SHARE_MAX <= share <= _SHARE_MAX:
            raise ConfigFormatError("popShareQueueNum is not a whole number")
        return cls(topic, group, mode, share)
