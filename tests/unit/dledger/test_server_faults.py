"""One DLedgerServer whose disk, store or callers misbehave. The test speaks for its peers."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger import maintenance as upkeep
from dledger.core.config import Config
from dledger.core.messages import AppendRequest, HeartbeatRequest, TruncateRequest
from dledger.core.types import EntryRange, HardState, ResponseCode, Role
from dledger.durable_state import HardStateFile
from dledger.server import DLedgerServer
from dledger.writer import Durability
from tests.support.memory_log import MemoryLog, MemoryWrites
from tests.support.polling import until

WAIT_S = 10.0


@dataclass
class Witness:
    """An Observer that remembers."""

    readable: list[int] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)

    def on_readable(self, last_index: int) -> None:
        self.readable.append(last_index)

    def on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        """Not of interest here."""

    def on_fatal(self, error: BaseException) -> None:
        self.fatal.append(error)


class SlowLog(MemoryLog):
    """A log whose writes wait, one after the other, until the test lets each through."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.may_write = threading.Semaphore(0)
        self.begun = 0

    def write(self, writes: MemoryWrites, sync: bool) -> None:
        self.begun += 1
        if self.is_slow:
            assert self.may_write.acquire(timeout=WAIT_S)
        super().write(writes, sync)


@dataclass
class Bench:
    server: DLedgerServer
    store: SlowLog
    witness: Witness


@asynccontextmanager
async def running(folder: Path, size: int = 1, unwritten_bytes_max: int = 1 << 20) -> AsyncIterator[Bench]:
    """Member n0 of a group; nobody answers at the addresses of the others."""
    store = SlowLog()
    HardStateFile(folder).save(HardState(0, None))  # not the first start, so it may vote
    ids = tuple(f"n{number}" for number in range(size))
    patience_ms = 50 if size == 1 else 60_000
    server = DLedgerServer(
        Config(
            group="g",
            self_id="n0",
            peers=ids,
            heartbeat_interval_ms=20,
            election_timeout_min_ms=patience_ms,
            election_timeout_max_ms=patience_ms,
        ),
        listen=("127.0.0.1", 0),
        peers=dict.fromkeys(ids, ("127.0.0.1", 1)),
        store=store,
        state_dir=folder,
        term_start_body=lambda term: b"term %d" % term,
        durability=Durability.PERSISTED,
        client_address="",
        unwritten_bytes_max=unwritten_bytes_max,
    )
    witness = Witness()
    server.set_observer(witness)
    await server.start()
    try:
        yield Bench(server, store, witness)
    finally:
        store.is_slow = False
        store.may_write.release(100)
        await server.stop()


async def leading(bench: Bench) -> None:
    await until(lambda: bench.server.commit_index >= bench.server.term_start_index >= 0)


def entry(log: MemoryLog, term: int, body: bytes) -> EntryRange:
    """The next entry of a leader's log."""
    index = log.end_index + 1
    log.append_bodies(index, term, [body])
    return log.read_range(index, index, 1 << 20)


async def test_entries_that_replaced_others_are_not_persisted_by_the_write_of_those(tmp_path: Path) -> None:
    first, second = MemoryLog(), MemoryLog()
    async with running(tmp_path, size=3) as bench:
        common = entry(first, 1, b"common")
        second.append_range(common)
        bench.server.on_messages("n1", [AppendRequest(1, -1, -1, common)])
        await until(lambda: bench.server.persisted_index == 0)
        bench.store.is_slow = True
        begun = bench.store.begun
        bench.server.on_messages("n1", [AppendRequest(1, 0, 1, entry(first, 1, b"to go"))])
        await until(lambda: bench.store.begun == begun + 1)
        bench.server.on_messages(
            "n2",
            [
                TruncateRequest(2, 0, 1, 1, second.end_position, False, 1, 1),
                AppendRequest(2, 1, 1, entry(second, 2, b"stays")),
            ],
        )
        await until(lambda: bench.server.commit_index == 1)
        bench.store.may_write.release()
        await until(lambda: bench.store.begun == begun + 2)
        assert bench.server.persisted_index == 0
        assert bench.witness.readable == [0]
        bench.store.may_write.release()
        await until(lambda: bench.witness.readable == [0, 1])
        assert bench.store.disk.end_index == 1


async def test_stalled_disk_of_a_leader_bounds_what_it_takes(tmp_path: Path) -> None:
    async with running(tmp_path, unwritten_bytes_max=1_000) as bench:
        await leading(bench)
        bench.store.is_slow = True
        codes: list[ResponseCode] = []
        taken = 0
        while (code := bench.server.handle_append([bytes(100)], codes.append).code) is ResponseCode.SUCCESS:
            taken += 1
            assert taken < 100
        assert code is ResponseCode.LEADER_PENDING_FULL
        bench.store.is_slow = False
        bench.store.may_write.release(100)
        await until(lambda: codes == [ResponseCode.SUCCESS] * taken)
        assert bench.server.handle_append([bytes(100)], codes.append).code is ResponseCode.SUCCESS


async def test_answer_that_raises_harms_nobody_else(tmp_path: Path) -> None:
    def refuse(code: ResponseCode) -> None:
        raise ValueError(code)

    async with running(tmp_path) as bench:
        await leading(bench)
        codes: list[ResponseCode] = []
        bench.server.handle_append([b"a"], refuse)
        bench.server.handle_append([b"b"], codes.append)
        await until(lambda: codes == [ResponseCode.SUCCESS])
        assert not bench.witness.fatal


async def test_entries_that_cannot_be_laid_out_stop_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(first_index: int, term: int, bodies: object) -> list[int]:
        raise ValueError("too large")

    async with running(tmp_path) as bench:
        await leading(bench)
        monkeypatch.setattr(bench.store, "append_bodies", fail)
        with pytest.raises(ValueError, match="too large"):
            bench.server.handle_append([b"a"], lambda code: None)
        assert len(bench.witness.fatal) == 1


async def test_what_fails_after_a_write_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(writes: object) -> None:
        raise OSError(5, "close failed")

    async with running(tmp_path) as bench:
        await leading(bench)
        monkeypatch.setattr(bench.store, "written", fail)
        bench.server.handle_append([b"a"], lambda code: None)
        await until(lambda: len(bench.witness.fatal) == 1)


async def test_disk_that_cannot_be_looked_at_stops_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> bool:
        raise OSError(5, "statvfs failed")

    monkeypatch.setattr(upkeep, "_INTERVAL_S", 0.001)
    async with running(tmp_path) as bench:
        monkeypatch.setattr(bench.store, "is_disk_full", fail)
        await until(lambda: len(bench.witness.fatal) == 1)


async def test_stopped_node_keeps_no_messages_and_writes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(peer: str, now_ms: int) -> None:
        raise AssertionError("a broken invariant")

    async with running(tmp_path, size=3) as bench:
        monkeypatch.setattr(bench.server._node, "peer_connected", fail)
        bench.server.on_peer_connected("n1")
        bench.server.on_peer_connected("n1")
        assert len(bench.witness.fatal) == 1
        bench.server.on_messages("n1", [HeartbeatRequest(1, -1)])
        assert bench.server._inbox == []
        checkpoint = bench.store.checkpoint
    assert bench.store.checkpoint == checkpoint
