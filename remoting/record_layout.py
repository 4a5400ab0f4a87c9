"""The layout of RocketMQ's message record: one table, from which every reader and writer of it follows.

The Python structs (`remoting.record`, `commitlog`), the numpy types (`rocketmq_spark`) and the offsets in C
(`native/record_layout.h`) are made of FIELDS. `python -m remoting.record_layout` writes the C header again; a
test compares the two. Source: RocketMQ's MessageExtEncoder. Pure, and of the standard library only: the C
modules are compiled before anything is installed.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple


class Field(NamedTuple):
    """A field of the record's head. All integers are big-endian."""

    name: str
    offset: int
    """Where it begins in a record with two IPv4 hosts."""
    width: int
    """Bytes; of a host 12 more when sysFlag says that it is IPv6."""
    code: str
    """As in `struct`; numpy reads the integers' codes in the same way."""


FIELDS: Final = (
    Field("size", 0, 4, "i"),
    Field("magic", 4, 4, "I"),
    Field("body_crc", 8, 4, "I"),
    Field("queue_id", 12, 4, "i"),
    Field("flag", 16, 4, "i"),
    Field("queue_offset", 20, 8, "q"),
    Field("physical_offset", 28, 8, "q"),
    Field("sys_flag", 36, 4, "i"),
    Field("born_timestamp_ms", 40, 8, "q"),
    Field("born_host", 48, 8, "8s"),
    Field("store_timestamp_ms", 56, 8, "q"),
    Field("store_host", 64, 8, "8s"),
    Field("reconsume_times", 72, 4, "i"),
    Field("prepared_transaction_offset", 76, 8, "q"),
    Field("body_bytes", 84, 4, "i"),
)
"""Behind these: body, topic size (one byte in V1, two in V2), topic, properties size (2), properties."""

AT: Final = {field.name: field.offset for field in FIELDS}
"""Where each field begins in a record with two IPv4 hosts."""
BODY_AT: Final = 88
TOPIC_AT: Final = BODY_AT + 1
"""Where the topic begins in V1, behind an empty body."""
RECORD_BYTES_MIN: Final = TOPIC_AT + 2
"""A V1 record with IPv4 hosts and empty body, topic and properties."""
HOST_V4_BYTES: Final = 8
"""4 address bytes and a 4-byte port."""
HOST_V6_BYTES: Final = 20
MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20


def head_struct(born_host_bytes: int = HOST_V4_BYTES, store_host_bytes: int = HOST_V4_BYTES) -> struct.Struct:
    """All fields of the head, for hosts of these lengths."""
    hosts = {"born_host": f"{born_host_bytes}s", "store_host": f"{store_host_bytes}s"}
    return struct.Struct(">" + "".join(hosts.get(field.name, field.code) for field in FIELDS))


def fields_struct(*names: str) -> struct.Struct:
    """Reads only these fields, in the record's order, of a record with two IPv4 hosts; it ends with the last.

    The fields before the born host are at the same place in every record.
    """
    codes, at = [">"], 0
    for field in FIELDS:
        if field.name in names:
            codes.append(f"{field.offset - at}x{field.code}" if field.offset > at else field.code)
            at = field.offset + field.width
    assert len(codes) == len(names) + 1, names
    return struct.Struct("".join(codes))


C_HEADER: Final = Path(__file__).resolve().parents[1] / "native" / "record_layout.h"


def c_header() -> str:
    """The text of C_HEADER."""
    lines = [
        "/* The layout of a message record, made by `python -m remoting.record_layout` of the table in",
        "   remoting/record_layout.py. */",
        "#ifndef LEDGERMQ_RECORD_LAYOUT_H",
        "#define LEDGERMQ_RECORD_LAYOUT_H",
        "",
        "/* With two IPv4 hosts. */",
        *(f"#define RECORD_{field.name.upper()}_AT {field.offset}" for field in FIELDS),
        f"#define RECORD_BODY_AT {BODY_AT}",
        f"#define RECORD_BYTES_MIN {RECORD_BYTES_MIN}",
        f"#define RECORD_HOST_BYTES {HOST_V4_BYTES}",
        "",
        f"#define RECORD_MAGIC_V1 {MAGIC_V1:#010x}u",
        f"#define HOSTS_V6 {BORN_HOST_V6 | STORE_HOST_V6:#x}",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    C_HEADER.write_text(c_header(), encoding="utf-8")
