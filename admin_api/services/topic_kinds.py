"""What a topic's name says of it (TopicValidator and TopicConfigManager of RocketMQ). Pure."""

from collections.abc import Iterable
from typing import Final

from admin_api.schemas.topics import TopicKind

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
_SYSTEM_PREFIXES: Final = ("rmq_sys_", "RMQ_SYS_")
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"
_SYSTEM: Final = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)


class TopicKinds:
    """Every broker has a topic of its own name, one of its cluster's, and one for the cluster's replies."""

    def __init__(self, clusters: Iterable[str], broker_names: Iterable[str]) -> None:
        clusters = set(clusters)
        replies = {cluster + _REPLY_SUFFIX for cluster in clusters}
        self._own = _SYSTEM | clusters | replies | set(broker_names)

    def of(self, topic: str) -> TopicKind:
        if topic.startswith(RETRY_PREFIX):
            return TopicKind.RETRY
        if topic.startswith(DLQ_PREFIX):
            return TopicKind.DLQ
        is_system = topic in self._own or topic.startswith(_SYSTEM_PREFIXES)
        return TopicKind.SYSTEM if is_system else TopicKind.NORMAL
