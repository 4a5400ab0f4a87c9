"""What retries, delays, timers and transactions share: a stored message is read back, copied for another
queue, and its copy is found in the log again.
"""

from collections.abc import Sequence

from broker.config import BrokerConfig
from broker.timer.scheduling import PROPERTY_REAL_QUEUE_ID, PROPERTY_REAL_TOPIC
from commitlog.entry import HEADER_BYTES
from commitlog.errors import PositionError
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, Message, Record, decode_record, get_property
from remoting.record_layout import STORE_HOST_V6


def stored_record(log: MessageLog, position: int, size: int) -> Record | None:
    """The record of a consume queue's unit; None for a hole in the queue (size 0), and for a record that
    retention deleted. Raises DamagedRecordError: it may be readable again when it is repaired.
    """
    try:
        return decode_record(log.read(position, size)) if size else None
    except (PositionError, CorruptRecordError):
        return None


def stored_message(log: MessageLog, topic: str, queue_id: int, offset: int) -> Record | None:
    """The message at an offset of a queue; None when it cannot be read any more.

    Raises DamagedRecordError.
    """
    queue = log.queues.get(topic, queue_id)
    units = queue.units(offset, 1) if queue is not None and offset >= queue.min_offset else []
    return stored_record(log, *units[0][:2]) if units else None


def property_of(record: Record, name: str) -> str:
    """A property of a stored message; empty when it has none of this name."""
    return (get_property(record.properties, name.encode()) or b"").decode(errors="replace")


def real_place(record: Record) -> tuple[str, int] | None:
    """Topic and queue to which a waiting message is delivered, as it names them; None when it names none."""
    topic, queue_id = property_of(record, PROPERTY_REAL_TOPIC), property_of(record, PROPERTY_REAL_QUEUE_ID)
    return (topic, int(queue_id)) if topic and queue_id.isdecimal() else None


def copy_of(
    record: Record, topic: str, queue_id: int, store_host: bytes, properties: bytes | None = None
) -> Message:
    """The message once more, for this queue: same body, birth and flags; `properties` in place of its own."""
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=record.properties if properties is None else properties,
        flag=record.flag,
        sys_flag=record.sys_flag & ~STORE_HOST_V6,  # the copy has this node's address, which is IPv4
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        reconsume_times=record.reconsume_times,
    )


class LogTail:
    """Finds the copies that one put wrote directly behind a record.

    The put's records are appended as a whole, but a leader that crashes may leave only the first of them in
    the log. `prepared_transaction_offset` of a copy holds the position of the record that it was made from.
    """

    def __init__(self, log: MessageLog, config: BrokerConfig) -> None:
        self._log = log
        self._file_bytes = config.data_file_bytes
        self._header_bytes = HEADER_BYTES if config.enable_dledger else 0

    def messages_behind(self, record: Record, origins: Sequence[int | None]) -> int:
        """How many messages directly behind `record` were made from the records at these positions, in this
        order. An origin of None is no longer known and matches any copy. Raises DamagedRecordError.
        """
        end = record.physical_offset + record.size
        for number, origin in enumerate(origins):
            found = self._next(end, origin)
            if found is None:
                return number
            assert found > end, f"the record behind {end} ends at {found}"
            end = found
        return len(origins)

    def _next(self, end: int, origin: int | None) -> int | None:
        """The end of the next record if it is that copy. A record that did not fit into the rest of a data
        file is at the beginning of the next file.
        """
        next_file = -(-end // self._file_bytes) * self._file_bytes
        for position in (end, next_file):
            data = self._log.record_at(position + self._header_bytes)
            if data is None:
                continue
            record = decode_record(data)
            made_from = record.prepared_transaction_offset
            if made_from == origin or (origin is None and made_from > 0):
                return record.physical_offset + record.size
        return None
