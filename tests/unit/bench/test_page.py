"""The page of made-up results: its rows, what it says of durability, and its plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import front_page, growth_page, page, pipeline_page
from bench.results_file import read
from bench.summary import ratios, summarize

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
