"""The options of the format `rocketmq` for reading. Pure. docs/spark.md describes each of them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.pulling import DEFAULT_GROUP
from rocketmq_spark.errors import OptionError
from rocketmq_spark.options import CONNECTION_OPTIONS, ConnectionOptions, OptionReader
from rocketmq_spark.source.offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    parse_assign_option,
    parse_offsets_option,
    parse_times_option,
)

SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
COMMON_OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    *SUBSCRIPTIONS,
    "requireBrokers",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "decompress",
    "tags",
    "groupId",
)
BATCH_OPTIONS: Final = (
    *COMMON_OPTIONS,
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "storeTimeSkew",
    "pushFilters",
)
STREAM_OPTIONS: Final = (
    *COMMON_OPTIONS,
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "commitOffsets",
)
PATH_HINT: Final = {"path": "names a folder: topics are named by subscribe, subscribePattern or assign"}
TRIGGER_DELAY_MS: Final = 15 * 60_000
STORE_TIME_SKEW_MS: Final = 60_000


class Missing(Enum):
    """What to do in a queue without a message at or after a starting time."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or to end. Exactly one of the four values is set; `of_all` may be EARLIEST or LATEST.

    of_all: for every queue. by_queue: offsets, EARLIEST or LATEST. time_ms: the first message stored then or
    later, of every queue. times_ms: the same by queue. option: the option that set it.
    """

    option: str
    of_all: int | None = None
    by_queue: Offsets | None = None
    time_ms: int | None = None
    times_ms: Offsets | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which queues: of topics, of the topics that a pattern matches wholly, or these.

    brokers: names of brokers that must have a leader before the query begins.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    queues: tuple[MessageQueue, ...] = ()
    brokers: tuple[str, ...] = ()

    def covers(self, queue: MessageQueue) -> bool:
        """Whether this queue can belong to the subscription."""
        if self.queues:
            return queue in self.queues
        if self.pattern is not None:
            return self.pattern.fullmatch(queue.topic) is not None
        return queue.topic in self.topics


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options that batch and stream have in common."""

    connection: ConnectionOptions
    subscription: Subscription
    start: Position
    missing: Missing
    partitions_min: int
    partitions_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    decompress: bool
    tags: frozenset[str] | None
    group: str


@dataclass(frozen=True, slots=True)
class BatchOptions:
    common: SourceOptions
    end: Position
    store_time_skew_ms: int
    push_filters: bool


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """`commit_group` is the consumer group to which progress is committed, None without one."""

    common: SourceOptions
    offsets_max: int | None
    offsets_min: int | None
    trigger_delay_ms: int
    bytes_max: int | None
    commit_group: str | None


def batch_options(options: Mapping[str, str]) -> BatchOptions:
    """Read the options of a batch query. Raises OptionError."""
    hints = _hints(STREAM_OPTIONS, "is for streaming queries only")
    reader = OptionReader(options, BATCH_OPTIONS, "reading rocketmq in batch", hints)
    common = _common(reader, EARLIEST)
    end = _position(reader, "ending", LATEST)
    for position, forbidden, word in ((common.start, LATEST, "latest"), (end, EARLIEST, "earliest")):
        offsets = position.by_queue or {}
        if position.of_all == forbidden or forbidden in offsets.values():
            raise OptionError(f"option {position.option} of a batch query cannot be {word} ({forbidden})")
    return BatchOptions(
        common,
        end,
        reader.duration_ms("storeTimeSkew", STORE_TIME_SKEW_MS),
        reader.boolean("pushFilters", False),
    )


def stream_options(options: Mapping[str, str]) -> StreamOptions:
    """Read the options of a streaming query. Raises OptionError."""
    hints = _hints(BATCH_OPTIONS, "is for batch queries only")
    reader = OptionReader(options, STREAM_OPTIONS, "reading rocketmq as a stream", hints)
    least = reader.integer("minOffsetsPerTrigger", least=1)
    most = reader.integer("maxOffsetsPerTrigger", least=1)
    if least is not None and most is not None and least > most:
        raise OptionError(f"option minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger {most}")
    group = reader.text("groupId")
    delay_ms = reader.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MS)
    if least is None and reader.text("maxTriggerDelay") is not None:
        raise OptionError("option maxTriggerDelay changes nothing without minOffsetsPerTrigger")
    commits = reader.boolean("commitOffsets", group is not None)
    if commits and group is None:
        raise OptionError("option commitOffsets needs groupId, the consumer group to commit for")
    return StreamOptions(
        _common(reader, LATEST),
        most,
        least,
        delay_ms,
        reader.integer("maxBytesPerTrigger", least=1),
        group if commits else None,
    )


def _hints(others: Iterable[str], hint: str) -> dict[str, str]:
    """Hints for options of the other kind of query, and for `load("Orders")`."""
    return PATH_HINT | {name: hint for name in others if name not in COMMON_OPTIONS}


def _common(reader: OptionReader, default: int) -> SourceOptions:
    start = _position(reader, "starting", default)
    parts_min, parts_max = _partitions(reader)
    return SourceOptions(
        connection=reader.connection(),
        subscription=replace(_subscription(reader), brokers=_names(reader.text("requireBrokers"))),
        start=start,
        missing=_missing(reader, start),
        partitions_min=parts_min,
        partitions_max=parts_max,
        fail_on_data_loss=reader.boolean("failOnDataLoss", True),
        include_headers=reader.boolean("includeHeaders", False),
        decompress=reader.boolean("decompress", True),
        tags=_tags(reader),
        group=reader.text("groupId") or DEFAULT_GROUP,
    )


def _partitions(reader: OptionReader) -> tuple[int, int | None]:
    """The least and the most tasks of a query or batch; None: decided by the number of messages."""
    least = reader.integer("minPartitions", 0) or 0
    most = reader.integer("maxPartitions", least=1)
    if most is not None and least > most:
        raise OptionError(f"option minPartitions is {least}, more than maxPartitions {most}")
    return least, most


def _missing(reader: OptionReader, start: Position) -> Missing:
    name = "startingOffsetsByTimestampStrategy"
    strategy = Missing(reader.choice(name, [kind.value for kind in Missing], "error"))
    if reader.text(name) is not None and start.time_ms is None and start.times_ms is None:
        raise OptionError(
            f"option {name} changes nothing without startingTimestamp or startingOffsetsByTimestamp"
        )
    return strategy


def _subscription(reader: OptionReader) -> Subscription:
    given = [name for name in SUBSCRIPTIONS if reader.text(name) is not None]
    if len(given) != 1:
        raise OptionError(f"exactly one of {', '.join(SUBSCRIPTIONS)} is needed, {len(given)} are given")
    text = reader.required(given[0])
    if given[0] == "assign":
        return Subscription(queues=tuple(parse_assign_option("assign", text)))
    if given[0] == "subscribe":
        topics = _names(text)
        if not topics:
            raise OptionError("option subscribe names no topic")
        return Subscription(topics=topics)
    try:
        return Subscription(pattern=re.compile(text))
    except re.error as error:
        raise OptionError(f"option subscribePattern is no regular expression: {error}") from None


def _names(text: str | None) -> tuple[str, ...]:
    """Names separated by commas, sorted."""
    return tuple(sorted({name.strip() for name in (text or "").split(",") if name.strip()}))


def _position(reader: OptionReader, side: str, default: int) -> Position:
    """Where a query starts or ends; a time for all has precedence over times by queue, and these over
    offsets.
    """
    name = f"{side}Timestamp"
    time_ms = reader.integer(name)
    if time_ms is not None:
        return Position(name, time_ms=time_ms)
    name = f"{side}OffsetsByTimestamp"
    text = reader.text(name)
    if text is not None:
        return Position(name, times_ms=parse_times_option(name, text))
    name = f"{side}Offsets"
    text = reader.text(name)
    words = {None: default, "earliest": EARLIEST, "latest": LATEST}
    word = None if text is None else text.lower()
    if word in words:
        return Position(name, of_all=words[word])
    assert text is not None
    return Position(name, by_queue=parse_offsets_option(name, text))


def _tags(reader: OptionReader) -> frozenset[str] | None:
    """RocketMQ's expression: `TagA || TagB`; `*` is all."""
    text = reader.text("tags")
    if text is None or text == "*":
        return None
    found = frozenset(part.strip() for part in text.split("||") if part.strip())
    if not found:
        raise OptionError(f"option tags is {text!r}, must be such as TagA || TagB")
    return found
