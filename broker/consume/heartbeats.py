"""The body of a heartbeat (HeartbeatData), parsed from the form of each client library.

Java sends enum names or ordinals by version of its JSON library, Go names, C++ ordinals; `subVersion` is a
number or a text, in ms or (Go) ns; C++ leaves out every key that is empty, Go writes tag codes as texts. Tag
codes and tag sets are not read at all: they follow from the expression.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from remoting.fastjson import FastjsonError, loads_request
from remoting.tag_filters import (
    EXPRESSION_TYPE_TAG,
    MATCH_ALL,
    FilterError,
    TagFilter,
    is_tag_type,
    parse_tag_expression,
)

CLIENT_ID_CHARS_MAX = 512
GROUPS_PER_CLIENT_MAX = 1_000
SUBSCRIPTIONS_MAX = 2_000
"""In one heartbeat, of all its groups."""
EXPRESSIONS_CHARS_MAX = 65_536
"""Of all its subscriptions: each is compared and split."""
_NAME_CHARS_MAX = 255
_NANOSECOND_VERSIONS_FROM = 10**16
"""A version above this is ns since 1970 (2**53 ms is past the year 200,000)."""


class HeartbeatError(ValueError):
    """A heartbeat cannot be read; the text names the field."""


class ConsumeType(Enum):
    CONSUME_ACTIVELY = 0
    CONSUME_PASSIVELY = 1
    CONSUME_POP = 2


class MessageModel(Enum):
    BROADCASTING = 0
    CLUSTERING = 1


class ConsumeFromWhere(Enum):
    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of one topic. `filter` is None for an expression that is not one of tags."""

    topic: str
    expression: str
    expression_type: str
    version_ms: int
    filter: TagFilter | None
    is_class_filter: bool = False

    @property
    def wanted(self) -> tuple[str, str]:
        """What must change for the consumers to be notified: a new version alone is no change."""
        return self.expression_type, self.expression

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's SubscriptionData."""
        tag_filter = self.filter or MATCH_ALL
        return {
            "classFilterMode": self.is_class_filter,
            "codeSet": sorted(tag_filter.codes or ()),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version_ms,
            "tagsSet": sorted(tag_filter.tags),
            "topic": self.topic,
        }


@dataclass(frozen=True, slots=True)
class ConsumerBeat:
    """One consumer of the client. `subscriptions` is None when the heartbeat leaves them as they were."""

    group: str
    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: tuple[Subscription, ...] | None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    client_id: str
    producer_groups: tuple[str, ...]
    consumers: tuple[ConsumerBeat, ...]


def parse_heartbeat(body: bytes) -> Heartbeat:
    """Read the body of request 34. Raises HeartbeatError."""
    data = _object(body)
    without_sub = data.get("withoutSub") is True
    room = _Room()
    producers = [
        _name(item, "groupName") for item in _objects(data, "producerDataSet", GROUPS_PER_CLIENT_MAX)
    ]
    items = _objects(data, "consumerDataSet", GROUPS_PER_CLIENT_MAX)
    consumers = [_consumer(item, without_sub, room) for item in items]
    return Heartbeat(client_id_of(data, "clientID"), tuple(producers), tuple(consumers))


def parse_client_config(body: bytes) -> tuple[str, Subscription]:
    """Group and subscription of request 46 CHECK_CLIENT_CONFIG. Raises HeartbeatError, and FilterError
    when the subscription's expression cannot be read.
    """
    data = _object(body)
    subscription = data.get("subscriptionData")
    if not isinstance(subscription, dict):
        raise HeartbeatError("subscriptionData is missing")
    if is_tag_type(subscription.get("expressionType")):
        parse_tag_expression(_text(subscription, "subString"))
    return _name(data, "group"), parse_subscription(subscription)


def parse_subscription(data: Mapping[str, Any]) -> Subscription:
    """Read RocketMQ's SubscriptionData. Raises HeartbeatError.

    An expression of tags that cannot be read is kept without a filter: refusing the heartbeat would cut
    off the client's other groups, and the pull that would use it is answered with 23.
    """
    expression = _text(data, "subString")
    expression_type = _text(data, "expressionType") or EXPRESSION_TYPE_TAG
    tag_filter: TagFilter | None = None
    if is_tag_type(expression_type):
        try:
            tag_filter = parse_tag_expression(expression)
        except FilterError:
            tag_filter = None
    return Subscription(
        topic=_name(data, "topic"),
        expression=expression,
        expression_type=expression_type,
        version_ms=version_ms(_whole_number(data.get("subVersion", 0), "subVersion")),
        filter=tag_filter,
        is_class_filter=data.get("classFilterMode") is True,
    )


def version_ms(version: int) -> int:
    """A subscription's version in ms, so that Go's nanoseconds and the others' milliseconds can be
    compared.
    """
    return version // 1_000_000 if version > _NANOSECOND_VERSIONS_FROM else version


def client_id_of(data: Mapping[str, Any], key: str) -> str:
    """The client id under `key`. Raises HeartbeatError."""
    client_id = data.get(key)
    if not isinstance(client_id, str) or not client_id or len(client_id) > CLIENT_ID_CHARS_MAX:
        raise HeartbeatError(f"{key} is not a text of 1 to {CLIENT_ID_CHARS_MAX} characters")
    return client_id


@dataclass(slots=True)
class _Room:
    """What the subscriptions of one heartbeat may still have."""

    subscriptions: int = SUBSCRIPTIONS_MAX
    expressions_chars: int = EXPRESSIONS_CHARS_MAX

    def take(self, subscription: Mapping[str, Any]) -> Mapping[str, Any]:
        """Raises HeartbeatError when there is none for it."""
        self.subscriptions -= 1
        self.expressions_chars -= len(_text(subscription, "subString"))
        if self.subscriptions < 0:
            raise HeartbeatError(f"more than {SUBSCRIPTIONS_MAX} subscriptions")
        if self.expressions_chars < 0:
            raise HeartbeatError(f"subscriptions with more than {EXPRESSIONS_CHARS_MAX} characters")
        return subscription


def _consumer(data: Mapping[str, Any], without_sub: bool, room: _Room) -> ConsumerBeat:
    subscriptions: tuple[Subscription, ...] | None = None
    if not without_sub:
        items = _objects(data, "subscriptionDataSet", SUBSCRIPTIONS_MAX)
        subscriptions = tuple(parse_subscription(room.take(item)) for item in items)
    return ConsumerBeat(
        group=_name(data, "groupName"),
        consume_type=_enum(data, "consumeType", ConsumeType.CONSUME_PASSIVELY),
        message_model=_enum(data, "messageModel", MessageModel.CLUSTERING),
        consume_from_where=_enum(data, "consumeFromWhere", ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET),
        subscriptions=subscriptions,
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = loads_request(body)
    except FastjsonError as error:
        raise HeartbeatError(f"the body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise HeartbeatError("the body is not a JSON object")
    return data


def _objects(data: Mapping[str, Any], key: str, most: int) -> Iterator[dict[str, Any]]:
    items = data.get(key)
    if items is None:
        return
    if not isinstance(items, list) or len(items) > most:
        raise HeartbeatError(f"{key} is not a list of at most {most}")
    for item in items:
        if not isinstance(item, dict):
            raise HeartbeatError(f"{key} holds something other than objects")
        yield item


def _name(data: Mapping[str, Any], key: str) -> str:
    name = data.get(key)
    if not isinstance(name, str) or not name or len(name) > _NAME_CHARS_MAX:
        raise HeartbeatError(f"{key} is not a text of 1 to {_NAME_CHARS_MAX} characters")
    return name


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise HeartbeatError(f"{key} is not a text")
    return value


def _whole_number(value: object, key: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        return int(value)
    raise HeartbeatError(f"{key} is not a whole number")


E = TypeVar("E", bound=Enum)


def _enum(data: Mapping[str, Any], key: str, default: E) -> E:
    """An enum by its name, or by its ordinal as a number or a text; the default when the key is missing."""
    value = data.get(key)
    if value is None:
        return default
    kind = type(default)
    if isinstance(value, str) and value.upper() in kind.__members__:
        return kind[value.upper()]
    try:
        return kind(_whole_number(value, key))
    except ValueError:
        raise HeartbeatError(f"{key} {value!r} is not one of {', '.join(kind.__members__)}") from None
