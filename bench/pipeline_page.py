"""Renders docs/performance-pipeline.md and its plots from bench/results/pipeline.json.

usage: python -m bench.pipeline_page

`python -m bench.page` does so, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.pipeline_summary import GROUPS, LIMITS, PLAIN, TITLES, failed
from bench.plots import bars
from bench.results_file import RESULTS, ROOT, read
from bench.text_table import number, text_table

PAGE = ROOT / "docs/performance-pipeline.md"
NOTES_FILE = ROOT / "bench/pipeline_notes.txt"
"""What the figures do not say by themselves: where the time of a reading goes."""
PLOTS = "performance"
NAME = "pipeline"
Document = dict[str, Any]

COLOURS = {"LedgerMQ": "#1b6ca8", "baseline": "#c8553d", "limit": "#777777"}
VERDICTS = {True: "yes", False: "**no**", None: "not measured"}


def kind_of(part: str) -> str:
    """What a part stands for beside the others."""
    if part in LIMITS:
        return "limit"
    return "baseline" if part in PLAIN else "LedgerMQ"


def target_rows(result: Document) -> Iterator[list[str]]:
    for row in result["targets"]:
        if "ratio" not in row:
            yield [row["name"], "-", "-", "-", row["aim"], VERDICTS[row["met"]]]
            continue
        spread = f"{row['ratio_min']:.3g} to {row['ratio_max']:.3g}"
        figures = (number(row["ours"]), number(row["theirs"]), f"**{row['ratio']:.3g}** ({spread})")
        yield [row["name"], *figures, row["aim"], VERDICTS[row["met"]]]


def part_rows(result: Document, parts: tuple[str, ...]) -> Iterator[list[str]]:
    for part in parts:
        found = result["summary"].get(part)
        if found is not None:
            seconds = found["seconds"]
            spread = f"{number(seconds['median'])} ({number(seconds['min'])} to {number(seconds['max'])})"
            rates = (number(found[figure]["median"]) for figure in ("per_second", "mb_s"))
            yield [TITLES[part], kind_of(part), *rates, spread]


def pictures(result: Document, folder: Path) -> Iterator[str]:
    """One plot of all groups, in MB/s."""
    groups = {
        title: {part: result["summary"][part]["mb_s"] for part in parts if part in result["summary"]}
        for title, parts in GROUPS.items()
    }
    shown = {title: parts for title, parts in groups.items() if parts}
    if shown:
        colours = {part: COLOURS[kind_of(part)] for part in TITLES}
        bars(folder / "pipeline.svg", "The data pipeline", "MB/s", shown, colours)
        yield f"![MB/s of each part]({PLOTS}/pipeline.svg)"


def page(document: Document, folder: Path) -> str:
    """The whole page; the plot is written to `folder`."""
    result, load = document["result"], document["load"]
    spark = ", ".join(f"{name} {version}" for name, version in load["spark"].items())
    words = {**document["machine"], **document["versions"], **load, "date": document["date"], "spark": spark}
    words["from_disk"] = from_disk(result)
    parts = ["# Performance of the data pipeline", INTRODUCTION, MEASURED.format(**words)]
    parts += ["## Aims"]
    header = ["ratio", "ours", "the other", "ratio of the medians (of the rounds)", "aim", "met"]
    parts += [text_table(header, list(target_rows(result))), AIMS]
    parts += pictures(result, folder)
    for title, names in GROUPS.items():
        rows = list(part_rows(result, names))
        if rows:
            parts += [f"## {title}", text_table(["what", "", "messages/s", "MB/s", "s"], rows)]
            parts += [NOTES[title]]
    for one in failed(result["measured"]):
        reason = " ".join(one["figures"]["failed"].split())
        parts.append(f"Without figures: {TITLES[one['part']]}, round {one['round'] + 1}: {reason}")
    parts += [NOTES_FILE.read_text(encoding="utf-8").strip()]
    parts += ["## To repeat it", REPEAT.format(command=load["command"])]
    return "\n\n".join(parts) + "\n"


def from_disk(result: Document) -> str:
    """A sentence on the part that was given most by the disk; nothing where that was not looked at."""
    found = [
        (one["figures"]["from_disk_mb"], one["part"])
        for one in result["measured"]
        if "from_disk_mb" in one["figures"]
    ]
    if not found:
        return ""
    most_mb, part = max(found)
    return f" At most {number(most_mb)} MB came from the disk during a part ({TITLES[part]})."


INTRODUCTION = """\
This page is written by `python -m bench.page` from
[bench/results/pipeline.json](../bench/results/pipeline.json);
[benchmarks.md](benchmarks.md#the-data-pipeline) describes the program, [spark.md](spark.md) what
is measured. Absolute figures belong to one machine: ratios of one run are what counts."""
MEASURED = """\
Measured {date} on {cores} cores ({cpu}), {memory_gib} GiB, {system}; LedgerMQ at commit {commit},
Python {python}, {spark}, compiled modules: {compiled}. {messages:,} messages of {size:,} bytes in 8
queues of three nodes ({durability}), which run on the same cores as Spark; a replica's log has
{log_bytes:,} bytes. Spark is `local[2]` and everything runs on two processors; where one core is named,
Spark is `local[1]`, and its JVM, its Python workers and the nodes share one processor. Every part was
warmed up before its rounds ({rounds}); figures are medians, with the least and the most of the rounds in
brackets. The files that are read {files}.{from_disk} Bodies are random bytes after their number: nothing
compresses them."""
AIMS = """\
"Reading" three replicas is measured in two ways: by our own reader, which checks and parses every
entry, and by Spark's `binaryFile`, which only brings the bytes into memory. The bound of two cores
against one leaves room for what is not divided: planning and the driver's work. `local[1]` alone would
not be one core: its JVM compiles and collects, and the nodes answer, on the other. The archive is written
to memory for this ratio, since no disk gets faster with more cores."""
NOTES = {
    "Reading a topic": """\
MB are those of the bodies. The loop and the Java consumer read one queue after the other in one thread.
The Parquet files hold the same bodies alone, not compressed: what Spark needs to have them as rows
without any cluster. "Rows from a Python source that does nothing else" are as many of the same sizes,
whose bodies a task reads from these files: what Spark's transfer from Python and its work on rows cost.""",
    "Reading the files": """\
MB are those of the log, headers and properties included, of one replica with data files of 64 MiB.
`binaryFile` reads each file into memory and nothing more (its files are counted with the
room that is reserved in the last one).""",
    "Audit": """\
MB and messages are those of three replicas: CRC of each entry, order, epochs, and a hash of each range.""",
    "Archive": """\
From the topic to Parquet and its manifest, MB of bodies; the nodes work at the same time. On a disk every
file is written through to it (fsync) before its batch counts. What was written was read again outside of
the time.""",
    "Writing": """\
From the Parquet files to a new topic, acknowledged by a majority's disks; MB of bodies. Every topic was
read again outside of the time.""",
}
REPEAT = """\
    .venv/bin/pip install -e '.[spark]' --group bench
    bench/get_rivals.sh java
    .venv/bin/{command}
    .venv/bin/python -m bench.page"""


def write_page() -> Path | None:
    """Where the page is now; None when nothing was measured yet."""
    document = read(NAME)
    if document is None:
        return None
    PAGE.write_text(page(document, PAGE.parent / PLOTS), encoding="utf-8")
    return PAGE


def main() -> None:
    written = write_page()
    if written is None:
        raise SystemExit(f"There is no {RESULTS / NAME}.json: run python -m bench.pipeline first.")
    print(written.relative_to(ROOT))


if __name__ == "__main__":
    main()
