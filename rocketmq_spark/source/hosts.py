"""Hosts and message ids of many records at once, as text. Pure."""

import ipaddress

import numpy as np
import pyarrow as pa

from commitlog.record import offset_msg_id
from remoting.record_layout import BORN_HOST_V6, HOST_V4_BYTES, HOST_V6_BYTES, STORE_HOST_V6
from rocketmq_spark.source.records import Flags, Ints, Records, take
from rocketmq_spark.source.slices import slices

_HEX_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_PORT_BYTES = 4


def born_hosts(records: Records) -> pa.Array:
    """`10.0.0.1:4711` or `[::1]:4711`; few producers make many messages, so each host is written once."""
    is_v6 = records.sys_flag & BORN_HOST_V6 != 0
    if bool(is_v6.any()):
        return pa.array(
            [_host_text(host) for host in _hosts(records, records.born_host_at, is_v6)], pa.string()
        )
    packed = take(records.data, records.born_host_at, HOST_V4_BYTES).view(np.int64).ravel()
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
    packed[:, :HOST_V4_BYTES] = take(records.data, records.store_host_at, HOST_V4_BYTES)
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
