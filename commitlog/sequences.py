"""Records with a sequence number of their writer: the basis of exactly-once writes.

A writer (for example a query of a data pipeline) numbers the rows that each of its partitions writes, from 0
in every batch. The number is in the record itself, as the property LEDGERMQ_SEQ, so a record and its number
are one entry of the log, and every node knows from the committed entries how far each writer is.

A repeat must have the same rows under the same numbers. So a writer that can send its rows again computes a
rolling digest of the rows that a partition has sent in the batch; each record holds the digest up to and
including itself, as the property LEDGERMQ_SUM.

Such a record has SEQUENCED in the field of the prepared transaction offset. No client can set that field: a
property that a consumer copied into a message of its own has no effect. Delayed and retried copies lose
SEQUENCED in the same way.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import repeat
from typing import Final

from isal import isal_zlib

import native
from commitlog.entry import HEADER_BYTES, Buffer, entry_starts
from commitlog.record import CorruptRecordError, Message, decode_record
from remoting.record_layout import BORN_HOST_V6, MAGIC_V1, STORE_HOST_V6, fields_struct

SEQUENCED: Final = -1
"""The prepared transaction offset of a sequenced record."""
PROPERTY_SEQUENCE: Final = b"LEDGERMQ_SEQ"
"""WRITER|PARTITION|BATCH|SEQUENCE, always the record's first property."""
PROPERTY_DIGEST: Final = b"LEDGERMQ_SUM"
"""The rolling digest, right behind it; missing when the writer keeps none."""
NO_DIGEST: Final = b""
FIRST_DIGEST: Final = b"0" * 16
"""Before a batch's first row."""
WRITER_CHARS_MAX: Final = 64
PARTITION_MAX: Final = 2**31 - 1
BATCH_MAX: Final = 2**63 - 1
SEQUENCE_MAX: Final = 2**31 - 1
SEQUENCE_BYTES_MAX: Final = (
    len(PROPERTY_SEQUENCE) + 2 + WRITER_CHARS_MAX + 3 + 10 + 19 + 10 + len(PROPERTY_DIGEST) + 2 + 16
)
"""What the two properties add to a record at most."""

SequenceRun = tuple[bytes, int, int, int, int, int, bytes]
"""Sequenced records with successive numbers of one writer, partition and batch, and one store time, in
successive entries: key (WRITER|PARTITION), batch, first number, count, index of the first entry, store time,
the last record's digest. A plain tuple, since the compiled function makes it.
"""

_START: Final = PROPERTY_SEQUENCE + b"\x01"
_VALUE: Final = re.compile(
    rb"LEDGERMQ_SEQ\x01([A-Za-z0-9_.-]{1,64}\|(?:0|[1-9]\d{0,9}))\|(0|[1-9]\d{0,18})\|(0|[1-9]\d{0,9})\x02"
    rb"(?:LEDGERMQ_SUM\x01([0-9a-f]{16})\x02)?"
)
_DIGEST: Final = re.compile(r"[0-9a-f]{16}\Z")
_WRITER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_ROW: Final = struct.Struct(">II")
_FIELDS: Final = fields_struct("magic", "sys_flag", "prepared_transaction_offset")
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_FIND: Final = native.function("_log", "sequence_runs")


def writer_error(writer: str) -> str | None:
    """The error in a writer's id; None when it is valid."""
    if _WRITER.match(writer):
        return None
    return f"a writer id has 1 to {WRITER_CHARS_MAX} letters, digits or _ . -"


def writer_key(writer: str, partition: int) -> bytes:
    """The key of a writer's progress. The caller has checked both."""
    return f"{writer}|{partition}".encode()


def digest_error(digest: str) -> str | None:
    """The error in a digest; None when it is valid."""
    return None if _DIGEST.match(digest) else "a digest has 16 hexadecimal digits"


def next_digest(digest: bytes, message: Buffer) -> bytes:
    """The digest with one more message, which has the form that it has in the body of a sequenced send.

    Only the message's CRC-32 and length are hashed: hashing all bytes would cost a leader more than storing
    them.
    """
    row = _ROW.pack(isal_zlib.crc32(message), len(message))
    return blake2b(row, digest_size=8, key=digest).hexdigest().encode()


def stamp_sequences(
    messages: Iterable[Message],
    key: bytes,
    batch_id: int,
    sequence: int,
    digests: Iterable[bytes] | None = None,
) -> None:
    """Give the messages their numbers, from `sequence` on, and each the digest with it, if there are any."""
    head = b"%b%b|%d|" % (_START, key, batch_id)
    pairs = zip(messages, digests or repeat(NO_DIGEST), strict=False)
    for number, (message, digest) in enumerate(pairs, sequence):
        sum_piece = b"%b\x01%b\x02" % (PROPERTY_DIGEST, digest) if digest else b""
        message.properties = b"%b%d\x02%b%b" % (head, number, sum_piece, message.properties)
        message.prepared_transaction_offset = SEQUENCED


def place_of(properties: bytes) -> tuple[bytes, int, int, bytes] | None:
    """Key, batch, number and digest in a sequenced record's properties; None when they hold none."""
    found = _VALUE.match(properties)
    if found is None:
        return None
    batch_id, sequence = int(found[2]), int(found[3])
    partition = int(found[1].rpartition(b"|")[2])
    is_within = partition <= PARTITION_MAX and batch_id <= BATCH_MAX and sequence <= SEQUENCE_MAX
    return (found[1], batch_id, sequence, found[4] or NO_DIGEST) if is_within else None


def sequence_runs(data: Buffer, first_index: int, last_index: int) -> Sequence[SequenceRun]:
    """The runs in verified entries."""
    if _FIND is not None:
        found: list[SequenceRun] | None = _FIND(data, last_index - first_index + 1, first_index)
        if found is not None:
            return found
    raw = bytes(data)
    if _START not in raw:
        return ()
    starts = (start + HEADER_BYTES for start in entry_starts(raw))
    return joined(
        zip(range(first_index, last_index + 1), (_read(raw, start) for start in starts), strict=True)
    )


def record_runs(data: bytes, starts: Sequence[int], indexes: Sequence[int]) -> Sequence[SequenceRun]:
    """The same for records that begin at these places, under these indexes."""
    if _START not in data:
        return ()
    return joined(zip(indexes, (_read(data, start) for start in starts), strict=True))


_Found = tuple[bytes, int, int, bytes, int] | None
"""Key, batch, number, digest and store time of one record."""


def joined(found: Iterable[tuple[int, _Found]]) -> list[SequenceRun]:
    """Runs of single records, given in log order as (index, its numbers or None)."""
    runs: list[SequenceRun] = []
    for index, one in found:
        if one is None:
            continue
        key, batch_id, sequence, digest, stored_ms = one
        if runs:
            before = runs[-1]
            follows = (key, batch_id, sequence - before[3], index - before[3], stored_ms)
            if (before[0], before[1], before[2], before[4], before[5]) == follows:
                runs[-1] = (key, batch_id, before[2], before[3] + 1, before[4], stored_ms, digest)
                continue
        runs.append((key, batch_id, sequence, 1, index, stored_ms, digest))
    return runs


def _read(data: bytes, start: int) -> _Found:
    magic, sys_flag, prepared = _FIELDS.unpack_from(data, start)
    if magic == MAGIC_V1 and not sys_flag & _HOSTS_V6 and prepared != SEQUENCED:
        return None
    try:
        record = decode_record(data, start)
    except CorruptRecordError:
        return None
    if record.prepared_transaction_offset != SEQUENCED:
        return None
    found = place_of(record.properties)
    return None if found is None else (*found, record.store_timestamp_ms)
