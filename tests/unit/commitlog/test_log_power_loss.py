"""The replicated log with its consume queues on one disk that loses power between any two file operations."""

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dispatch import Applied, DispatchBatch
from commitlog.dledger_commit_log import DLedgerCommitLog, store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, open_entry_store
from commitlog.indexed_log import MessageLogConfig
from commitlog.log import PutStatus
from commitlog.record import Message, decode_record
from tests.support.fake_engine import FakeEngine, as_server
from tests.support.memory_fs import MemoryFs

STORE = Path("/store")
QUEUES = ConsumeQueueConfig(file_bytes=100, open_files_max=3)
ENTRIES = EntryStoreConfig(data_file_bytes=4096, index_file_bytes=256, cache_bytes_max=1000)
LIVES = 8
STEPS_MAX = 60


class PowerLossError(Exception):
    """The machine stops here."""


@dataclass
class Machine:
    """A node over many lives, and what every life must find: the bodies that were committed, by queue."""

    rng: random.Random
    fs: MemoryFs = field(default_factory=MemoryFs)
    term: int = 0
    sent: int = 0
    committed: defaultdict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    heard_index: int = -1

    async def run(self) -> None:
        self.fs.make_directory(STORE)
        for _ in range(LIVES):
            await self.live()
            if self.rng.random() < 0.7:  # else only the process was killed
                self.fs = self.fs.crash(self.rng)

    async def live(self) -> None:
        steps = self.rng.randint(0, STEPS_MAX)

        def count() -> None:
            nonlocal steps
            steps -= 1
            if steps < 0:
                raise PowerLossError

        self.fs.on_change = count if self.rng.random() < 0.7 else lambda: None
        try:
            node = Node(self)
            await node.check()
            for _ in range(self.rng.randint(0, 12)):
                await self.rng.choice((node.put, node.put, node.commit, node.flush))()
            await node.check()
        except PowerLossError:
            pass
        finally:
            self.fs.on_change = lambda: None


class Node:
    """One life. What is put and not committed may be lost with it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.pending: list[tuple[tuple[str, int], int, bytes]] = []
        self.store: EntryStore = open_entry_store(
            store_directory(STORE, "n0"), ENTRIES, write_physical_offset, machine.fs
        )
        self.engine = FakeEngine(self.store)
        self.fatal: list[BaseException] = []
        config = MessageLogConfig(QUEUES, message_bytes_max=500)
        self.log = DLedgerCommitLog(
            as_server(self.engine),
            self.store,
            STORE,
            config,
            on_fatal=self.fatal.append,
            fs=machine.fs,
            clock=lambda: 1,
        )
        self.heard_index = -1
        self.replay_index = machine.rng.randint(0, machine.heard_index + 1)
        self.log.replay_from(self.replay_index)
        self.log.add_listener(self.listen)
        machine.term += 1
        self.engine.lead(machine.term)
        self.recover_pending()

    def recover_pending(self) -> None:
        """A leader commits with its first entry all that it found: entries beyond the known ones too."""
        machine = self.machine
        known = {key: len(bodies) for key, bodies in machine.committed.items()}
        for index in range(self.store.begin_index, self.store.end_index + 1):
            data = bytes(self.store.read_range(index, index, 1).data)[48:]
            record = decode_record(data, check_crc=True)
            key = (record.topic, record.queue_id)
            if record.topic.startswith("T") and record.queue_offset >= known.get(key, 0):
                self.pending.append((key, record.queue_offset, bytes(record.body)))

    def listen(self, requests: DispatchBatch) -> None:
        """Every entry makes a request, so their indexes have no gap and no repeat."""
        for request in requests:
            assert request.index == self.heard_index + 1 or self.heard_index < 0 <= self.replay_index
            if self.heard_index < 0:
                assert request.index <= self.replay_index
            self.heard_index = request.index

    async def put(self) -> None:
        rng = self.machine.rng
        messages = []
        for _ in range(rng.randint(1, 6)):
            self.machine.sent += 1
            body = b"%d" % self.machine.sent + bytes(rng.randint(0, 200))
            messages.append(Message(f"T{rng.randint(0, 1)}", rng.randint(0, 1), body, b""))
        result = self.log.put(messages, lambda status: None)
        assert result.status is PutStatus.PUT_OK
        for message, offset in zip(messages, result.queue_offsets, strict=True):
            self.pending.append(((message.topic, message.queue_id), offset, bytes(message.body)))

    async def commit(self) -> None:
        self.engine.commit()
        while self.log.applied_index < self.store.end_index and not self.fatal:
            await asyncio.sleep(0)
        assert not self.fatal
        assert self.log.is_writable()
        self.machine.heard_index = self.store.end_index
        pending, self.pending = self.pending, []
        for key, offset, body in pending:
            assert offset == len(self.machine.committed[key]), (key, offset)
            self.machine.committed[key].append(body)

    async def flush(self) -> None:
        index = self.log.applied_index
        writes = self.log.queues.take_writes(Applied(index, self.store.end_of(index)))
        if writes is not None:
            self.log.queues.write(writes)
            self.log.queues.written(writes)

    async def check(self) -> None:
        """Every queue has every committed message at its offset, and nothing else."""
        await self.commit()
        for (topic, queue_id), bodies in self.machine.committed.items():
            queue = self.log.queues.get(topic, queue_id)
            assert self.log.queues.next_offset(topic, queue_id) == len(bodies)
            units = queue.units(0, len(bodies)) if queue is not None else []
            found = [bytes(decode_record(self.log.read(at, size)).body) for at, size, _ in units]
            assert found == bodies


@pytest.mark.parametrize("seed", range(80))
async def test_queues_hold_what_was_committed_whenever_the_power_fails(seed: int) -> None:
    await Machine(random.Random(seed)).run()
