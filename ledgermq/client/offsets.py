"""The offsets of a consumer group: where it goes on in a queue, and where a queue begins and ends
(RemoteBrokerOffsetStore, LocalFileOffsetStore).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

import orjson

from ledgermq.client.errors import MessagingError, UnreadableError, WrongSubscriptionError
from ledgermq.client.queue_locks import queue_json, read_queue
from ledgermq.client.session import Session
from remoting.client.routes import MessageQueue
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.fastjson import FastjsonError, loads, object_key_map
from remoting.headers.consume import (
    QueryConsumerOffsetRequestHeader,
    QueueRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from remoting.headers.fields import RequestHeader
from remoting.topic_names import RETRY_PREFIX

REQUEST_LIMIT_S: Final = 10.0
COMMIT_LIMIT_S: Final = 3.0
_FOUND: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class Where(Enum):
    """A place in a queue: its oldest message, or behind its newest one."""

    BEGINNING = "CONSUME_FROM_FIRST_OFFSET"
    END = "CONSUME_FROM_LAST_OFFSET"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message that was stored at this Unix time (ms) or after it. Brokers of RocketMQ 4 take the
    nearest one.
    """

    unix_ms: int


Start = Where | AtTime


class OffsetStore(Protocol):
    """Where a group's offsets are kept."""

    async def stored(self, queue: MessageQueue) -> int | None:
        """None where there is none. Raises: MessagingError."""

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Returns the failures; the others are stored."""


class QueueBounds:
    """What brokers know of their queues."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def find(self, queue: MessageQueue, start: Start) -> int:
        """Raises: MessagingError."""
        if isinstance(start, AtTime):
            header = SearchOffsetRequestHeader(queue.topic, queue.queue_id, start.unix_ms)
            return await self._offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, queue)
        code = RequestCode.GET_MIN_OFFSET if start is Where.BEGINNING else RequestCode.GET_MAX_OFFSET
        return await self._offset(code, QueueRequestHeader(queue.topic, queue.queue_id), queue)

    async def _offset(self, code: RequestCode, header: RequestHeader, queue: MessageQueue) -> int:
        answer = await self._session.ask(
            queue.broker_name, queue.topic, self._session.command(code, header), limit_s=REQUEST_LIMIT_S
        )
        return offset_in(answer.command, queue)


class GroupOffsets:
    """OffsetStore: the brokers'."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def stored(self, queue: MessageQueue) -> int | None:
        """A broker may answer 0 for a group that is new to a queue whose first message it still has: such a
        group begins there, whatever `consume_from` says.
        """
        header = QueryConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id)
        command = self._session.command(RequestCode.QUERY_CONSUMER_OFFSET, header)
        answer = await self._session.ask(
            queue.broker_name, queue.topic, command, limit_s=REQUEST_LIMIT_S, accepted=_FOUND
        )
        if answer.command.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return offset_in(answer.command, queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Each is stored by its broker at once."""
        results = await asyncio.gather(
            *(self._commit(queue, offset) for queue, offset in offsets.items()), return_exceptions=True
        )
        failures = zip(offsets, results, strict=True)
        return {queue: error for queue, error in failures if isinstance(error, MessagingError)}

    async def _commit(self, queue: MessageQueue, offset: int) -> None:
        header = UpdateConsumerOffsetRequestHeader(self._group, queue.topic, queue.queue_id, offset)
        command = self._session.command(RequestCode.UPDATE_CONSUMER_OFFSET, header)
        await self._session.ask(queue.broker_name, queue.topic, command, limit_s=COMMIT_LIMIT_S)


class LocalOffsets:
    """OffsetStore: a file of this machine, for a consumer that gets all messages (broadcast), in the form of
    Java's clients. Without a file they are in memory only.

    Raises WrongSubscriptionError: the file cannot be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}
        if path is not None and path.exists():
            self._offsets = _read_file(path)

    async def stored(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """The whole file is written again."""
        self._offsets.update(offsets)
        if self._path is None or not offsets:
            return {}
        try:
            _write_file(self._path, self._offsets)
        except OSError as error:
            return dict.fromkeys(offsets, error)
        return {}


async def first_offset(
    store: OffsetStore, bounds: QueueBounds, queue: MessageQueue, consume_from: Start
) -> int:
    """Where a group goes on in a queue. A retry topic has nothing but what the group has sent back, so a
    group that is new to it begins at its first message. Raises: MessagingError.
    """
    stored = await store.stored(queue)
    if stored is not None:
        return stored
    return await bounds.find(queue, Where.BEGINNING if queue.topic.startswith(RETRY_PREFIX) else consume_from)


def offset_in(answer: RemotingCommand, queue: MessageQueue, name: str = "offset") -> int:
    """Raises UnreadableError."""
    try:
        return int(answer.ext_fields[name])
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"a broker's offset of {queue} cannot be read: {error!r}") from error


def _read_file(path: Path) -> dict[MessageQueue, int]:
    try:
        table: Mapping[str, int] = loads(path.read_bytes())["offsetTable"]
        return {read_queue(orjson.loads(key)): int(offset) for key, offset in table.items()}
    except (OSError, FastjsonError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise WrongSubscriptionError(f"the offsets in {path} cannot be read: {error!r}") from error


def _write_file(path: Path, offsets: Mapping[MessageQueue, int]) -> None:
    """By a second file, so that a crash of the process leaves the old or the new one. Without an fsync: after
    a crash of the machine some messages are consumed again.
    """
    rows = object_key_map((queue_json(queue), offset) for queue, offset in sorted(offsets.items()))
    made = path.with_name(f"{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(orjson.dumps({"offsetTable": rows}))
    made.replace(path)
