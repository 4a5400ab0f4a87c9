"""The key index over a plain log, whose records stand back to back in files that end in blanks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from commitlog.commit_log import CommitLog, RecordStoreConfig
from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.indexed_log import MessageLogConfig
from commitlog.key_index import KeyIndex, KeyIndexConfig, KeyMaintenance
from commitlog.key_segment import key_hash
from commitlog.log import PutStatus
from commitlog.record import Message, decode_record
from tests.support.memory_fs import MemoryFs

STORE = Path("/store")
CONFIG = MessageLogConfig(ConsumeQueueConfig(file_bytes=200), message_bytes_max=900)
RECORDS = RecordStoreConfig(file_bytes=1024, reserve_bytes=256, unsynced_bytes_max=4096)
ALL_TIMES = (0, 2**62)


class Bench:
    """A node with a plain log."""

    def __init__(self, fs: MemoryFs) -> None:
        self.fs = fs
        self.fatal: list[BaseException] = []
        self.done: list[PutStatus] = []
        self.log = CommitLog(STORE, CONFIG, RECORDS, on_fatal=self.fatal.append, fs=fs, clock=lambda: 5)
        self.index = KeyIndex(fs, STORE, self.log, KeyIndexConfig(units_max=9), self.log.end_position)
        self.log.add_listener(self.index.on_batch)
        self.maintenance = KeyMaintenance(self.index)

    async def put(self, count: int) -> None:
        for number in range(count):
            messages = [Message("T", 0, b"x" * (number * 37 % 300), f"KEYS\x01all k{number}\x02".encode())]
            assert self.log.put(messages, self.done.append).status is PutStatus.PUT_OK
        await self.applied()

    async def applied(self) -> None:
        async with asyncio.timeout(10):
            while self.log.applied_index < self.log.end_position - 1:
                await asyncio.sleep(0)

    async def find(self, key: str) -> list[bytes]:
        found: dict[int, bytes] = {}
        async for position in self.index.hits(key_hash("T", key), *ALL_TIMES):
            data = self.log.record_at(position)
            assert data is not None
            found[position] = decode_record(data).properties
        return list(found.values())

    async def stop(self) -> None:
        await self.maintenance.stop()
        await self.log.stop()
        assert not self.fatal


async def test_messages_of_many_files_are_found_before_and_after_a_restart() -> None:
    bench = Bench(MemoryFs())
    await bench.log.start()
    await bench.put(40)
    await bench.maintenance.work()
    assert len(await bench.find("all")) == 40
    await bench.stop()
    again = Bench(bench.fs)
    await again.log.start()
    await again.applied()
    await again.maintenance.work()
    assert again.index.gaps() == []
    expected = [f"KEYS\x01all k{number}\x02".encode() for number in range(39, -1, -1)]
    assert await again.find("all") == expected
    assert await again.find("k17") == [b"KEYS\x01all k17\x02"]
    await again.stop()


async def test_deleted_files_are_built_again() -> None:
    bench = Bench(MemoryFs())
    await bench.log.start()
    await bench.put(40)
    await bench.stop()
    for name in bench.fs.list(STORE / "keyindex"):
        bench.fs.delete(STORE / "keyindex" / name)
    again = Bench(bench.fs)
    await again.log.start()
    await again.applied()
    await again.maintenance.work()
    assert len(await again.find("all")) == 40
    await again.stop()
