"""Programs of the stock clients that run beside a test, and are told by files what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from tests.integration.client_runs import Driver, Report, finish, go_driver, java_driver, read_report
from tests.integration.waiting import wait_for

JAVA = ("5.5.0", "4.9.8")
GO = "go"
LIMIT_S = 60.0
END_LIMIT_S = 20.0


def versions(names: tuple[str, ...]) -> list[Any]:
    """Parameters for a test: the first always, the others in long runs."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.long) for name in names[1:])]


class Program:
    """One that was started. Use with `with`: it is ended at the latest there."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, files: dict[str, Path]) -> None:
        self._process = process
        self._out = out
        self._files = files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self.tell("stop")
            try:
                self._process.wait(END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def report(self) -> Report:
        """What it has written so far."""
        return read_report(self._out)

    def lines(self, **fields: object) -> Report:
        """Those lines of the report that have these values."""
        return [line for line in self.report if fields.items() <= line.items()]

    def tell(self, name: str) -> None:
        """Make the file it looks for."""
        self._files[name].touch()

    def take_back(self, name: str) -> None:
        self._files[name].unlink()

    def wait_lines(self, what: str, count: int = 1, limit_s: float = LIMIT_S, **fields: object) -> Report:
        """Wait for so many such lines."""
        return self.wait_until(what, lambda: len(self.lines(**fields)) >= count, limit_s, **fields)

    def wait_until(
        self, what: str, condition: Callable[[], bool], limit_s: float = LIMIT_S, **fields: object
    ) -> Report:
        """Wait for the condition while the program runs."""

        def look() -> bool:
            if condition():
                return True
            assert self._process.poll() is None, f"it ended before: {what}\n{self.output()}"
            return False

        try:
            wait_for(what, look, limit_s)
        except AssertionError as error:
            tail = "\n".join(map(str, self.report[-5:]))
            raise AssertionError(f"{error}; the report ends with:\n{tail}\n{self.output()}") from None
        return self.lines(**fields)

    def output(self) -> str:
        """The end of what it printed."""
        return self._out.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def stop(self) -> Report:
        """Tell it to stop, and wait for its end."""
        self.tell("stop")
        return finish(self._process, self._out, END_LIMIT_S + LIMIT_S)

    def finish(self, limit_s: float = LIMIT_S) -> Report:
        """Wait till it ends by itself."""
        return finish(self._process, self._out, limit_s)


class Client:
    """A stock client in a version; starts programs that use it."""

    def __init__(self, version: str, namesrv: str, folder: Path) -> None:
        self.version = version
        self.label = version.replace(".", "")
        self._namesrv = namesrv
        self._folder = folder
        self._driver = driver_of(version, folder)
        self._count = 0

    def start(self, action: str, topic: str, group: str, **options: Any) -> Program:
        """`Driver action …`. Options whose value is FILE name a file by which it is told something."""
        self._count += 1
        name = f"{self.label}-{action}-{self._count}"
        out = self._folder / f"{name}.jsonl"
        files = {key: self._folder / f"{name}.{key}" for key in ("stop", *_files(options))}
        given = {"namesrv": self._namesrv, "topic": topic, "group": group, "out": out, **options}
        given |= {key: files[key] for key in given.keys() & files.keys()}
        if action in TOLD_TO_STOP:
            given["stop"] = files["stop"]
        prefix = "-" if self.version == GO else ""
        arguments = [f"{prefix}{_name(key, prefix)}={_text(value)}" for key, value in given.items()]
        return Program(self._driver.start([action, *arguments], out), out, files)

    def run(self, action: str, topic: str, group: str, limit_s: float = 120.0, **options: Any) -> Report:
        """Start it and wait till it ends."""
        return self.start(action, topic, group, **options).finish(limit_s)


FILE = object()
"""The value of an option that names a file of the program's own."""
TOLD_TO_STOP = ("ask", "answer", "consumers", "stream")


def driver_of(version: str, folder: Path) -> Driver:
    return go_driver(folder) if version == GO else java_driver(version, folder)


def _files(options: dict[str, Any]) -> list[str]:
    return [key for key, value in options.items() if value is FILE]


def _name(key: str, prefix: str) -> str:
    return key.replace("_", "-") if prefix else key


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
