"""What commands print: tables and coloured lines for people, JSON for programs, and remarks on stderr.

Rich prints tables too, but its import takes a sixth of a short command's time, so only `watch` uses it. The
width of a character comes from `rich.cells`, which imports nothing else of rich.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson
from rich.cells import cell_len, chop_cells

from telemetry.escapes import escaped, escaped_json

FILE_WIDTH: Final = 200
"""Columns when stdout is not a terminal: so many that no line is folded."""
COLUMN_WIDTH_MIN: Final = 8
"""The least width of a folded column, even on a narrow terminal."""
_CODES: Final = {"bold": 1, "dim": 2, "italic": 3, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""Words of a style, as in rich, and their codes for the terminal (ECMA-48, SGR)."""


@dataclass(frozen=True, slots=True)
class Styled:
    """A text of printable characters, and its style, such as `bold red`."""

    text: str
    style: str = ""


def write(*parts: Styled) -> None:
    """Print one or several lines. A character that stdout cannot encode becomes `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    line = "".join(map(_painted, parts))
    print(line.encode(encoding, "replace").decode(encoding))


def write_table(heads: Sequence[Styled], rows: Sequence[Sequence[Styled]], is_number: Sequence[bool]) -> None:
    """Numbers are aligned to the right. If the table is too wide, it is folded, the widest column first."""
    every = [heads, *rows]
    natural = [max(_width(row[at].text) for row in every) for at in range(len(heads))]
    widths = _fitted(natural, _terminal_width() - 2 * len(heads))
    write()
    _write_row(heads, widths, is_number)
    write(Styled(f" {_rule() * (sum(widths) + 2 * len(widths) - 2)} "))
    for row in rows:
        _write_row(row, widths, is_number)
    write()


def write_fields(fields: Sequence[tuple[str, Styled]]) -> None:
    """Print names, each with its value to the right."""
    names = max((_width(name) for name, _ in fields), default=0)
    room = max(COLUMN_WIDTH_MIN, _terminal_width() - names - 2)
    for name, value in fields:
        for at, line in enumerate(_folded(value.text, room)):
            write(Styled(_filled("" if at else name, names) + "  "), Styled(line, value.style))


def _write_row(row: Sequence[Styled], widths: Sequence[int], is_number: Sequence[bool]) -> None:
    folded = [_folded(cell.text, width) for cell, width in zip(row, widths, strict=True)]
    for at in range(max(map(len, folded))):
        parts = [Styled(" ")]
        for cell, lines, width, is_right in zip(row, folded, widths, is_number, strict=True):
            line = lines[at] if at < len(lines) else ""
            parts += [Styled(_filled(line, width, is_right=is_right), cell.style), Styled("  ")]
        write(*parts[:-1], Styled(" "))


def _fitted(widths: Sequence[int], room: int) -> list[int]:
    """The widest columns are cut, all to the same width, until the table fits."""
    fitted = list(widths)
    while (excess := sum(fitted) - room) > 0:
        widest = max(fitted)
        if widest <= COLUMN_WIDTH_MIN:
            break
        next_widest = max((width for width in fitted if width < widest), default=0)
        cut = min(widest - max(next_widest, COLUMN_WIDTH_MIN), -(-excess // fitted.count(widest)))
        fitted = [width - cut if width == widest else width for width in fitted]
    return fitted


def _folded(text: str, width: int) -> list[str]:
    return [line for whole in text.split("\n") for line in _lines(whole, width)]


def _lines(text: str, width: int) -> Iterator[str]:
    """Split between words if possible, else where a line is full."""
    if cell_len(text) <= width:
        yield text
    elif text.isascii():
        yield from textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    else:
        yield from chop_cells(text, width)


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _filled(text: str, width: int, *, is_right: bool = False) -> str:
    space = " " * (width - cell_len(text))
    return space + text if is_right else text + space


def _painted(part: Styled) -> str:
    if not part.style or not _has_colours():
        return part.text
    codes = ";".join(str(_CODES[word]) for word in part.style.split())
    return f"\x1b[{codes}m{part.text}\x1b[0m"


def _has_colours() -> bool:
    """`NO_COLOR` is read as no-color.org defines it."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else FILE_WIDTH


def _rule() -> str:
    return "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"


Json = dict[str, Any]
UNKNOWN: Final = "unknown"
UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Column:
    """`value` is the key of a row, or makes the cell from it. `nothing` is shown for None."""

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
    """Print a remark on stderr; its text often comes from a broker."""
    print(printable(line), file=sys.stderr)


def show_table(rows: Iterable[Json] | None, columns: Sequence[Column], title: str | None = None) -> None:
    """Print a table, with a title above it. `rows` None: unknown."""
    shown = list(rows or ())
    if title is not None:
        write(Styled(printable(title), "italic"))
    if shown:
        write_cells(shown, columns)
    else:
        write(Styled(f"  {UNKNOWN if rows is None else 'none'}\n", "dim"))


def show_pages(answer: Json) -> None:
    """Say how many rows are on later pages."""
    left = answer["total"] - (answer["page"] - 1) * answer["pageSize"] - len(answer["items"])
    if left > 0:
        remark(f"{left} more: --page {answer['page'] + 1}")


def write_cells(rows: Iterable[Json], columns: Sequence[Column]) -> None:
    heads = [Styled(column.head, "bold") for column in columns]
    cells = [[cell(column.of(row), column.nothing) for column in columns] for row in rows]
    write_table(heads, cells, [column.is_number for column in columns])


def show_fields(fields: Mapping[str, object], title: str | None = None) -> None:
    """Print one object: its fields, one below the other."""
    if title is not None:
        write(Styled(printable(title), "bold"))
    write_fields([(_on_one_line(name), cell(value, UNKNOWN)) for name, value in fields.items()])


def cell(value: object, nothing: str = UNKNOWN) -> Styled:
    """The text of a table cell for a value."""
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
    """Escape invisible characters and those that control the terminal: texts may come from clients."""
    return escaped(str(value), keep="\n")


def _on_one_line(name: str) -> str:
    """Names can come from clients, too: producers choose the names of message properties."""
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
