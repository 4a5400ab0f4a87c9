"""Which topics are RocketMQ's own and none of a user's. Pure."""

from collections.abc import Collection
from typing import Final

from remoting.route import DEFAULT_TOPIC

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""RocketMQ's `TopicValidator`, 4.9 and 5.x together."""
_PREFIXES = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_")
_REPLY_SUFFIX = "_REPLY_TOPIC"


def is_system_topic(name: str, own_names: Collection[str] = ()) -> bool:
    """Whether the topic is RocketMQ's own, a retry or a dead-letter one.

    own_names: of clusters and brokers; each has a topic of its name, a cluster one for replies besides.
    """
    return (
        name in SYSTEM_TOPICS
        or name.startswith(_PREFIXES)
        or name in own_names
        or (name.endswith(_REPLY_SUFFIX) and name.removesuffix(_REPLY_SUFFIX) in own_names)
    )
