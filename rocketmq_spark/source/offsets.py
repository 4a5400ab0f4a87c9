"""Offsets of queues as JSON, in options and in the checkpoint of a stream. Pure.

    {"Orders": {"broker-a:0": 17, "broker-a:1": 4}}

Topic, then broker name and queue id, then the offset of the next message to read. Options may say -2 for the
earliest and -1 for the latest. In a checkpoint topics and queues are sorted, so that equal offsets are
equal text; this form does not change.

The offsets of a stream that began at a time, or at its queues' ends, also contain that time:

    {"@start": {"storeTimestamp": 1769817600000}, "Orders": {"broker-a:0": 17}}

A key that is not a topic begins with @, which no topic name contains. Options may contain such keys too; they
are ignored there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import orjson

from remoting.client.routes import MessageQueue
from rocketmq_spark.errors import OptionError

EARLIEST: Final = -2
LATEST: Final = -1

NO_TOPIC: Final = "@"
START: Final = "@start"
START_TIME: Final = "storeTimestamp"

Offsets: TypeAlias = dict[MessageQueue, int]
OffsetJson: TypeAlias = dict[str, dict[str, int]]


def queue_key(queue: MessageQueue) -> str:
    """`broker-a:0`."""
    return f"{queue.broker_name}:{queue.queue_id}"


def parse_queue(topic: str, key: str) -> MessageQueue:
    """Read `broker-a:0`. Raises ValueError."""
    broker_name, _, queue_id = key.rpartition(":")
    if not broker_name or not queue_id.isdecimal():
        raise ValueError(f"{key!r} is not brokerName:queueId")
    return MessageQueue(topic, broker_name, int(queue_id))


def to_json(offsets: Mapping[MessageQueue, int], start_ms: int | None = None) -> OffsetJson:
    """The form of a checkpoint. start_ms: the store time that the stream began at, if it began at a time."""
    found: OffsetJson = {} if start_ms is None else {START: {START_TIME: start_ms}}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {})[queue_key(queue)] = offsets[queue]
    return found


def from_json(value: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Read the form of a checkpoint. Raises ValueError."""
    return {
        parse_queue(topic, key): int(offset)
        for topic, queues in value.items()
        if not topic.startswith(NO_TOPIC)
        for key, offset in queues.items()
    }


def start_time_ms(value: Mapping[str, Mapping[str, int]]) -> int | None:
    """The store time that the stream of this checkpoint began at, None when it began at offsets."""
    return value.get(START, {}).get(START_TIME)


def parse_offsets_option(name: str, text: str) -> Offsets:
    """Offsets per queue, as an option gives them; -2 and -1 stay. Raises OptionError naming the option."""
    return _parse(name, text, EARLIEST)


def parse_times_option(name: str, text: str) -> Offsets:
    """Milliseconds per queue, in the same form. Raises OptionError naming the option."""
    return _parse(name, text, 0)


def parse_assign_option(name: str, text: str) -> list[MessageQueue]:
    """`{"Orders": ["broker-a:0", "broker-a:1"]}`. Raises OptionError naming the option."""
    found = []
    for topic, keys in _load(name, text).items():
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise OptionError(f'option {name}: topic {topic} must have a list such as ["broker-a:0"]')
        found += [_queue(name, topic, key) for key in keys]
    if not found:
        raise OptionError(f"option {name} names no queue")
    return sorted(set(found))


def require_same_queues(name: str, given: Iterable[MessageQueue], subscribed: Iterable[MessageQueue]) -> None:
    """Every subscribed queue must be given and no other. Raises OptionError naming those that differ."""
    have, want = set(given), set(subscribed)
    problems = []
    if want - have:
        problems.append(f"does not define where to begin or end in {_listed(want - have)}")
    if have - want:
        problems.append(f"names {_listed(have - want)}, which is not subscribed or does not exist")
    if problems:
        raise OptionError(f"option {name} {' and '.join(problems)}")


def _listed(queues: Iterable[MessageQueue]) -> str:
    return ", ".join(str(queue) for queue in sorted(queues))


def _parse(name: str, text: str, least: int) -> Offsets:
    found: Offsets = {}
    for topic, queues in _load(name, text).items():
        if not isinstance(queues, dict):
            raise OptionError(
                f'option {name}: topic {topic} must have an object such as {{"broker-a:0": 17}}'
            )
        for key, number in queues.items():
            if type(number) is not int or number < least:
                raise OptionError(f"option {name}: {topic} {key} is {number!r}, must be a number >= {least}")
            found[_queue(name, topic, key)] = number
    return found


def _load(name: str, text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise OptionError(f"option {name} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"option {name} must be a JSON object by topic")
    return {topic: of_topic for topic, of_topic in value.items() if not topic.startswith(NO_TOPIC)}


def _queue(name: str, topic: str, key: str) -> MessageQueue:
    try:
        return parse_queue(topic, key)
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None
