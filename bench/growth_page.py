"""The part of the page about growth: a section for each file `growth-*.json` that is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.plots import lines
from bench.text_table import text_table
from ledgermq.load.run import SERIES_S

Document = dict[str, Any]
Read = Callable[[str], Document | None]
_SPREAD = """\
{in_flight:,} sends of {size:,} B in flight, spread over ever more; aim: a fall of at most 20 %."""
_RESTART = """\
From the start of every process to the fiftieth acknowledged send; aim: under 3 s, whatever the length."""
_CATCH_UP = """\
The follower came back at {mb_per_second:,.1f} MB/s ({caught_up_after_s:g} s from its start until it was
near the leader); the disk writes {disk_mb_s:,.0f} MB/s. Meanwhile the leader took {during:,.0f} messages/s,
before the kill {before:,.0f}: {leader_fall_percent} % less.
Aims: 150 MB/s or half the disk's speed, and at most 20 % less."""
_BODIES = """\
The disk writes {disk_mb_s:,.0f} MB/s from a file's beginning to its end; aim: half of that by all nodes
together."""
_REPLACED = """\
One of three nodes loses its disk and is started again, empty; its log of 1 KiB bodies is {gib:g} GiB long at
first. The disk writes {disk_mb_s:,.0f} MB/s from a file's beginning to its end. "Full": {in_flight:,} sends
in flight. Aims: half of the disk's speed while nothing is sent, and 80 % of the producers' throughput."""
_SHARED = """\
The disk cannot hold three logs of this length: the node was away while the log was written, and the other two
share one copy of its full files."""
NAMES = ("spread", "restart", "catchup", "replaced", "replaced-large", "bodies", "soak")


def documents(read: Read) -> list[Document]:
    found = [read(f"growth-{name}") for name in NAMES]
    return [document for document in found if document is not None]


def sections(read: Read, docs: Path, plots: str) -> Iterator[str]:
    """Paragraphs, tables and pictures; the pictures are written to `docs`/`plots`."""
    if not documents(read):
        return
    yield "## How cost grows"
    yield "Three nodes, durability persisted: an acknowledged message is on the disks of a majority."
    for name in NAMES:
        document = read(f"growth-{name}")
        if document is not None:
            yield from _SECTIONS[name](document["result"], document["load"], docs / plots, plots)


def _spread(result: Document, load: Document, _: Path, __: str) -> Iterator[str]:
    yield "### Topics, queues and connections"
    yield _SPREAD.format(**load)
    rows = [
        [
            name,
            f"{rate:,.0f}",
            f"{result['fall_percent'].get(name, 0):.1f} %",
            f"{result['leader_us'][name]:.1f}",
        ]
        for name, rate in result["per_second"].items()
    ]
    yield text_table(["spread over", "messages/s", "fall", "µs of CPU a message, leader"], rows)


def _restart(result: Document, _: Document, __: Path, ___: str) -> Iterator[str]:
    yield "### Restart with a long log"
    yield _RESTART
    rows = [
        [
            f"{one['log_gib']:g} GiB",
            str(one["nodes"]),
            f"{one['after_stop_s']:.2f} s",
            f"{one['after_kill_s']:.2f} s",
        ]
        for one in result["restarts"]
    ]
    yield text_table(["log of each node", "nodes", "after an orderly stop", "after kill -9 of all"], rows)


def _catch_up(result: Document, _: Document, folder: Path, plots: str) -> Iterator[str]:
    yield "### A follower that catches up"
    rates = result["per_second"]
    yield _CATCH_UP.format(**result, before=rates["before"], during=rates["catching_up"])
    series = [(number * SERIES_S, count / SERIES_S) for number, count in enumerate(result["series"])]
    marks = {name: at_s for name, at_s in result["marks_s"].items() if name not in ("warm", "end")}
    title = "The leader's throughput while a follower is away and comes back"
    lines(folder / "catch-up.svg", title, "messages/s", {"acknowledged": series}, marks)
    yield f"![{title}]({plots}/catch-up.svg)"


def _replaced(result: Document, load: Document, _: Path, __: str) -> Iterator[str]:
    yield f"### A machine that is replaced: {load['gib']:g} GiB"
    yield _REPLACED.format(**load, disk_mb_s=max(result["disk_mb_s"].values()))
    if load.get("shared"):
        yield _SHARED
    head = ["load", "log", "MB/s", "of the disk's", "has all", "has applied all", "hands over in"]
    rows = [
        [
            *(name, f"{one['gib']:g} GiB", f"{one['mb_per_second']:,.0f}", f"{one['shares']['of_disk']:.0%}"),
            *(f"{one[key]:,.1f} s" for key in ("caught_up_after_s", "applied_after_s", "took_over_s")),
        ]
        for name, one in result["runs"].items()
    ]
    yield text_table(head, rows)
    producers = {name: one["phases"] for name, one in result["runs"].items() if "away" in one["phases"]}
    if producers:
        rows = [
            [
                f"{name}: {figure}",
                *(
                    f"{phases[phase][key]:,.0f}" if phase in phases else ""
                    for phase in ("before", "away", "catching_up", "after")
                ),
            ]
            for name, phases in producers.items()
            for figure, key in (("messages/s", "per_second"), ("p99 ms", "p99_ms"))
        ]
        yield text_table(["producers", "three nodes", "two nodes", "meanwhile", "three again"], rows)


def _bodies(result: Document, _: Document, __: Path, ___: str) -> Iterator[str]:
    yield "### Large bodies"
    yield _BODIES.format(**result)
    rows = [
        [name, f"{one['body_mb_s']:,.0f}", f"{one['all_nodes_mb_s']:,.0f}", f"{one['share_of_disk']:.0%}"]
        for name, one in result["bodies"].items()
    ]
    yield text_table(["bodies", "MB/s acknowledged", "MB/s of all nodes", "share of the disk's speed"], rows)


def _soak(result: Document, load: Document, folder: Path, plots: str) -> Iterator[str]:
    yield "### Memory in time"
    yield (
        f"{load['rate']:,.0f} sends of {load['size']} B a second for {load['seconds'] / 60:g} minutes; "
        f"p99 {result['load']['p99_ms']:,.0f} ms."
    )
    rows = [
        [node, *(f"{one[name]:,.1f}" for name in ("warm_mb", "end_mb", "peak_mb", "mb_per_minute"))]
        for node, one in result["memory"].items()
    ]
    yield text_table(["node", "MB after a fifth of the time", "at the end", "at most", "MB a minute"], rows)
    series = {node: list(enumerate(one["series_mb"])) for node, one in result["memory"].items()}
    lines(folder / "memory.svg", "Resident memory under a steady load", "MB", series)
    yield f"![Resident memory of each node]({plots}/memory.svg)"


_SECTIONS: dict[str, Callable[[Document, Document, Path, str], Iterator[str]]] = {
    "spread": _spread,
    "restart": _restart,
    "catchup": _catch_up,
    "replaced": _replaced,
    "replaced-large": _replaced,
    "bodies": _bodies,
    "soak": _soak,
}
