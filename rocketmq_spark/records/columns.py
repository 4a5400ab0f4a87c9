"""Arrow columns of the variable-length fields of many records, made by numpy without a loop, and the
decompression of bodies. Pure.

`slices` makes a column of byte ranges of one buffer; `born_hosts` and `offset_ids` write hosts and message
ids as text; `find_properties` splits the properties of all records in one pass (NAME 0x01 VALUE 0x02 …). Its
rules are those of `commitlog.record`: pieces with an empty name or value are dropped, of several values of
one name the last one counts, and bytes that are not UTF-8 become replacement characters.

`inflate` decompresses a body that its producer sent compressed (sysFlag bit 0), as RocketMQ's clients do:
RocketMQ 4 knows zlib only, RocketMQ 5 names the kind in three more bits of sysFlag.
"""

import ipaddress
import zlib
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from commitlog.record import offset_msg_id
from remoting.record_layout import BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, STORE_HOST_V6
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.records.fields import Bytes, Flags, Ints, Records, bytes_at


def slices(
    raw: Bytes, starts: Ints, ends: Ints, type_: pa.DataType, present: Flags | None = None
) -> pa.Array:
    """The array whose value i is `raw[starts[i]:ends[i]]`, null where `present` is false.

    The ranges must follow each other without overlap: their borders, and the gaps between them, are read
    as an array of twice the length, of which every second value is copied by Arrow.

    type_: binary or string; whether text is UTF-8 is not checked.
    """
    count = len(starts)
    if not count:
        return pa.array([], type_)
    borders = np.empty(2 * count, np.int32)
    borders[0::2] = starts
    borders[1::2] = ends
    whole = pa.Array.from_buffers(type_, 2 * count - 1, [None, pa.py_buffer(borders), pa.py_buffer(raw)])
    wanted = np.arange(0, 2 * count, 2)
    return whole.take(pa.array(wanted, mask=None if present is None else ~present))


def as_text(values: pa.Array) -> pa.Array:
    """Binary values as strings; bytes that are not UTF-8 become replacement characters."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


_HEX_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_PORT_BYTES = 4


def born_hosts(records: Records) -> pa.Array:
    """`10.0.0.1:4711` or `[::1]:4711`; few producers make many messages, so each host is written once."""
    is_v6 = records.sys_flag & BORN_HOST_V6 != 0
    if bool(is_v6.any()):
        return pa.array(
            [_host_text(host) for host in _hosts(records, records.born_host_at, is_v6)], pa.string()
        )
    packed = bytes_at(records.data, records.born_host_at, HOST_V4_BYTES).view(np.int64).ravel()
    encoded = pa.array(packed).dictionary_encode()
    texts = [_host_text(host.to_bytes(HOST_V4_BYTES, "little", signed=True)) for host in _ints(encoded)]
    return pa.array(texts, pa.string()).take(encoded.indices)


def offset_ids(records: Records) -> pa.Array:
    """The id that a broker gives to a message: store host and position in hexadecimal digits."""
    is_v6 = records.sys_flag & STORE_HOST_V6 != 0
    if bool(is_v6.any()):
        hosts = _hosts(records, records.store_host_at, is_v6)
        positions = records.physical_offset.tolist()
        return pa.array(map(offset_msg_id, hosts, positions), pa.string())
    count = len(records)
    packed = np.empty((count, 2 * HOST_V4_BYTES), np.uint8)
    packed[:, :HOST_V4_BYTES] = bytes_at(records.data, records.store_host_at, HOST_V4_BYTES)
    packed[:, HOST_V4_BYTES:] = records.physical_offset.astype(">i8").view(np.uint8).reshape(count, -1)
    digits = np.empty((count, 4 * HOST_V4_BYTES), np.uint8)
    digits[:, 0::2] = _HEX_DIGITS[packed >> 4]
    digits[:, 1::2] = _HEX_DIGITS[packed & 0xF]
    starts = np.arange(count, dtype=np.int64) * digits.shape[1]
    return slices(digits.ravel(), starts, starts + digits.shape[1], pa.string())


def _hosts(records: Records, at: Ints, is_v6: Flags) -> list[bytes]:
    lengths = np.where(is_v6, HOST_V6_BYTES, HOST_V4_BYTES).tolist()
    data = records.data
    return [
        data[start : start + length].tobytes() for start, length in zip(at.tolist(), lengths, strict=True)
    ]


def _ints(encoded: pa.DictionaryArray) -> list[int]:
    values: list[int] = encoded.dictionary.to_pylist()
    return values


def _host_text(host: bytes) -> str:
    address = ipaddress.ip_address(host[:-_PORT_BYTES])
    port = int.from_bytes(host[-_PORT_BYTES:], "big", signed=True)
    return f"{address}:{port}" if address.version == 4 else f"[{address}]:{port}"


_NAME_END = 1
_VALUE_END = 2
_MAP_TYPE = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, slots=True)
class Properties:
    """Every property of `count` messages. Row `row[i]` has the name `text[name_at[i]:name_end[i]]`, whose
    value follows behind one byte and ends at `value_end[i]`. `row` never decreases.
    """

    count: int
    text: Bytes
    row: Ints
    name_at: Ints
    name_end: Ints
    value_end: Ints
    row_at: Ints
    """Where the text of each message begins."""


def find_properties(records: Records) -> Properties:
    """Split the properties of all records."""
    from pyarrow import compute as pc  # see arrow_rows

    count = len(records)
    raw = slices(records.data, records.properties_at, records.properties_end, pa.binary())
    # A last value may lack its end mark, which Java 4 cuts off: one more only makes an empty piece.
    ended = as_text(pc.binary_join_element_wise(raw, b"", pa.scalar(bytes([_VALUE_END]), pa.binary())))
    _, offset_buffer, text_buffer = ended.buffers()
    borders = np.frombuffer(offset_buffer, np.int32)[: count + 1].astype(np.int64)
    text = np.frombuffer(text_buffer or b"", np.uint8)[: borders[-1]]
    ends = np.flatnonzero(text == _VALUE_END)
    name_ends = np.flatnonzero(text == _NAME_END)
    name_ends = np.append(name_ends, len(text))  # a piece without a mark finds this one, behind it
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))[: len(ends)]
    own_name_end = name_ends[np.searchsorted(name_ends, starts)]
    row = np.repeat(np.arange(count), np.diff(np.searchsorted(ends, borders)))
    is_whole = (own_name_end > starts) & (own_name_end < ends - 1)
    return Properties(
        count,
        text,
        row[is_whole],
        starts[is_whole],
        own_name_end[is_whole],
        ends[is_whole],
        borders[:-1],
    )


def property_column(properties: Properties, name: bytes) -> pa.Array:
    """The value of one property of each message, null where it has none."""
    starts, ends = properties.row_at.copy(), properties.row_at.copy()
    hits = _named(properties, name)
    rows = properties.row[hits]
    starts[rows] = properties.name_end[hits] + 1  # of repeated names the last assignment stays
    ends[rows] = properties.value_end[hits]
    return slices(properties.text, starts, ends, pa.string(), ends > starts)


def property_maps(properties: Properties) -> pa.Array:
    """All properties of each message as a map; one without any has an empty map."""
    names = slices(properties.text, properties.name_at, properties.name_end, pa.string())
    values = slices(properties.text, properties.name_end + 1, properties.value_end, pa.string())
    row = properties.row
    kept = _last_of_each_name(row, names)
    if kept is not None:
        names, values, row = names.take(kept), values.take(kept), row[kept]
    borders = np.searchsorted(row, np.arange(properties.count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(borders), names, values, type=_MAP_TYPE)


def _named(properties: Properties, name: bytes) -> Ints:
    """Which properties have this name."""
    candidates = np.flatnonzero(properties.name_end - properties.name_at == len(name))
    found = bytes_at(properties.text, properties.name_at[candidates], len(name))
    wanted = np.frombuffer(name, np.uint8)
    hits: Ints = candidates[(found == wanted).all(axis=1)]
    return hits


def _last_of_each_name(row: Ints, names: pa.Array) -> Ints | None:
    """Which properties to keep so that no message has a name twice; None when all."""
    if not len(row):
        return None
    encoded = names.dictionary_encode()
    keys = row * len(encoded.dictionary) + np.asarray(encoded.indices, np.int64)
    order = np.argsort(keys, kind="stable")
    is_last = np.append(keys[order][1:] != keys[order][:-1], True)
    if bool(is_last.all()):
        return None
    return np.sort(order[is_last])


COMPRESSED: Final = 0x1
INFLATED_BYTES_MAX: Final = 256 << 20
"""No decompressed body may be larger: a few hostile bytes could need all memory. Brokers accept 4 MiB."""
_KIND_SHIFT = 8
_KIND_MASK = 0x7
_ZLIB_KINDS = (0, 3)
_ARROW_CODECS = {1: "lz4", 2: "zstd"}
_CHUNK_BYTES = 1 << 20


def inflate(body: bytes, sys_flag: int, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """The body as its producer made it.

    Raises:
        CorruptDataError: it is not what sysFlag says, of an unknown kind, or larger than `bytes_max`.
    """
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    if kind in _ZLIB_KINDS:
        return _inflate_zlib(body, bytes_max)
    codec = _ARROW_CODECS.get(kind)
    if codec is None:
        raise CorruptDataError(f"sysFlag {sys_flag:#x} names compression {kind}, which is unknown")
    return _inflate_by_arrow(body, codec, bytes_max)


def _inflate_zlib(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise CorruptDataError(f"a compressed body is not zlib's: {error}") from None
    if not inflater.eof:
        problem = f"is larger than {bytes_max} bytes" if len(inflated) == bytes_max else "is cut off"
        raise CorruptDataError(f"a compressed body {problem}")
    return inflated


def _inflate_by_arrow(body: bytes, codec: str, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    room = bytes_max
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while part := stream.read(_CHUNK_BYTES):
                parts.append(part)
                room -= len(part)
                if room < 0:
                    raise CorruptDataError(f"a compressed body is larger than {bytes_max} bytes")
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptDataError(f"a compressed body is not {codec}'s: {error}") from None
    return b"".join(parts)
