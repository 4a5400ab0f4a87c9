"""Processes of a run: started in a folder, sampled, and ended by their own handles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from bench.results_file import ROOT
from ledgermq.local.plan import is_free

STOP_LIMIT_S = 30.0
WARM, END, READY = "WARM", "END", "READY"
"""Lines of a load program: what counts begins, what counts ends, it may be disturbed now."""
Marks = Mapping[str, Callable[[], None]]
PORTS_FROM, PORTS_TO = 21_000, 30_000
"""Below the range that outgoing connections take their ports from."""


def free_base(offsets: Sequence[int]) -> int:
    """A port such that the ports at all these offsets from it are free now."""
    step = max(offsets) + 7
    for base in range(PORTS_FROM + os.getpid() % step, PORTS_TO, step):
        if all(is_free(base + offset) for offset in offsets):
            return base
    raise SystemExit(f"No free ports between {PORTS_FROM} and {PORTS_TO}.")


def end_on_signals() -> None:
    """SIGTERM ends the program as Ctrl-C does: it still stops what it has started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def figures_of(command: Sequence[str], limit_s: float, marks: Marks | None = None) -> dict[str, Any]:
    """Run a load program to its end; return the JSON line that it prints. `marks`: line -> function to call.

    Raises: SystemExit when it printed no figures within the limit.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        timer = threading.Timer(limit_s, process.kill)
        timer.start()
        try:
            figures = _read(process, marks or {})
        finally:
            timer.cancel()
            process.kill()
        errors.seek(0)
        if figures is None:
            raise SystemExit(f"{' '.join(command[-8:])} printed no figures:\n{errors.read()[-2000:]}")
        return figures


def _read(process: subprocess.Popen[str], marks: Marks) -> dict[str, Any] | None:
    figures: dict[str, Any] | None = None
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            figures = json.loads(line)
        elif mark := marks.get(line.strip()):
            mark()
    return figures


class Processes:
    """What one side runs. Output goes to `<folder>/<name>.log`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def spawn(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C reaches them by stop() only
            )
        self._running[name] = process
        return process

    def kill(self, name: str) -> None:
        """End one at once, as a machine that loses its power."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def tail(self, name: str, lines: int = 8) -> str:
        return "\n".join(self.log(name).read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def require_alive(self) -> None:
        """Raises: SystemExit, with the end of its log, when a process ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with {process.returncode}:\n{self.tail(name)}")

    def stop(self) -> None:
        """End the last started process first; kill one that does not end in time."""
        for process in reversed(list(self._running.values())):
            if process.poll() is None:
                process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


@dataclass(slots=True)
class Usage:
    """One process over some time: its maximum of memory, and its CPU time."""

    peak_resident_mb: float = 0.0
    peak_private_mb: float = 0.0
    cpu_s: float = 0.0
    series_mb: list[float] = field(default_factory=list)


def cpu_time_s(process: psutil.Process) -> float:
    """CPU time of a process in seconds, in user and in kernel mode."""
    times = process.cpu_times()
    return float(times.user + times.system)


class UsageMeter:
    """Samples processes until it is left. `private` leaves out what files back, as they do mapped logs.

    CPU time counts from `begin` to `end` where they are called, else from entering to leaving.
    """

    def __init__(self, processes: Mapping[str, psutil.Process], interval_s: float = 0.25) -> None:
        self._processes = dict(processes)
        self._interval_s = interval_s
        self._before_s: dict[str, float] = {}
        self._has_cpu_ended = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.usage = {name: Usage() for name in processes}

    def __enter__(self) -> Self:
        self.begin()
        self._thread.start()
        return self

    def begin(self) -> None:
        """CPU time counts from now on."""
        with self._lock:
            self._before_s = {name: cpu_time_s(process) for name, process in self._processes.items()}

    def end(self) -> None:
        """CPU time counts no longer."""
        self._take_all()
        with self._lock:
            self._has_cpu_ended = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._take_all()

    def _sample(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._take_all()

    def _take_all(self) -> None:
        """For a process that was killed, the last values stay."""
        with self._lock:
            for name, process in self._processes.items():
                with suppress(psutil.NoSuchProcess):
                    self._take(self.usage[name], process, self._before_s[name])

    def _take(self, usage: Usage, process: psutil.Process, before_s: float) -> None:
        if not self._has_cpu_ended:
            usage.cpu_s = cpu_time_s(process) - before_s
        memory = process.memory_info()
        resident_mb = memory.rss / 1e6
        usage.peak_resident_mb = max(usage.peak_resident_mb, resident_mb)
        usage.peak_private_mb = max(usage.peak_private_mb, (memory.rss - memory.shared) / 1e6)
        usage.series_mb.append(round(resident_mb, 1))
