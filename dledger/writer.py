"""The writer thread of one node: group commit of log and vote, and the messages that wait for it.

Everything that the event loop collects while one batch is being made durable forms the next batch: one run of
pwrite and one fdatasync, however many messages it holds. Batches never overlap, so the messages of a batch
(`Batch.after`), which promise that its content is on this disk, leave only when everything before it is
durable too.

Two threads can carry out a batch, never both at the same time:

- `NativeWriter`, where the C extension is there: an ordinary batch, which only writes and syncs log files.
  Its thread never needs the interpreter's lock, so Python code on the event loop does not delay it. After the
  sync it sends a single acknowledgement itself (`DirectAck`), without a turn of the loop.
- a Python thread: batches with a vote or the end of an impairment, and all other work on the log's files
  (`DiskWriter.run`).
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
from telemetry.histogram import COUNTS, SIZES, Histogram, observe_all


class WriteMetrics:
    """How long the writes of one log take, and how many entries and bytes each has. Failed writes are not
    counted.
    """

    def __init__(self) -> None:
        self.seconds = Histogram()
        """Write and sync; the write alone where acknowledgements do not wait for the disk."""
        self.entries = Histogram(COUNTS)
        self.size_bytes = Histogram(SIZES)

    def written(self, took_s: float, entries: int, size_bytes: int) -> None:
        """A write has ended. `entries` 0: unknown, or nothing new."""
        if entries:
            observe_all((self.seconds, took_s), (self.entries, entries), (self.size_bytes, size_bytes))
        else:
            self.seconds.observe(took_s)


class DirectAck:
    """One frame that the native thread sends by `fd` after the sync, so that an acknowledgement leaves as
    soon as the disk has its entries, without waiting for the event loop.

    The loop writes nothing to the connection before `stop`: two writers would interleave their frames.
    `write`: how the loop sends the rest of a frame for which the socket had not enough room.
    """

    def __init__(self, fd: int, frame: bytes, write: Callable[[bytes], None]) -> None:
        self.fd = fd
        self.frame = frame
        self.is_sent = False
        """After `stop`: whether the thread sent it. If not, the loop has to."""
        self._write = write
        self._cancel: Callable[[], int] | None = None

    def begin(self, cancel: Callable[[], int]) -> None:
        """The thread has the frame. `cancel` stops it, and returns how many bytes it had sent by then."""
        self._cancel = cancel

    def stop(self) -> None:
        """The thread sends nothing from now on; the rest of a frame that it began leaves first."""
        if self._cancel is None:
            return
        sent_bytes, self._cancel = self._cancel(), None
        self.is_sent = sent_bytes > 0
        if 0 < sent_bytes < len(self.frame):
            self._write(self.frame[sent_bytes:])


_WRITER: Final[Callable[[], Any] | None] = native.function("_log", "Writer")


class NativeWriter:
    """A compiled thread that carries out one job at a time; used from the event loop that first calls
    `submit`.

    A job is a list of steps, carried out in order up to the first that fails: (descriptor, position, buffers)
    writes all buffers back to back, a bare descriptor is synced, and one step may be (socket, bytes): they
    are sent, unless `cancel_send` was called before.

    The end of a job is reported once: by the event loop if the job failed or `await_end` was called, else by
    the next call of `poll`. Most jobs need not wake the loop: its next turn sees their end.
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
        """Whether a job is running."""
        self.took_s = 0.0
        """Duration of the last job that did not fail."""

    def submit(self, steps: list[Any]) -> None:
        """Begin a job; the one before it must have ended."""
        assert not self.is_busy, "a job is running"
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._writer.fileno(), self._on_signal)
        self._writer.submit(steps, True)
        self.is_busy = True

    def cancel_send(self) -> int:
        """The job sends nothing from now on; returns how many bytes it has sent already."""
        sent_bytes: int = self._writer.take_back()
        return sent_bytes

    def await_end(self) -> None:
        """The end of the current job wakes the event loop."""
        if self.is_busy and not self._writer.await_end():
            assert self._loop is not None, "a job without a loop"
            self._loop.call_soon(self.poll)  # it has ended already, and signals no more

    def poll(self) -> None:
        """Reports the job's end if it has ended."""
        if self.is_busy and self._writer.is_done():
            self._finish()

    def _on_signal(self) -> None:
        self._writer.clear()
        self.poll()

    def _finish(self) -> None:
        self.is_busy = False
        try:
            self.took_s = self._writer.finish()
        except OSError as error:
            self._on_done(error)
        else:
            self._on_done(None)

    def close(self) -> None:
        """Ends the thread. No job may be running."""
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
    """What is made durable together, and the messages that may leave afterwards."""

    hard_state: HardState | None = None
    after: list[Envelope] = field(default_factory=list)
    writes: Any = None
    last_index: int = -1
    last_term: int = 0
    commit_index: int = -1
    """The node's, when it was healed."""
    end_position: int = 0
    is_healed: bool = False
    """The mark of the impairment is removed when the rest is durable."""
    took_s: float = 0.0
    """How long write and sync took; known at the end."""


class DiskWriter:
    """Owns the writer threads. All methods are called on the event loop."""

    def __init__(
        self,
        store: LogStore,
        durable_state: DurableState,
        durability: Durability,
        last_entry: Callable[[], tuple[int, int]],
        on_persisted: Callable[[Batch], None],
        on_error: Callable[[BaseException], None],
        direct_ack: Callable[[Envelope], DirectAck | None] = lambda envelope: None,
    ) -> None:
        """`last_entry`: index and term of the end of the node's log. `direct_ack`: makes the DirectAck of an
        acknowledgement; None where the loop has to send it.
        """
        self._store = store
        self._durable_state = durable_state
        self._last_entry = last_entry
        self._is_synced = durability is Durability.PERSISTED
        self._on_persisted = on_persisted
        self._on_error = on_error
        self.metrics = WriteMetrics()
        self._on_disk: tuple[int | None, int] = (None, 0)
        """The log's end, index and position, that the last batch wrote."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="log-writer")
        self._next_batch = Batch()
        self._native = NativeWriter.make(self._steps_done)
        self._direct_ack_for = direct_ack
        self._direct_ack: DirectAck | None = None
        self._batch: Batch | None = None
        self._busy: asyncio.Future[None] | None = None
        self._python_jobs = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._failed = False

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being written; `on_persisted` or `on_error` is called at its end."""
        return self._batch is not None

    def gather(self, output: Output) -> None:
        """Adds to the next batch. The log's bytes are read from the store only when the batch starts, so that
        one batch has everything that arrived until then.
        """
        if output.hard_state is not None:
            self._next_batch.hard_state = output.hard_state
        for envelope in output.send_after_persist:
            self._add_message(envelope)
        if output.is_healed:
            self._next_batch.is_healed, self._next_batch.commit_index = True, output.commit_index

    def _add_message(self, envelope: Envelope) -> None:
        """An acknowledgement covers all entries before it: of several in a row only the last one is sent."""
        after = self._next_batch.after
        if after and _is_superseded_by(after[-1], envelope):
            after[-1] = envelope
        else:
            after.append(envelope)

    def start_next(self) -> None:
        """Starts the next batch if none is running and there is something to write. Every operation of the
        node's log must have been applied to the store: the batch reaches to the log's end.
        """
        if self._batch is not None:
            if self._is_next_waiting(self._batch):
                self.await_end()
            return
        if self._failed:
            return
        batch = self._next_batch
        batch.writes = self._store.take_writes()
        if batch.writes is None and batch.hard_state is None and not batch.after:
            return
        batch.last_index, batch.last_term = self._last_entry()
        batch.end_position = self._store.end_position
        self._next_batch = Batch()
        if batch.writes is None and batch.hard_state is None:
            self._on_persisted(batch)  # only messages: what they promise is durable already
            return
        self._batch = batch
        if self._submit_steps(batch):
            return
        loop = asyncio.get_running_loop()
        self._busy = loop.run_in_executor(self._thread, self._write, batch)
        self._busy.add_done_callback(lambda future: self._written(future, batch))

    def _submit_steps(self, batch: Batch) -> bool:
        """Hands an ordinary batch to the native thread; False when the Python thread has to carry it out."""
        # While `run` has work for the Python thread, batches go there too: two threads must not write at the
        # same time.
        if self._native is None or self._python_jobs or batch.hard_state is not None or batch.is_healed:
            return False
        steps = self._store.steps_of(batch.writes, self._is_synced)
        if steps is None:
            return False
        direct_ack = self._direct_ack_for(batch.after[0]) if len(batch.after) == 1 else None
        self._direct_ack = direct_ack
        if direct_ack is not None:
            # The frame is sent right after the last sync, not before: it says that the disk has the entries.
            # A bare descriptor is a sync; the sync mark behind it is not needed for the acknowledgement.
            syncs = [place for place, step in enumerate(steps) if type(step) is int]
            steps.insert(syncs[-1] + 1 if syncs else len(steps), (direct_ack.fd, direct_ack.frame))
        self._native.submit(steps)
        if direct_ack is not None:
            direct_ack.begin(self._native.cancel_send)
        elif batch.after:
            self._native.await_end()  # the loop sends these, so it must wake up at the end
        return True

    def _is_next_waiting(self, batch: Batch) -> bool:
        """Whether the next batch has anything yet, while one is being written."""
        next_batch = self._next_batch
        is_longer = self._store.end_position != batch.end_position
        return is_longer or bool(next_batch.after or next_batch.hard_state or next_batch.is_healed)

    def poll(self) -> None:
        """Reports the end of the current batch if it has ended. The native thread does not wake the loop
        unless `await_end` was called: most turns come from the network anyway, and see the end then.
        """
        if self._native is not None and self._native.is_busy:
            self._native.poll()

    def await_end(self) -> None:
        """Has the end of the current batch wake the loop, because something waits for it."""
        if self._native is not None:
            self._native.await_end()

    def _steps_done(self, error: OSError | None) -> None:
        batch = self._batch
        assert batch is not None, "a job without a batch"
        assert self._native is not None
        batch.took_s = self._native.took_s
        failure: BaseException | None = error
        direct_ack, self._direct_ack = self._direct_ack, None
        try:
            self._store.steps_done(batch.writes, self._is_synced, error)
        except Exception as broken:  # noqa: BLE001 (as in _finish, which reports it)
            failure = broken
        # Before the next batch can start: `run` waits here for its turn on the files.
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        if direct_ack is not None:
            # The loop must know what the thread has sent before it writes on that connection again.
            direct_ack.stop()
            if direct_ack.is_sent:
                batch.after.clear()
        self._finish(batch, failure)

    def _write(self, batch: Batch) -> None:
        """Writer thread. The vote first: entries of a term must not be on a disk whose vote file does not
        know the term yet, or the node would be impaired after a crash in between (`DurableState.load`). And
        configurations before their entries: a node uses the newest one in its log (thesis 4.1).
        """
        if batch.hard_state is not None:
            self._durable_state.save(batch.hard_state)
        if batch.writes is not None:
            begun_s = time.perf_counter()
            self._store.write(batch.writes, sync=self._is_synced)
            batch.took_s = time.perf_counter() - begun_s
        if batch.is_healed and not self._is_synced:
            # Without syncs, the entries that healed the node may be in the page cache only, while the mark
            # goes durably. The checkpoint syncs them.
            self._store.save_checkpoint(batch.last_index, batch.commit_index)
        if batch.is_healed:
            self._durable_state.heal()  # last: vote and log must be durable before the mark is removed

    def _written(self, future: "asyncio.Future[None]", batch: Batch) -> None:
        self._busy = None
        if future.cancelled():
            self._batch = None
        else:
            self._finish(batch, future.exception())

    def _finish(self, batch: Batch, failure: BaseException | None) -> None:
        """Event loop: the end of a batch, whichever thread carried it out."""
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
        """Of the first batch, and of a log that was truncated meanwhile, only the time is known."""
        end_index, end_position = self._on_disk
        self._on_disk = batch.last_index, batch.end_position
        entries = 0 if end_index is None else max(batch.last_index - end_index, 0)
        self.metrics.written(batch.took_s, entries, max(batch.end_position - end_position, 0))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs work on the Python writer thread, after the current batch. Raises what work raises."""
        # Counted before the native thread's job ends, so that no further job starts there before the work.
        self._python_jobs += 1
        try:
            await self._native_end()
        except BaseException:
            self._python_jobs -= 1
            raise
        visit = asyncio.get_running_loop().run_in_executor(self._thread, work)
        visit.add_done_callback(self._python_job_ended)
        # The thread can't be interrupted: a caller that is cancelled stops waiting, but the work is completed
        # and `_python_jobs` counts it until then.
        return await asyncio.shield(visit)

    def _python_job_ended(self, _visit: "asyncio.Future[Any]") -> None:
        self._python_jobs -= 1

    async def _native_end(self) -> None:
        while self._native is not None and self._native.is_busy:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            self._native.await_end()
            await waiter

    async def stop(self) -> None:
        """Waits for the current batch; no further batch starts."""
        self._failed = True
        await self._native_end()
        if self._native is not None:
            self._native.close()
            self._native = None
        if self._busy is not None:
            await asyncio.gather(self._busy, return_exceptions=True)
        self._thread.shutdown(wait=True)


def _is_superseded_by(earlier: Envelope, later: Envelope) -> bool:
    """Whether both acknowledge pushes of the same leader in one term, and the later one
    covers the earlier.
    """
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
