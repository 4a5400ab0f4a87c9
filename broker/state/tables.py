"""The tables that every node of a group builds alike from the log: topics, groups, consumer and delay
offsets, offset resets, queue locks, request modes, users and their rights, and the progress of sequenced
writers.

Pure: the same changes with the same timestamps, in the same order, give the same tables on every node. No
clock here.

The tables are bounded. The leader checks the bounds before it proposes a change. Every node applies what is
in the log, also where its own configuration has lower bounds.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import index
from typing import Any, Final, NamedTuple, TypeVar

from broker.config import BrokerConfig
from broker.state.access import USERS_MAX, AccessList, User
from broker.state.changes import (
    AccessChange,
    Change,
    CommitOffsets,
    DeleteAccessList,
    DeleteGroup,
    DeleteTopic,
    DeleteUser,
    DropOffsets,
    EndWriter,
    InvalidChangeError,
    LockQueues,
    PutAccessList,
    PutGroup,
    PutSettings,
    PutTopic,
    PutUser,
    SetDelayOffset,
    SetRequestMode,
    TrimLog,
    TrimQueues,
)
from broker.state.groups import RequestMode, SubscriptionGroupConfig
from broker.state.topics import DataVersion, TopicConfig
from broker.state.writers import WriterTable
from commitlog.sequences import writer_key
from remoting.slices import Steps

PAIRS_PER_STEP: Final = 2_000
T = TypeVar("T")


class OffsetTable:
    """The last committed offset of every queue a group has consumed. Changed only by records of the log."""

    __slots__ = ("_count", "_own", "_table")

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._count = 0
        self._own: set[tuple[str, str]] | None = None
        """The rows that no copy shares; None: all."""

    def __len__(self) -> int:
        """Number of (group, topic, queue) with an offset."""
        return self._count

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None when the group never committed one for the queue."""
        queues = self._table.get((topic, group))
        return None if queues is None else queues.get(queue_id)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Committed offset of every queue of the topic that the group has one for."""
        return self._table.get((topic, group), {})

    def topics_of(self, group: str) -> Steps[list[str]]:
        """Topics the group has committed offsets for, in alphabetical order; in steps, since all groups' are
        looked through.
        """
        found = []
        for number, (topic, owner) in enumerate(self.pairs()):
            if owner == group:
                found.append(topic)
            if not number % PAIRS_PER_STEP:
                yield
        return sorted(found)

    def groups_of(self, topic: str) -> Steps[list[str]]:
        """Groups that have committed offsets for the topic."""
        found = []
        for number, (name, group) in enumerate(self.pairs()):
            if name == topic:
                found.append(group)
            if not number % PAIRS_PER_STEP:
                yield
        return found

    def items(self) -> Iterator[tuple[str, str, Mapping[int, int]]]:
        """All (topic, group, offsets by queue)."""
        for (topic, group), queues in self._table.items():
            yield topic, group, queues

    def pairs(self) -> list[tuple[str, str]]:
        """All (topic, group) pairs at this moment, as a list that callers may read over several turns of the
        event loop.
        """
        return list(self._table)

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        key = (topic, group)
        queues = self._table.get(key, {})
        if not queues or (self._own is not None and key not in self._own):
            queues = self._table[key] = dict(queues)
            if self._own is not None:
                self._own.add(key)
        before = len(queues)
        queues.update(offsets)
        self._count += len(queues) - before

    def copy(self) -> "OffsetTable":
        """A copy of the current offsets. Both tables share each row until one of them changes it."""
        other = OffsetTable()
        other._table = dict(self._table)
        other._count = self._count
        self._own, other._own = set(), set()
        return other

    def drop_topic(self, topic: str) -> None:
        self._drop([key for key in self._table if key[0] == topic])

    def drop_group(self, group: str) -> None:
        self._drop([key for key in self._table if key[1] == group])

    def drop(self, group: str, topic: str) -> None:
        self._drop([key for key in ((topic, group),) if key in self._table])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            self._count -= len(self._table.pop(key))
            if self._own is not None:
                self._own.discard(key)

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot, one by one: there may be a million."""
        for (topic, group), queues in self._table.items():
            yield [topic, group, sorted(queues.items())]

    def to_json(self) -> list[list[Any]]:
        return list(self.rows())

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> "OffsetTable":
        table = cls()
        for topic, group, queues in rows:
            offsets = {index(queue_id): index(offset) for queue_id, offset in queues}
            table.commit(str(group), str(topic), offsets)
        return table


PENDING_RESETS_MAX: Final = 100_000
"""Most (group, topic, queue) rows; beyond them the oldest are dropped. Not configurable: nodes with different
values would hold different rows.
"""
HEARD_OF_MS: Final = 600_000
"""After this time every running consumer has followed a reset: a node that did not make it, or finds it in
the log when it starts, sends no consumer there any more.
"""

_Key = tuple[str, str, int]
"""Group, topic and queue id."""


class PendingReset(NamedTuple):
    offset: int
    stored_ms: int
    """The store time of its record."""


class PendingResets:
    """The last reset of each queue that the consumers have not followed yet, as far as the log shows; the
    latest at the end. Changed only by records of the log. A node that loads its state from a snapshot
    restores its marks (broker/consume/offset_resets.py) from this table.
    """

    __slots__ = ("_pairs", "_rows")

    def __init__(self) -> None:
        self._rows: dict[_Key, PendingReset] = {}
        self._pairs: Counter[tuple[str, str]] = Counter()
        """How many rows a group has in a topic: most that are dropped have none."""

    def __len__(self) -> int:
        return len(self._rows)

    def items(self) -> Iterator[tuple[_Key, PendingReset]]:
        return iter(self._rows.items())

    def put(self, group: str, topic: str, offsets: Mapping[int, int], stored_ms: int) -> None:
        """A reset was stored; resets older than the retention of marks are removed."""
        for queue_id, offset in offsets.items():
            self._remove((group, topic, queue_id))
            self._add((group, topic, queue_id), PendingReset(offset, stored_ms))
        while self._rows:
            oldest = next(iter(self._rows))
            is_over = self._rows[oldest].stored_ms + HEARD_OF_MS <= stored_ms
            if not is_over and len(self._rows) <= PENDING_RESETS_MAX:
                break
            self._remove(oldest)

    def _add(self, key: _Key, row: PendingReset) -> None:
        self._rows[key] = row
        self._pairs[key[:2]] += 1

    def _remove(self, key: _Key) -> None:
        if self._rows.pop(key, None) is not None:
            self._pairs[key[:2]] -= 1
            if not self._pairs[key[:2]]:
                del self._pairs[key[:2]]

    def end(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """The group stored these offsets: its consumer has followed the reset."""
        for queue_id, offset in offsets.items():
            row = self._rows.get((group, topic, queue_id))
            if row is not None and row.offset != offset:
                self._remove((group, topic, queue_id))

    def drop(self, group: str | None = None, topic: str | None = None) -> None:
        """Drop the resets of this group in this topic, since its offsets there were removed; None: of every
        group, in every topic.
        """
        gone = {pair for pair in self._pairs if group in (None, pair[0]) and topic in (None, pair[1])}
        for key in [key for key in self._rows if key[:2] in gone] if gone else ():
            self._remove(key)

    def copy(self) -> "PendingResets":
        other = PendingResets()
        other._rows, other._pairs = dict(self._rows), Counter(self._pairs)
        return other

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot, in order."""
        for key, row in self._rows.items():
            yield [*key, *row]

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> "PendingResets":
        """Raises ValueError or TypeError when the rows are none of these."""
        resets = cls()
        for group, topic, queue_id, offset, stored_ms in rows:
            key = str(group), str(topic), index(queue_id)
            resets._add(key, PendingReset(index(offset), index(stored_ms)))
        return resets


QUEUE_LOCKS_MAX = 200_000
"""As many queues of groups; a client may hold 65,536, as many as a topic has."""

QueueKey = tuple[str, int]
"""Topic and queue id."""
LockKey = tuple[str, QueueKey]
"""Group and queue."""


class QueueLocks:
    """Queue locks for ordered consumption: the holder of every (group, queue). Changed only by records of the
    log, so that a new leader starts from them. The time of a lock's last renewal is not in the log; the
    leader keeps it in `broker.consume.queue_locks`.
    """

    __slots__ = ("_holders", "_is_shared")

    def __init__(self) -> None:
        self._holders: dict[LockKey, str] = {}
        self._is_shared = False

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, key: LockKey) -> bool:
        return key in self._holders

    def items(self) -> Iterator[tuple[LockKey, str]]:
        """(group, queue) and the client id of its holder."""
        return iter(self._holders.items())

    def put(self, group: str, client_id: str, queues: Mapping[str, Iterable[int]]) -> None:
        """The client holds these queues now, whichever client did before."""
        own = self._own()
        for topic, queue_ids in queues.items():
            for queue_id in queue_ids:
                own[group, (topic, queue_id)] = client_id

    def drop(self, group: str, client_id: str, queues: Mapping[str, Iterable[int]]) -> None:
        """Release the client's locks of these queues. Locks that another client holds by now stay."""
        own = self._own()
        for topic, queue_ids in queues.items():
            for queue_id in queue_ids:
                if own.get((group, (topic, queue_id))) == client_id:
                    del own[group, (topic, queue_id)]

    def drop_topic(self, name: str) -> None:
        self._drop([key for key in self._holders if key[1][0] == name])

    def drop_group(self, name: str) -> None:
        self._drop([key for key in self._holders if key[0] == name])

    def _drop(self, keys: list[LockKey]) -> None:
        if keys:
            own = self._own()
            for key in keys:
                del own[key]

    def _own(self) -> dict[LockKey, str]:
        if self._is_shared:
            self._holders = dict(self._holders)
            self._is_shared = False
        return self._holders

    def copy(self) -> "QueueLocks":
        """A copy of the current locks. Both share the rows until one of them changes."""
        other = QueueLocks()
        other._holders = self._holders
        self._is_shared = other._is_shared = True
        return other

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot."""
        for (group, (topic, queue_id)), client_id in self._holders.items():
            yield [group, topic, queue_id, client_id]

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> "QueueLocks":
        """Raises ValueError or TypeError when the rows are none of these."""
        locks = cls()
        for group, topic, queue_id, client_id in rows:
            locks._holders[str(group), (str(topic), int(queue_id))] = str(client_id)
        return locks


REQUEST_MODES_MAX: Final = 200_000
"""Of topics and groups together, each pair once."""


class RequestModes:
    """The modes that were set. Changed only by records of the log."""

    __slots__ = ("_modes",)

    def __init__(self, modes: Mapping[tuple[str, str], RequestMode] | None = None) -> None:
        self._modes: dict[tuple[str, str], RequestMode] = dict(modes or {})

    def __len__(self) -> int:
        return len(self._modes)

    def __iter__(self) -> Iterator[RequestMode]:
        return iter(self._modes.values())

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get((topic, group))

    def put(self, mode: RequestMode) -> None:
        self._modes[mode.topic, mode.group] = mode

    def drop_topic(self, name: str) -> None:
        self._drop([key for key in self._modes if key[0] == name])

    def drop_group(self, name: str) -> None:
        self._drop([key for key in self._modes if key[1] == name])

    def _drop(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in keys:
            del self._modes[key]

    def copy(self) -> "RequestModes":
        return RequestModes(self._modes)

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot."""
        for mode in self._modes.values():
            yield [mode.topic, mode.group, mode.mode, mode.share_queue_num]

    @classmethod
    def from_rows(cls, rows: Iterable[list[Any]]) -> "RequestModes":
        """Raises ValueError, TypeError."""
        modes = cls()
        for topic, group, mode, share in rows:
            modes.put(RequestMode(str(topic), str(group), str(mode), index(share)))
        return modes


class AccessTable:
    """Users and their rights. Changed only by records of the log."""

    __slots__ = ("rights", "users", "version")

    def __init__(
        self, users: Mapping[str, User] | None = None, rights: Mapping[str, AccessList] | None = None
    ) -> None:
        self.users = dict(users or {})
        self.rights = dict(rights or {})
        self.version = 0
        """Grows with each change on this node: who keeps something that follows from the tables compares."""

    def apply(self, change: AccessChange) -> None:
        match change:
            case PutUser(user):
                self.users[user.name] = user
            case DeleteUser(name):
                self.users.pop(name, None)
                self.rights.pop(name, None)
            case PutAccessList(rights):
                self.rights[rights.username] = rights
            case DeleteAccessList(username):
                self.rights.pop(username, None)
        self.version += 1

    def replace_by(self, other: "AccessTable") -> None:
        self.users, self.rights = other.users, other.rights
        self.version += 1

    def copy(self) -> "AccessTable":
        return AccessTable(self.users, self.rights)

    @classmethod
    def from_rows(cls, users: Iterable[Any], rights: Iterable[Any]) -> "AccessTable":
        """Raises ValueError, KeyError, TypeError."""
        lists = map(AccessList.from_json, rights)
        return cls(
            {user.name: user for user in map(User.from_json, users)},
            {each.username: each for each in lists},
        )


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
        # Both remain the same objects, also when a snapshot is loaded: readers hold them.
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
        self.access = AccessTable()
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
            case TrimLog() | TrimQueues():
                self._trim(change)
            case EndWriter(writer, partitions):
                self.writers.end(writer_key(writer, partition) for partition in partitions)
            case PutSettings(values):
                self._put_settings(values, timestamp_ms)
            case SetRequestMode(mode):
                self.request_modes.put(mode)
            case LockQueues(group, client_id, queues, is_held):
                (self.locks.put if is_held else self.locks.drop)(group, client_id, queues)
            case PutUser() | DeleteUser() | PutAccessList() | DeleteAccessList():
                self.access.apply(change)

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

    def _trim(self, change: TrimLog | TrimQueues) -> None:
        """What was deleted before is going with the files."""
        if isinstance(change, TrimQueues):
            self._hide(change.topic, change.offsets)
            return
        position = change.position
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
        _refill(other.topics, self.topics)
        _refill(other.groups, self.groups)
        other.offsets, other.resets = self.offsets.copy(), self.resets.copy()
        other.delay_offsets = dict(self.delay_offsets)
        other.settings = dict(self.settings)
        other.writers = self.writers.copy()
        other.trim_position, other.first_shown = self.trim_position, dict(self.first_shown)
        other.deleted_at = dict(self.deleted_at)
        other.locks = self.locks.copy()
        other.request_modes = self.request_modes.copy()
        other.access = self.access.copy()
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
            "users": (user.to_json() for user in self.access.users.values()),
            "accessLists": (rights.to_json() for rights in self.access.rights.values()),
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
        access = AccessTable.from_rows(data.get("users", []), data.get("accessLists", []))
        topics_version = DataVersion(*map(index, data["topicsVersion"]))
        groups_version = DataVersion(*map(index, data["groupsVersion"]))
        _refill(self.topics, {**self.static_topics, **{topic.name: topic for topic in topics}})
        _refill(self.groups, {**self.static_groups, **{group.name: group for group in groups}})
        self.offsets, self.resets = offsets, resets
        self.delay_offsets = delay_offsets
        self.settings = settings
        self.writers = writers
        self.trim_position, self.first_shown = index(trim_position), first_shown
        self.deleted_at = deleted_at
        self.locks = locks
        self.request_modes = request_modes
        self.access.replace_by(access)
        self.topics_version = topics_version
        self.groups_version = groups_version


def _refill(table: dict[str, T], rows: Mapping[str, T]) -> None:
    table.clear()
    table.update(rows)


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
        case PutUser(user) if user.name not in tables.access.users and len(tables.access.users) >= USERS_MAX:
            raise InvalidChangeError(f"there are {USERS_MAX} users")
        case SetRequestMode(mode) if tables.request_modes.get(mode.topic, mode.group) is None:
            if len(tables.request_modes) >= REQUEST_MODES_MAX:
                raise InvalidChangeError(f"there are {REQUEST_MODES_MAX} message request modes")
        case _:
            pass
