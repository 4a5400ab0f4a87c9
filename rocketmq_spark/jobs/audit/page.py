"""An audit's report as one HTML page: verdict, problems, tables and plots. It loads nothing."""

import html
import io
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

ROWS_MAX: Final = 1000
"""Of a table; the JSON has all."""
COLUMNS_MAX: Final = 400
"""Of the map of ranges; more are drawn together, the worst of them seen."""
_STATES: Final = ("absent", "partial", "same", "different")
_COLOURS: Final = ("#e4e7eb", "#a8d5ba", "#3c9d67", "#c8342b")
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933 }
body { max-width: 1100px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem }
.identical { background: #e3f4ea; border-left: 6px solid #3c9d67; padding: .7rem 1rem }
.different { background: #fbe9e7; border-left: 6px solid #c8342b; padding: .7rem 1rem }
table { border-collapse: collapse; width: 100%; font-size: .86rem }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #dde1e6; vertical-align: top }
td.n { text-align: right; font-variant-numeric: tabular-nums }
code { font-size: .8rem; overflow-wrap: anywhere }
svg { max-width: 100%; height: auto } footer { margin-top: 2rem; color: #616e7c; font-size: .82rem }
"""


def page(content: Mapping[str, Any]) -> str:
    """The page of a report's content."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>LedgerMQ audit</title>",
        f"<style>{_STYLE}</style><h1>Audit of {len(content['replicas'])} replicas</h1>",
        _verdict(content),
        "<h2>Replicas</h2>",
        _replicas(content["replicas"]),
    ]
    if content["ranges"]:
        parts += ["<h2>Ranges</h2>", _range_map(content), _sizes(content)]
    if content["problems"]:
        parts += [f"<h2>Problems ({content['problemCount']:,})</h2>", _problems(content["problems"])]
    if content["notes"]:
        notes = "".join(f"<li>{_text(note)}" for note in content["notes"][:ROWS_MAX])
        parts += ["<h2>Notes</h2>", f"<ul>{notes}</ul>"]
    parts += ["<h2>Terms</h2>", _table(("term", "firstIndex"), content["epochs"])]
    columns = ("topic", "queueId", "firstOffset", "nextOffset", "messages", "runs")
    parts += [f"<h2>Queues ({len(content['queues']):,})</h2>", _table(columns, content["queues"])]
    columns = ("firstIndex", "lastIndex", "firstPosition", "entries", "bytes", "sha256")
    parts += ["<h2>Hashes</h2>", _table(columns, content["ranges"]), _footer(content)]
    return "\n".join(parts)


def _verdict(content: Mapping[str, Any]) -> str:
    end = content["commonEnd"]
    upto = f"position {end['position']:,}" if end["index"] is None else f"entry {end['index']:,}"
    size = f"{content['entries']:,} entries, {content['bytes']:,} bytes"
    if content["verdict"] == "identical":
        words = f"<b>Identical.</b> All replicas hold the same bytes up to {upto}: {size}."
    else:
        words = f"<b>Not identical.</b> {content['problemCount']:,} problems in {size}."
    first = content["firstDivergence"]
    if first is not None:
        index = "" if first["index"] is None else f", entry {first['index']:,}"
        words += (
            f" The first divergence: replica <b>{_text(first['replica'])}</b>{index}, position "
            f"{first['position']:,}, field <b>{_text(first['field'])}</b>: {_text(first['detail'])}."
        )
    return f"<p class={content['verdict']}>{words}</p>"


def _replicas(replicas: Sequence[Mapping[str, Any]]) -> str:
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


def _problems(problems: Sequence[Mapping[str, Any]]) -> str:
    return _table(("replica", "kind", "index", "position", "field", "detail"), problems)


def _range_map(content: Mapping[str, Any]) -> str:
    """Replicas down, the log across: where they are the same."""
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
    return _svg(figure)


def _sizes(content: Mapping[str, Any]) -> str:
    """How large entries are along the log, and how many each term has."""
    ranges = [each for each in content["ranges"] if each["entries"]]
    if not ranges:
        return ""
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
    return _svg(figure)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    # Without the document's head, whose names of schemas are addresses.
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{_text(column)}" for column in columns)
    body = "".join(f"<tr>{''.join(_cell(row[column]) for column in columns)}" for row in rows[:ROWS_MAX])
    more = len(rows) - ROWS_MAX
    rest = f"<p>and {more:,} more, which the JSON has.</p>" if more > 0 else ""
    return f"<table><tr>{head}{body}</table>{rest}"


def _cell(value: object) -> str:
    if value is None:
        return "<td>"
    if isinstance(value, int):
        return f"<td class=n>{value:,}"
    return f"<td><code>{_text(value)}</code>"


def _footer(content: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
    checked = "".join(f"<li>{_text(each)}" for each in content["checked"])
    signature = content.get("signature")
    signed = "not signed" if signature is None else f"signed with the key {_text(signature['keyId'])}"
    return (
        f"<h2>What was checked</h2><ul>{checked}</ul><footer>Begun {_text(content['began'])}, took "
        f"{content['seconds']} s. {_text(versions)}. SHA-256 of the report: "
        f"<code>{content['digest']['value']}</code>, {signed}.</footer>"
    )


def _text(value: object) -> str:
    return html.escape(str(value))
