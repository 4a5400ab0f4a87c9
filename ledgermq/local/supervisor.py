"""Runs child processes: starts them, reports each that ends unexpectedly, and stops all in order within a
time limit.

Each child has its own session, so that Ctrl-C at the terminal sends a signal only to the supervisor. If the
supervisor is killed, its children end too (Linux).
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

_PR_SET_PDEATHSIG = 1
_LOG_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. Without a `log` the child writes where this process does. `hint`: the command that starts
    it again. A higher `stage` is stopped earlier.
    """

    name: str
    argv: tuple[str, ...]
    log: Path | None
    stage: int = 0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """A child ended unexpectedly. `returncode` is the negative signal number if a signal ended it."""

    command: Command
    pid: int
    returncode: int
    restart_in_s: float | None


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of the supervisor, in seconds."""

    stop_s: float = 10.0
    restart_first_s: float = 0.5
    restart_max_s: float = 30.0
    steady_s: float = 60.0
    """After a child ran this long, its back-off begins again at the first value."""


@dataclass(slots=True)
class _Child:
    command: Command
    process: asyncio.subprocess.Process
    started_s: float
    delay_s: float
    watcher: asyncio.Task[None] | None = field(default=None)


class Supervisor:
    """Keeps the process handles of its children, so it never ends a process that it did not start."""

    def __init__(
        self, on_exit: Callable[[Exit], None], *, restart: bool, limits: Limits | None = None
    ) -> None:
        self._on_exit = on_exit
        self._restart = restart
        self._limits = limits or Limits()
        self._children: dict[str, _Child] = {}
        self._stopping = False

    async def start(self, command: Command) -> int:
        """Starts the child and returns its pid. Raises: OSError when it cannot be run."""
        return (await self._spawn(command, self._limits.restart_first_s)).process.pid

    async def _spawn(self, command: Command, delay_s: float) -> _Child:
        with _opened(command.log) as log:
            process = await asyncio.create_subprocess_exec(
                *command.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent(),
            )
        child = _Child(command, process, asyncio.get_running_loop().time(), delay_s)
        self._children[command.name] = child
        child.watcher = asyncio.create_task(self._watch(child), name=f"watch {command.name}")
        return child

    async def _watch(self, child: _Child) -> None:
        returncode = await child.process.wait()
        if self._stopping:
            return
        ran_s = asyncio.get_running_loop().time() - child.started_s
        delay_s = self._limits.restart_first_s if ran_s >= self._limits.steady_s else child.delay_s
        restart_in_s = delay_s if self._restart else None
        self._on_exit(Exit(child.command, child.process.pid, returncode, restart_in_s))
        if restart_in_s is not None:
            await asyncio.sleep(restart_in_s)
            await self._spawn(child.command, min(delay_s * 2, self._limits.restart_max_s))

    def is_running(self, name: str) -> bool:
        child = self._children.get(name)
        return child is not None and child.process.returncode is None

    async def stop(self) -> list[str]:
        """Stops every child, the last stage first; returns the names of those that had to be killed."""
        self._stopping = True
        await self._cancel_restarts()
        killed: list[str] = []
        for stage in sorted({child.command.stage for child in self._children.values()}, reverse=True):
            names = [name for name, child in self._children.items() if child.command.stage == stage]
            were_killed = await asyncio.gather(*(self._stop_child(self._children[name]) for name in names))
            killed += [name for name, was_killed in zip(names, were_killed, strict=True) if was_killed]
        return killed

    async def stop_one(self, name: str) -> bool:
        """Stops a child that is not started again. Returns whether it had to be killed."""
        child = self._children.pop(name)
        if child.watcher is not None:
            child.watcher.cancel()
            await asyncio.gather(child.watcher, return_exceptions=True)
        return await self._stop_child(child)

    async def _cancel_restarts(self) -> None:
        """Cancels the watchers first: otherwise one of them could restart a child while `stop` waits."""
        watchers = [child.watcher for child in self._children.values() if child.watcher is not None]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)

    async def _stop_child(self, child: _Child) -> bool:
        """SIGTERM, then SIGKILL after the time limit. Returns whether it had to be killed."""
        if child.process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            child.process.terminate()
        try:
            await asyncio.wait_for(child.process.wait(), self._limits.stop_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.process.kill()
            await child.process.wait()
            return True
        return False

    def kill(self, name: str) -> None:
        """SIGKILL to one child that is running."""
        self.send_signal(name, signal.SIGKILL)

    def send_signal(self, name: str, number: signal.Signals) -> None:
        """To one child that is running."""
        with suppress(ProcessLookupError):
            self._children[name].process.send_signal(number)

    def kill_all(self) -> None:
        """SIGKILL to every child that still runs: for a second Ctrl-C."""
        self._stopping = True
        for name in self._children:
            if self.is_running(name):
                self.kill(name)


def describe_exit(returncode: int) -> str:
    """`was ended by SIGKILL` or `ended with exit code 3`."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was ended by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was ended by signal {-returncode}"


def last_lines(log: Path | None, count: int) -> Sequence[str]:
    """The last lines of a log, for the user to read; none if there is no log."""
    if log is None:
        return []
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return file.read().decode("utf-8", "replace").splitlines()[-count:]
    except OSError:
        return []


@contextmanager
def _opened(log: Path | None) -> Iterator[BinaryIO | None]:
    if log is None:
        yield None
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    _rotate(log)
    with log.open("ab") as file:
        yield file


def _rotate(log: Path) -> None:
    """Rename a log that is too long to `<name>.1`; an earlier `<name>.1` is replaced."""
    if log.exists() and log.stat().st_size > _LOG_BYTES_MAX:
        log.replace(log.with_name(log.name + ".1"))


def _end_with_parent() -> Callable[[], Any] | None:
    """What the child runs before its program: it asks the kernel for SIGTERM when this process dies."""
    if not sys.platform.startswith("linux"):
        return None
    return partial(_ask_for_death_signal, ctypes.CDLL(None, use_errno=True), os.getpid())


def _ask_for_death_signal(libc: ctypes.CDLL, parent_pid: int) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        os._exit(1)
