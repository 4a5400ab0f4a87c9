"""An audit's report as one HTML page: verdict, problems, tables and plots. It loads nothing."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from markupsafe import Markup
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from rocketmq_spark.jobs.pages import figure_html, render

ROWS_MAX: Final = 1000
"""Rows of a table on the page; the JSON has all."""
COLUMNS_MAX: Final = 400
"""Columns of the map of ranges; if there are more ranges, a column shows the worst of several."""
_STATES: Final = ("absent", "partial", "same", "different")
_COLOURS: Final = ("#e4e7eb", "#a8d5ba", "#3c9d67", "#c8342b")

Rows = Sequence[Mapping[str, Any]]


def page(content: Mapping[str, Any]) -> str:
    """The page of a report's content."""
    ranges = content["ranges"]
    return render(
        "audit.html",
        title=f"Audit of {len(content['replicas'])} replicas",
        report=content,
        rows_max=ROWS_MAX,
        range_map=_range_map(content) if ranges else "",
        sizes=_sizes(content) if ranges else "",
        replicas=_replicas(content["replicas"]),
        problems=_table(("replica", "kind", "index", "position", "field", "detail"), content["problems"]),
        terms=_table(("term", "firstIndex"), content["epochs"]),
        queues=_table(
            ("topic", "queueId", "firstOffset", "nextOffset", "messages", "runs"), content["queues"]
        ),
        hashes=_table(("firstIndex", "lastIndex", "firstPosition", "entries", "bytes", "sha256"), ranges),
    )


def _table(columns: Sequence[str], rows: Rows) -> dict[str, object]:
    return {"columns": columns, "rows": [[_shown(row[name]) for name in columns] for row in rows]}


def _shown(value: object) -> object:
    """A value that a record lacks, such as an index in a plain log, is an empty cell."""
    return "" if value is None else value


def _replicas(replicas: Rows) -> dict[str, object]:
    rows = [
        {
            "replica": each["name"],
            "store": each["path"],
            "begins at entry": each["begin"]["index"],
            "committed entry": each["committed"]["index"],
            "committed position": each["committed"]["position"],
            "ranges the same": each["ranges"]["same"] + each["ranges"]["partial"],
            "different": each["ranges"]["different"],
            "problems": each["problems"],
        }
        for each in replicas
    ]
    return _table(tuple(rows[0]), rows)


def _range_map(content: Mapping[str, Any]) -> Markup:
    """A map of equal ranges: a row for each replica, the log from left to right."""
    names = [each["name"] for each in content["replicas"]]
    ranges = content["ranges"]
    step = -(-len(ranges) // COLUMNS_MAX)
    grid = np.array([[_STATES.index(each["replicas"][name]) for each in ranges] for name in names])
    columns = [grid[:, at : at + step].max(axis=1) for at in range(0, len(ranges), step)]
    figure = Figure(figsize=(10, 0.9 + 0.42 * len(names)), layout="constrained")
    axes = figure.subplots()
    extent = (ranges[0]["firstPosition"] / 2**20, ranges[-1]["endPosition"] / 2**20, len(names) - 0.5, -0.5)
    axes.imshow(
        np.array(columns).T,
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(_COLOURS),
        vmin=-0.5,
        vmax=len(_STATES) - 0.5,
        extent=extent,
    )
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("position in the log, MiB")
    for state, colour in zip(_STATES, _COLOURS, strict=True):
        axes.plot([], [], "s", color=colour, label=state)
    axes.legend(ncols=len(_STATES), loc="lower right", bbox_to_anchor=(1, 1), frameon=False, fontsize=8)
    return figure_html(figure, "Which ranges of the log are the same in all replicas")


def _sizes(content: Mapping[str, Any]) -> Markup:
    """How large entries are along the log, and how many each term has."""
    ranges = [each for each in content["ranges"] if each["entries"]]
    if not ranges:
        return Markup()
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    last = ranges[-1]  # a step reaches to the next one's begin: the last needs its end
    ends = [each["firstPosition"] for each in ranges] + [last["firstPosition"] + last["bytes"]]
    means = [each["bytes"] / each["entries"] for each in (*ranges, last)]
    left.step([end / 2**20 for end in ends], means, where="post", color="#2f6db3")
    left.set_xlabel("position in the log, MiB")
    left.set_ylabel("bytes an entry")
    left.set_ylim(bottom=0)
    epochs = content["epochs"]
    if epochs:
        end = max((each["lastIndex"] for each in ranges if each["lastIndex"] is not None), default=0) + 1
        firsts = [epoch["firstIndex"] for epoch in epochs] + [end]
        counts = [behind - first for first, behind in pairwise(firsts)]
        right.bar([str(epoch["term"]) for epoch in epochs][-40:], counts[-40:], color="#2f6db3")
        right.set_xlabel("term")
        right.set_ylabel("entries")
    else:
        right.set_axis_off()
    return figure_html(figure, "Sizes of entries along the log, and entries of each term")
