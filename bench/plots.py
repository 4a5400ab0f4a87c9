"""The page's plots, as small SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

COLOURS = {"ledgermq": "#1b6ca8", "java-dledger": "#c8553d", "java-single": "#e0a458", "nats": "#588157"}
_OTHER_COLOUR = "#777777"
_WIDTH = 7.2


@contextmanager
def _figure(path: Path, height: float, title: str) -> Iterator[Any]:
    """Axes to draw on; the file is the same for the same figures."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "ledgermq", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    yield axes
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def bars(
    path: Path,
    title: str,
    unit: str,
    groups: Mapping[str, Mapping[str, Mapping[str, float]]],
    colours: Mapping[str, str] = COLOURS,
) -> None:
    """For each group a bar for each side, as long as its median, with a line from its least to its most."""
    rows = [(group, side, one) for group, sides in groups.items() for side, one in sides.items()]
    with _figure(path, 0.6 + 0.3 * len(rows), title) as axes:
        for at, (_, side, one) in enumerate(rows):
            axes.barh(at, one["median"], color=colours.get(side, _OTHER_COLOUR), height=0.7)
            axes.plot([one["min"], one["max"]], [at, at], color="black", linewidth=1)
            axes.annotate(f" {one['median']:,.0f}", (one["max"], at), va="center", fontsize=8)
        axes.set_yticks(range(len(rows)), [f"{group}: {side}" for group, side, _ in rows])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.margins(x=0.12)


def tails(path: Path, title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Latency by share of the sends, the share drawn so that each further nine takes the same room."""
    ends = [1 - share for points in curves.values() for share, _ in points if share < 1]
    floor = min(ends, default=0.1) / 3
    with _figure(path, 3.0, title) as axes:
        for side, points in curves.items():
            shown = [(1 / max(1 - share, floor), value) for share, value in points]
            axes.plot(
                *zip(*shown, strict=True), label=side, color=COLOURS.get(side, _OTHER_COLOUR), marker="."
            )
        marks = [mark for mark in (0.5, 0.9, 0.99, 0.999, 0.9999) if 1 - mark >= floor]
        axes.set_xscale("log")
        axes.set_xticks([1 / (1 - mark) for mark in marks], [f"{mark * 100:g} %" for mark in marks])
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.set_ylabel("ms")
        axes.legend(frameon=False)


def lines(
    path: Path,
    title: str,
    unit: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float] | None = None,
) -> None:
    """Values over time in seconds, with marks for what happened when."""
    with _figure(path, 3.0, title) as axes:
        for name, points in series.items():
            axes.plot(*zip(*points, strict=True), label=name, linewidth=1.2)
        for name, at_s in (marks or {}).items():
            axes.axvline(at_s, color="grey", linewidth=0.8, linestyle=":")
            axes.annotate(
                name, (at_s, 1), xycoords=("data", "axes fraction"), fontsize=8, rotation=90, va="top"
            )
        axes.set_ylim(bottom=0)
        axes.set_xlabel("s")
        axes.set_ylabel(unit)
        axes.legend(frameon=False)
