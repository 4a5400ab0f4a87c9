"""A report's page and lag samples, without Spark."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from remoting.fastjson import object_key_map
from rocketmq_spark.errors import JobError, RequestRefusedError
from rocketmq_spark.jobs.pages import environment, render
from rocketmq_spark.jobs.report import page as report_pages
from rocketmq_spark.jobs.report.job import (
    GroupLag,
    ReportFolder,
    ReportOptions,
    check,
    lag_table,
    parse_lag,
)
from rocketmq_spark.jobs.report.page import (
    ALONE_MS,
    OTHERS,
    SERIES_MAX,
    lag_plots,
    latency_plots,
    length,
    moment,
    report_page,
    throughput_plots,
)
from rocketmq_spark.jobs.report.tables import BUCKETS_MAX, bucket_s

NOW_MS = 1_769_835_600_000
HOSTILE = "<script>alert(1)</script>$x$"
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def stats(*rows: tuple[int, int, int, int]) -> bytes:
    """An answer to GET_CONSUME_STATS: queue, consumed, end, when the last consumed one was stored."""
    pairs = [
        (
            {"topic": "Orders", "brokerName": "broker-a", "queueId": queue},
            {"consumerOffset": consumed, "brokerOffset": end, "lastTimestamp": last_ms},
        )
        for queue, consumed, end, last_ms in rows
    ]
    return orjson.dumps({"offsetTable": object_key_map(pairs)})


def test_lag_is_what_waits_and_since_when() -> None:
    body = stats((0, 5, 10, NOW_MS - 4_000), (1, 10, 10, NOW_MS - 9_000), (2, 0, 3, 0))
    found = {one.queueId: (one.lag, one.behindMs) for one in parse_lag(body, "billing", NOW_MS)}
    assert found == {0: (5, 4_000), 1: (0, 0), 2: (3, None)}


def test_no_offsets_are_no_samples() -> None:
    assert parse_lag(b'{"offsetTable":{}}', "billing", NOW_MS) == []
    assert parse_lag(b"{}", "billing", NOW_MS) == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"offsetTable":{"x":{}}}', b'{"offsetTable":{"{}":{}}}'])
def test_an_unreadable_answer_is_named(body: bytes) -> None:
    with pytest.raises(RequestRefusedError, match="the offsets of group billing"):
        parse_lag(body, "billing", NOW_MS)


def sample(at_ms: int, group: str = "billing", waits: int = 5) -> GroupLag:
    return GroupLag(at_ms, group, "Orders", "broker-a", 0, 10, 10 + waits, waits, 1_000)


def test_samples_of_earlier_reports_are_kept(tmp_path: Path) -> None:
    folder = ReportFolder(str(tmp_path / "report"))
    folder.write_table("lag", folder.add_lag([sample(NOW_MS)]))
    again = ReportFolder(str(tmp_path / "report")).add_lag([sample(NOW_MS + 1)])
    assert again.column("sampledMs").to_pylist() == [NOW_MS, NOW_MS + 1]


def tables(**changes: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names = ("totals", "timeline", "sizes", "tags", "keys", "lag", "dead_letters")
    return {name: [] for name in names} | changes


def full_tables() -> dict[str, list[dict[str, Any]]]:
    marks = {f"{name}P{mark}": 3 for name in ("bytes", "latencyMs") for mark in (50, 95, 99)}
    row = {"topic": HOSTILE, "messages": 7, "bytes": 70, "startMs": NOW_MS, "latencyMsMax": 9} | marks
    dead = {"topic": "%DLQ%billing", "startMs": NOW_MS, "arrived": 2, "waiting": 2, "oldestAgeMs": 60_000}
    return tables(
        totals=[row | {"queues": 4, "firstMs": NOW_MS, "lastMs": NOW_MS, "bytesMax": 99}],
        timeline=[row, row | {"startMs": NOW_MS + 1_000}],
        sizes=[{"topic": "Orders", "bytesBelow": 16, "messages": 7}],
        tags=[{"topic": "Orders", "tag": HOSTILE, "messages": 7, "bytes": 70}],
        keys=[{"topic": "Orders", "key": HOSTILE, "messages": 7, "bytes": 70}],
        lag=lag_table([sample(NOW_MS), sample(NOW_MS + 1_000, waits=7)]).to_pylist(),
        dead_letters=[dead],
    )


def test_a_page_calls_nothing_and_runs_nothing() -> None:
    text = report_page("about <b>", full_tables(), 1)
    assert "<script" not in text
    assert "about &lt;b&gt;" in text
    assert set(re.findall(r"https?://[^\"'\s<)]+", text)) <= NAMESPACES
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", text)
    assert "@import" not in text
    assert text.count("<svg") == 9


def test_a_page_has_the_figures() -> None:
    text = report_page("", full_tables(), 1)
    assert "2026-01-31 05:00:00" in text
    assert "%DLQ%billing" in text
    assert re.search(
        r"billing</td><td>Orders</td><td class=\"number\">1</td><td class=\"number\">7</td>", text
    )


def test_a_page_about_nothing_says_so() -> None:
    text = report_page("", tables(), 1)
    assert "No message." in text
    assert "No dead letters." in text
    assert "<svg" not in text


def test_more_groups_than_colors_are_drawn_as_others() -> None:
    rows = lag_table([sample(NOW_MS, f"group-{number}", number + 1) for number in range(20)]).to_pylist()
    text = lag_plots(rows)
    assert OTHERS in text
    assert len(set(re.findall(r"group-\d+", text))) == SERIES_MAX - 1
    assert "group-19" in text


def test_unknown_is_shown_as_unknown() -> None:
    template = environment().from_string('{% from "tables.html" import table %}{{ table(columns, rows) }}')
    text = template.render(columns=("a", "b"), rows=[(None, True), (3, "<")])
    assert '<td class="number">unknown</td><td>yes</td>' in text
    assert "<td>&lt;</td>" in text
    assert moment(None) == length(None) == "unknown"


def test_titles_are_text() -> None:
    text = render("page.html", title="a & b")
    assert "<title>a &amp; b</title>" in text
    assert "<h1>a &amp; b</h1>" in text


@pytest.mark.parametrize(
    ("ms", "words"), [(1_500, "1.5 s"), (90_000, "1.5 min"), (5_400_000, "1.5 h"), (129_600_000, "1.5 d")]
)
def test_lengths_in_words(ms: int, words: str) -> None:
    assert length(ms) == words


@pytest.mark.parametrize("span_s", [0, 1, 239, 241, 3_600, 86_400, 30 * 86_400, 3 * 365 * 86_400])
def test_a_timeline_has_few_points(span_s: int) -> None:
    assert span_s / bucket_s(NOW_MS, NOW_MS + span_s * 1000) <= BUCKETS_MAX


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"top": 0}, "--top"),
        ({"bucket_s": 0}, "a second or longer"),
        ({"archive": "a", "lag_for_s": 1.0}, "no consumer lag"),
    ],
)
def test_what_contradicts_itself_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(JobError, match=words):
        check(ReportOptions("127.0.0.1:9876", "report", **changes))


class Drawn:
    """What matplotlib is told to draw in place of a picture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.axes: list[Axes] = []

        def keep(figure: Figure, title: str) -> str:
            self.axes += figure.axes
            return title

        monkeypatch.setattr(report_pages, "figure_html", keep)

    def line(self, number: int) -> list[float]:
        drawn: Any = self.axes[number].lines[0].get_ydata()
        return [float(value) for value in drawn]


def timeline(*seconds: int) -> list[dict[str, Any]]:
    marks = dict.fromkeys(("latencyMsP50", "latencyMsP95", "latencyMsP99", "latencyMsMax"), 7)
    return [
        {"topic": "T", "startMs": NOW_MS + 1_000 * at, "messages": 5, "bytes": 50, **marks} for at in seconds
    ]


def test_a_silence_is_no_line_between_what_came_before_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    rows = timeline(0, 1, 3, 60)
    throughput_plots(rows, 1)
    assert drawn.line(0) == [5, 5, 0, 5, 0, 0, 5]
    latency_plots(rows, 1)
    gap = math.nan
    assert str(drawn.line(2)) == str([7.0, 7.0, gap, 7.0, gap, gap, 7.0])


def test_the_axis_of_a_single_point_shows_minutes_not_years(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(monkeypatch)
    latency_plots(timeline(0), 1)
    first, last = drawn.axes[0].get_xlim()
    assert (last - first) * 86_400_000 == pytest.approx(2 * ALONE_MS, rel=0.01)
