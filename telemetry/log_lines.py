"""The lines of a process's log: one event, one line, as text or as a JSON object.

What an event's own logger gives as `extra` becomes keys of the object, beside `time`, `level`, `logger` and
`message`; `node` and `term` are added where the process knows them. In a text line they are what the message
says.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import orjson

Format = Literal["text", "json"]
FORMATS: Final = ("text", "json")
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest of it is the event's own."""
_OWN: Final = frozenset({"time", "level", "logger", "message", "node", "term", "exception"})
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES: Final = {code: ascii(chr(code))[1:-1] for code in _CONTROLS if code != ord("\t")}
"""Whatever ends a line for anyone, or tells a terminal what to do."""


@dataclass(slots=True)
class Whereabouts:
    """What a process knows of itself and says on each JSON line; a program sets it once it knows."""

    node: str | None = None
    term: Callable[[], int | None] = lambda: None


class TextLines(logging.Formatter):
    """A message with line ends or other control characters in it, which may come from outside, stays one line
    of text. A trace has its own lines.
    """

    def __init__(self) -> None:
        super().__init__(TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        return super().formatMessage(record).translate(_ESCAPES)


class JsonLines(logging.Formatter):
    """One object a line; a trace is its `exception`."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        super().__init__()
        self._whereabouts = whereabouts

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
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
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        # A number or text that JSON has no form for: an int beyond 64 bits, a lone surrogate.
        plain = {key: str(value).encode(errors="replace").decode() for key, value in line.items()}
        return orjson.dumps(plain).decode()


class StderrLines(logging.StreamHandler[TextIO]):
    """Tells this process's own handler from another's."""


def log_to_stderr(line_format: Format, level: str = "INFO", whereabouts: Whereabouts | None = None) -> None:
    """What has at least this level goes to stderr, in this form; said again, in the new one. A program around
    this one that has set up its log already keeps it.
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
