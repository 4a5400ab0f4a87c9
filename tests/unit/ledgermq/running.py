"""Runs the command line in this process, to its exit code and words."""

import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pytest

from ledgermq.cli import main

HEAVY: Final = frozenset(
    {
        *("rich.console", "rich.table", "rich.text"),
        *("fastapi", "starlette", "uvicorn", "prometheus_client"),
        *("rocketmq_spark", "pyspark", "pyarrow", "pandas", "numpy", "matplotlib"),
        *("lark", "lz4", "zstandard", "uvloop", "xml", "sqlite3", "multiprocessing"),
        *("remoting.headers.consume", "remoting.headers.admin", "remoting.server"),
        *("admin_api.changes", "admin_api.messages.service"),
        *("ledgermq.local.cluster", "ledgermq.local.supervisor"),
    }
)
"""Modules that cost a start much, or much together, and that no command which only looks has a use for."""


def loaded_by(*args: str) -> set[str]:
    """The modules that are there, and not deferred, when the command, in a process of its own, has ended."""
    there = "[name for name, module in sys.modules.items() if type(module).__name__ != '_Deferred']"
    printed = printed_by(*args, after=f"print('LOADED', *{there})")
    return set(printed.rpartition("LOADED ")[2].split())


def printed_by(*args: str, before: str = "", after: str = "") -> str:
    """What the command, in a process of its own, and statements before and behind it print."""
    program = (
        f"import sys\n{before}\nfrom ledgermq.cli import main\nsys.argv[0] = 'ledgermq'\n"
        f"try: main()\nexcept SystemExit: pass\n{after}"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, *args], capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.out)


class CommandLine:
    """`run("topic", "list")` is `ledgermq topic list`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *args: str) -> Ran:
        self._monkeypatch.setattr("sys.argv", ["ledgermq", *args])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = self._capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0, said.out, said.err)
