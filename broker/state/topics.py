"""Topic configurations: what one is, which names are good, and the topics every broker has from its start.

Wire and file form are RocketMQ's TopicConfig JSON (attributes, order, perm, readQueueNums, …).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from broker.config import BrokerConfig
from broker.timer.scheduling import LEVELS_MAX, SCHEDULE_TOPIC, TIMER_TOPIC
from commitlog.dispatch import STATE_TOPIC as STATE_TOPIC
from remoting.route import DEFAULT_TOPIC
from remoting.slices import Steps
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX, topic_name_error

PERM_INHERIT = 1
PERM_WRITE = 2
PERM_READ = 4
PERM_READ_WRITE = PERM_READ | PERM_WRITE
PERM_MAX = 15
QUEUE_NUMS_MAX = 65_536
_ROWS_PER_STEP = 100
QUEUE_NUMS_ASKED_MAX = 4_096
"""That a request may give to a topic. Requests about all queues of a topic are handled in one piece."""
ATTRIBUTES_MAX = 64
CONSISTENCY_ATTRIBUTE: Final = "read.consistency"
LINEARIZABLE: Final = "linearizable"
"""As the value of CONSISTENCY_ATTRIBUTE; every other one, or none, is for ordinary reads."""

SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SYSTEM_PREFIX = "rmq_sys_"
LEDGERMQ_PREFIX = "rmq_sys_LEDGERMQ_"

NOT_ALLOWED_TO_SEND = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics no client may send to: TopicValidator's not-allowed set, and the one that only we can read."""
SYSTEM_TOPICS = NOT_ALLOWED_TO_SEND | {DEFAULT_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
"""Topics no client may create or delete, in addition to every name that begins with `rmq_sys_`."""


class ConfigFormatError(ValueError):
    """A topic or group configuration from outside cannot be used; the text names the field."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """RocketMQ's version of a table: two are the same when all three fields are. `timestamp_ms` and `counter`
    come from the log, so that every node of the group has the same ones; the term is added when it is shown.
    """

    counter: int = 0
    timestamp_ms: int = 0

    def next(self, timestamp_ms: int) -> "DataVersion":
        return DataVersion(self.counter + 1, timestamp_ms)

    def to_json(self, state_version: int = 0) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": state_version, "timestamp": self.timestamp_ms}


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """One topic on this broker (TopicConfig.java)."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    is_ordered: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    is_read_linearizable: bool = field(init=False, repr=False, compare=False)
    """Whether all reads are linearizable that do not ask for another consistency; known before each pull."""

    def __post_init__(self) -> None:
        is_linearizable = self.attributes.get(CONSISTENCY_ATTRIBUTE) == LINEARIZABLE
        object.__setattr__(self, "is_read_linearizable", is_linearizable)

    @property
    def queue_nums(self) -> int:
        """Queue ids a send may name are below this."""
        return max(self.read_queue_nums, self.write_queue_nums)

    def to_json(self) -> dict[str, Any]:
        return {
            "attributes": dict(self.attributes),
            "order": self.is_ordered,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TopicConfig":
        """Read the wire form. Raises ConfigFormatError."""
        name = data.get("topicName") if isinstance(data, dict) else None
        if not isinstance(name, str):
            raise ConfigFormatError("topicName is missing")
        config = cls(
            name=name,
            **_numbers(data),
            topic_filter_type=str(data.get("topicFilterType", "SINGLE_TAG")),
            is_ordered=data.get("order") is True,
            attributes=_attributes(data.get("attributes")),
        )
        check_topic_config(config)
        return config


def check_topic_config(config: TopicConfig) -> None:
    """Raises ConfigFormatError that names the field out of bounds."""
    error = topic_name_error(config.name)
    if error is not None:
        raise ConfigFormatError(error)
    for label, value in (
        ("readQueueNums", config.read_queue_nums),
        ("writeQueueNums", config.write_queue_nums),
    ):
        if not 0 <= value <= QUEUE_NUMS_MAX:
            raise ConfigFormatError(f"{label} {value} is not between 0 and {QUEUE_NUMS_MAX}")
    if len(config.attributes) > ATTRIBUTES_MAX:
        raise ConfigFormatError(f"attributes is not a table of at most {ATTRIBUTES_MAX} texts")
    if not 0 <= config.perm <= PERM_MAX:
        raise ConfigFormatError(f"perm {config.perm} is not between 0 and {PERM_MAX}")
    if config.topic_filter_type not in ("SINGLE_TAG", "MULTI_TAG"):
        raise ConfigFormatError(
            f"topicFilterType '{config.topic_filter_type}' is not SINGLE_TAG or MULTI_TAG"
        )


def asked_queues_error(*queue_nums: int) -> str | None:
    """Why a request may not ask for so many queues of one topic, or None if it may."""
    most = max(queue_nums)
    if most <= QUEUE_NUMS_ASKED_MAX:
        return None
    return f"{most} queues of one topic are too many: {QUEUE_NUMS_ASKED_MAX} are possible"


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_PREFIX)


def may_send_to(name: str) -> bool:
    return name not in NOT_ALLOWED_TO_SEND and not name.startswith(LEDGERMQ_PREFIX)


def inherited_topic(
    name: str, template: TopicConfig | None, queue_nums: int, topic_sys_flag: int = 0
) -> TopicConfig | None:
    """The topic a send creates from `template` (createTopicInSendMessageMethod); None when the template is
    missing or does not let others inherit from it.
    """
    if template is None or not template.perm & PERM_INHERIT:
        return None
    count = max(0, min(queue_nums, template.write_queue_nums))
    return TopicConfig(
        name,
        read_queue_nums=count,
        write_queue_nums=count,
        perm=template.perm & ~PERM_INHERIT,
        topic_filter_type=template.topic_filter_type,
        topic_sys_flag=topic_sys_flag,
    )


def retry_topic(group: str, queue_nums: int = 1) -> TopicConfig:
    return TopicConfig(RETRY_PREFIX + group, queue_nums, queue_nums)


def dlq_topic(group: str) -> TopicConfig:
    return TopicConfig(DLQ_PREFIX + group, 1, 1)


def static_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """The topics of TopicConfigManager.init: there from the start, alike on every node, never in the log."""
    cluster_perm = PERM_INHERIT | (PERM_READ_WRITE if config.cluster_topic_enable else 0)
    broker_perm = PERM_INHERIT | (PERM_READ_WRITE if config.broker_topic_enable else 0)
    levels = max(18, len(config.delay_levels_ms))
    assert levels <= LEVELS_MAX, f"{levels} delay levels"
    topics = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1),
        TopicConfig(BENCHMARK_TOPIC, 1024, 1024),
        TopicConfig(config.broker_cluster_name, 16, 16, cluster_perm),
        TopicConfig(config.broker_name, 1, 1, broker_perm),
        TopicConfig(OFFSET_MOVED_TOPIC, 1, 1),
        TopicConfig(SCHEDULE_TOPIC, levels, levels),
        TopicConfig(f"{config.broker_cluster_name}_REPLY_TOPIC", 1, 1),
        TopicConfig(HALF_TOPIC, 1, 1),
        TopicConfig(OP_HALF_TOPIC, 1, 1),
        TopicConfig(TIMER_TOPIC, 1, 1),
    ]
    if config.trace_topic_enable:
        topics.append(TopicConfig(TRACE_TOPIC, 1, 1))
    if config.auto_create_topic_enable:
        nums = config.default_topic_queue_nums
        topics.append(TopicConfig(DEFAULT_TOPIC, nums, nums, PERM_READ_WRITE | PERM_INHERIT))
    return {topic.name: topic for topic in topics}


_NUMBERS = (
    ("read_queue_nums", "readQueueNums", 16),
    ("write_queue_nums", "writeQueueNums", 16),
    ("perm", "perm", PERM_READ_WRITE),
    ("topic_sys_flag", "topicSysFlag", 0),
)
"""The field, its key in JSON, and its default."""


def _numbers(data: Mapping[str, Any]) -> dict[str, int]:
    numbers = {field_name: data.get(key, default) for field_name, key, default in _NUMBERS}
    for field_name, key, _ in _NUMBERS:
        if type(numbers[field_name]) is not int:
            raise ConfigFormatError(f"{key} is not a whole number")
    return numbers


def _attributes(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigFormatError("attributes is not a table of texts")
    return {str(key): str(text) for key, text in value.items()}


class EncodedTopics:
    """RocketMQ's topicConfigTable as JSON. Each topic's row is encoded once, and again only when the topic's
    configuration is another object: a broker may have thousands of topics, and most changes are of one.
    """

    def __init__(self) -> None:
        self._rows: dict[str, tuple[TopicConfig, bytes]] = {}

    def clear(self) -> None:
        """Encode every row again, since what `table` is given as `shown` returns other values now."""
        self._rows.clear()

    def table(
        self,
        topics: Mapping[str, TopicConfig],
        shown: Callable[[TopicConfig], TopicConfig] = lambda topic: topic,
    ) -> bytes:
        """A JSON object by name; `shown` makes of a topic the configuration that its row has."""
        known = self._rows
        self._rows = {
            name: row
            if (row := known.get(name)) is not None and row[0] is topic
            else (topic, b"%s:%s" % (orjson.dumps(name), orjson.dumps(shown(topic).to_json())))
            for name, topic in topics.items()
        }
        return b"{%s}" % b",".join([row for _, row in self._rows.values()])

    def prepare(self, topics: Mapping[str, TopicConfig]) -> Steps[None]:
        """Encode what `table` of these topics would have to, as steps of long work."""
        known = self._rows
        for number, (name, topic) in enumerate(list(topics.items())):
            row = known.get(name)
            if row is None or row[0] is not topic:
                known[name] = topic, b"%s:%s" % (orjson.dumps(name), orjson.dumps(topic.to_json()))
            if not number % _ROWS_PER_STEP:
                yield
