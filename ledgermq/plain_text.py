"""Tables and coloured lines as text, for the commands that print once and end.

Rich draws them too, and to import it takes a sixth of such a command's whole time; `watch`, which stays, uses
it. How wide a character is, `rich.cells` says here as well, which needs none of the rest.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells

FILE_WIDTH: Final = 200
"""Columns where stdout is no terminal, so that nothing is folded there."""
COLUMN_WIDTH_MIN: Final = 8
"""A column is not folded to less, whatever the terminal's width."""
_CODES: Final = {"bold": 1, "dim": 2, "italic": 3, "red": 31, "green": 32, "yellow": 33, "cyan": 36}
"""Words of a style (rich's own), and what the terminal calls them (ECMA-48, SGR)."""


@dataclass(frozen=True, slots=True)
class Styled:
    """A text of printable characters, and words such as `bold red`."""

    text: str
    style: str = ""


def write(*parts: Styled) -> None:
    """One line, or several with line ends in it; what stdout cannot say is `?`."""
    encoding = sys.stdout.encoding or "utf-8"
    line = "".join(map(_painted, parts))
    print(line.encode(encoding, "replace").decode(encoding))


def write_table(heads: Sequence[Styled], rows: Sequence[Sequence[Styled]], is_number: Sequence[bool]) -> None:
    """Numbers stand at the right. What is too wide for the terminal is folded, the widest column first."""
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
    """Names, and what they are beside them."""
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
    """The widest ones cut, all to the same, until they have room together."""
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
    """Between words where that can be told, else wherever a line is full."""
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
    """`NO_COLOR` is what no-color.org says."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else FILE_WIDTH


def _rule() -> str:
    return "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
