"""The lines of a process's log: one event, one line, as text or as a JSON object.

The `extra` of a logging call becomes keys of the object, besides `time`, `level`, `logger` and `message`;
`node` and `term` are added if the process knows them. A text line has no `extra`.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Literal, TextIO

import orjson

from telemetry.escapes import escaped, escaped_json

Format = Literal["text", "json"]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
FORMATS: Final = ("text", "json")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""The attributes that every log record has; the others come from `extra`."""
_OWN: Final = frozenset({"time", "level", "logger", "message", "node", "term", "exception"})
MESSAGE_CHARS_MAX: Final = 16 * 1024
"""Longest message, which may quote a client's text. Tracebacks are not cut: the last line matters most."""
_TRACE_INDENT: Final = "  "


@dataclass(slots=True)
class Whereabouts:
    """Values that a process adds to each JSON line; the program sets them once they are known."""

    node: str | None = None
    term: Callable[[], int | None] = lambda: None


class TextLines(logging.Formatter):
    """A message stays one line of text, even if it quotes line ends or other control characters of a client.
    The lines of a traceback are indented, so that none of them can be mistaken for an event.
    """

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return escaped(_shortened(super().formatMessage(record)), keep="\t")

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 (logging's name)
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 (logging's name)
        return _indented(stack_info)


def _indented(text: str) -> str:
    return "\n".join(_TRACE_INDENT + escaped(line, keep="\t") for line in text.split("\n"))


def _shortened(text: str) -> str:
    left_out = len(text) - MESSAGE_CHARS_MAX
    return text if left_out <= 0 else f"{text[:MESSAGE_CHARS_MAX]}... ({left_out} characters more)"


class JsonLines(logging.Formatter):
    """One object per line; its `exception` is the traceback."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        super().__init__()
        self._whereabouts = whereabouts

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _shortened(record.getMessage()),
        }
        if self._whereabouts.node is not None:
            line["node"] = self._whereabouts.node
        term = self._whereabouts.term()
        if term is not None:
            line["term"] = term
        for name, value in vars(record).items():
            if name not in _STANDARD:
                line[f"{name}_" if name in _OWN else name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _dump(line)


def _dump(line: Mapping[str, object]) -> str:
    """Escape characters that control a terminal or end a line, besides those that JSON escapes."""
    return escaped_json(_to_json(line))


def _to_json(line: Mapping[str, object]) -> str:
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # A value that JSON cannot express: an int beyond 64 bits, a lone surrogate.
        plain = {key: str(value).encode(errors="replace").decode() for key, value in line.items()}
        return orjson.dumps(plain).decode()


class StderrLines(logging.StreamHandler[TextIO]):
    """The handler that this process has set up; its class distinguishes it from other handlers."""


def log_to_stderr(line_format: Format, level: str = "INFO", whereabouts: Whereabouts | None = None) -> None:
    """Log events of at least this level to stderr in this format; a second call replaces the first. Handlers
    that another program has set up are kept, and nothing is added.
    """
    root = logging.getLogger()
    own = [handler for handler in root.handlers if isinstance(handler, StderrLines)]
    if len(own) < len(root.handlers):
        return
    for handler in own:
        root.removeHandler(handler)
    new = StderrLines(sys.stderr)
    new.setFormatter(TextLines() if line_format == "text" else JsonLines(whereabouts or Whereabouts()))
    root.addHandler(new)
    root.setLevel(level)
