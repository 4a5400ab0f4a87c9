"""Samples a process by its own CPU time, and counts the samples in each module of the project.

A signal comes every so many ms of CPU time; idle time does not count. The sample belongs to the innermost
frame that is the project's own: what a library does for it counts as its own.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

from bench.results_file import ROOT

INTERVAL_MS = 1.0
PACKAGES = ("admin_api", "broker", "commitlog", "dledger", "ledgermq", "namesrv", "remoting")
BELOW_ALL = ("broker/__main__.py", "broker/app.py", "remoting/loop.py")
"""Modules at the foot of every stack: a sample whose innermost frame is there was taken in the event loop."""


class Sampler:
    """SIGUSR1 begins a measurement, SIGUSR2 ends it and writes the counts to `out`."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._prefix = str(ROOT) + "/"
        self._samples: Counter[str] = Counter()
        self._functions: Counter[str] = Counter()

    def install(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)

    def _begin(self, number: int, frame: FrameType | None) -> None:
        self._samples.clear()
        self._functions.clear()
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_MS / 1000, INTERVAL_MS / 1000)

    def _end(self, number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        document = {
            "interval_ms": INTERVAL_MS,
            "modules": dict(self._samples.most_common()),
            "functions": dict(self._functions.most_common(60)),
        }
        temporary = self._out.with_suffix(".tmp")
        temporary.write_text(json.dumps(document), encoding="utf-8")
        temporary.rename(self._out)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._prefix):
                module = name.removeprefix(self._prefix)
                if module.split("/", 1)[0] in PACKAGES and module not in BELOW_ALL:
                    self._samples[module] += 1
                    self._functions[f"{module}:{frame.f_code.co_qualname}"] += 1
                    return
            frame = frame.f_back
        self._samples["event loop"] += 1
