"""The page of a report: its tables, and a plot from each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import matplotlib.dates as mdates
from markupsafe import Markup
from matplotlib.figure import Figure

from rocketmq_spark.jobs.pages import figure_html, plain, render
from rocketmq_spark.jobs.words import bytes_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SERIES_MAX: Final = 8
"""More lines than that cannot be distinguished: the smallest are drawn as one, "others"."""
_SIZE: Final = (10.0, 3.2)
_COLORS: Final = ("#2f6fdd", "#e0792b", "#2a9d63", "#c23b5e", "#7a55c7", "#8c6d46", "#4aa3b8", "#777f8e")
OTHERS: Final = "others"
ALONE_MS: Final = 60_000
"""A time axis with one point shows this much time before and after it."""

Rows = Sequence[Mapping[str, Any]]
Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points (ms, value) by the name of the line."""


class Table(NamedTuple):
    """A table of the page: the names of its columns, and its rows of values."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


def report_page(about: str, tables: Mapping[str, Rows], bucket_s: int) -> str:
    """The whole page, from the tables by their names."""
    timeline = tables["timeline"]
    plots = []
    if timeline:
        plots = [
            ("Throughput", throughput_plots(timeline, bucket_s)),
            ("Latency from born to stored", latency_plots(timeline, bucket_s)),
            ("Sizes", size_plot(tables["sizes"])),
        ]
    ranked = [("Top tags", "tag", tables["tags"]), ("Top keys", "key", tables["keys"])]
    return render(
        "report.html",
        title="Topic report",
        about=about,
        topics=_topics(tables["totals"]),
        plots=plots,
        rankings=[
            (title, ranking_plot(title, rows, name), _ranking(rows, name))
            for title, name, rows in ranked
            if rows
        ],
        lag=_lag(tables["lag"]),
        dead_letters=_dead_letters(tables["dead_letters"], bucket_s),
    )


def moment(at_ms: int | None) -> str:
    """`2026-01-31 05:00:00` in UTC."""
    return "unknown" if at_ms is None else f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def length(ms: int | None) -> str:
    """`3.2 s`, `5 min`, `4.1 h`, `2.3 d`."""
    if ms is None:
        return "unknown"
    for limit_ms, unit in (
        (60_000, (1000, "s")),
        (3_600_000, (60_000, "min")),
        (86_400_000, (3_600_000, "h")),
    ):
        if ms < limit_ms:
            return f"{ms / unit[0]:,.1f} {unit[1]}"
    return f"{ms / 86_400_000:,.1f} d"


def _topics(rows: Rows) -> Table:
    columns = [*("topic", "messages", "bytes", "queues", "first stored", "last stored")]
    columns += ["size p50", "size p99", "size max", "latency p50 ms", "p99 ms", "max ms"]
    return Table(
        columns,
        [
            (
                *(row["topic"], row["messages"], bytes_words(row["bytes"]), row["queues"]),
                *(moment(row["firstMs"]), moment(row["lastMs"])),
                *(row["bytesP50"], row["bytesP99"], row["bytesMax"]),
                *(row["latencyMsP50"], row["latencyMsP99"], row["latencyMsMax"]),
            )
            for row in rows
        ],
    )


def _ranking(rows: Rows, name: str) -> Table:
    return Table(
        (name, "topic", "messages", "bytes"),
        [(row[name], row["topic"], row["messages"], bytes_words(row["bytes"])) for row in rows],
    )


def _lag(rows: Rows) -> dict[str, object] | None:
    if not rows:
        return None
    newest = max(row["sampledMs"] for row in rows)
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["sampledMs"] == newest:
            found.setdefault((row["group"], row["topic"]), []).append(row)
    table = Table(
        ("group", "topic", "queues", "messages waiting", "longest behind"),
        [
            (group, topic, len(queues), sum(row["lag"] for row in queues), _longest(queues))
            for (group, topic), queues in sorted(found.items())
        ],
    )
    return {"plot": lag_plots(rows), "sampled": moment(newest), **table._asdict()}


def _longest(queues: Rows) -> str:
    waits = [row["behindMs"] for row in queues if row["lag"]]
    if not waits:
        return "none waits"
    return "unknown" if None in waits else length(max(waits))


def _dead_letters(rows: Rows, bucket_s: int) -> dict[str, object] | None:
    if not rows:
        return None
    last = {row["topic"]: row for row in rows}
    table = Table(
        ("dead-letter topic", "messages", "oldest, at the end of the time shown"),
        [(topic, row["waiting"], length(row["oldestAgeMs"])) for topic, row in sorted(last.items())],
    )
    return {"plot": dead_letter_plots(rows), "step": length(bucket_s * 1000), **table._asdict()}


def throughput_plots(rows: Rows, seconds: int) -> Markup:
    """Messages and megabytes a second, by topic."""
    messages = _filled(_by_topic(rows, lambda row: row["messages"] / seconds), seconds * 1000, 0.0)
    megabytes = _filled(_by_topic(rows, lambda row: row["bytes"] / seconds / 1e6), seconds * 1000, 0.0)
    return _lines("Messages a second", "messages/s", messages) + _lines(
        "Megabytes a second", "MB/s", megabytes
    )


def latency_plots(rows: Rows, seconds: int) -> Markup:
    """Born → stored, the 50th, 95th and 99th percentile; one plot for each topic."""
    found = []
    for topic in _topic_names(rows)[:SERIES_MAX]:
        of_topic = [row for row in rows if row["topic"] == topic]
        marks = {"p50": "latencyMsP50", "p95": "latencyMsP95", "p99": "latencyMsP99", "max": "latencyMsMax"}
        series = {name: [(row["startMs"], row[column]) for row in of_topic] for name, column in marks.items()}
        found.append(_lines(f"Born to stored: {topic}", "ms", _filled(series, seconds * 1000, math.nan)))
    return Markup().join(found)


def size_plot(rows: Rows) -> Markup:
    """The number of bodies by size."""
    by_size: dict[int, int] = defaultdict(int)
    for row in rows:
        by_size[row["bytesBelow"]] += row["messages"]
    ordered = sorted(by_size.items())
    return _bars("Sizes of bodies", [f"< {size:,} B" for size, _ in ordered], [count for _, count in ordered])


def ranking_plot(title: str, rows: Rows, name: str) -> Markup:
    """The largest first, as bars from top to bottom."""
    labels = [f"{_cut(row[name])}  ({_cut(row['topic'])})" for row in rows]
    return _bars(title, labels, [row["messages"] for row in rows])


def lag_plots(rows: Rows) -> Markup:
    """Messages that wait for each group, over all samples."""
    sums: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        sums[f"{row['group']} / {row['topic']}"][row["sampledMs"]] += row["lag"]
    series = {name: sorted(points.items()) for name, points in sums.items()}
    return _lines("Messages that wait for a group", "messages", _at_most(series))


def dead_letter_plots(rows: Rows) -> Markup:
    """Dead letters over time, and how old the oldest was."""
    waiting = _by_topic(rows, lambda row: row["waiting"])
    ages = _by_topic(rows, lambda row: row["oldestAgeMs"] / 3_600_000)
    return _lines("Dead letters", "messages", waiting) + _lines(
        "Age of the oldest dead letter", "hours", ages
    )


def _filled(series: Series, step_ms: int, value: float) -> Series:
    """The series with `value` at both ends of each time range without points: NaN interrupts the line.

    Without it a line would lead from the last message before a silence to the first one after it.
    """
    return {name: list(_with_gaps(points, step_ms, value)) for name, points in series.items()}


def _with_gaps(
    points: Sequence[tuple[float, float]], step_ms: int, value: float
) -> Iterator[tuple[float, float]]:
    last: float | None = None
    for at, found in points:
        if last is not None and at - last > step_ms:
            yield last + step_ms, value
            if at - last > 2 * step_ms:
                yield at - step_ms, value
        yield at, found
        last = at


def _by_topic(rows: Rows, value: Any) -> Series:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        found[row["topic"]].append((row["startMs"], value(row)))
    return _at_most(found)


def _at_most(series: Series) -> Series:
    """The largest series, and the sum of all others."""
    if len(series) <= SERIES_MAX:
        return series
    ordered = sorted(series, key=lambda name: -sum(value for _, value in series[name]))
    found = {name: series[name] for name in ordered[: SERIES_MAX - 1]}
    rest: dict[float, float] = defaultdict(float)
    for name in ordered[SERIES_MAX - 1 :]:
        for at, value in series[name]:
            rest[at] += value
    return found | {OTHERS: sorted(rest.items())}


def _topic_names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["topic"] for row in rows))


def _lines(title: str, unit: str, series: Series) -> Markup:
    dates: Any = mdates
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    for (name, points), color in zip(series.items(), _COLORS, strict=False):
        times = [dates.date2num(datetime.fromtimestamp(at / 1000, UTC)) for at, _ in points]
        axes.plot(
            times,
            [value for _, value in points],
            "o-" if len(points) < 3 else ".-",
            color=color,
            label=plain(_cut(name)),
            linewidth=1.4,
            markersize=5 if len(points) < 3 else 3,
        )
    axes.set_ylim(bottom=0)
    moments = {at for points in series.values() for at, _ in points}
    if len(moments) == 1:  # else the axis would be years long
        (moment,) = moments
        edges = (moment - ALONE_MS, moment + ALONE_MS)
        axes.set_xlim(*(dates.date2num(datetime.fromtimestamp(at / 1000, UTC)) for at in edges))
    locator = dates.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    if series:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _finished(figure, axes, title, unit)


def _bars(title: str, labels: Sequence[str], counts: Sequence[float]) -> Markup:
    figure = Figure(figsize=(_SIZE[0], 1.0 + 0.26 * max(1, len(labels))), layout="constrained")
    axes = figure.add_subplot()
    places: Iterable[int] = range(len(labels))
    axes.barh(list(places), list(counts), color=_COLORS[0], height=0.7)
    axes.set_yticks(list(places), [plain(label) for label in labels], fontsize=8)
    axes.invert_yaxis()
    return _finished(figure, axes, title, "")


def _finished(figure: Figure, axes: Axes, title: str, unit: str) -> Markup:
    axes.set_title(plain(title), fontsize=10, loc="left")
    axes.set_ylabel(unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure_html(figure, title)


def _cut(text: str, length: int = 48) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
