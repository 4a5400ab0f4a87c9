"""The page of made-up results: its rows, what it says of durability, and its plots."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from bench import page
from bench.growth_page import sections
from bench.plots import bars, lines, tails
from bench.summary import ratios, summarize
from bench.text_table import text_table

SVG = "{http://www.w3.org/2000/svg}svg"


def document(ours: float, scenario: str = "sync64") -> dict[str, Any]:
    measured = [
        {"round": 0, "side": side, "scenario": scenario, "figures": {"per_second": rate, "acknowledged": 7}}
        for side, rate in (("ledgermq", ours), ("java-dledger", 1_000.0))
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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(page, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    monkeypatch.setattr(page, "bars", lambda *_: None)
    return tmp_path


def test_table_turns_columns_of_figures_to_the_right() -> None:
    assert text_table(["a", "b"], [["x|y", "1"], ["z", "**2**"]]) == (
        "| a | b |\n| --- | --: |\n| x\\|y | 1 |\n| z | **2** |"
    )


def test_page_names_ratio_aim_durability_and_command() -> None:
    text = page.page(document(20_000.0))
    assert (
        "| 64 threads sync | messages/s | java-dledger | 20,000 | 1,000 | **20** (20 to 20) | ≥ 15 | yes |"
        in text
    )
    assert "| 64 threads sync | ledgermq | 20,000 (20,000 to 20,000) |" in text
    assert text.count("on some disk") == 4
    assert "    .venv/bin/python -m bench.compare" in text
    assert "acknowledged 7 messages" in text


def test_missed_aim_is_said() -> None:
    assert "| ≥ 15 | no |" in page.page(document(14_000.0))


def test_later_comparison_replaces_its_scenarios_only() -> None:
    whole = page.merge([document(1.0), document(2_000.0), document(3.0, "drain")])
    assert whole["load"]["command"].count("bench.compare") == 3, "each has to be repeated"
    merged = whole["result"]
    found = {(row["scenario"], row["ours"]) for row in merged["ratios"]}
    assert found == {("sync64", 2_000.0), ("drain", 3.0)}
    assert sorted({one["scenario"] for one in merged["measured"]}) == ["drain", "sync64"]
    assert len(merged["measured"]) == 4


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
