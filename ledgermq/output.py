"""What commands print: tables for people, JSON for programs, and remarks on stderr."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from ledgermq.plain_text import Styled, write, write_fields, write_table
from telemetry.escapes import escaped, escaped_json

Json = dict[str, Any]
UNKNOWN: Final = "unknown"
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Column:
    """`value` is the key of a row, or makes the cell from it. `nothing` stands where it gives None."""

    head: str
    value: str | Callable[[Json], object]
    is_number: bool = False
    nothing: str = UNKNOWN

    def of(self, row: Json) -> object:
        return row.get(self.value) if isinstance(self.value, str) else self.value(row)


def number(head: str, value: str | Callable[[Json], object]) -> Column:
    return Column(head, value, is_number=True)


def print_json(value: object) -> None:
    """Indented for a person at a terminal, on one line for a program."""
    if not sys.stdout.isatty():
        print(orjson.dumps(value).decode())
        return
    print(escaped_json(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()))


def remark(line: str) -> None:
    """A word beside the answer, often a broker's own."""
    print(printable(line), file=sys.stderr)


def show_table(rows: Iterable[Json] | None, columns: Sequence[Column], title: str | None = None) -> None:
    """With a title of any length above it. None: nobody could say."""
    shown = list(rows or ())
    if title is not None:
        write(Styled(printable(title), "italic"))
    if shown:
        write_cells(shown, columns)
    else:
        write(Styled(f"  {UNKNOWN if rows is None else 'none'}\n", "dim"))


def write_cells(rows: Iterable[Json], columns: Sequence[Column]) -> None:
    heads = [Styled(column.head, "bold") for column in columns]
    cells = [[cell(column.of(row), column.nothing) for column in columns] for row in rows]
    write_table(heads, cells, [column.is_number for column in columns])


def show_fields(fields: Mapping[str, object], title: str | None = None) -> None:
    """One thing: its fields one below the other."""
    if title is not None:
        write(Styled(printable(title), "bold"))
    write_fields([(_on_one_line(name), cell(value, UNKNOWN)) for name, value in fields.items()])


def cell(value: object, nothing: str = UNKNOWN) -> Styled:
    """How a value is shown."""
    if isinstance(value, Styled):
        return value
    if value is None:
        return Styled(nothing, "dim")
    if isinstance(value, bool):
        return Styled("yes" if value else "no")
    if isinstance(value, float):
        return Styled(f"{value:,.2f}")
    if isinstance(value, list | tuple):
        return Styled(", ".join(map(printable, value)))
    return Styled(printable(value))


def printable(value: object) -> str:
    """What cannot be seen, or would speak to the terminal, as escapes. Texts come from outside."""
    return escaped(str(value), keep="\n")


def _on_one_line(name: str) -> str:
    """Names come from outside, too: producers name the properties of messages."""
    return printable(name).replace("\n", "\\n")


def moment(unix_ms: int | None) -> str | None:
    """Local time, to the second."""
    if not unix_ms or unix_ms < 0:
        return None
    try:
        return datetime.fromtimestamp(unix_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):
        return f"{unix_ms} ms"


def duration(ms: float | None) -> str | None:
    """`850 ms`, `12 s`, `3 min`, `5 h`, `2 d`."""
    if ms is None:
        return None
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= 2 * unit_ms or (unit == "s" and ms >= unit_ms):
            return f"{ms / unit_ms:.0f} {unit}"
    return f"{ms:.0f} ms"


def size(count: float | None) -> str | None:
    """`1.5 MiB`."""
    if count is None:
        return None
    power = 0
    while count >= 1024 and power < len(UNITS) - 1:
        count /= 1024
        power += 1
    return f"{count:.0f} B" if power == 0 else f"{count:.1f} {UNITS[power]}"
