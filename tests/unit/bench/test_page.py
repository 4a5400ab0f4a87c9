"""The page of made-up results: its rows, what it says of durability, and its plots."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from bench import front_page, growth_page, page, pipeline_page
from bench.growth_page import sections
from bench.plots import bars, lines, tails
from bench.results_file import read
from bench.summary import ratios, summarize
from bench.text_table import text_table

SVG = "{http://www.w3.org/2000/svg}svg"


def document(ours: float, scenario: str = "sync64") -> dict[str, Any]:
    measured = [
        {
            "round": 0,
            "side": side,
            "scenario": scenario,
            "figures": {"per_second": rate, "acknowledged": 7, "all_nodes_us_per_message": us},
        }
        for side, rate, us in (("ledgermq", ours, 78.0), ("java-dledger", 1_000.0, 283.0))
    ]
    side = {"title": "T", "durability": "on some disk", "version": "1"}
    return {
        "date": "2026-01-01 00:00 UTC",
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "s"},
        "versions": {"commit": "abc", "python": "3.11"},
        "load": {"rounds": 1, "seconds": 8.0, "warmup_s": 3.0, "command": "python -m bench.compare"},
        "result": {
            "sides": {"ledgermq": side, "java-dledger": side},
            "scenarios": {"sync64": {"title": "64 threads sync", "client": "Java"}},
            "ratios": ratios(measured),
            "idle": None,
            "summary": summarize(measured),
            "measured": measured,
        },
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the page and its results are, with none in it."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (page, growth_page, pipeline_page):
        for name in {"bars", "lines", "tails"} & set(vars(module)):
            monkeypatch.setattr(module, name, lambda *_: None)


def test_table_turns_columns_of_figures_to_the_right() -> None:
    assert text_table(["a", "b"], [["x|y", "1"], ["z", "**2**"]]) == (
        "| a | b |\n| --- | --: |\n| x\\|y | 1 |\n| z | **2** |"
    )


@pytest.mark.usefixtures("folder")
def test_page_names_ratio_aim_durability_and_command() -> None:
    text = page.page(page.merge([document(20_000.0)]))
    assert (
        "| 64 threads sync | messages/s | java-dledger | 20,000 | 1,000 | **20** (20 to 20) | ≥ 15 | yes |"
        in text
    )
    assert "| 64 threads sync | ledgermq | 20,000 (20,000 to 20,000) |" in text
    assert "| 64 threads sync | 2026-01-01 00:00 UTC | abc | 1 | 3 s |" in text
    assert text.count("on some disk") == 4
    assert "    .venv/bin/python -m bench.compare" in text
    assert "acknowledged 7 messages" in text


@pytest.mark.usefixtures("folder")
def test_missed_aim_is_said() -> None:
    assert "| ≥ 15 | no |" in page.page(page.merge([document(14_000.0)]))


def test_later_comparison_replaces_its_scenarios_only() -> None:
    whole = page.merge([document(1.0), document(2_000.0), document(3.0, "drain")])
    runs = [(run["result"]["summary"].keys(), scenarios) for run, scenarios in whole["runs"]]
    assert runs == [({"sync64"}, ["sync64"]), ({"drain"}, ["drain"])], "of the first nothing is left"
    merged = whole["result"]
    found = {(row["scenario"], row["ours"]) for row in merged["ratios"]}
    assert found == {("sync64", 2_000.0), ("drain", 3.0)}
    assert sorted({one["scenario"] for one in merged["measured"]}) == ["drain", "sync64"]
    assert len(merged["measured"]) == 4


def test_every_comparison_that_was_saved_is_on_the_page(folder: Path) -> None:
    for name, date, found in (("b", "2026-01-02", 2.0), ("a", "2026-01-03", 3.0)):
        text = json.dumps({**document(found), "date": date})
        (folder / f"compare-{name}.json").write_text(text, encoding="utf-8")
    whole = page.comparisons()
    assert whole is not None
    assert [row["ours"] for row in whole["result"]["ratios"]] == [3.0], "the last by its date"
    named = page.comparisons(["b"])
    assert named is not None
    assert [row["ours"] for row in named["result"]["ratios"]] == [2.0]


def test_pages_say_what_the_results_say() -> None:
    """Otherwise: python -m bench.page."""
    document = page.comparisons()
    assert document is not None
    assert page.PAGE.read_text(encoding="utf-8") == page.page(document)
    pipeline = read(pipeline_page.NAME)
    assert pipeline is not None
    assert pipeline_page.PAGE.read_text(encoding="utf-8") == pipeline_page.page(pipeline, Path())
    front = front_page.PAGE.read_text(encoding="utf-8")
    table = front_page.figures_table(document["result"], pipeline["result"])
    assert front == front_page.with_figures(front, table)


def test_front_page_has_the_cpu_time_of_a_message_on_both_sides() -> None:
    table = front_page.figures_table(document(20_000.0)["result"], None)
    java = front_page.RIVALS[front_page.JAVA]
    assert f"| stock Java producer, 64 threads | messages/s | 20,000 | 1,000 | 78 | 283 | {java} |" in table


def test_front_page_without_its_marks_is_not_written_over() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        front_page.with_figures("# A page\n", "| table |")


@pytest.mark.usefixtures("folder")
def test_page_without_results_still_tells_how_to_measure() -> None:
    assert "bench/get_rivals.sh" in page.page(None)


def test_growth_sections_of_what_was_measured(tmp_path: Path) -> None:
    found = {
        "growth-restart": {
            "load": {"command": "c"},
            "result": {"restarts": [{"log_gib": 20.0, "nodes": 3, "after_stop_s": 1.5, "after_kill_s": 2}]},
        },
        "growth-bodies": {
            "load": {"command": "c"},
            "result": {
                "disk_mb_s": 800.0,
                "bodies": {"1 MiB": {"body_mb_s": 200, "all_nodes_mb_s": 600, "share_of_disk": 0.75}},
            },
        },
    }
    text = "\n".join(sections(found.get, tmp_path, "plots"))
    assert "| 20 GiB | 3 | 1.50 s | 2.00 s |" in text
    assert "| 1 MiB | 200 | 600 | 75% |" in text
    assert "follower" not in text


def test_plots_are_small_and_the_same_for_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="only in the dependency group bench")
    spread = {"median": 5.0, "min": 4.0, "max": 6.0}
    bars(tmp_path / "b.svg", "t", "messages/s", {"work": {"ledgermq": spread, "nats": spread}})
    tails(tmp_path / "t.svg", "t", {"ledgermq": [(0.5, 1.0), (0.99, 3.0), (1.0, 9.0)]})
    for name in ("l.svg", "again.svg"):
        lines(tmp_path / name, "t", "MB", {"n0": [(0.0, 1.0), (1.0, 2.0)]}, {"killed": 0.5})
    files = sorted(tmp_path.glob("*.svg"))
    assert [ET.parse(file).getroot().tag for file in files] == [SVG] * 4
    assert all(file.stat().st_size < 40_000 for file in files)
    assert (tmp_path / "l.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
