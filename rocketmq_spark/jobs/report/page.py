"""The page of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rocketmq_spark.jobs.pages import render
from rocketmq_spark.jobs.report import charts
from rocketmq_spark.jobs.words import bytes_words

Rows = Sequence[Mapping[str, Any]]


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
            ("Throughput", charts.throughput(timeline, bucket_s)),
            ("Latency from born to stored", charts.latency(timeline, bucket_s)),
            ("Sizes", charts.sizes(tables["sizes"])),
        ]
    ranked = [("Top tags", "tag", tables["tags"]), ("Top keys", "key", tables["keys"])]
    return render(
        "report.html",
        title="Topic report",
        about=about,
        topics=_topics(tables["totals"]),
        plots=plots,
        rankings=[
            (title, charts.ranking(title, rows, name), _ranking(rows, name))
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
    return {"plot": charts.lag(rows), "sampled": moment(newest), **table._asdict()}


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
    return {"plot": charts.dead_letters(rows), "step": length(bucket_s * 1000), **table._asdict()}
