"""Medians of the pipeline's rounds, and the aims. No I/O."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.summary import Bounded

FIGURES = ("seconds", "per_second", "mb_s")
CORES_RATIO = 1.5
"""Two cores against one: planning and the driver's work are not divided."""

TITLES = {
    "source": "source `rocketmq`, all columns",
    "source-body": "source `rocketmq`, body only",
    "transfer": "rows from a Python source that does nothing else, all columns",
    "transfer-body": "the same, body only",
    "source-loop": "plain Python loop: pulls, each record decoded",
    "java-pull-32": "stock Java pull consumer, one thread, 32 at once",
    "java-pull-1024": "stock Java pull consumer, one thread, 1024 at once",
    "log": "`rocketmq-log`, all columns",
    "log-body": "`rocketmq-log`, body only",
    "log-loop": "plain Python loop over the files, each entry checked and decoded",
    "binary": "Spark's `binaryFile` scan of the same files",
    "parquet": "Spark's Parquet scan of the same bodies",
    "log-3": "`rocketmq-log` of three replicas, all columns",
    "binary-3": "Spark's `binaryFile` scan of three replicas",
    "audit": "audit of three replicas",
    "audit-1": "audit of three replicas, one core",
    "archive": "archive",
    "archive-2": "archive to a folder in memory",
    "archive-1": "archive to a folder in memory, one core",
    "sink": "sink, at least once",
    "sink-once": "sink, exactly once",
}
GROUPS = {
    "Reading a topic": (
        *("source", "source-body", "source-loop", "java-pull-32", "java-pull-1024"),
        *("transfer", "transfer-body", "parquet"),
    ),
    "Reading the files": ("log", "log-body", "log-loop", "binary"),
    "Audit": ("audit", "audit-1", "log-3", "binary-3"),
    "Archive": ("archive", "archive-2", "archive-1"),
    "Writing": ("sink", "sink-once"),
}
PLAIN = frozenset({"source-loop", "java-pull-32", "java-pull-1024", "log-loop"})
LIMITS = frozenset({"binary", "binary-3", "parquet", "transfer", "transfer-body"})

Measured = dict[str, Any]
"""One part in one round: {"round", "part", "figures"}; figures hold `failed` when it gave none."""


@dataclass(frozen=True, slots=True)
class Aim(Bounded):
    """The figure of one part ÷ that of another."""

    name: str
    ours: str
    theirs: str
    figure: str
    bound: float
    at_least: bool = True


AIMS = (
    Aim("log scan, all columns ÷ binary scan", "log", "binary", "mb_s", 1 / 3),
    Aim("log scan, body only ÷ binary scan", "log-body", "binary", "mb_s", 1 / 3),
    Aim("source read ÷ stock Java pulls of 32", "source", "java-pull-32", "per_second", 5),
    Aim("source read, body only ÷ stock Java pulls of 32", "source-body", "java-pull-32", "per_second", 5),
    Aim("source read ÷ stock Java pulls of 1024", "source", "java-pull-1024", "per_second", 5),
    Aim("audit ÷ reading the three logs by `rocketmq-log`", "audit", "log-3", "seconds", 1.3, False),
    Aim("audit ÷ reading the three logs by `binaryFile`", "audit", "binary-3", "seconds", 1.3, False),
    Aim("archive, two cores ÷ one", "archive-2", "archive-1", "per_second", CORES_RATIO),
    Aim("audit, two cores ÷ one", "audit", "audit-1", "per_second", CORES_RATIO),
)


def summarize(measured: Sequence[Measured]) -> dict[str, dict[str, dict[str, float]]]:
    """Of each part and figure the median, the least and the most of the rounds that gave figures."""
    rounds: dict[str, list[Mapping[str, float]]] = {}
    for one in measured:
        if "failed" not in one["figures"]:
            rounds.setdefault(one["part"], []).append(one["figures"])
    return {
        part: {figure: _spread([one[figure] for one in found]) for figure in FIGURES}
        for part, found in rounds.items()
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def targets(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Each aim with the ratio of the medians, the least and most of the rounds, and whether it is met.

    `met` is None when one of its parts gave no figures.
    """
    summary = summarize(measured)
    rows = []
    for aim in AIMS:
        row: dict[str, Any] = {"name": aim.name, "figure": aim.figure, "aim": aim.words, "met": None}
        ours, theirs = summary.get(aim.ours), summary.get(aim.theirs)
        if ours is not None and theirs is not None:
            ratio = ours[aim.figure]["median"] / theirs[aim.figure]["median"]
            each = list(_ratios(measured, aim)) or [ratio]
            row |= {"ours": ours[aim.figure]["median"], "theirs": theirs[aim.figure]["median"]}
            row |= {"ratio": ratio, "ratio_min": min(each), "ratio_max": max(each), "met": aim.is_met(ratio)}
        rows.append(row)
    return rows


def _ratios(measured: Sequence[Measured], aim: Aim) -> Iterator[float]:
    """The ratio of each round that has both figures."""
    found = {(one["round"], one["part"]): one["figures"].get(aim.figure) for one in measured}
    for number in sorted({one["round"] for one in measured}):
        ours, theirs = found.get((number, aim.ours)), found.get((number, aim.theirs))
        if ours and theirs:
            yield ours / theirs


def failed(measured: Sequence[Measured]) -> list[Measured]:
    return [one for one in measured if "failed" in one["figures"]]
