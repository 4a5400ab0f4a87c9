"""The plain log of one node: put, read, dispatch, recovery, in RocketMQ's file format."""

import asyncio
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from commitlog.commit_log import CommitLog, RecordStoreConfig
from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dispatch import DispatchBatch, DispatchRequest
from commitlog.errors import CorruptLogError
from commitlog.indexed_log import MessageLogConfig
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message, decode_record
from tests.support.memory_fs import MemoryFs

STORE = Path("/store")
FILES = STORE / "commitlog"
CONFIG = MessageLogConfig(ConsumeQueueConfig(file_bytes=200), message_bytes_max=900)
RECORDS = RecordStoreConfig(file_bytes=1024, reserve_bytes=256, unsynced_bytes_max=4096)
NOW_MS = 1_700_000_000_000


class Bench:
    """A plain log and what came of its puts."""

    def __init__(self, fs: MemoryFs, records: RecordStoreConfig = RECORDS) -> None:
        self.fs = fs
        self.fatal: list[BaseException] = []
        self.log = CommitLog(STORE, CONFIG, records, on_fatal=self.fatal.append, fs=fs, clock=lambda: NOW_MS)
        self.done: list[PutStatus] = []
        self.heard: list[DispatchRequest] = []
        self.log.add_listener(self.listen)

    def listen(self, requests: DispatchBatch) -> None:
        for request in requests:
            self.log.read(request.position, request.size)
        self.heard += requests

    def put(self, *bodies: bytes) -> list[int]:
        result = self.log.put([Message("T", 0, body, b"A\x011\x02") for body in bodies], self.done.append)
        assert result.status is PutStatus.PUT_OK
        return result.positions

    async def settle(self, puts: int) -> None:
        async with asyncio.timeout(10):
            while len(self.done) < puts:
                await asyncio.sleep(0)

    async def dispatched(self, index: int) -> None:
        async with asyncio.timeout(10):
            while self.log.applied_index < index:
                await asyncio.sleep(0)


async def filled(fs: MemoryFs, sizes: Sequence[int] = (300, 300, 300, 20, 700, 5)) -> Bench:
    bench = Bench(fs)
    await bench.log.start()
    for number, size in enumerate(sizes):
        bench.put(bytes([number]) * size)
        await bench.settle(number + 1)
    return bench


def bodies(bench: Bench) -> list[bytes]:
    queue = bench.log.queues.get("T", 0)
    assert queue is not None
    found = []
    for offset, (position, size, _) in enumerate(queue.units(queue.begin_offset, 1000)):
        record = decode_record(bench.log.read(position, size), check_crc=True)
        assert (record.queue_offset, record.physical_offset) == (offset, position)
        found.append(record.body)
    return found


async def test_put_is_answered_and_dispatched_after_its_sync() -> None:
    fs = MemoryFs()
    bench = Bench(fs)
    log: MessageLog = bench.log
    await log.start()
    assert log.is_writable()
    assert log.status() is None
    syncs = fs.sync_count
    assert bench.put(b"a", b"b") == [0, 97]
    assert bench.put(b"c") == [194]
    assert (bench.done, bench.heard) == ([], [])
    await bench.settle(2)
    assert bench.done == [PutStatus.PUT_OK] * 2
    assert [(request.index, request.position) for request in bench.heard] == [(96, 0), (193, 97), (290, 194)]
    assert bodies(bench) == [b"a", b"b", b"c"]
    assert fs.sync_count > syncs
    assert (log.min_position, log.max_position, log.applied_index) == (0, 291, 290)
    await log.stop()
    assert fs.open_files == 0


async def test_puts_made_while_a_round_syncs_share_the_next_one() -> None:
    fs = MemoryFs()
    bench = Bench(fs, RecordStoreConfig(file_bytes=65536))
    await bench.log.start()
    bench.put(b"first")
    await bench.settle(1)
    before = fs.sync_count
    for _ in range(20):
        bench.put(b"x")
    await bench.settle(21)
    assert fs.sync_count - before <= 2
    writes = bench.log.write_metrics
    assert (writes.entries.sum, writes.entries.count) == (21, writes.seconds.count)
    assert writes.size_bytes.sum == bench.log.end_position
    await bench.log.stop()


async def test_record_that_does_not_fit_goes_behind_javas_filler() -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    assert [request.position for request in bench.heard] == [0, 396, 1024, 1420, 2048, 2844]
    assert fs.content(FILES / f"{0:020d}")[792:800] == (232).to_bytes(4, "big") + bytes.fromhex("cbd43194")
    assert fs.list(FILES) == [f"{start:020d}" for start in (0, 1024, 2048)]
    await bench.log.stop()


async def test_checkpoint_page_has_the_flushed_position() -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    await bench.log.stop()
    page = fs.content(STORE / "checkpoint")
    assert len(page) == 4096
    assert int.from_bytes(page[:8], "big") == NOW_MS
    assert int.from_bytes(page[24:32], "big") == 2945


async def test_restarted_log_goes_on_where_it_ended() -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    before = bodies(bench)
    await bench.log.stop()
    again = Bench(fs)
    await again.log.start()
    assert again.log.end_position == bench.log.end_position
    assert again.heard == []
    again.put(b"more")
    await again.settle(1)
    assert bodies(again) == [*before, b"more"]
    await again.log.stop()


async def test_log_without_its_queues_dispatches_all_again() -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    before = bodies(bench)
    again = Bench(fs)  # the first was never stopped: its queues were never flushed
    assert again.log.applied_index == -1
    await again.log.start()
    await again.dispatched(2944)
    assert bodies(again) == before
    assert [request.index for request in again.heard] == [request.index for request in bench.heard]
    await again.log.stop()
    third = Bench(fs)
    third.log.replay_from(again.heard[2].index + 1)
    await third.log.start()
    await third.dispatched(2944)
    assert third.heard == again.heard[3:]
    await third.log.stop()


@pytest.mark.parametrize("missing", [*range(1, 100, 4), 101, 102, 400, 890])
async def test_torn_tail_is_cut_and_written_over(missing: int) -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    fs.delete(STORE / "checkpoint")
    end = bench.log.end_position
    fs.overwrite(FILES / f"{2048:020d}", end - missing - 2048, bytes(missing))
    again = Bench(fs)
    whole = 5 if missing <= bench.heard[-1].size else 4
    assert again.log.end_position == bench.heard[whole - 1].position + bench.heard[whole - 1].size
    await again.log.start()
    await again.dispatched(again.log.end_position - 1)
    result = again.log.put([Message("T", 0, b"new")], again.done.append)
    assert result.queue_offsets == [whole]
    await again.settle(1)
    assert bodies(again)[whole:] == [b"new"]
    await again.log.stop()
    assert len(bodies(Bench(fs))) == whole + 1


async def test_damage_below_the_checkpoint_is_corrupt() -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    await bench.log.stop()
    fs.overwrite(FILES / f"{2048:020d}", 800, b"\xff")
    with pytest.raises(CorruptLogError, match=r"00000000000000002048: position 2844: .*on the disk"):
        Bench(fs)


async def test_damage_farther_back_than_anything_unsynced_is_corrupt() -> None:
    fs = MemoryFs()
    bench = await filled(fs, [10] * 40)
    fs.delete(STORE / "checkpoint")
    [*_, last] = fs.list(FILES)
    fs.overwrite(FILES / last, 60, b"\xff" * 40)
    small = RecordStoreConfig(file_bytes=1024, unsynced_bytes_max=300)
    with pytest.raises(CorruptLogError, match="whole at position"):
        Bench(fs, small)
    whole = [request for request in bench.heard if request.position < int(last)]
    assert Bench(fs).log.end_position == whole[-1].position + whole[-1].size


async def test_missing_files_are_corrupt() -> None:
    fs = MemoryFs()
    await filled(fs)
    for name in fs.list(FILES):
        fs.delete(FILES / name)
    with pytest.raises(CorruptLogError, match="no files"):
        Bench(fs)


async def test_failed_write_fails_the_puts_and_stops_the_node(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFs()
    bench = await filled(fs)
    fs.fail_after_writes = 0
    bench.put(b"x")
    await bench.settle(7)
    assert bench.done[-1] is PutStatus.UNKNOWN_ERROR
    assert [type(error) for error in bench.fatal] == [OSError]
    assert not bench.log.is_writable()
    result = bench.log.put([Message("T", 0, b"")], bench.done.append)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_put_limits() -> None:
    fs = MemoryFs()
    bench = Bench(fs, RecordStoreConfig(file_bytes=1024, pending_messages_max=3))
    await bench.log.start()
    message = Message("T", 0, b"")

    def status(*messages: Message) -> PutStatus:
        return bench.log.put(messages, bench.done.append).status

    assert status(message, message, message) is PutStatus.PUT_OK
    assert status(message) is PutStatus.OS_PAGE_CACHE_BUSY
    await bench.settle(1)
    assert status(Message("T", 0, bytes(901))) is PutStatus.MESSAGE_ILLEGAL
    assert status(Message("T", 0, b"", b"A\x01\0\x02")) is PutStatus.MESSAGE_ILLEGAL
    assert status(message, Message("T", 0, bytes(900), b"x" * 100)) is PutStatus.MESSAGE_ILLEGAL
    fs.used = 0.99
    assert status(message) is PutStatus.PUT_OK  # looked at less than a second ago
    await bench.settle(2)
    queue = bench.log.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == 4
    await bench.log.stop()


async def test_full_disk_refuses_puts() -> None:
    fs = MemoryFs()
    fs.used = 0.99
    bench = Bench(fs)
    result = bench.log.put([Message("T", 0, b"")], bench.done.append)
    assert result.status is PutStatus.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("seed", range(20))
async def test_power_failure_keeps_every_answered_message(seed: int) -> None:
    rng = random.Random(seed)
    fs = MemoryFs()
    bench = Bench(fs)
    await bench.log.start()
    sent: list[bytes] = []
    answered = 0
    for number in range(rng.randrange(1, 12)):
        part = [rng.randbytes(rng.randrange(400)) for _ in range(rng.randrange(1, 5))]
        bench.put(*part)
        sent += part
        if rng.random() < 0.6:
            await bench.settle(number + 1)
            answered = len(sent)
    after = fs.crash(rng)
    again = Bench(after)
    await again.log.start()
    await again.dispatched(again.log.end_position - 1)
    found = bodies(again) if again.heard else []
    assert found == sent[: len(found)]
    assert len(found) >= answered
    await again.log.stop()
    await bench.log.stop()
