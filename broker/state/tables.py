"""The tables that every node of a group builds alike from the log: topics, groups, consumer and delay
offsets, queue locks, and the progress of sequenced writers.

Pure: the same changes with the same timestamps, in the same order, give the same tables on every node. No
clock here.

The bounds of the replicated tables. The leader checks them before it proposes a change. Every node applies
what is in the log, also where its own configuration has lower bounds.
"""

from collections.abc import Iterator, Mapping
from operator import index
from typing import Any, Final

from broker.config import BrokerConfig
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    EndWriter,
    InvalidChangeError,
    LockQueues,
    PutGroup,
    PutSettings,
    PutTopic,
    SetDelayOffset,
    SetRequestMode,
    TrimLog,
    TrimQueues,
)
from broker.state.groups import SubscriptionGroupConfig
from broker.state.locks import QUEUE_LOCKS_MAX, QueueLocks
from broker.state.offsets import OffsetTable
from broker.state.request_modes import REQUEST_MODES_MAX, RequestModes
from broker.state.resets import PendingResets
from broker.state.topics import DataVersion, TopicConfig
from broker.state.writers import WriterTable
from commitlog.sequences import writer_key

SHOWN_IN_ROUTES: Final = frozenset({"autoCreateTopicEnable", "brokerPermission"})
"""Settings that change the routes of name servers, so they also raise the topics' data version: name servers
accept topics only with a changed version.
"""
DELETED_TOPICS_MAX: Final = 100_000
"""Deleted topics that are remembered while the log may hold their messages; beyond that the earliest is
dropped. Not configurable: nodes with different values would hold different topics.
"""


NO_POSITION: Final = -1


class StateTables:
    """The tables and what a change does to them. The static topics and groups of the configuration are part
    of the tables, but neither of the log nor of the snapshot.
    """

    def __init__(
        self,
        static_topics: Mapping[str, TopicConfig],
        static_groups: Mapping[str, SubscriptionGroupConfig],
    ) -> None:
        self.static_topics = static_topics
        self.static_groups = static_groups
        self.topics: dict[str, TopicConfig] = dict(static_topics)
        self.groups: dict[str, SubscriptionGroupConfig] = dict(static_groups)
        self.offsets = OffsetTable()
        self.resets = PendingResets()
        self.delay_offsets: dict[int, int] = {}
        self.settings: dict[str, str] = {}
        self.writers = WriterTable()
        self.trim_position = 0
        """The log's files that end here or before may be deleted."""
        self.first_shown: dict[str, dict[int, int]] = {}
        """Topic → queue → the first offset that is shown, where a topic keeps messages for its own time."""
        self.deleted_at: dict[str, int] = {}
        """Topic → position of the record that deleted it last: messages before that position do not belong to
        the topic any more. In order of deletion, the latest last.
        """
        self.locks = QueueLocks()
        self.request_modes = RequestModes()
        self.topics_version = DataVersion()
        self.groups_version = DataVersion()

    def apply(self, change: Change, timestamp_ms: int, position: int = 0) -> None:
        """Apply one committed change; `timestamp_ms` is the store time of its record, `position` the record's
        position in the log (bytes).
        """
        match change:
            case PutTopic(config):
                self.topics[config.name] = config
                self.topics_version = self.topics_version.next(timestamp_ms)
            case DeleteTopic(name, has_messages_gone):
                self._delete_topic(name, timestamp_ms)
                self._remember_deleted(name, position if has_messages_gone else NO_POSITION)
            case PutGroup(group_config):
                self.groups[group_config.name] = group_config
                self.groups_version = self.groups_version.next(timestamp_ms)
            case DeleteGroup(name, clean_offsets):
                self._delete_group(name, clean_offsets, timestamp_ms)
            case CommitOffsets():
                self._commit(change, timestamp_ms)
            case SetDelayOffset(level, offset):
                self.delay_offsets[level] = offset
            case DropOffsets(group, topic):
                self.offsets.drop(group, topic)
                self.resets.drop(group, topic)
            case TrimLog(trim_position):
                self._trim(trim_position)
            case TrimQueues(topic, offsets):
                self._hide(topic, offsets)
            case EndWriter(writer, partitions):
                self.writers.end(writer_key(writer, partition) for partition in partitions)
            case PutSettings(values):
                self._put_settings(values, timestamp_ms)
            case SetRequestMode(mode):
                self.request_modes.put(mode)
            case LockQueues(group, client_id, queues, is_held):
                (self.locks.put if is_held else self.locks.drop)(group, client_id, queues)

    def _put_settings(self, values: Mapping[str, str], timestamp_ms: int) -> None:
        self.settings |= values
        if not SHOWN_IN_ROUTES.isdisjoint(values):
            self.topics_version = self.topics_version.next(timestamp_ms)

    def set_static_topics(self, static_topics: Mapping[str, TopicConfig]) -> None:
        """The configuration has these now. One that the log has changed since stays as it is."""
        for name, topic in self.static_topics.items():
            if name not in static_topics and self.topics.get(name) == topic:
                del self.topics[name]
        self.topics.update(item for item in static_topics.items() if item[0] not in self.topics)
        self.static_topics = static_topics

    def _commit(self, change: CommitOffsets, timestamp_ms: int) -> None:
        self.offsets.commit(change.group, change.topic, change.offsets)
        if change.is_reset:
            self.resets.put(change.group, change.topic, change.offsets, timestamp_ms)
        elif self.resets:
            self.resets.end(change.group, change.topic, change.offsets)

    def _trim(self, position: int) -> None:
        """What was deleted before is going with the files."""
        self.trim_position = max(self.trim_position, position)
        for topic in [topic for topic, at in self.deleted_at.items() if at < position]:
            del self.deleted_at[topic]

    def _remember_deleted(self, topic: str, position: int) -> None:
        if topic in self.static_topics or position == NO_POSITION:
            return
        self.deleted_at.pop(topic, None)
        if len(self.deleted_at) >= DELETED_TOPICS_MAX:
            del self.deleted_at[next(iter(self.deleted_at))]
        self.deleted_at[topic] = position

    def _hide(self, topic: str, offsets: Mapping[int, int]) -> None:
        if topic not in self.topics:
            return
        known = self.first_shown.get(topic, {})
        self.first_shown[topic] = known | {q: max(known.get(q, 0), offset) for q, offset in offsets.items()}

    def _delete_topic(self, name: str, timestamp_ms: int) -> None:
        if name in self.static_topics:
            return
        self.first_shown.pop(name, None)
        self.locks.drop_topic(name)
        self.request_modes.drop_topic(name)
        self.offsets.drop_topic(name)  # a late consumer also commits to a deleted topic
        self.resets.drop(topic=name)
        if self.topics.pop(name, None) is not None:
            self.topics_version = self.topics_version.next(timestamp_ms)

    def _delete_group(self, name: str, clean_offsets: bool, timestamp_ms: int) -> None:
        if clean_offsets:
            self.offsets.drop_group(name)
            self.resets.drop(group=name)
        self.locks.drop_group(name)
        self.request_modes.drop_group(name)
        if name not in self.static_groups and self.groups.pop(name, None) is not None:
            self.groups_version = self.groups_version.next(timestamp_ms)

    def copy(self) -> "StateTables":
        """A copy of the current tables that later changes do not affect. Cheap: both share rows until they
        change.
        """
        other = StateTables(self.static_topics, self.static_groups)
        other.topics, other.groups = dict(self.topics), dict(self.groups)
        other.offsets, other.resets = self.offsets.copy(), self.resets.copy()
        other.delay_offsets = dict(self.delay_offsets)
        other.settings = dict(self.settings)
        other.writers = self.writers.copy()
        other.trim_position, other.first_shown = self.trim_position, dict(self.first_shown)
        other.deleted_at = dict(self.deleted_at)
        other.locks = self.locks.copy()
        other.request_modes = self.request_modes.copy()
        other.topics_version, other.groups_version = self.topics_version, self.groups_version
        return other

    def rows(self) -> dict[str, Iterator[Any]]:
        """Everything the log made, for a snapshot."""
        return {
            "topics": (
                topic.to_json()
                for name, topic in self.topics.items()
                if topic != self.static_topics.get(name)
            ),
            "groups": (
                group.to_json()
                for name, group in self.groups.items()
                if group != self.static_groups.get(name)
            ),
            "offsets": self.offsets.rows(),
            "resets": self.resets.rows(),
            "delayOffsets": iter(sorted(self.delay_offsets.items())),
            "settings": iter(sorted(self.settings.items())),
            "writers": self.writers.rows(),
            "trimPosition": iter((self.trim_position,)),
            "firstShown": ([topic, sorted(row.items())] for topic, row in self.first_shown.items()),
            "deletedAt": ([topic, position] for topic, position in self.deleted_at.items()),
            "writersTimes": iter(self.writers.times()),
            "locks": self.locks.rows(),
            "requestModes": self.request_modes.rows(),
            "topicsVersion": iter((self.topics_version.counter, self.topics_version.timestamp_ms)),
            "groupsVersion": iter((self.groups_version.counter, self.groups_version.timestamp_ms)),
        }

    def to_json(self) -> dict[str, Any]:
        """The same, all at once."""
        return {name: list(rows) for name, rows in self.rows().items()}

    def load_json(self, data: Mapping[str, Any]) -> None:
        """Replace the tables by those of a snapshot. Raises ValueError, KeyError or TypeError when it is no
        snapshot.
        """
        topics = [TopicConfig.from_json(row) for row in data["topics"]]
        groups = [SubscriptionGroupConfig.from_json(row) for row in data["groups"]]
        offsets = OffsetTable.from_json(data["offsets"])
        resets = PendingResets.from_json(data.get("resets", []))  # older snapshots had none
        delay_offsets = {index(level): index(offset) for level, offset in data["delayOffsets"]}
        [trim_position] = data.get("trimPosition", [0])
        first_shown = {
            str(topic): {index(q): index(offset) for q, offset in row}
            for topic, row in data.get("firstShown", [])
        }
        # older snapshots knew of no writers
        writers = WriterTable.from_json(data.get("writers", []), data.get("writersTimes"))
        settings = {str(key): str(value) for key, value in data.get("settings", [])}  # nor of these
        deleted_at = {str(topic): index(position) for topic, position in data.get("deletedAt", [])}
        locks = QueueLocks.from_json(data.get("locks", []))
        request_modes = RequestModes.from_rows(data.get("requestModes", []))
        topics_version = DataVersion(*map(index, data["topicsVersion"]))
        groups_version = DataVersion(*map(index, data["groupsVersion"]))
        self.topics = {**self.static_topics, **{topic.name: topic for topic in topics}}
        self.groups = {**self.static_groups, **{group.name: group for group in groups}}
        self.offsets, self.resets = offsets, resets
        self.delay_offsets = delay_offsets
        self.settings = settings
        self.writers = writers
        self.trim_position, self.first_shown = index(trim_position), first_shown
        self.deleted_at = deleted_at
        self.locks = locks
        self.request_modes = request_modes
        self.topics_version = topics_version
        self.groups_version = groups_version


def check_room(change: Change, tables: StateTables, config: BrokerConfig) -> None:
    """Raises InvalidChangeError where the change adds something to a table that is full."""
    match change:
        case PutTopic(topic) if topic.name not in tables.topics and len(tables.topics) >= config.topics_max:
            raise InvalidChangeError(f"there are topicsMax ({config.topics_max}) topics")
        case PutGroup(group) if group.name not in tables.groups and len(tables.groups) >= config.groups_max:
            raise InvalidChangeError(f"there are groupsMax ({config.groups_max}) groups")
        case CommitOffsets(group_name, topic_name, offsets):
            known = tables.offsets.queues(group_name, topic_name)
            new = sum(queue_id not in known for queue_id in offsets)
            if new and len(tables.offsets) + new > config.offsets_max:
                raise InvalidChangeError(f"there are offsetsMax ({config.offsets_max}) consumer offsets")
        case LockQueues(group_name, _, queues, True):
            keys = ((group_name, (topic, queue)) for topic, ids in queues.items() for queue in ids)
            if len(tables.locks) + sum(key not in tables.locks for key in keys) > QUEUE_LOCKS_MAX:
                raise InvalidChangeError(f"there are {QUEUE_LOCKS_MAX} locked queues")
        case SetRequestMode(mode) if tables.request_modes.get(mode.topic, mode.group) is None:
            if len(tables.request_modes) >= REQUEST_MODES_MAX:
                raise InvalidChangeError(f"there are {REQUEST_MODES_MAX} message request modes")
        case _:
            pass
