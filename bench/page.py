"""Renders docs/performance.md, docs/performance-pipeline.md and their plots from the files in bench/results.

usage: python -m bench.page [--compare NAME …]

Of several comparisons, a later one's scenarios replace an earlier's. The few figures in README.md are of the
same comparisons.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import Any

from bench import fair_shares, front_page, growth_page, pipeline_page
from bench.plots import bars, tails
from bench.results_file import RESULTS, ROOT, read
from bench.summary import failed
from bench.text_table import number, text_table

PAGE = ROOT / "docs/performance.md"
NOTES = ROOT / "bench/page_notes.txt"
"""Remarks on the figures: which aims are missed, and why."""
PLOTS = "performance"
CPU = ("µs of CPU a message, all nodes", "busiest node")
FIGURES = {
    "per_second": "messages/s",
    "p50_ms": "p50 ms",
    "p99_ms": "p99 ms",
    "seconds": "s",
    "resident_mb": "MB",
    "gap_s": "s",
    "idle_cpu_percent": "% of a core",
}
TITLES = {"start": "start to writable", "memory": "most memory of a node under the producers' loads"}
Document = dict[str, Any]


def merge(documents: Sequence[Document]) -> Document:
    """Several comparisons merged: each scenario comes from the last one that measured it. `runs` are those
    that are still used.
    """
    first, *others = documents
    result = json.loads(json.dumps(first["result"]))
    rows = {(row["scenario"], row["rival"], row["figure"]): row for row in result["ratios"]}
    for document in others:
        later = document["result"]
        rows |= {(row["scenario"], row["rival"], row["figure"]): row for row in later["ratios"]}
        scenarios = set(later["summary"])
        result["summary"] |= later["summary"]
        result["sides"] |= later["sides"]
        result["scenarios"] |= later["scenarios"]
        kept = [one for one in result["measured"] if one["scenario"] not in scenarios]
        result["measured"] = kept + later["measured"]
        result["idle"] = later["idle"] or result["idle"]
    result["ratios"] = list(rows.values())
    last = {scenario: document for document in documents for scenario in document["result"]["summary"]}
    runs = [
        (document, [scenario for scenario, source in last.items() if source is document])
        for document in documents
    ]
    return {**documents[-1], "runs": [run for run in runs if run[1]], "result": result}


def title_of(result: Document, scenario: str) -> str:
    known = result["scenarios"].get(scenario)
    return str(known["title"]) if known else TITLES.get(scenario, scenario)


def ratio_rows(result: Document) -> Iterator[list[str]]:
    for row in result["ratios"]:
        spread = f"{row['ratio_min']:.3g} to {row['ratio_max']:.3g}"
        yield [
            *(title_of(result, row["scenario"]), FIGURES.get(row["figure"], row["figure"]), row["rival"]),
            *(number(row["ours"]), number(row["theirs"]), f"**{row['ratio']:.3g}** ({spread})"),
            *(row["aim"], "yes" if row["met"] else "no"),
        ]
    if result["idle"]:
        idle = result["idle"]
        theirs = number(idle["theirs"]) if idle["theirs"] is not None else "-"
        met = "yes" if idle["met"] else "no"
        figures = (number(idle["ours"]), theirs, f"**{number(idle['ours'])} %**", idle["aim"], met)
        yield ["CPU of an idle node", FIGURES["idle_cpu_percent"], "java-dledger", *figures]


def median_rows(result: Document) -> Iterator[list[str]]:
    """All sides in one table, each with the place of an acknowledged message."""
    for scenario, sides in result["summary"].items():
        for side, figures in sides.items():
            cells = []
            names = ("all_nodes_us_per_message", "node_us_per_message")
            for figure in ("per_second", "p50_ms", "p99_ms", "p999_ms", *names):
                one = figures.get(figure)
                cells.append(
                    f"{number(one['median'])} ({number(one['min'])} to {number(one['max'])})" if one else "-"
                )
            if cells[0] != "-":
                durability = result["sides"].get(side, {}).get("durability", "")
                yield [title_of(result, scenario), side, *cells, durability]


def run_rows(document: Document) -> Iterator[list[str]]:
    """The run from which the figures of each scenario come."""
    for run, scenarios in document["runs"]:
        load = run["load"]
        works = "; ".join(title_of(document["result"], scenario) for scenario in scenarios)
        yield [works, run["date"], run["versions"]["commit"], str(load["rounds"]), f"{load['warmup_s']:g} s"]


def compared(document: Document) -> Iterator[str]:
    result, python = document["result"], document["versions"]["python"]
    yield MEASURED.format(**document["machine"], **document["load"], python=python)
    yield text_table(
        ["work", "measured", "LedgerMQ at commit", "rounds", "warm-up"], list(run_rows(document))
    )
    sides = [[name, one["title"], one["version"], one["durability"]] for name, one in result["sides"].items()]
    yield text_table(["side", "what it is", "version", "where an acknowledged message is"], sides)
    yield "## LedgerMQ ÷ rival"
    yield text_table(
        ["work", "figure", "rival", "LedgerMQ", "its figure", "ratio", "aim", "met"], list(ratio_rows(result))
    )
    yield from pictures(result)
    yield "## All sides"
    header = [
        "work",
        "side",
        "messages/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        *CPU,
        "where an acknowledged message is",
    ]
    yield text_table(header, list(median_rows(result)))
    lost = sum(one["figures"].get("lost", 0) for one in result["measured"] if one["side"] == "ledgermq")
    total = sum(
        one["figures"].get("acknowledged", 0) for one in result["measured"] if one["side"] == "ledgermq"
    )
    yield KEPT.format(total=total, lost=lost)
    for one in failed(result["measured"]):
        words = " ".join(one["figures"]["failed"].split())
        yield f"Without figures: {one['side']}, {one['scenario']}, round {one['round'] + 1}: {words}"


def pictures(result: Document) -> Iterator[str]:
    summary = result["summary"]
    groups = {
        title_of(result, name): {
            side: figures["per_second"] for side, figures in sides.items() if "per_second" in figures
        }
        for name, sides in summary.items()
        if name != "latency" and any("per_second" in figures for figures in sides.values())
    }
    if groups:
        bars(PAGE.parent / PLOTS / "throughput.svg", "Throughput", "messages/s", groups)
        yield f"![Throughput of each side]({PLOTS}/throughput.svg)"
    for name in ("sync64", "latency", "own2000"):
        curves = {
            one["side"]: [(share, value) for share, value in one["figures"]["curve"] if value is not None]
            for one in result["measured"]
            if one["scenario"] == name and one["figures"].get("curve")
        }
        if curves:
            title = f"Latency, {title_of(result, name)} (last round)"
            tails(PAGE.parent / PLOTS / f"latency-{name}.svg", title, curves)
            yield f"![{title}]({PLOTS}/latency-{name}.svg)"


def profiled() -> Iterator[str]:
    """The profiles in order of their date: one column each for both loads."""
    documents = [
        json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("profile*.json"))
    ]
    documents.sort(key=lambda document: str(document["date"]))
    if not documents:
        return
    yield "## Where the time goes"
    yield PROFILED
    columns = [(document, load) for document in documents for load in document["result"]]
    steps = list(
        dict.fromkeys(step for document, load in columns for step in document["result"][load]["steps"])
    )
    names = [
        f"{document['name']} ({document['versions']['commit']}), {load} in flight"
        for document, load in columns
    ]
    rows = [
        [step, *(number(document["result"][load]["steps"].get(step, 0.0)) for document, load in columns)]
        for step in steps
    ]
    rows.append(
        ["**all**", *(number(document["result"][load]["us_per_message"]) for document, load in columns)]
    )
    yield text_table(["step", *names], rows)


def flooded() -> Iterator[str]:
    """A client beside one that floods (`bench.fair_shares`)."""
    document = read("fair-shares")
    if document is None:
        return
    yield "## One client floods the others"
    yield FLOODED.format(**document["load"], **document["machine"], commit=document["versions"]["commit"])
    yield text_table(list(fair_shares.TITLES), list(fair_shares.rows(document["result"])))


def upgraded() -> Iterator[str]:
    """A stock producer while a cluster is upgraded (`bench.rolling_upgrade`)."""
    document = read("rolling-upgrade")
    if document is None:
        return
    yield "## A rolling upgrade"
    yield UPGRADED.format(**document["load"], **document["machine"], commit=document["versions"]["commit"])
    names = ("acknowledged", "errors", "longest_gap_ms", "p50_ms", "p99_ms", "p99_before_ms")
    rows = [
        [direction, routes, *(number(figures[name]) for name in names)]
        for routes, directions in document["result"].items()
        for direction, figures in directions.items()
    ]
    yield text_table(["upgrade", "producer", *(name.replace("_", " ") for name in names)], rows)


def members_changed() -> Iterator[str]:
    """A stock producer while the members of its group change (`bench.member_changes`)."""
    document = read("member-changes")
    if document is None:
        return
    yield "## Members change"
    yield CHANGED.format(**document["load"], **document["machine"], commit=document["versions"]["commit"])
    names = ("acknowledged", "errors", "longest_gap_ms", "p50_ms", "p99_ms", "p99_before_ms")
    rows = [
        [kind, *(number(figures[name]) for name in names)] for kind, figures in document["result"].items()
    ]
    yield text_table(["change", *(name.replace("_", " ") for name in names)], rows)


def page(document: Document | None) -> str:
    parts = ["# Performance", INTRODUCTION]
    if document is not None:
        parts += compared(document)
    parts += growth_page.sections(read, PAGE.parent, PLOTS)
    parts += flooded()
    parts += upgraded()
    parts += members_changed()
    parts.append(NOTES.read_text(encoding="utf-8").strip())
    parts += profiled()
    commands = [one["load"]["command"] for one in growth_page.documents(read)]
    if document is not None:
        commands = [run["load"]["command"] for run, _ in document["runs"]] + commands
    parts += [
        "## To repeat it",
        REPEAT.format(commands="\n".join(f"    .venv/bin/{line}" for line in commands)),
    ]
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """\
This page is written by `python -m bench.page` from the files in [bench/results](../bench/results);
[benchmarks.md](benchmarks.md) describes each program; Spark's part is on
[a page of its own](performance-pipeline.md). Absolute figures belong to one machine: ratios of
one run are what counts."""
MEASURED = """\
Measured on {cores} cores ({cpu}), {memory_gib} GiB, {system}, Python {python}. All nodes and the load run on
this machine over loopback. Each round starts every side, the order reversed in every other one. Each work
first runs for the warm-up time of the next table, with the load that it measures; after that
{seconds:g} s count. Only the row that is named cold shows a side just after its start. Figures are medians
of the rounds, with the least and the most in brackets. A ratio is that of the medians, and in brackets are
those of the single rounds. Bodies have 1 KiB unless the row has another size."""
KEPT = """\
LedgerMQ acknowledged {total:,} messages in these runs. After each load its queues' offsets were added up and
every message was read again: {lost} were missing."""
PROFILED = """\
µs of CPU time for each message, by step, sampled from the process's own CPU clock
(`python -m bench.profile_leader`), oldest first: what each change bought."""
FLOODED = """\
What a client waits that sends {rate} messages of 1 KiB a second, alone and beside another that sends as
fast as answers come: with 2,000 sends of 1 KiB in flight on one connection (also signed, as a user), 8,000
on 16 connections, or 64 bodies of 256 KiB. The quotas of the flooding address are 2,000 requests and 4 MiB
a second, that of the flooding user is 2,000 requests. Both clients run on the machine of the nodes, and so
does other work (load {load_before} on {cores} cores before the run, commit {commit}): {rounds} rounds of
{seconds:g} s with every case in each. Figures are medians of the rounds; the ratios of the single rounds
show how far to trust them. Without [quotas](security.md#quotas) a client waits about half as long as the
sends of the flood, since the log is one queue."""
UPGRADED = """\
Three nodes are [replaced one after the other](upgrading.md) while one sync producer ({client}) sends a
message after the other, 10 ms apart (load {load_before} on {cores} cores before the run, commit {commit}).
A node of this release that has handed leadership over forwards what still reaches it to the new leader, and
the operator waits until the producer has asked for routes again: nothing fails on the way back. A node of
{old} refuses it, so it is stopped at once and started as this release, which forwards: sends fail for as
long as that takes. "before" are the five seconds before."""
CHANGED = """\
Each kind of [change of the members](members.md) of a group of three, one after the other, while one sync
producer ({client}, which asks for routes every {poll_ms} ms) sends a message after the other, 10 ms apart
(load {load_before} on {cores} cores before the run, commit {commit}). A row ends a second after its change
is in force; "before" are the five seconds before. What reaches a former leader is forwarded to the new one,
as long as the former one runs; after `kill -9` the producer sends on to the dead one until it asks for
routes."""
REPEAT = """\
The rivals need a JDK of 17 or newer, Maven and Go; their versions are pinned in `bench/get_rivals.sh`.

    scripts/test
    .venv/bin/pip install --group bench
    bench/get_rivals.sh
{commands}
    .venv/bin/python -m bench.page

`ledgermq bench` gives the figures of any running cluster in a minute."""


def comparisons(names: Sequence[str] = ()) -> Document | None:
    """The comparisons of these names put together, or all there are in the order in which they were made."""
    paths = [RESULTS / f"compare-{name}.json" for name in names] or list(RESULTS.glob("compare-*.json"))
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    documents.sort(key=lambda document: str(document["date"]))
    return merge(documents) if documents else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--compare",
        nargs="*",
        default=[],
        metavar="NAME",
        help="bench/results/compare-NAME.json; default: all",
    )
    document = comparisons(parser.parse_args().compare)
    PAGE.write_text(page(document), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    pipeline = pipeline_page.write_page()
    if pipeline is not None:
        print(pipeline.relative_to(ROOT))
    if document is not None:
        measured = read(pipeline_page.NAME)
        front_page.write_figures(document["result"], measured["result"] if measured else None)
        print(front_page.PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
