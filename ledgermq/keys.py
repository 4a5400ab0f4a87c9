"""Single keys from a terminal, without Enter."""

import os
import select
import termios
import tty
from types import TracebackType
from typing import Any, Self, TextIO


class Keys:
    """While it is entered, keys come one by one and are not echoed; Ctrl-C stays what it is."""

    def __init__(self, terminal: TextIO) -> None:
        self._fd = terminal.fileno()
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._fd)
        tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str | None:
        """The next key, or None when none came meanwhile; an ended input is a `q`."""
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        if not waiting.poll(1_000 * seconds):
            return None
        key = os.read(self._fd, 1)
        return key.decode("latin-1") if key else "q"
