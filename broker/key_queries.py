"""Messages by key: what the key index leads to, each looked at before anybody is told of it."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Final

from commitlog.errors import DamagedRecordError
from commitlog.key_index import KeyIndex
from commitlog.key_segment import PROPERTY_UNIQUE, key_hash, keys_of
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, Record, decode_record
from remoting.codes import ResponseCode
from remoting.errors import RequestError

RECORDS_READ_MAX: Final = 4_096
"""Records one query looks at; beyond that it is answered with what was found."""
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
        """Whether the index has every message; it may be on its way to that."""
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
