"""Runs the command line in this process, to its exit code and words."""

from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from ledgermq.cli import main


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
