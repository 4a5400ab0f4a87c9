"""What one DLedgerServer says and what its disk holds at that moment. The test speaks for its peers."""

import asyncio
import errno
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from commitlog.dledger_commit_log import members_record
from commitlog.entry_store import EntryStore, open_entry_store
from dledger.core.config import Config
from dledger.core.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    RepairRequest,
    RepairResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from dledger.core.types import (
    NO_INDEX,
    NO_TERM,
    EntryRange,
    Epoch,
    HardState,
    LogState,
    ResponseCode,
    Role,
)
from dledger.durable_state import DurableState, HardStateFile
from dledger.environment import Environment
from dledger.server import DLedgerServer
from dledger.writer import Durability
from tests.support.log_entries import DIRECTORY, SMALL, read_all
from tests.support.memory_fs import MemoryFs
from tests.support.polling import until

WAIT_S = 10.0


class NothingKept(random.Random):
    """The chance of a power failure after which only what was synced is there."""

    def random(self) -> float:
        return 0.999


@dataclass
class Bench:
    """Member n0. `on_send` sees each of its messages as it leaves."""

    server: DLedgerServer
    fs: MemoryFs
    readable: list[int] = field(default_factory=list)
    fatal: list[BaseException] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)
    on_send: Callable[[Message], None] = lambda message: None

    def on_readable(self, last_index: int) -> None:
        self.readable.append(last_index)

    def on_role_change(self, role: Role, term: int, leader_id: str | None) -> None:
        """Not of interest here."""

    def on_fatal(self, error: BaseException) -> None:
        self.fatal.append(error)

    def send(self, peer: str, message: Message) -> None:
        self.sent.append(message)
        self.on_send(message)

    def after_power_failure(self) -> tuple[HardState, EntryStore]:
        """What a start would find if the power failed now."""
        fs = self.fs.crash(NothingKept())
        return HardStateFile(DIRECTORY, fs).load(), open_entry_store(DIRECTORY, SMALL, fs=fs)


@asynccontextmanager
async def running(
    size: int, is_wiped: bool = False, durability: Durability = Durability.PERSISTED
) -> AsyncIterator[Bench]:
    """A group of one elects itself; in a larger one the test has all the time."""
    fs = MemoryFs()
    store = open_entry_store(DIRECTORY, SMALL, fs=fs)
    if not is_wiped:
        HardStateFile(DIRECTORY, fs).save(HardState(1, None))
    ids = tuple(f"n{number}" for number in range(size))
    patience_ms = 50 if size == 1 else 60_000
    server = DLedgerServer(
        Config("g", "n0", ids, 20, election_timeout_min_ms=patience_ms, election_timeout_max_ms=patience_ms),
        listen=("127.0.0.1", 0),
        peers=dict.fromkeys(ids, ("127.0.0.1", 1)),
        store=store,
        state_dir=DIRECTORY,
        term_start_body=lambda term: b"term %d" % term,
        durability=durability,
        client_address="",
        environment=Environment(fs=fs),
        members_body=lambda configuration: members_record(configuration, bytes(8), 0),
    )
    bench = Bench(server, fs)
    server.set_observer(bench)
    server._transport.send = bench.send  # type: ignore[method-assign]
    await server.start()
    try:
        yield bench
    finally:
        fs.heal()
        fs.on_operation = lambda operation, path: None
        await server.stop()


async def settled() -> None:
    """Some turns of the loop."""
    for _ in range(5):
        await asyncio.sleep(0)


async def leading(bench: Bench) -> None:
    await until(lambda: bench.server.commit_index >= bench.server.term_start_index >= 0)


def leaders_entry(term: int, body: bytes) -> EntryRange:
    """The first entry of a log."""
    log = open_entry_store(Path("/leader"), SMALL, fs=MemoryFs())
    log.append_bodies(0, term, [body])
    return log.read_range(0, 0, 1024)


async def test_acknowledged_entry_outlives_a_power_failure() -> None:
    async with running(1) as bench:
        await leading(bench)
        found: list[list[bytes]] = []

        def look(code: ResponseCode) -> None:
            assert code is ResponseCode.SUCCESS
            found.append([entry.body for entry in read_all(bench.after_power_failure()[1])])

        bench.server.handle_append([b"kept"], look)
        await until(lambda: found or bench.fatal)
        assert found[0][0] == b"term 2"
        assert b"kept" in found[0]  # the leader may have written the members before


@pytest.mark.parametrize("operation", ["pwrite", "allocate"])
async def test_failed_write_stops_the_node(operation: str) -> None:
    async with running(1) as bench:
        await leading(bench)
        bench.fs.fail([operation], errno.ENOSPC, is_lasting=True, folder=DIRECTORY / "data")
        codes: list[ResponseCode] = []
        bench.server.handle_append([bytes(300)], codes.append)
        await until(lambda: bench.fatal or codes)
        assert (len(bench.fatal), codes) == (1, [])


async def test_failed_sync_stops_the_node_though_the_next_would_succeed() -> None:
    """After it nobody knows what the disk has: the pages that could not be written count as clean."""
    async with running(1) as bench:
        await leading(bench)
        bench.fs.fail(["fdatasync"], folder=DIRECTORY / "data")
        codes: list[ResponseCode] = []
        bench.server.handle_append([b"lost"], codes.append)
        await until(lambda: bench.fatal or codes)
        assert (len(bench.fatal), codes) == (1, [])
        assert [entry.body for entry in read_all(bench.after_power_failure()[1])] == [b"term 2"]


@pytest.mark.parametrize("operation", ["pwrite", "fsync", "rename", "fsync_directory"])
async def test_vote_that_cannot_be_saved_is_not_answered(operation: str) -> None:
    async with running(3) as bench:
        bench.fs.fail([operation], errno.EIO, folder=DIRECTORY)
        bench.server.on_messages("n1", [VoteRequest(2, 2, NO_INDEX, NO_TERM, False, False)])
        await until(lambda: bench.fatal or bench.sent)
        assert (len(bench.fatal), bench.sent) == (1, [])


async def test_vote_is_answered_only_when_it_is_on_the_disk() -> None:
    async with running(3) as bench:
        found: list[HardState] = []

        def look(message: Message) -> None:
            if isinstance(message, VoteResponse) and message.result is VoteResult.ACCEPT:
                found.append(bench.after_power_failure()[0])

        bench.on_send = look
        bench.server.on_messages("n1", [VoteRequest(2, 2, NO_INDEX, NO_TERM, False, False)])
        await until(lambda: found or bench.fatal)
        assert found == [HardState(2, "n1")]


async def test_vote_and_entries_of_one_batch_are_both_written() -> None:
    async with running(3) as bench:
        found: list[tuple[int, int]] = []

        def look(message: Message) -> None:
            if isinstance(message, AppendResponse):
                state, store = bench.after_power_failure()
                found.append((state.term, store.end_index))

        bench.on_send = look
        bench.server.on_messages("n1", [AppendRequest(2, NO_INDEX, NO_TERM, leaders_entry(2, b"first"))])
        await until(lambda: found or bench.fatal)
        assert found == [(2, 0)]


async def test_damaged_push_is_dropped_and_the_whole_one_taken() -> None:
    async with running(3) as bench:
        whole = leaders_entry(1, b"body")
        torn = EntryRange(0, 0, 1, bytes(whole.data[:-1]) + b"\xff")
        bench.server.on_messages(
            "n1", [AppendRequest(1, NO_INDEX, NO_TERM, torn), HeartbeatRequest(1, NO_INDEX)]
        )
        await until(lambda: any(isinstance(message, HeartbeatResponse) for message in bench.sent))
        assert bench.sent == [HeartbeatResponse(1, NO_INDEX)]
        bench.server.on_messages("n1", [AppendRequest(1, NO_INDEX, NO_TERM, whole)])
        await until(lambda: len(bench.sent) == 2)
        assert bench.sent[1] == AppendResponse(1, ResponseCode.SUCCESS, 0, 0, 0)


async def test_entries_are_readable_only_when_committed_and_written() -> None:
    may_write = threading.Event()

    def wait(operation: str, path: Path) -> None:
        if operation == "pwrite" and path.parent == DIRECTORY / "data":
            assert may_write.wait(WAIT_S)

    async with running(3) as bench:
        first = leaders_entry(1, b"first")
        bench.server.on_messages("n1", [AppendRequest(1, NO_INDEX, NO_TERM, first)])
        await until(lambda: bench.server.persisted_index == 0)
        await settled()
        assert bench.readable == []
        bench.server.on_messages("n1", [HeartbeatRequest(1, 0)])
        await until(lambda: bench.readable)
        bench.fs.on_operation = wait
        log = open_entry_store(Path("/leader"), SMALL, fs=MemoryFs())
        log.append_bodies(0, 1, [b"first", b"second"])
        bench.server.on_messages("n1", [AppendRequest(1, 1, 1, log.read_range(1, 1, 1024))])
        await until(lambda: bench.server.commit_index == 1)
        await settled()
        readable = list(bench.readable)
        may_write.set()
        assert readable == [0]
        await until(lambda: bench.readable == [0, 1])


# -- what may be lost --------------------------------------------------------------------------------------


def lose_all(fs: MemoryFs) -> LogState:
    return LogState(0, -1, (), -1)


def lose_vote(fs: MemoryFs) -> LogState:
    return LogState(0, 5, (Epoch(3, 0),), -1)


def find_old_vote(fs: MemoryFs) -> LogState:
    HardStateFile(DIRECTORY, fs).save(HardState(2, "n1"))
    return LogState(0, 5, (Epoch(3, 0),), -1)


def find_damaged_vote(fs: MemoryFs) -> LogState:
    HardStateFile(DIRECTORY, fs).save(HardState(3, "n1"))
    fs.overwrite(DIRECTORY / "currterm", 3, b"x")
    return LogState(0, 5, (Epoch(3, 0),), -1)


@pytest.mark.parametrize("lose", [lose_all, lose_vote, find_old_vote, find_damaged_vote])
def test_node_that_may_have_lost_its_vote_is_marked_until_it_is_healed(
    lose: Callable[[MemoryFs], LogState],
) -> None:
    fs = MemoryFs()
    fs.make_directory(DIRECTORY)
    log = lose(fs)
    config = Config("g", "n0", ("n0", "n1", "n2"))
    for term in (3 if log.epochs else 0, 4, 4):
        state, impairment = DurableState(config, DIRECTORY, Environment(fs=fs)).load(log)
        assert impairment is not None
        assert impairment.is_vote_lost
        assert state == HardState(term, None)
        HardStateFile(DIRECTORY, fs).save(HardState(4, None))  # of a leader that it follows
        fs = fs.crash(NothingKept())
    assert DurableState(config, DIRECTORY, Environment(fs=fs)).load(log)[1] is not None


@pytest.mark.parametrize("durability", Durability)
async def test_wiped_node_votes_only_when_vote_and_log_are_on_its_disk_again(durability: Durability) -> None:
    found: list[tuple[HardState, int]] = []
    async with running(3, is_wiped=True, durability=durability) as bench:

        def look(operation: str, path: Path) -> None:
            if operation == "delete" and path.name == "impaired":
                state, store = bench.after_power_failure()
                found.append((state, store.end_index))

        bench.fs.on_operation = look
        await until(lambda: len(bench.sent) >= 2)
        asked = bench.sent[0]
        assert isinstance(asked, RepairRequest)
        request = VoteRequest(1, 1, NO_INDEX, NO_TERM, False, False)
        bench.server.on_messages("n2", [request, RepairResponse(2, asked.repair_id, False, 0)])
        bench.server.on_messages("n1", [RepairResponse(2, asked.repair_id, True, 0)])
        await until(lambda: any(isinstance(message, VoteResponse) for message in bench.sent))
        [answer] = [message for message in bench.sent if isinstance(message, VoteResponse)]
        assert answer.result is VoteResult.REJECT_IMPAIRED
        bench.server.on_messages("n1", [AppendRequest(2, 0, NO_TERM, leaders_entry(2, b"first"))])
        await until(lambda: bench.server.status().impairment is None or bench.fatal)
        assert found == [(HardState(2, "n0"), 0)]
