"""What a consumer wants of which topics, and how it tells the brokers: its part of a heartbeat. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ledgermq.client.errors import WrongSubscriptionError
from ledgermq.client.messages import ReceivedMessage
from remoting.tag_filters import (
    EXPRESSION_TYPE_SQL92,
    EXPRESSION_TYPE_TAG,
    SUB_ALL,
    FilterError,
    parse_tag_expression,
)
from remoting.topic_names import topic_name_error

GROUP_CHARS_MAX: Final = 120


@dataclass(frozen=True, slots=True)
class Sql:
    """An SQL92 expression over properties, as `amount > 100 AND region IN ('EU', 'UK')`. Stock brokers need
    `enablePropertyFilter=true` for it.
    """

    expression: str


Topics = str | Sequence[str] | Mapping[str, str | Sql]
"""A topic, several, or topics with what is wanted of each: tags (`A || B`, `*` for all) or an `Sql`."""


class ConsumeType(Enum):
    """How brokers list a consumer."""

    PULL = "CONSUME_ACTIVELY"
    PUSH = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


@dataclass(frozen=True, slots=True)
class Subscription:
    """`tags`: those wanted, none for all; empty for an SQL92 expression, which the broker evaluates."""

    topic: str
    expression: str
    expression_type: str
    version_ms: int
    tags: frozenset[str]
    codes: tuple[int, ...]

    def wants(self, message: ReceivedMessage) -> bool:
        """Brokers compare hashes of tags only, so each message is compared once more."""
        return not self.tags or message.tag in self.tags

    def to_json(self) -> dict[str, Any]:
        """RocketMQ's SubscriptionData."""
        return {
            "classFilterMode": False,
            "codeSet": list(self.codes),
            "expressionType": self.expression_type,
            "subString": self.expression,
            "subVersion": self.version_ms,
            "tagsSet": sorted(self.tags),
            "topic": self.topic,
        }


def subscription_of(topic: str, wanted: str | Sql, version_ms: int) -> Subscription:
    """Raises WrongSubscriptionError."""
    problem = topic_name_error(topic)
    if problem is not None:
        raise WrongSubscriptionError(problem)
    if isinstance(wanted, Sql):
        if not wanted.expression.strip():
            raise WrongSubscriptionError(f"the expression for {topic} is empty")
        return Subscription(topic, wanted.expression, EXPRESSION_TYPE_SQL92, version_ms, frozenset(), ())
    try:
        tags = parse_tag_expression(wanted)
    except FilterError as error:
        raise WrongSubscriptionError(f"the expression for {topic}: {error}") from error
    codes = tuple(sorted(tags.codes or ()))
    return Subscription(topic, tags.expression, EXPRESSION_TYPE_TAG, version_ms, frozenset(tags.tags), codes)


def subscriptions_of(topics: Topics, version_ms: int) -> dict[str, Subscription]:
    """By topic. version_ms: now; brokers let the newer of two subscriptions count.

    Raises WrongSubscriptionError.
    """
    if isinstance(topics, str):
        topics = [topics]
    wanted = topics if isinstance(topics, Mapping) else dict.fromkeys(topics, SUB_ALL)
    if not wanted:
        raise WrongSubscriptionError("a consumer needs a topic")
    return {topic: subscription_of(topic, each, version_ms) for topic, each in wanted.items()}


def check_group(group: str) -> None:
    """Raises WrongSubscriptionError."""
    if not group or len(group) > GROUP_CHARS_MAX or topic_name_error(group) is not None:
        raise WrongSubscriptionError(
            f"a group has 1 to {GROUP_CHARS_MAX} letters, digits and signs of %|_-; {group[:40]!r} does not"
        )


def consumer_part(
    group: str,
    kind: ConsumeType,
    subscriptions: Iterable[Subscription],
    *,
    is_broadcast: bool = False,
    consume_from: str = "CONSUME_FROM_LAST_OFFSET",
) -> dict[str, Any]:
    """The consumer's part of a heartbeat."""
    row = {
        "consumeFromWhere": consume_from,
        "consumeType": kind.value,
        "groupName": group,
        "messageModel": "BROADCASTING" if is_broadcast else "CLUSTERING",
        "subscriptionDataSet": [each.to_json() for each in subscriptions],
        "unitMode": False,
    }
    return {"consumerDataSet": [row]}
