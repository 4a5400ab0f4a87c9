"""Rows of Arrow batches as messages: which column is which field, and the rules for its values. Pure."""

import difflib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from remoting.client.send_requests import PROPERTIES_BYTES_MAX, encode_properties
from rocketmq_spark.errors import OptionError, RocketmqSparkError

_TEXT: Final[tuple[type[DataType], ...]] = (StringType,)
_NUMBER: Final[tuple[type[DataType], ...]] = (ByteType, ShortType, IntegerType, LongType)
_KINDS: Final[Mapping[str, tuple[tuple[type[DataType], ...], str]]] = {
    "body": ((StringType, BinaryType), "a string or binary"),
    "value": ((StringType, BinaryType), "a string or binary"),
    "topic": (_TEXT, "a string"),
    "keys": (_TEXT, "a string"),
    "tags": (_TEXT, "a string"),
    "properties": ((MapType,), "a map of string to string"),
    "queueId": (_NUMBER, "a whole number"),
    "brokerName": (_TEXT, "a string"),
    "delayLevel": (_NUMBER, "a whole number"),
    "deliverTimestamp": ((TimestampType, LongType), "a timestamp, or a long in ms since 1970"),
    "flag": (_NUMBER, "a whole number"),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """`body`: the name of the body's column. `names`: all columns in the DataFrame's order."""

    body: str
    names: tuple[str, ...] = field(default=())

    def has(self, name: str) -> bool:
        return name in self.names


def read_columns(schema: StructType, topic: str | None) -> Columns:
    """Raises OptionError that names a column that is unknown, repeated, missing or of a wrong type."""
    by_lower = {name.lower(): name for name in _KINDS}
    names = []
    for column in schema.fields:
        name = by_lower.get(column.name.lower())
        if name is None:
            raise OptionError(_unknown(column.name))
        _check_type(name, column.dataType)
        names.append(name)
    _check_names(names, topic)
    return Columns("body" if "body" in names else "value", tuple(names))


def _check_names(names: Sequence[str], topic: str | None) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise OptionError(f"the DataFrame has the column {doubled[0]} more than once")
    if ("body" in names) == ("value" in names):
        raise OptionError("the DataFrame needs one column with the messages' bodies: body, or value")
    if topic is None and "topic" not in names:
        raise OptionError("no topic is given: neither the option topic nor a column topic")


def _check_type(name: str, found: DataType) -> None:
    kinds, text = _KINDS[name]
    is_right = isinstance(found, kinds)
    if is_right and isinstance(found, MapType):
        is_right = isinstance(found.keyType, StringType) and isinstance(found.valueType, StringType)
    if not is_right:
        raise OptionError(f"the column {name} is {found.simpleString()}, must be {text}")


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [one.lower() for one in _KINDS], n=2)
    nearest = [one for one in _KINDS if one.lower() in near]
    hint = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(_KINDS)}"
    return f"the sink rocketmq has no column {name}; {hint}"


if TYPE_CHECKING:
    from pyarrow import RecordBatch

NOT_COPIED: Final = frozenset(
    {
        *("UNIQ_KEY", "CLUSTER", "LEDGERMQ_SEQ", "LEDGERMQ_SUM", "MSG_REGION", "TRACE_ON", "INSTANCE_ID"),
        *("DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS"),
        *("TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"),
        *("TIMER_DELAY_LEVEL", "TIMER_DEL_MS", "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME"),
        *("REAL_TOPIC", "REAL_QID", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "RECONSUME_TIME"),
        *("MAX_RECONSUME_TIMES", "TRAN_MSG", "PGROUP", "__transactionId__"),
        *("TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "__CRC32#"),
        *("MIN_OFFSET", "MAX_OFFSET", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM"),
    }
)
"""Properties that describe the history of one message."""
# In a copy they would be wrong, or would delay the copy.
_KEY_BYTES: Final = 10


class RowError(RocketmqSparkError):
    """A row cannot be a message; the text names it."""


class OutRow(NamedTuple):
    """One row as a message. `row` is its number in its partition, from 0."""

    row: int
    topic: str | None
    body: bytes
    properties: bytes
    keys: str | None
    flag: int
    broker_name: str | None
    queue_id: int | None
    is_delayed: bool


class RowReader:
    """Reads the Arrow batches of one partition. `origin` is the same for every attempt of a write, so that a
    row that is sent again has the same UNIQ_KEY.
    """

    def __init__(self, columns: Columns, partition: int, origin: str) -> None:
        self._columns = columns
        self._partition = partition
        digest = hashlib.blake2b(f"{origin}|{partition}".encode(), digest_size=_KEY_BYTES)
        self._key_prefix = digest.hexdigest().upper()
        self._next_row = 0

    def unique_key(self, row: int) -> str:
        """The row's UNIQ_KEY: 32 characters, as RocketMQ's clients make them."""
        return f"{self._key_prefix}{row:012X}"

    def read(self, batch: "RecordBatch") -> Iterator[OutRow]:
        """The rows of the batch as messages. Raises RowError."""
        names, count = self._columns.names, batch.num_rows
        found = {name: _values(batch.column(at)) for at, name in enumerate(names)}
        nothing: Sequence[Any] = [None] * count
        first, self._next_row = self._next_row, self._next_row + count
        columns = (
            *(found[self._columns.body], found.get("topic", nothing), found.get("keys", nothing)),
            *(found.get("tags", nothing), found.get("properties", nothing), found.get("flag", nothing)),
            *(found.get("brokerName", nothing), found.get("queueId", nothing)),
            *(found.get("delayLevel", nothing), found.get("deliverTimestamp", nothing)),
        )
        for row, values in enumerate(zip(*columns, strict=True), first):
            body, topic, keys, tags, given, flag, broker_name, queue_id, level, deliver_ms = values
            if body is None:
                raise self._error(row, "has no body: it is null")
            if level is not None and level <= 0:
                level = None
            if level is not None and deliver_ms is not None:
                raise self._error(row, "has both a delayLevel and a deliverTimestamp")
            if flag is not None and not -(1 << 31) <= flag < 1 << 31:
                raise self._error(row, f"has the flag {flag}, which does not fit into 32 bits")
            properties = self._properties(row, keys, tags, given, level, deliver_ms)
            yield OutRow(
                row,
                topic,
                body.encode() if isinstance(body, str) else body,
                properties,
                keys,
                flag or 0,
                broker_name,
                queue_id,
                level is not None or deliver_ms is not None,
            )

    def _properties(
        self,
        row: int,
        keys: str | None,
        tags: str | None,
        given: Sequence[tuple[str, str | None]] | None,
        level: int | None,
        deliver_ms: int | None,
    ) -> bytes:
        properties = {"UNIQ_KEY": self.unique_key(row)}
        if given:
            copied = {name: value for name, value in given if name not in NOT_COPIED}
            properties |= {name: value for name, value in copied.items() if value is not None}
        if keys is not None:
            properties["KEYS"] = keys
        if tags is not None:
            properties["TAGS"] = tags
        if level is not None:
            properties["DELAY"] = str(level)
        if deliver_ms is not None:
            properties["TIMER_DELIVER_MS"] = str(deliver_ms)
        try:
            encoded = encode_properties(properties)
        except ValueError as error:
            raise self._error(row, str(error)) from None
        if len(encoded) > PROPERTIES_BYTES_MAX:
            raise self._error(
                row, f"has {len(encoded)} bytes of properties; {PROPERTIES_BYTES_MAX} are possible"
            )
        return encoded

    def _error(self, row: int, text: str) -> RowError:
        return RowError(f"row {row} of partition {self._partition} {text}")


def _values(column: "pa.Array[Any]") -> Sequence[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    values: Sequence[Any] = column.to_pylist()
    return values
