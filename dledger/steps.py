"""Writes that a compiled thread carries out, which never waits for the interpreter's lock."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import native

_WRITER: Final[Callable[[], Any] | None] = native.function("_log", "Writer")


class StepWriter:
    """One job at a time, on the event loop that `submit` is first called on.

    A job is a list of steps, carried out in order up to the first that fails: (descriptor, position, buffers)
    writes all buffers back to back, a bare descriptor is synced, and one (socket, bytes) may be among them:
    it is sent, unless `take_back` came before.

    That a job has ended is told by whoever comes first: the loop, if the job failed or `await_end` asked for
    that, or a call of `look`.
    """

    @staticmethod
    def make(on_done: Callable[[OSError | None], None]) -> "StepWriter | None":
        """None where there is no compiled code. `on_done` is called on the loop, once for each job."""
        return None if _WRITER is None else StepWriter(_WRITER(), on_done)

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
