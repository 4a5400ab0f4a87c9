"""HTML pages of the jobs: Jinja2 templates, with plots as inline SVG. A page loads nothing from elsewhere."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NO_METADATA: Final = {"Creator": None, "Date": None, "Format": None, "Type": None}


@cache
def environment() -> Environment:
    """The templates of `rocketmq_spark/jobs/templates`. Every value is escaped, unless it is Markup."""
    made = Environment(
        loader=PackageLoader("rocketmq_spark.jobs"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["text"] = text_of
    return made


def render(template: str, **values: object) -> str:
    """The page that the template makes of these values. Raises jinja2.UndefinedError for a missing one."""
    return environment().get_template(template).render(values)


def figure_html(figure: Figure, label: str) -> Markup:
    """A plot as inline SVG, with a label for screen readers."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(out, format="svg", metadata=_NO_METADATA)
    text = out.getvalue()
    svg = text[text.index("<svg") :]  # without the head of an SVG document
    return Markup(f'<figure role="img" aria-label="{escape(label)}">{svg}</figure>')


def plain(text: str) -> str:
    """Text of a message for a plot: matplotlib would read what is between two `$` as mathematics."""
    return text.replace("$", r"\$")


def text_of(value: object) -> str:
    """A value of a table as text: integers with separators of thousands, None as `unknown`."""
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
