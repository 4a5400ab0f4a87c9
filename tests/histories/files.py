"""Histories as files, one JSON object a line, so that a failed run can be looked at again.

A writer and a reader hold one operation at a time. A client that may be killed writes what it begins before
it does it (`HistoryWriter.begin`); what it never ended comes out of the reader as it was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from tests.histories.operations import (
    Assign,
    Commit,
    Crash,
    Drain,
    Fetch,
    Operation,
    Outcome,
    Poll,
    Queue,
    Seek,
    Send,
)

OPEN_MAX = 100_000
"""Most operations that a file may leave begun and not ended."""


class HistoryError(ValueError):
    """A line that is no operation, or operations that cannot be those of one history."""


def to_line(operation: Operation) -> bytes:
    """One operation as a line, without its end."""
    return orjson.dumps(_to_row(operation), default=tuple)


def _to_row(operation: Operation) -> dict[str, Any]:
    row: dict[str, Any] = {"op": type(operation).__name__.lower()}
    for name in operation.__slots__:
        value = getattr(operation, name)
        row[name] = value
    return row


def from_line(line: bytes) -> Operation:
    """Raises: HistoryError."""
    return _operation(_row(line))


def _row(line: bytes) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise HistoryError(f"not an operation: {line[:100]!r}") from error
    if not isinstance(row, dict) or row.get("op") not in _MAKERS:
        raise HistoryError(f"not an operation: {line[:100]!r}")
    return row


def _operation(row: dict[str, Any]) -> Operation:
    try:
        return _MAKERS[row["op"]](row)
    except (KeyError, TypeError, ValueError) as error:
        raise HistoryError(f"not an operation: {row!r:.200}") from error


def _queue(value: Any) -> Queue:
    topic, queue_id = value
    return Queue(str(topic), int(queue_id))


def _span(row: dict[str, Any]) -> tuple[str, int, int | None, Outcome]:
    return row["process"], row["invoked"], row["completed"], Outcome(row["outcome"])


def _send(row: dict[str, Any]) -> Send:
    queue = None if row["queue"] is None else _queue(row["queue"])
    return Send(*_span(row), tuple(row["values"]), queue, tuple(row["offsets"]), row["tries"])


def _poll(row: dict[str, Any]) -> Poll:
    messages = tuple((int(offset), str(value)) for offset, value in row["messages"])
    queue, start = _queue(row["queue"]), row["start"]
    return Poll(*_span(row), queue, start, messages, row["next_offset"], row["is_ordered"])


_MAKERS: dict[str, Callable[[dict[str, Any]], Operation]] = {
    "send": _send,
    "poll": _poll,
    "seek": lambda row: Seek(row["process"], row["at"], _queue(row["queue"]), row["offset"]),
    "assign": lambda row: Assign(row["process"], row["at"], tuple(_queue(queue) for queue in row["queues"])),
    "commit": lambda row: Commit(*_span(row), row["group"], _queue(row["queue"]), row["offset"]),
    "fetch": lambda row: Fetch(*_span(row), row["group"], _queue(row["queue"]), row["offset"]),
    "crash": lambda row: Crash(row["process"], row["at"]),
    "drain": lambda row: Drain(
        row["process"], row["invoked"], row["completed"], _queue(row["queue"]), row["begin"], row["end"]
    ),
}


class HistoryWriter:
    """Appends operations to a file. Used with `with`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("wb")
        self._begun = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def flush(self) -> None:
        """For a reader of the file."""
        self._file.flush()

    def begin(self, operation: Send | Commit) -> int:
        """Writes down what is about to be done, so that it is known even if nobody lives to see its end."""
        self._begun += 1
        self._write({"begun": self._begun, **_to_row(operation)})
        self._file.flush()
        return self._begun

    def end(self, begun: int, operation: Send | Commit) -> None:
        self._write({"ended": begun, **_to_row(operation)})

    def write(self, operation: Operation) -> None:
        self._write(_to_row(operation))

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(row, default=tuple, option=orjson.OPT_APPEND_NEWLINE))


def read_history(path: Path) -> Iterator[Operation]:
    """The operations of a file; a last line that was cut off by a kill is left out.

    Raises: HistoryError.
    """
    begun: dict[int, Operation] = {}
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            operation = _follow(line, begun)
            if operation is not None:
                yield operation
    yield from begun.values()


def _follow(line: bytes, begun: dict[int, Operation]) -> Operation | None:
    row = _row(line)
    if "begun" in row:
        if len(begun) >= OPEN_MAX:
            raise HistoryError(f"more than {OPEN_MAX} operations are begun and not ended")
        begun[row["begun"]] = _operation(row)
        return None
    begun.pop(row.get("ended", 0), None)
    return _operation(row)
