"""Pages that need nothing from elsewhere: their style is inside, their plots are inline SVG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2330; }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0.2rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 0.6rem; border-bottom: 1px solid #d8dce4; padding-bottom: 0.2rem; }
p.about { color: #5b6475; margin-top: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0.5rem 0; }
th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid #eceef2; }
th { color: #5b6475; font-weight: 600; }
td.number, th.number { text-align: right; }
figure { margin: 0.5rem 0; }
svg { max-width: 100%; height: auto; }
"""
_NO_METADATA: Final = {"Creator": None, "Date": None, "Format": None, "Type": None}


def page(title: str, about: str, sections: Iterable[tuple[str, str]]) -> str:
    """A whole page. Titles are text, the sections' contents HTML."""
    body = "".join(f"<h2>{escape(name)}</h2>\n{content}\n" for name, content in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f'<p class="about">{escape(about)}</p>\n{body}</body></html>\n'
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; numbers stand to the right. None is shown as unknown."""
    found = [list(row) for row in rows]
    numeric = [bool(found) and all(_is_number(row[at]) for row in found) for at in range(len(columns))]
    head = "".join(_cell("th", name, is_right) for name, is_right in zip(columns, numeric, strict=True))
    lines = (
        "".join(_cell("td", _text(value), is_right) for value, is_right in zip(row, numeric, strict=True))
        for row in found
    )
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"


def paragraph(text: str) -> str:
    """One paragraph of text."""
    return f"<p>{escape(text)}</p>"


def figure_html(figure: Figure, label: str) -> str:
    """A plot as inline SVG, with a label for those who cannot see it."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(out, format="svg", metadata=_NO_METADATA)
    text = out.getvalue()
    svg = text[text.index("<svg") :]
    return f'<figure role="img" aria-label="{escape(label)}">{svg}</figure>'


def plain(text: str) -> str:
    """Text of a message for a plot: matplotlib would take what stands between two `$` for mathematics."""
    return text.replace("$", r"\$")


def _cell(kind: str, text: str, is_right: bool) -> str:
    style = ' class="number"' if is_right else ""
    return f"<{kind}{style}>{escape(text)}</{kind}>"


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _text(value: object) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
