"""Messages by key (12 QUERY_MESSAGE) and by position (33 VIEW_MESSAGE_BY_ID), from any node that has them.

The key index finds records by a hash; each is read and compared before it is answered.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final

from broker.consume.clients import ClientConnection
from broker.feature import Core, Feature
from broker.state.state import ReplicatedState
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.key_index import KeyIndex, KeyMaintenance
from commitlog.key_segment import PROPERTY_UNIQUE, key_hash, keys_of
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, Record, decode_record
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.errors import RequestError
from remoting.headers.consume import QueryMessageRequestHeader, ViewMessageRequestHeader
from remoting.router import Handlers

RECORDS_READ_MAX: Final = 4_096
"""Records one query reads; beyond that it is answered with what was found."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Half of the largest frame that clients read; at least one message is answered, whatever its size."""
WAITING_MAX: Final = 64
RECORDS_PER_TURN: Final = 16


class KeyQueries:
    """Finds messages, for one query at a time."""

    def __init__(
        self, index: KeyIndex, log: MessageLog, deleted_at: Callable[[], Mapping[str, int]] = dict
    ) -> None:
        """`deleted_at` gives the position where each deleted topic was deleted last."""
        self._index = index
        self._log = log
        self._deleted_at = deleted_at
        self._one = asyncio.Lock()
        self._waiting = 0

    async def find(
        self, topic: str, key: str, begin_ms: int, end_ms: int, max_num: int, *, is_unique_key: bool
    ) -> list[bytes]:
        """Records of the topic with this key that were stored between these times, the newest first.

        Raises RequestError.
        """
        if self._waiting >= WAITING_MAX:
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many queries by key wait already")
        wanted = key.encode(errors="replace")

        def is_wanted(record: Record) -> bool:
            is_here = record.topic == topic and begin_ms <= record.store_timestamp_ms <= end_ms
            is_here = is_here and record.physical_offset > self._deleted_at().get(topic, -1)
            return is_here and (has_id(record, wanted) if is_unique_key else wanted in keys_of(record))

        self._waiting += 1
        try:
            async with self._one:
                return await self._find(key_hash(topic, key), begin_ms, end_ms, max_num, is_wanted)
        finally:
            self._waiting -= 1

    @property
    def last_update(self) -> tuple[int, int]:
        """As KeyIndex.last_update."""
        return self._index.last_update

    @property
    def is_whole(self) -> bool:
        """Whether the index has every message; it may still be reading older ones."""
        return not self._index.gaps()

    async def _find(
        self, word: bytes, begin_ms: int, end_ms: int, max_num: int, is_wanted: Callable[[Record], bool]
    ) -> list[bytes]:
        found: list[bytes] = []
        seen: set[int] = set()
        answer_bytes = 0
        async with aclosing(self._index.hits(word, begin_ms, end_ms)) as hits:
            async for position in hits:
                if len(seen) >= RECORDS_READ_MAX or len(found) >= max_num:
                    break
                if position in seen:
                    continue
                seen.add(position)
                data = self._record_at(position, is_wanted)
                if data is not None:
                    answer_bytes += len(data)
                    if found and answer_bytes > ANSWER_BYTES_MAX:
                        break
                    found.append(data)
                if len(seen) % RECORDS_PER_TURN == 0:
                    await asyncio.sleep(0)
        return found

    def _record_at(self, position: int, is_wanted: Callable[[Record], bool]) -> bytes | None:
        """The record, if it is still there and wanted. Raises RequestError."""
        try:
            data = self._log.record_at(position)
            return data if data is not None and is_wanted(decode_record(data)) else None
        except CorruptRecordError:
            return None
        except DamagedRecordError as error:
            remark = f"a message is damaged on this node's disk, its repair is on the way: {error}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark) from error


def has_id(record: Record, unique_key: bytes) -> bool:
    """Whether this is the id that the record's client gave it."""
    return (PROPERTY_UNIQUE + b"\x01" + unique_key) in record.properties.split(b"\x02")


QUERY_NUM_MAX: Final = 64
"""MessageStoreConfig.maxMsgsNumBatch."""
UNIQUE_QUERY_NUM: Final = 32
"""MessageStoreConfig.defaultQueryMaxNum: what a query for an id gets, whatever it asks."""
KEY_CHARS_MAX: Final = 32_767
"""No property of a record is longer."""
INDEX_TYPE_TAG: Final = "T"
ARRIVAL_S: Final = 2.0
"""How long a request waits for a record that is in the log and cannot be read yet."""
ARRIVALS_MAX: Final = 64
NOT_FOUND: Final = "can not find message, maybe time range not correct"


class QueryProcessor:
    """Reads committed records."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        queries: KeyQueries | None,
        end_position: Callable[[], int | None],
    ) -> None:
        """Without `queries` no message has a key. `end_position` is the log's, committed or not."""
        self._log = log
        self._state = state
        self._queries = queries
        self._end_position = end_position
        self._arrivals: dict[asyncio.Future[None], int] = {}
        """Requests by the position they wait for."""

    def handlers(self) -> Handlers:
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
        }

    async def view_message(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """33: the record, as it is in the log."""
        position = ViewMessageRequestHeader.parse(request.ext_fields).position
        if self._log.max_position <= position < (self._end_position() or 0):
            await self._arrived(position)
        record = self._log.record_at(position)
        if record is None:
            remark = f"can not find message by the offset, {position}"
            raise RequestError(ResponseCode.SYSTEM_ERROR, remark)
        return success_response(request, body=record)

    async def _arrived(self, position: int) -> None:
        """Wait for a limited time until the message at this position can be read. A leader with a slow disk
        acknowledges messages that are on other nodes' disks and not yet on its own.
        """
        if len(self._arrivals) >= ARRIVALS_MAX:
            return
        arrival = asyncio.get_running_loop().create_future()
        self._arrivals[arrival] = position
        self._log.add_listener(self._on_dispatch)
        try:
            await asyncio.wait([arrival], timeout=ARRIVAL_S)
        finally:
            del self._arrivals[arrival]
            if not self._arrivals:
                self._log.remove_listener(self._on_dispatch)

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        for arrival, position in self._arrivals.items():
            if position < self._log.max_position and not arrival.done():
                arrival.set_result(None)

    async def query_message(self, request: RemotingCommand, connection: ClientConnection) -> RemotingCommand:
        """12: records with a key, the newest first, back to back."""
        header = QueryMessageRequestHeader.parse(request.ext_fields)
        if header.topic not in self._state.topics:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        if header.index_type == INDEX_TYPE_TAG:
            remark = "messages are indexed by their keys and ids, not by their tags"
            raise RequestError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        if self._queries is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"{NOT_FOUND}: messageIndexEnable is off")
        if not 0 < len(header.key) <= KEY_CHARS_MAX:
            remark = f"a key of {len(header.key)} characters, which no message has"
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, remark)
        records = await self._queries.find(
            header.topic,
            header.key,
            header.begin_timestamp_ms,
            header.end_timestamp_ms,
            UNIQUE_QUERY_NUM if header.is_unique_key else min(header.max_num, QUERY_NUM_MAX),
            is_unique_key=header.is_unique_key,
        )
        if not records:
            building = "" if self._queries.is_whole else "; older messages are being indexed again: try later"
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, NOT_FOUND + building)
        updated_ms, position = self._queries.last_update
        fields = {
            "indexLastUpdateTimestamp": str(updated_ms),
            "indexLastUpdatePhyoffset": str(position),
        }
        return success_response(request, fields, b"".join(records))


def query_feature(core: Core) -> Feature:
    """Raises OSError when the key index cannot be opened."""
    if not core.config.message_index_enable:
        return Feature(handlers=_query_processor(core, None).handlers())
    store = core.config.store_path_root_dir
    index = KeyIndex(core.environment.fs, store, core.log, end_position=core.opened.end_position())
    core.log.add_listener(index.on_batch)
    queries = KeyQueries(index, core.log, lambda: core.state.deleted_at)
    return Feature(handlers=_query_processor(core, queries).handlers(), services=(KeyMaintenance(index),))


def _query_processor(core: Core, queries: KeyQueries | None) -> QueryProcessor:
    return QueryProcessor(core.log, core.state, queries, core.opened.end_position)
