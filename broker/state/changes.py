"""The changes of the replicated state, and their form as the body of one record of the log.

A body is JSON: {"version": 1, "changes": [["putTopic", {…}], ["commitOffsets", group, topic, [[queue,
offset], …]], …]}. A node that meets a version or a change it does not know must stop: going on would make its
state differ from the others'.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson

from broker.state.access import AccessList, User, checked_name
from broker.state.groups import DEFAULT_RETRY_POLICY, RequestMode, SubscriptionGroupConfig
from broker.state.topics import TopicConfig, check_topic_config
from commitlog.sequences import writer_error
from dledger.core.membership import CHANGING_MEMBERS_LEVEL, FIXED_MEMBERS_LEVEL

CHANGES_VERSION = 1
SETTINGS_MAX = 100
SETTING_CHARS_MAX = 1_024
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class StateRecordError(Exception):
    """A committed state record cannot be read: damaged, or written by a later version. The node must stop."""


class InvalidChangeError(ValueError):
    """A change that must not be written to the log, since no node could apply it; the message names the
    reason.
    """


@dataclass(frozen=True, slots=True)
class PutTopic:
    config: TopicConfig


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """The topic, every group's offsets in it, and its messages: its queues begin at 0 behind this record.
    With `has_messages_gone` False, as older versions wrote it, the messages stay and the queues continue at
    their offsets.
    """

    name: str
    has_messages_gone: bool = True


@dataclass(frozen=True, slots=True)
class PutGroup:
    config: SubscriptionGroupConfig


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    name: str
    clean_offsets: bool = False


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """The group has consumed these queues of the topic up to (not including) these offsets. With `is_reset`
    an operator set the offsets, and the running consumers must continue there; older versions ignore the
    flag.
    """

    group: str
    topic: str
    offsets: Mapping[int, int]
    is_reset: bool = False


@dataclass(frozen=True, slots=True)
class SetDelayOffset:
    """Delivery of delay level `level` continues at this offset of its queue."""

    level: int
    offset: int


@dataclass(frozen=True, slots=True)
class DropOffsets:
    """The group's offsets in the topic are no longer needed and are removed."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class TrimLog:
    """The log's files that end at this position or before it may be deleted, by every node."""

    position: int


@dataclass(frozen=True, slots=True)
class TrimQueues:
    """The topic's queues no longer show messages before these offsets: its retention time has passed."""

    topic: str
    offsets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class EndWriter:
    """The writer has written all it ever will with these partitions."""

    writer: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PutSettings:
    """Keys of the configuration that an operator changed while the brokers run."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LockQueues:
    """The client consumes these queues of the group in order, and no other client does; or it does so no
    more. `queues`: queue ids by topic.
    """

    group: str
    client_id: str
    queues: Mapping[str, Sequence[int]]
    is_held: bool = True


@dataclass(frozen=True, slots=True)
class SetRequestMode:
    mode: RequestMode


@dataclass(frozen=True, slots=True)
class PutUser:
    user: User


@dataclass(frozen=True, slots=True)
class DeleteUser:
    """The user and its rights."""

    name: str


@dataclass(frozen=True, slots=True)
class PutAccessList:
    """All that the user may do from now on."""

    rights: AccessList


@dataclass(frozen=True, slots=True)
class DeleteAccessList:
    username: str


AccessChange = PutUser | DeleteUser | PutAccessList | DeleteAccessList
Change = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | CommitOffsets
    | SetDelayOffset
    | DropOffsets
    | TrimLog
    | TrimQueues
    | PutSettings
    | LockQueues
    | SetRequestMode
    | EndWriter
    | AccessChange
)


_SETTINGS_OF_LEVEL_3: Final = frozenset(
    {
        "addressBytesPerSecond",
        "addressConnectionsMax",
        "addressInFlightMax",
        "addressRequestsPerSecond",
        "authenticationEnabled",
        "authenticationWhitelist",
        "authorizationEnabled",
        "authorizationWhitelist",
        "grpcEndpointAddresses",
        "priorityOrderAsc",
        "quotaExemptAddresses",
        "quotasOnLoopback",
        "refuseMessages",
        "userBytesPerSecond",
        "userConnectionsMax",
        "userInFlightMax",
        "userRequestsPerSecond",
    }
)
"""Keys that release 0.1.0 keeps and does not obey: what they say would end whenever such a node leads."""


def format_level_of(change: Change) -> int:
    """The group's format level from which on the change may be written (docs/upgrading.md). Release 0.1.0
    stops at a kind of change that it does not know, drops fields that it does not know, and keeps attributes
    of a topic without obeying them.
    """
    match change:
        case PutUser() | DeleteUser() | PutAccessList() | DeleteAccessList():
            return CHANGING_MEMBERS_LEVEL
        case PutGroup(config) if config.retry_policy != DEFAULT_RETRY_POLICY:
            return CHANGING_MEMBERS_LEVEL
        case PutTopic(config) if config.is_read_linearizable:
            return CHANGING_MEMBERS_LEVEL
        case PutSettings(values) if not _SETTINGS_OF_LEVEL_3.isdisjoint(values):
            return CHANGING_MEMBERS_LEVEL
        case _:
            return FIXED_MEMBERS_LEVEL


def encode_change(change: Change) -> bytes:
    """One change encoded as an element of a record's list (JSON). Raises InvalidChangeError when it must not
    be written to the log.
    """
    try:
        row = _to_row(_checked(change))
        if isinstance(change, PutTopic):
            check_topic_config(change.config)
        elif isinstance(change, PutGroup | SetRequestMode | PutUser | PutAccessList):
            _from_row(row)
        return orjson.dumps(row)
    except (ValueError, TypeError) as error:
        raise InvalidChangeError(str(error)) from error


def join_changes(encoded: Sequence[bytes]) -> bytes:
    """The body of a state record that holds these encoded changes in order."""
    return b'{"version":%d,"changes":[%s]}' % (CHANGES_VERSION, b",".join(encoded))


def _checked(change: Change) -> Change:
    if isinstance(change, TrimLog) and not 0 <= change.position <= _LONG_MAX:
        raise InvalidChangeError(f"position {change.position} is out of range")
    if isinstance(change, LockQueues | EndWriter):
        _check_ids(change)
    elif isinstance(change, CommitOffsets | TrimQueues):
        for queue_id, offset in change.offsets.items():
            if not (0 <= queue_id <= _INT_MAX and 0 <= offset <= _LONG_MAX):
                raise InvalidChangeError(f"offset {offset} of queue {queue_id} is out of range")
    elif isinstance(change, SetDelayOffset):
        if not (1 <= change.level <= _INT_MAX and 0 <= change.offset <= _LONG_MAX):
            raise InvalidChangeError(f"offset {change.offset} of delay level {change.level} is out of range")
    elif isinstance(change, PutSettings) and not _is_small(change.values):
        raise InvalidChangeError(
            f"settings beyond {SETTINGS_MAX} or of more than {SETTING_CHARS_MAX} characters"
        )
    return change


def _check_ids(change: LockQueues | EndWriter) -> None:
    """Queues, or partitions: numbers beyond these could be applied, but not written into a snapshot."""
    if isinstance(change, EndWriter):
        if (error := writer_error(change.writer)) is not None:
            raise InvalidChangeError(error)
        numbers: Iterable[int] = change.partitions
    else:
        numbers = chain.from_iterable(change.queues.values())
    for number in numbers:
        if not 0 <= number <= _INT_MAX:
            raise InvalidChangeError(f"{number} is no number of a queue or a partition")


def _is_small(values: Mapping[str, str]) -> bool:
    texts = [*values, *values.values()]
    return len(values) <= SETTINGS_MAX and all(len(text) <= SETTING_CHARS_MAX for text in texts)


def decode_changes(body: bytes) -> list[Change]:
    """Read a state record's body. Raises StateRecordError."""
    try:
        data = orjson.loads(body)
        version = data["version"]
        if version != CHANGES_VERSION:
            raise StateRecordError(f"state record of version {version}; this node knows {CHANGES_VERSION}")
        return [_checked(_from_row(row)) for row in data["changes"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StateRecordError(f"state record cannot be read: {error!r}") from error


def _to_row(change: Change) -> list[Any]:
    match change:
        case PutTopic(config):
            return ["putTopic", config.to_json()]
        case DeleteTopic(name, has_messages_gone):
            return ["deleteTopic", name, *([True] if has_messages_gone else [])]
        case PutGroup(group_config):
            return ["putGroup", group_config.to_json()]
        case DeleteGroup(name, clean_offsets):
            return ["deleteGroup", name, clean_offsets]
        case CommitOffsets(group, topic, offsets, is_reset):
            return ["commitOffsets", group, topic, list(offsets.items()), *([True] if is_reset else [])]
        case SetDelayOffset(level, offset):
            return ["setDelayOffset", level, offset]
        case DropOffsets(group, topic):
            return ["dropOffsets", group, topic]
        case TrimLog() | TrimQueues():
            return _trim_row(change)
        case EndWriter(writer, partitions):
            return ["endWriter", writer, list(partitions)]
        case PutSettings(values):
            return ["putSettings", dict(values)]
        case LockQueues(group, client_id, queues, is_held):
            by_topic = {topic: list(queue_ids) for topic, queue_ids in queues.items()}
            return ["lockQueues", group, client_id, by_topic, is_held]
        case SetRequestMode(mode):
            return ["setRequestMode", mode.to_json()]
        case PutUser() | DeleteUser() | PutAccessList() | DeleteAccessList():
            return _access_row(change)


def _trim_row(change: TrimLog | TrimQueues) -> list[Any]:
    if isinstance(change, TrimLog):
        return ["trimLog", change.position]
    return ["trimQueues", change.topic, list(change.offsets.items())]


def _access_row(change: AccessChange) -> list[Any]:
    match change:
        case PutUser(user):
            return ["putUser", user.to_json()]
        case DeleteUser(name):
            return ["deleteUser", name]
        case PutAccessList(rights):
            return ["putAccessList", rights.to_json()]
        case DeleteAccessList(username):
            return ["deleteAccessList", username]


_READERS: Mapping[str, Callable[[list[Any]], Change]] = {
    "putTopic": lambda row: PutTopic(TopicConfig.from_json(row[1])),
    "deleteTopic": lambda row: DeleteTopic(str(row[1]), row[2:] == [True]),
    "putGroup": lambda row: PutGroup(SubscriptionGroupConfig.from_json(row[1])),
    "deleteGroup": lambda row: DeleteGroup(str(row[1]), bool(row[2])),
    "commitOffsets": lambda row: CommitOffsets(
        str(row[1]), str(row[2]), {int(q): int(o) for q, o in row[3]}, row[4:] == [True]
    ),
    "setDelayOffset": lambda row: SetDelayOffset(int(row[1]), int(row[2])),
    "dropOffsets": lambda row: DropOffsets(str(row[1]), str(row[2])),
    "trimLog": lambda row: TrimLog(int(row[1])),
    "trimQueues": lambda row: TrimQueues(str(row[1]), {int(q): int(o) for q, o in row[2]}),
    "endWriter": lambda row: EndWriter(str(row[1]), tuple(map(int, row[2]))),
    "putSettings": lambda row: PutSettings({str(key): str(value) for key, value in row[1].items()}),
    "setRequestMode": lambda row: SetRequestMode(RequestMode.from_json(row[1])),
    "putUser": lambda row: PutUser(User.from_json(row[1])),
    "deleteUser": lambda row: DeleteUser(checked_name(row[1])),
    "putAccessList": lambda row: PutAccessList(AccessList.from_json(row[1])),
    "deleteAccessList": lambda row: DeleteAccessList(checked_name(row[1])),
    "lockQueues": lambda row: LockQueues(
        str(row[1]), str(row[2]), {str(topic): list(map(int, ids)) for topic, ids in row[3].items()}, row[4]
    ),
}


def _from_row(row: list[Any]) -> Change:
    reader = _READERS.get(row[0])
    if reader is None:
        raise StateRecordError(f"state record has a change '{row[0]}' that this node does not know")
    return reader(row)
