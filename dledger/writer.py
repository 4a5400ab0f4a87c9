"""The writer thread of one node: group commit of votes and log.

What gathers on the event loop while one batch is being made durable goes to disk together as the next
batch: one pwrite run and one fdatasync, however many messages it holds. Batches never overlap, so what a
batch durable_state (`after`) is sent only when everything before it is durable too.
"""

import asyncio
import enum
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import native
from dledger.core.messages import AppendResponse
from dledger.core.output import Envelope, Output
from dledger.core.ports import LogStore
from dledger.core.types import HardState, ResponseCode
from dledger.durable_state import DurableState
from telemetry.histogram import COUNTS, SIZES, Histogram


class WriteMetrics:
    """Of one log. Trips that failed are not among them."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        """Write and sync; the write alone where an acknowledgement does not wait for the disk."""
        self.entries = Histogram(COUNTS)
        self.size_bytes = Histogram(SIZES)

    def written(self, took_s: float, entries: int, size_bytes: int) -> None:
        """A trip has ended. `entries` 0: what it brought is not known, or nothing new."""
        self.seconds.observe(took_s)
        if entries:
            self.entries.observe(entries)
            self.size_bytes.observe(size_bytes)


class DirectAck:
    """One frame that the thread may send by `fd`. Nobody else writes to the connection before `stop`.

    `write`: how the loop sends what is left of a frame that the connection had no room for.
    """

    def __init__(self, fd: int, frame: bytes, write: Callable[[bytes], None]) -> None:
        self.fd = fd
        self.frame = frame
        self.is_sent = False
        """After `stop`: the thread sent it. Otherwise it is as if it had never been asked to."""
        self._write = write
        self._take_back: Callable[[], int] | None = None

    def begin(self, take_back: Callable[[], int]) -> None:
        """The thread has it. `take_back` stops it, and tells how many bytes it had sent by then."""
        self._take_back = take_back

    def stop(self) -> None:
        """The thread sends nothing from now on."""
        if self._take_back is None:
            return
        sent_bytes, self._take_back = self._take_back(), None
        self.is_sent = sent_bytes > 0
        if 0 < sent_bytes < len(self.frame):
            self._write(self.frame[sent_bytes:])


_WRITER: Final[Callable[[], Any] | None] = native.function("_log", "Writer")


class NativeWriter:
    """One job at a time, on the event loop that `submit` is first called on.

    A job is a list of steps, carried out in order up to the first that fails: (descriptor, position, buffers)
    writes all buffers back to back, a bare descriptor is synced, and one (socket, bytes) may be among them:
    it is sent, unless `take_back` came before.

    That a job has ended is told by whoever comes first: the loop, if the job failed or `await_end` asked for
    that, or a call of `look`.
    """

    @staticmethod
    def make(on_done: Callable[[OSError | None], None]) -> "NativeWriter | None":
        """None where there is no compiled code. `on_done` is called on the loop, once for each job."""
        return None if _WRITER is None else NativeWriter(_WRITER(), on_done)

    def __init__(self, writer: Any, on_done: Callable[[OSError | None], None]) -> None:
        self._writer = writer
        self._on_done = on_done
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_busy = False
        """Whether a job is under way."""
        self.took_s = 0.0
        """How long the job took that ended last, unless it failed."""

    def submit(self, steps: list[Any]) -> None:
        """Begin a job; the one before it must have ended."""
        assert not self.is_busy, "a job is under way"
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._writer.fileno(), self._on_signal)
        self._writer.submit(steps, True)
        self.is_busy = True

    def take_back(self) -> int:
        """Stop the job's answer; how many bytes of it were sent before that."""
        taken: int = self._writer.take_back()
        return taken

    def await_end(self) -> None:
        """Have the end of the job under way told as soon as it comes."""
        if self.is_busy and not self._writer.await_end():
            assert self._loop is not None, "a job without a loop"
            self._loop.call_soon(self.look)

    def look(self) -> None:
        """Tell of the job if it has ended."""
        if self.is_busy and self._writer.is_done():
            self._finish()

    def _on_signal(self) -> None:
        self._writer.clear()
        self.look()

    def _finish(self) -> None:
        self.is_busy = False
        try:
            self.took_s = self._writer.finish()
        except OSError as error:
            self._on_done(error)
        else:
            self._on_done(None)

    def close(self) -> None:
        """End the thread. No job may be under way."""
        if self._loop is not None:
            self._loop.remove_reader(self._writer.fileno())
        self._writer.close()


Result = TypeVar("Result")


class Durability(enum.StrEnum):
    """What an acknowledgement means: on the disks of a majority, or in their page caches."""

    PERSISTED = "persisted"
    REPLICATED = "replicated"


@dataclass(slots=True)
class Batch:
    """What one trip to the disk makes durable, and what may be said afterwards."""

    hard_state: HardState | None = None
    after: list[Envelope] = field(default_factory=list)
    writes: Any = None
    last_index: int = -1
    last_term: int = 0
    commit_index: int = -1
    """Of the node when it was healed."""
    end_position: int = 0
    is_healed: bool = False
    """The mark of an impairment goes when the rest is durable."""
    took_s: float = 0.0
    """How long the trip took, known at its end."""


class DiskWriter:
    """Owns the writer thread. All methods are called on the event loop."""

    def __init__(
        self,
        store: LogStore,
        durable_state: DurableState,
        durability: Durability,
        on_persisted: Callable[[Batch], None],
        on_error: Callable[[BaseException], None],
        direct_ack: Callable[[Envelope], DirectAck | None] = lambda envelope: None,
    ) -> None:
        """`direct_ack`: a way for the thread to send an acknowledgement by itself, if there is one."""
        self._store = store
        self._durable_state = durable_state
        self._durability = durability
        self._on_persisted = on_persisted
        self._on_error = on_error
        self.metrics = WriteMetrics()
        self._on_disk: tuple[int | None, int] = (None, 0)
        """Where the log ended that the last trip brought to the disk: index and position."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-writer")
        self._gathering = Batch()
        self._native = NativeWriter.make(self._stepped)
        self._direct_ack_for = direct_ack
        self._direct_ack: DirectAck | None = None
        self._batch: Batch | None = None
        self._busy: asyncio.Future[None] | None = None
        self._visits = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._failed = False

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being written; `on_persisted` or `on_error` is called at its end."""
        return self._batch is not None

    def gather(self, output: Output) -> None:
        """Adds to the next batch. The log's bytes are taken from the store when the batch leaves."""
        if output.hard_state is not None:
            self._gathering.hard_state = output.hard_state
        for envelope in output.send_after_persist:
            self._promise(envelope)
        if output.is_healed:
            self._gathering.is_healed, self._gathering.commit_index = True, output.commit_index

    def _promise(self, envelope: Envelope) -> None:
        """An acknowledgement counts for all before it: of several on end the last one is enough."""
        after = self._gathering.after
        if after and _is_covered_by(after[-1], envelope):
            after[-1] = envelope
        else:
            after.append(envelope)

    def kick(self, last_index: int, last_term: int) -> None:
        """Sends the next batch to the disk if the thread is free and there is something to write.

        last_index and last_term: where the node's log ends now, with every operation applied to the store.
        """
        if self._batch is not None:
            if self._is_next_waiting(self._batch):
                self.await_end()
            return
        if self._failed:
            return
        batch = self._gathering
        batch.writes = self._store.take_writes()
        if batch.writes is None and batch.hard_state is None and not batch.after:
            return
        batch.last_index, batch.last_term = last_index, last_term
        batch.end_position = self._store.end_position
        self._gathering = Batch()
        if batch.writes is None and batch.hard_state is None:
            self._on_persisted(batch)
            return
        self._batch = batch
        if self._submit_steps(batch):
            return
        loop = asyncio.get_running_loop()
        self._busy = loop.run_in_executor(self._thread, self._write, batch)
        self._busy.add_done_callback(lambda future: self._written(future, batch))

    def _submit_steps(self, batch: Batch) -> bool:
        """Whether the batch is an ordinary one that the compiled thread writes; it never runs beside the
        other.
        """
        if self._native is None or self._visits or batch.hard_state is not None or batch.is_healed:
            return False
        steps = self._store.steps_of(batch.writes, self._is_synced)
        if steps is None:
            return False
        direct_ack = self._direct_ack_for(batch.after[0]) if len(batch.after) == 1 else None
        self._direct_ack = direct_ack
        if direct_ack is not None:
            syncs = [place for place, step in enumerate(steps) if type(step) is int]
            steps.insert(syncs[-1] + 1 if syncs else len(steps), (direct_ack.fd, direct_ack.frame))
        self._native.submit(steps)
        if direct_ack is not None:
            direct_ack.begin(self._native.take_back)
        elif batch.after:
            self._native.await_end()  # they leave when the loop hears of it
        return True

    def _is_next_waiting(self, batch: Batch) -> bool:
        """Whether anything has gathered behind the batch that is being written."""
        gathering = self._gathering
        is_longer = self._store.end_position != batch.end_position
        return is_longer or bool(gathering.after or gathering.hard_state or gathering.is_healed)

    def look(self) -> None:
        """See whether the batch under way has ended: the compiled thread does not say so unasked."""
        if self._native is not None:
            self._native.look()

    def await_end(self) -> None:
        """Somebody waits for the batch under way: its end is to be told at once."""
        if self._native is not None:
            self._native.await_end()

    @property
    def _is_synced(self) -> bool:
        return self._durability is Durability.PERSISTED

    def _stepped(self, error: OSError | None) -> None:
        batch = self._batch
        assert batch is not None, "steps without a batch"
        assert self._native is not None
        batch.took_s = self._native.took_s
        failure: BaseException | None = error
        direct_ack, self._direct_ack = self._direct_ack, None
        try:
            self._store.stepped(batch.writes, self._is_synced, error)
        except Exception as broken:  # noqa: BLE001 (as in _finish, which tells of it)
            failure = broken
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if direct_ack is not None:
            direct_ack.stop()
            if direct_ack.is_sent:
                batch.after.clear()
        self._finish(batch, failure)

    def _write(self, batch: Batch) -> None:
        if batch.hard_state is not None:
            self._durable_state.save(batch.hard_state)
        if batch.writes is not None:
            begun_s = time.perf_counter()
            self._store.write(batch.writes, sync=self._is_synced)
            batch.took_s = time.perf_counter() - begun_s
        if batch.is_healed and not self._is_synced:
            # What it was given again was on the disks of others for long: the sync that brings it here.
            self._store.save_checkpoint(batch.last_index, batch.commit_index)
        if batch.is_healed:
            self._durable_state.heal()

    def _written(self, future: "asyncio.Future[None]", batch: Batch) -> None:
        self._busy = None
        if future.cancelled():
            self._batch = None
        else:
            self._finish(batch, future.exception())

    def _finish(self, batch: Batch, failure: BaseException | None) -> None:
        self._batch = None
        try:
            if failure is not None:
                raise failure
            if batch.writes is not None:
                self._store.written(batch.writes)
                self._observe(batch)
            self._on_persisted(batch)
        except Exception as error:  # noqa: BLE001 (the loop would only log it, and the node go on half done)
            self._failed = True
            self._on_error(error)

    def _observe(self, batch: Batch) -> None:
        """Of the first trip, and of a log that was cut meanwhile, only the time is known."""
        end_index, end_position = self._on_disk
        self._on_disk = batch.last_index, batch.end_position
        entries = 0 if end_index is None else max(batch.last_index - end_index, 0)
        self.metrics.written(batch.took_s, entries, max(batch.end_position - end_position, 0))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs work on the writer thread, after the batch that is under way. Raises what work raises."""
        self._visits += 1
        try:
            await self._steps_end()
        except BaseException:
            self._visits -= 1
            raise
        visit = asyncio.get_running_loop().run_in_executor(self._thread, work)
        visit.add_done_callback(self._visit_ended)
        # Whoever is cancelled while the thread works for him does not end that work.
        return await asyncio.shield(visit)

    def _visit_ended(self, _visit: "asyncio.Future[Any]") -> None:
        self._visits -= 1

    async def _steps_end(self) -> None:
        while self._native is not None and self._native.is_busy:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._native.await_end()
            await waiter

    async def stop(self) -> None:
        """Waits for the batch under way; nothing is accepted after it."""
        self._failed = True
        await self._steps_end()
        if self._native is not None:
            self._native.close()
            self._native = None
        if self._busy is not None:
            await asyncio.gather(self._busy, return_exceptions=True)
        self._thread.shutdown(wait=True)


def _is_covered_by(earlier: Envelope, later: Envelope) -> bool:
    """Whether both acknowledge pushes of one leadership, the later one at least as many entries."""
    one, other = earlier.message, later.message
    return (
        isinstance(one, AppendResponse)
        and isinstance(other, AppendResponse)
        and earlier.to == later.to
        and one.term == other.term
        and one.code is ResponseCode.SUCCESS
        and other.code is ResponseCode.SUCCESS
        and one.last_index <= other.last_index
    )
