"""Tables of Markdown, and the figures in them. No I/O."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose columns of figures stand to the right. A `|` within a cell is escaped."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(header)
    rules = ["--:" if column and all(map(_is_figure, column)) else "---" for column in columns]
    return "\n".join(f"| {' | '.join(_escape(cell) for cell in row)} |" for row in (header, rules, *rows))


def number(value: float) -> str:
    """A short figure: a whole number from 100 on, else three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def _is_figure(cell: str) -> bool:
    return cell[:1].isdigit() or cell.startswith(("-", "**", "<", "≥", "≤"))
