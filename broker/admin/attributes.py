"""Attributes of topics and groups: their names, their valid values, and how requests change them
(AttributeUtil, AttributeParser, TopicAttributes, SubscriptionGroupAttributes).

A request names changes: "+key" with a value sets one, "-key" removes one. Attributes with unknown names,
which earlier versions accepted, can be removed, too.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.consume.read_choice import CONSISTENCIES_OF_TOPICS
from broker.responses import invalid
from broker.state.topics import CONSISTENCY_ATTRIBUTE
from broker.store.retention import RETENTION_ATTRIBUTE
from remoting.codes import ResponseCode
from remoting.errors import RequestError

ATTRIBUTES_CHARS_MAX: Final = 16 * 1024
MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
NO_LITE: Final = "lite topics are not supported"
_INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 20


class Attribute(NamedTuple):
    """`problem` returns the fault of a value as text, or None for a valid one."""

    problem: Callable[[str], str | None]
    is_changeable: bool = True


def _one_of(*values: str, **refused: str) -> Callable[[str], str | None]:
    def problem(value: str) -> str | None:
        if value in refused:
            return refused[value]
        return None if value in values else f"value is not in set: [{', '.join(values)}]"

    return problem


def _number(least: int, most: int) -> Callable[[str], str | None]:
    def problem(value: str) -> str | None:
        is_number = value.isascii() and value.removeprefix("-").isdigit() and len(value) <= _DIGITS_MAX
        if is_number and least <= int(value) <= most:
            return None
        return f"value is not in range({least}, {most})"

    return problem


def _no_lite_topics(value: str) -> str:
    return NO_LITE


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(
        _one_of("SimpleCQ", BatchCQ="queue.type BatchCQ is not supported: queues hold single messages"),
        is_changeable=False,
    ),
    "cleanup.policy": Attribute(
        _one_of("DELETE", COMPACTION="cleanup.policy COMPACTION is not supported: no topic is compacted"),
        is_changeable=False,
    ),
    "message.type": Attribute(_one_of(*MESSAGE_TYPES, LITE=NO_LITE)),
    "lite.topic.expiration": Attribute(_no_lite_topics),
    "reserve.time": Attribute(_number(-1, _INT64_MAX)),
    RETENTION_ATTRIBUTE: Attribute(_number(0, 10**15 - 1)),
    CONSISTENCY_ATTRIBUTE: Attribute(_one_of(*CONSISTENCIES_OF_TOPICS)),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(_number(0, 100)),
    **dict.fromkeys(
        (
            "lite.bind.topic",
            "lite.sub.model",
            "lite.sub.reset.offset.exclusive",
            "lite.sub.reset.offset.unsubscribe",
            "lite.sub.client.quota",
            "lite.sub.client.max.event.cnt",
            "lite.sub.wildcard",
        ),
        Attribute(_no_lite_topics),
    ),
}


def parse_changes(text: str) -> dict[str, str]:
    """The changes of RocketMQ's "+key=value,-key". Raises RequestError."""
    if len(text) > ATTRIBUTES_CHARS_MAX:
        raise invalid(f"attributes have more than {ATTRIBUTES_CHARS_MAX} characters")
    changes: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if key[0] != ("+" if equals else "-"):
            kind = "add/alter" if equals else "delete"
            raise _refused(f"{kind} attribute format is wrong: {key[:64]}")
        if key in changes:
            raise _refused(f"key duplication: {key[:64]}")
        changes[key] = value
    return changes


def altered(
    attributes: Mapping[str, Attribute], known: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """What there is after the changes; `known` is None for what is being created. Raises RequestError."""
    made = dict(known or {})
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise _refused("kv string format wrong.")
        if key in seen:
            raise _refused(f"alter duplication key. key: {key[:64]}")
        seen.add(key)
        if sign == "+":
            _check_value(attributes, key, value, is_there=known is not None)
            made[key] = value
        elif known is None:
            raise _refused(f"only add attribute is supported while creating topic. key: {key[:64]}")
        else:
            _check_end(attributes, sign, key, known)
            del made[key]
    return made


def _check_value(attributes: Mapping[str, Attribute], key: str, value: str, *, is_there: bool) -> None:
    attribute = attributes.get(key)
    if attribute is None:
        raise _refused(f"unsupported key: {key[:64]}")
    if is_there and not attribute.is_changeable:
        raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
    if (key, value) == ("message.type", "MIXED"):  # as RocketMQ's default enableMixedMessageType=false has it
        raise invalid("MIXED message type is not supported.")
    problem = attribute.problem(value)
    if problem is not None:
        raise _refused(problem)


def _check_end(attributes: Mapping[str, Attribute], sign: str, key: str, known: Mapping[str, str]) -> None:
    if sign != "-":
        raise _refused(f"wrong format key: {key[:64]}")
    if key not in known:
        raise _refused(f"attempt to delete a nonexistent key: {key[:64]}")
    if key in attributes and not attributes[key].is_changeable:
        raise _refused(f"attempt to update an unchangeable attribute. key: {key}")


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
