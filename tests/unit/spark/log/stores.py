"""Stores for tests: written by the brokers' own classes into real files, small enough that a few messages
fill several of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commitlog.commit_log import CommitLog, RecordStoreConfig
from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from commitlog.indexed_log import MessageLogConfig
from commitlog.log import PutStatus
from commitlog.record import Message, encode_record
from rocketmq_spark.log.discovery import Log, find_logs
from rocketmq_spark.log.entries import Damage, EntryBlock, LogRange
from rocketmq_spark.log.reader import walk_of

NOW_MS = 1_700_000_000_000
DATA_FILE_BYTES = 4096
INDEX_FILE_BYTES = 320
NODE = "dledger-n0"


@dataclass(frozen=True, slots=True)
class Put:
    """A message to store, and the term of its entry."""

    body: bytes
    topic: str = "T"
    queue_id: int = 0
    properties: bytes = b"TAGS\x01TagA\x02KEYS\x01k\x02"
    term: int = 1
    sys_flag: int = 0


def numbered(count: int, size: int = 100, queues: int = 2, terms: int = 3) -> list[Put]:
    """Messages over queues in turn, the terms one after the other, of slightly different sizes."""
    return [
        Put(
            b"%06d" % number + b"." * (size + number % 7),
            queue_id=number % queues,
            properties=b"TAGS\x01Tag%d\x02KEYS\x01key-%d\x02" % (number % 2, number),
            term=1 + number * terms // count,
        )
        for number in range(count)
    ]


def records(puts: Sequence[Put]) -> list[bytes]:
    """The records of messages, with the queue offsets that a broker gives them."""
    offsets: dict[tuple[str, int], int] = {}
    found = []
    for number, put in enumerate(puts):
        key = (put.topic, put.queue_id)
        offset = offsets.get(key, 0)
        offsets[key] = offset + 1
        message = Message(
            put.topic, put.queue_id, put.body, put.properties, sys_flag=put.sys_flag, born_timestamp_ms=NOW_MS
        )
        found.append(encode_record(message, offset, NOW_MS + number))
    return found


def write_entries(
    root: Path,
    puts: Sequence[Put],
    *,
    committed: int | None = None,
    data_file_bytes: int = DATA_FILE_BYTES,
    node: str = NODE,
) -> Path:
    """A DLedger store below `root`, committed up to that entry (the last unless given); its folder."""
    bodies = [(put.term, record) for put, record in zip(puts, records(puts), strict=True)]
    return write_bodies(root, bodies, committed=committed, data_file_bytes=data_file_bytes, node=node)


def write_bodies(
    root: Path,
    bodies: Sequence[tuple[int, bytes]],
    *,
    committed: int | None = None,
    data_file_bytes: int = DATA_FILE_BYTES,
    node: str = NODE,
) -> Path:
    """As `write_entries`, of (term, record)."""
    config = EntryStoreConfig(
        data_file_bytes=data_file_bytes,
        index_file_bytes=INDEX_FILE_BYTES,
        chunk_bytes_max=data_file_bytes,
        reserve_bytes=data_file_bytes,
        unsynced_bytes_max=16 * data_file_bytes,
    )
    store = open_entry_store(root / node, config, write_physical_offset)
    for term, record in bodies:
        store.append_bodies(store.end_index + 1, term, [record])
        writes = store.take_writes()
        assert writes is not None
        store.write(writes, True)
        store.written(writes)
    store.save_checkpoint(store.end_index, store.end_index if committed is None else committed)
    store.close()
    return root / node


def write_records(root: Path, puts: Sequence[Put], data_file_bytes: int = DATA_FILE_BYTES) -> Path:
    """A plain commit log with its consume queues below `root`; its folder."""
    asyncio.run(_write_records(root, puts, data_file_bytes))
    return root / "commitlog"


async def _write_records(root: Path, puts: Sequence[Put], data_file_bytes: int) -> None:
    fatal: list[BaseException] = []
    log = CommitLog(
        root,
        MessageLogConfig(ConsumeQueueConfig(file_bytes=400), message_bytes_max=data_file_bytes - 100),
        RecordStoreConfig(file_bytes=data_file_bytes, reserve_bytes=data_file_bytes),
        on_fatal=fatal.append,
        clock=lambda: NOW_MS,
    )
    await log.start()
    done: list[PutStatus] = []
    for put in puts:
        result = log.put([Message(put.topic, put.queue_id, put.body, put.properties)], done.append)
        assert result.status is PutStatus.PUT_OK
    async with asyncio.timeout(20):
        while len(done) < len(puts):
            await asyncio.sleep(0)
        keys = {(put.topic, put.queue_id) for put in puts}
        while log.applied_index < log.end_position - 1:
            await asyncio.sleep(0)
        assert sum(log.queues.next_offset(*key) for key in keys) == len(puts)
    await log.stop()
    assert not fatal


def one_log(path: Path | str) -> Log:
    """The only log there."""
    [log] = find_logs(str(path), "auto", {})
    return log


def walk(log: Log, ranges: Sequence[LogRange]) -> list[EntryBlock | Damage]:
    """All that the ranges hold, in order."""
    return [found for each in ranges for found in walk_of(log, each)]


def positions(found: Sequence[EntryBlock | Damage]) -> list[int]:
    """Where the whole entries stand."""
    return [
        each.position + start
        for each in found
        if isinstance(each, EntryBlock)
        for start in each.starts.tolist()
    ]


def damages(found: Sequence[EntryBlock | Damage]) -> list[Damage]:
    return [each for each in found if isinstance(each, Damage)]


def patch(path: Path, at: int, change: Callable[[bytes], bytes], size: int = 1) -> None:
    """Change some bytes of a file in place."""
    with path.open("r+b") as file:
        file.seek(at)
        data = file.read(size)
        file.seek(at)
        file.write(change(data))


def flip(path: Path, at: int) -> None:
    """Flip one bit of one byte."""
    patch(path, at, lambda data: bytes([data[0] ^ 0x10]))
