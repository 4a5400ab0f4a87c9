"""The progress of a job: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

LINE_INTERVAL_S: Final = 10.0
"""Minimum time between two lines, except the first and the last."""


class Progress(Protocol):
    """Receives the progress of a job. `total` is None while it is unknown."""

    def update(self, done: int, total: int | None, note: str = "") -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Prints nothing: for jobs that are called as functions."""

    def update(self, done: int, total: int | None, note: str = "") -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""


class Bar(Silent):
    """A bar of rich on a terminal; removed when the job ends."""

    def __init__(self, name: str, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
        )
        self._bar = RichProgress(*columns, console=console, transient=True)
        self._task = self._bar.add_task(name, total=None, note="")

    def update(self, done: int, total: int | None, note: str = "") -> None:
        self._bar.update(self._task, completed=done, total=total, note=note)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class Lines(Silent):
    """A line every LINE_INTERVAL_S, and a last one with the end."""

    def __init__(self, name: str, out: TextIO, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._out = out
        self._clock_s = clock_s
        self._next_s = clock_s()
        self._unsaid = ""

    def update(self, done: int, total: int | None, note: str = "") -> None:
        of = "" if total is None else f" of {total:,}"
        self._unsaid = f"{self._name}: {done:,}{of}{f', {note}' if note else ''}"
        if self._clock_s() >= self._next_s:
            self._say()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unsaid:
            self._say()

    def _say(self) -> None:
        print(self._unsaid, file=self._out, flush=True)
        self._unsaid = ""
        self._next_s = self._clock_s() + LINE_INTERVAL_S


def progress_on(name: str, out: TextIO | None = None) -> Progress:
    """A bar when `out` (stderr by default) is a terminal, lines otherwise."""
    out = out or sys.stderr
    console = Console(file=out)
    return Bar(name, console) if console.is_terminal else Lines(name, out)
