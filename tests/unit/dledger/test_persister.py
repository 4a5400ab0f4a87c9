"""The writer over a real store on real files: the compiled thread and Python's own take turns."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import native
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, open_entry_store
from dledger.core.config import Config
from dledger.core.messages import AppendResponse, HeartbeatResponse
from dledger.core.output import Envelope, Output
from dledger.core.types import HardState, ResponseCode
from dledger.durable_state import DurableState
from dledger.environment import Environment
from dledger.writer import Batch, DirectAck, DiskWriter, Durability
from tests.support.polling import loop_turns, until

WAIT_S = 10.0
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def connected() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


NOTHING = Output(None, (), (), (), -1, (), ())


class Bench:
    """A writer, and what it said."""

    def __init__(self, folder: Path) -> None:
        config = EntryStoreConfig(data_file_bytes=1 << 20, index_file_bytes=32 * 1024)
        self.store: EntryStore = open_entry_store(folder / "log", config)
        durable_state = DurableState(Config("g", "n0", ("n0",)), folder, Environment())
        self.batches: list[Batch] = []
        self.errors: list[BaseException] = []
        self.writer = DiskWriter(
            self.store,
            durable_state,
            Durability.PERSISTED,
            last_entry=lambda: (self.store.end_index, 1),
            on_persisted=self.batches.append,
            on_error=self.errors.append,
        )

    def append(self, body: bytes, output: Output = NOTHING) -> None:
        self.store.append_bodies(self.store.end_index + 1, 1, [body])
        self.writer.gather(output)
        self.writer.start_next()

    def has_batches(self, count: int) -> bool:
        return len(self.batches) >= count

    async def idle(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.writer.is_busy:
                self.writer.await_end()
                await asyncio.sleep(0)


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    try:
        yield bench
    finally:
        await bench.writer.stop()
        bench.store.close()


def ack(
    last_index: int, to: str = "n1", code: ResponseCode = ResponseCode.SUCCESS, term: int = 1
) -> Envelope:
    return Envelope(to, AppendResponse(term, code, 0, last_index, last_index))


async def test_batches_follow_each_other_whichever_thread_writes_them(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        for number in range(20):
            hard_state = HardState(1, "n0") if number % 5 == 0 else None
            bench.append(b"%d" % number, Output(hard_state, (), (), (ack(number),), -1, (), ()))
            if number % 3:
                await bench.idle()
            if number == 7:
                await bench.writer.run(lambda: bench.store.save_checkpoint(7, 7))
        await bench.idle()
        bench.writer.start_next()
        await bench.idle()
        assert bench.errors == []
        assert [batch.last_index for batch in bench.batches] == sorted(
            batch.last_index for batch in bench.batches
        )
        assert bench.batches[-1].last_index == 19
        metrics = bench.writer.metrics
        assert metrics.seconds.count == sum(batch.writes is not None for batch in bench.batches)
        assert all(batch.took_s > 0 for batch in bench.batches if batch.writes is not None)
        first = next(batch for batch in bench.batches if batch.writes is not None)
        assert metrics.entries.sum == 19 - first.last_index
        assert metrics.size_bytes.sum == bench.store.end_position - first.end_position
    again = open_entry_store(
        tmp_path / "log", EntryStoreConfig(data_file_bytes=1 << 20, index_file_bytes=32768)
    )
    assert again.end_index == 19
    again.close()


async def test_work_for_the_writer_waits_for_the_batch_and_the_next_batch_for_it(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        seen = []
        bench.append(b"under way")
        visit = asyncio.create_task(
            bench.writer.run(lambda: seen.append(bench.store.scrub(1 << 20).read_bytes))
        )
        await asyncio.sleep(0)
        bench.append(b"behind it")
        await visit
        await bench.idle()
        bench.writer.start_next()
        await bench.idle()
        assert len(seen) == 1
        assert [batch.last_index for batch in bench.batches][-1] == 2


async def test_a_failed_write_is_told_once_and_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        steps_of = bench.store.steps_of
        with (tmp_path / "read only").open("wb"), (tmp_path / "read only").open("rb") as wrong:
            monkeypatch.setattr(
                bench.store,
                "steps_of",
                lambda writes, sync: steps_of(writes, sync) and [(wrong.fileno(), 0, [b"x"])],
            )
            bench.append(b"lost")
            await bench.idle()
        if native.compiled_modules():
            assert [str(error) for error in bench.errors] == ["[Errno 9] Bad file descriptor"]
            bench.append(b"never written")
            assert not bench.writer.is_busy
            with pytest.raises(OSError, match="earlier write failed"):
                await bench.writer.run(lambda: bench.store.save_checkpoint(1, 1))


async def test_of_acknowledgements_in_a_batch_the_last_one_leaves(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        beat = Envelope("n1", HeartbeatResponse(1, 5))
        refused = ack(9, code=ResponseCode.INCONSISTENT_STATE)
        sent = [ack(1), ack(2), ack(3), beat, ack(4), refused, ack(5), ack(6, "n2"), ack(7), ack(8, term=2)]
        bench.append(b"x", Output(None, (), (), tuple(sent), -1, (), ()))
        await bench.idle()
        assert bench.batches[0].after == [
            ack(3), beat, ack(4), refused, ack(5), ack(6, "n2"), ack(7), ack(8, term=2),
        ]  # fmt: skip


async def test_stopping_waits_for_what_is_under_way(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        bench.append(b"under way")
        await bench.writer.stop()
        assert [batch.last_index for batch in bench.batches] == [0, 1]
        bench.append(b"too late")
        assert not bench.writer.is_busy


async def test_a_store_that_breaks_after_the_steps_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(writes: object, sync: bool, error: OSError | None) -> None:
        raise AssertionError("numbers do not fit")

    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        monkeypatch.setattr(bench.store, "steps_done", broken)
        bench.append(b"under way")
        await bench.idle()
        if native.compiled_modules():
            assert [str(error) for error in bench.errors] == ["numbers do not fit"]
            bench.append(b"never written")
            assert not bench.writer.is_busy


async def test_work_that_is_cancelled_while_it_waits_holds_nothing_up(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        bench.append(b"under way")
        visit = asyncio.create_task(bench.writer.run(lambda: None))
        await asyncio.sleep(0)
        visit.cancel()
        await asyncio.gather(visit, return_exceptions=True)
        await bench.idle()
        bench.append(b"the next one")
        await bench.idle()
        assert bench.errors == []
        assert bench.batches[-1].last_index == 2


async def test_the_compiled_thread_waits_for_work_whose_owner_was_cancelled(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        may_end = threading.Event()
        ended: list[int] = []

        def work() -> None:
            may_end.wait(WAIT_S)
            ended.append(len(bench.batches))

        visit = asyncio.create_task(bench.writer.run(work))
        await loop_turns()
        visit.cancel()
        await asyncio.gather(visit, return_exceptions=True)
        bench.append(b"behind the work")
        await loop_turns()
        assert bench.writer.is_busy
        may_end.set()
        await bench.idle()
        assert ended == [1]
        assert [batch.last_index for batch in bench.batches] == [0, 1]


def spy_on_steps(writer: DiskWriter) -> list[Any]:
    """The steps of the next job."""
    found: list[Any] = []
    native_writer = writer._native
    assert native_writer is not None
    submit = native_writer.submit

    def spy(steps: list[Any]) -> None:
        found.extend(steps)
        submit(steps)

    native_writer.submit = spy  # type: ignore[method-assign]
    return found


@pytest.mark.skipif(not native.compiled_modules(), reason="Python's own thread sends no acknowledgement")
@pytest.mark.parametrize("is_taken_back", [False, True])
async def test_an_acknowledgement_is_sent_once_by_the_thread_or_by_the_loop(
    tmp_path: Path, connected: Pair, is_taken_back: bool
) -> None:
    ours, theirs = connected
    async with open_bench(tmp_path) as bench:
        direct_acks: list[DirectAck] = []

        def direct_ack(envelope: Envelope) -> DirectAck:
            frame = b"%d" % envelope.message.end_index  # type: ignore[union-attr]
            direct_acks.append(DirectAck(ours.fileno(), frame, lambda rest: None))
            return direct_acks[-1]

        bench.writer._direct_ack_for = direct_ack
        bench.append(b"makes the files", Output(None, (), (), (ack(7),), -1, (), ()))
        await bench.idle()
        assert not direct_acks
        submitted = spy_on_steps(bench.writer)
        bench.append(b"x", Output(None, (), (), (ack(8),), -1, (), ()))
        kinds = [type(step) if type(step) is int else len(step) for step in submitted]
        assert kinds == [3, 3, int, 2, 3], "data, index, the sync, the answer, the mark"
        if is_taken_back:
            direct_acks[0].stop()
        await bench.idle()
        assert bench.batches[1].after == ([] if direct_acks[0].is_sent else [ack(8)])
        assert (theirs.recv(10) == b"8") if direct_acks[0].is_sent else is_taken_back
        bench.append(
            b"y", Output(None, (), (), (ack(9), Envelope("n1", HeartbeatResponse(1, 9))), -1, (), ())
        )
        await bench.idle()
        assert len(direct_acks) == 1


@pytest.mark.skipif(not native.compiled_modules(), reason="Python's own thread sends no acknowledgement")
@pytest.mark.parametrize("way", ["taken back", "not lent", "no room"])
async def test_an_acknowledgement_left_to_the_loop_wakes_it(
    tmp_path: Path, connected: Pair, way: str
) -> None:
    ours, _ = connected
    ours.setblocking(False)
    async with open_bench(tmp_path) as bench:
        direct_acks: list[DirectAck] = []

        def direct_ack(envelope: Envelope) -> DirectAck | None:
            if way == "not lent":
                return None
            direct_acks.append(DirectAck(ours.fileno(), b"answer", lambda rest: None))
            return direct_acks[-1]

        bench.append(b"makes the files", Output(None, (), (), (), -1, (), ()))
        await bench.idle()
        bench.writer._direct_ack_for = direct_ack
        if way == "no room":
            with contextlib.suppress(BlockingIOError):
                while ours.send(bytes(1 << 16)):
                    pass
        # So long a write that the thread is hardly ever done before `stop`.
        bench.append(bytes(1 << 19), Output(None, (), (), (ack(8),), -1, (), ()))
        if way == "taken back":
            direct_acks[0].stop()
        if direct_acks and direct_acks[0].is_sent:
            # The thread was quicker than `stop`: nothing is left to the loop, so nothing has to wake it.
            await bench.idle()
        await until(lambda: len(bench.batches) >= 2)
        assert bench.batches[1].after == ([] if direct_acks and direct_acks[0].is_sent else [ack(8)])


async def test_the_end_of_a_batch_is_told_at_once_when_more_has_gathered(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        bench.append(b"makes the files")
        await bench.idle()
        for number in range(50):
            bench.append(b"%d" % number)
            bench.append(b"behind it")
            await until(partial(bench.has_batches, 2 + 2 * number))
            bench.writer.start_next()
            await bench.idle()
