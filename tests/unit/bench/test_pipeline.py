"""The pipeline's bench: bodies and their sums, medians and aims of made-up figures, and the page of them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.progress import Progress

from bench import pipeline
from bench.pipeline_data import Counter, Tally, WrongResultError, bodies, write_messages
from bench.pipeline_page import page, part_rows
from bench.pipeline_parts import Part, Took
from bench.pipeline_summary import AIMS, GROUPS, LIMITS, PLAIN, TITLES, failed, summarize, targets


def one(part: str, seconds: float, number: int = 0, messages: int = 1_000) -> dict[str, Any]:
    figures = Took(seconds, messages, messages * 1_000).as_json()
    return {"round": number, "part": part, "figures": figures}


def test_a_body_tells_its_number_and_is_the_same_at_every_call() -> None:
    made = bodies(30, 20, 64)
    assert [int(body[:16], 16) for body in made] == list(range(30, 50))
    assert {len(body) for body in made} == {64}
    assert made == bodies(30, 20, 64)
    assert len({body[16:] for body in made}) == 20


def test_a_body_too_short_for_its_number_is_refused() -> None:
    with pytest.raises(ValueError, match="15 bytes"):
        bodies(0, 1, 15)


def test_the_sum_is_of_every_sixteenth_body() -> None:
    made = bodies(0, 40, 32)
    counter = Counter()
    for body in made:
        counter.add(body)
    sampled = sum(zlib.crc32(made[number]) for number in (0, 16, 32))
    assert counter.tally() == Tally(40, 40 * 32, sampled)


def test_a_lost_a_doubled_and_a_changed_body_do_not_pass() -> None:
    made = bodies(0, 32, 32)
    expected = tally(made)
    changed = made[0][:-1] + bytes([made[0][-1] ^ 1])
    for wrong in (made[1:], [*made, made[0]], [changed, *made[1:]], [made[16], *made[1:]]):
        with pytest.raises(WrongResultError, match="expected"):
            tally(wrong).require(expected)
    tally(made[::-1]).require(expected)


def tally(made: list[bytes]) -> Tally:
    counter = Counter()
    for body in made:
        counter.add(body)
    return counter.tally()


def test_the_files_hold_the_bodies_of_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.pipeline_data.CHUNK_MESSAGES", 10)
    monkeypatch.setattr("bench.pipeline_data.CHUNKS_A_FILE", 2)
    said: list[str] = []
    made = write_messages(tmp_path / "made", 45, 100, said.append)
    files = sorted(made.path.iterdir())
    kept = [body for file in files for body in pq.read_table(file)["body"].to_pylist()]
    assert len(files) == 3
    assert [int(body[:16], 16) for body in kept] == list(range(45))
    assert tally(kept) == made.tally
    assert made.file_bytes == sum(file.stat().st_size for file in files) > 45 * 100
    assert said[-1] == "making messages: 45 of 45"


def test_figures_follow_from_time_and_bytes() -> None:
    assert Took(2.0, 1_000, 4_000_000).as_json() == {
        "seconds": 2.0,
        "messages": 1_000,
        "bytes": 4_000_000,
        "per_second": 500.0,
        "mb_s": 2.0,
    }


def test_the_median_counts_and_failed_rounds_do_not() -> None:
    lost = {"round": 3, "part": "log", "figures": {"failed": "Error: it broke"}}
    measured = [one("log", 1.0), one("log", 4.0, 1), one("log", 2.0, 2), lost]
    assert summarize(measured)["log"]["seconds"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert failed(measured) == [lost]


@pytest.mark.parametrize(
    ("ours", "theirs", "seconds", "is_met"),
    [
        ("log", "binary", (3.0, 1.0), True),
        ("log", "binary", (3.1, 1.0), False),
        ("source", "java-pull-32", (1.0, 5.0), True),
        ("source", "java-pull-32", (1.0, 4.9), False),
        ("audit", "log-3", (1.3, 1.0), True),
        ("audit", "log-3", (1.4, 1.0), False),
        ("archive-2", "archive-1", (1.0, 1.5), True),
        ("archive-2", "archive-1", (1.0, 1.4), False),
    ],
)
def test_an_aim_is_met_from_its_bound_on(
    ours: str, theirs: str, seconds: tuple[float, float], is_met: bool
) -> None:
    measured = [one(ours, seconds[0], messages=30_000), one(theirs, seconds[1], messages=30_000)]
    rows = {aim.name: row for aim, row in zip(AIMS, targets(measured), strict=True)}
    name = next(aim.name for aim in AIMS if (aim.ours, aim.theirs) == (ours, theirs))
    assert rows[name]["met"] is is_met
    assert [row["met"] for row in rows.values()].count(None) == len(AIMS) - 1


def test_the_spread_of_a_ratio_is_of_the_rounds_that_have_both() -> None:
    measured = [one("audit", 1.0), one("log-3", 1.0), one("audit", 2.0, 1), one("log-3", 1.0, 1)]
    measured.append(one("audit", 3.0, 2))
    row = next(row for row in targets(measured) if "rocketmq-log" in row["name"])
    assert (row["ratio"], row["ratio_min"], row["ratio_max"]) == (2.0, 1.0, 2.0)


def test_every_part_has_a_title_and_a_group_and_every_aim_its_parts() -> None:
    assert set(pipeline.PART_NAMES) == set(TITLES)
    grouped = [part for parts in GROUPS.values() for part in parts]
    assert sorted(grouped) == sorted(pipeline.PART_NAMES)
    assert {aim.ours for aim in AIMS} | {aim.theirs for aim in AIMS} <= set(pipeline.PART_NAMES)
    assert set(pipeline.PART_NAMES) >= PLAIN | LIMITS


def document(measured: list[dict[str, Any]]) -> dict[str, Any]:
    load = {
        "messages": 1_000,
        "size": 1_024,
        "rounds": 1,
        "log_bytes": 2_000_000,
        "durability": "persisted",
        "files": "are locked in the page cache",
        "command": "python -m bench.pipeline --rounds 1",
        "spark": {"pyspark": "4.3.0"},
    }
    return {
        "date": "2026-01-01 00:00 UTC",
        "machine": {"cpu": "c", "cores": 2, "memory_gib": 1, "system": "s"},
        "versions": {"commit": "abc", "python": "3.11", "compiled": "all"},
        "load": load,
        "result": {
            "targets": targets(measured),
            "summary": summarize(measured),
            "measured": measured,
        },
    }


def test_the_page_has_figures_verdicts_versions_and_the_command(tmp_path: Path) -> None:
    measured = [one("log", 1.0), one("binary", 0.5), one("source", 1.0), one("java-pull-32", 2.0)]
    text = page(document(measured), tmp_path)
    assert "| log scan, all columns ÷ binary scan | 1 | 2 | **0.5** (0.5 to 0.5) | ≥ 0.333 | yes |" in text
    assert re.search(r"source read ÷ stock Java pulls of 32 .* ≥ 5 \| \*\*no\*\* \|", text)
    assert re.search(r"audit, two cores ÷ one .* not measured \|", text)
    assert ".venv/bin/python -m bench.pipeline --rounds 1\n" in text
    assert "pyspark 4.3.0" in text
    assert "## Writing" not in text
    assert ET.parse(tmp_path / "pipeline.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_page_names_what_failed(tmp_path: Path) -> None:
    lost = {"round": 0, "part": "audit", "figures": {"failed": "Error: the replicas\ndiffer"}}
    text = page(document([one("log", 1.0), lost]), tmp_path)
    assert "Without figures: audit of three replicas, round 1: Error: the replicas differ" in text
    assert not list(part_rows(document([lost])["result"], GROUPS["Audit"]))


class _Context:
    def cancelAllJobs(self) -> None:  # noqa: N802
        """Spark's name."""


class _Spark:
    sparkContext = _Context()  # noqa: N815

    def stop(self) -> None:
        """As a session has it."""


class _Site:
    spark = _Spark()


def read_from_disk(_: object) -> Took:
    return Took(1.0, 10, 100)


def broken(_: object) -> Took:
    raise WrongResultError("wrong")


def run_phases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fill_error: str | None) -> list[Any]:
    """Two phases of which the second gets no session; what was saved after each part."""
    saved: list[Any] = []

    def open_one(cores: int, _: Path) -> Any:
        if cores == 1:
            raise RuntimeError("no session")
        return _Spark()

    def fill(site: Any) -> None:
        if fill_error:
            raise WrongResultError(fill_error)
        site.log_bytes = 7

    reads: list[bool] = []
    is_held: list[int] = []

    @contextmanager
    def only(cores: int) -> Iterator[None]:
        is_held.append(cores)
        yield
        is_held.pop()

    def works(site: Any) -> Took:
        assert site.log_bytes == 7
        assert reads.pop(), "its files were not read before"
        assert is_held == [2], "it may run on other processors than those of its session"
        return Took(1.0, 10, 100)

    first = (Part("log", works, 1), Part("binary", broken, 1), Part("audit", works, 1))
    monkeypatch.setattr(pipeline, "PHASES", ((2, first), (1, (Part("audit-1", works, 1),))))
    monkeypatch.setattr(pipeline, "PAUSE_S", 0.0)
    monkeypatch.setattr(pipeline, "running", lambda _: nullcontext())
    monkeypatch.setattr(pipeline, "open_spark", open_one)
    monkeypatch.setattr(pipeline, "fill", fill)
    monkeypatch.setattr(pipeline, "read_once", lambda site, with_log: reads.append(with_log))
    monkeypatch.setattr(pipeline, "read_files", lambda site, with_log: [])
    monkeypatch.setattr(pipeline, "only_cores", only)
    monkeypatch.setattr(pipeline, "save", lambda *words: saved.append(words[2]["measured"][:]))
    arguments = pipeline.parse_arguments(["--messages", "20", "--size", "32", "--rounds", "2"])
    with Progress(disable=True) as progress:
        pipeline.Pipeline(arguments, tmp_path, progress).run()
    return saved


def test_parts_and_sessions_that_fail_leave_the_others_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = run_phases(monkeypatch, tmp_path, None)
    assert [len(measured) for measured in saved] == [1, 2, 3, 4, 5, 6, 7]
    found = [(one["part"], one["round"], one["figures"].get("failed")) for one in saved[-1]]
    wrong = "WrongResultError: wrong"
    each = [[("log", number, None), ("binary", number, wrong), ("audit", number, None)] for number in (0, 1)]
    assert found == [*each[0], *each[1], ("audit-1", 0, "RuntimeError: no session")]


def test_a_topic_that_was_not_filled_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(WrongResultError, match="9 messages"):
        run_phases(monkeypatch, tmp_path, "9 messages")


@pytest.mark.parametrize("error", [WrongResultError("two lines\nof words"), SystemExit("ended")])
def test_a_part_that_fails_is_named_and_ends_nothing(error: BaseException) -> None:
    def run(_: object) -> Took:
        raise error

    part = Part("log", run, 1)
    words = str(error).split("\n", maxsplit=1)[0]
    site: Any = _Site()
    assert pipeline.measure(part, site) == {"failed": f"{type(error).__name__}: {words}"}


def test_what_came_from_the_disk_meanwhile_stands_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = iter((5_000_000, 12_500_000))
    monkeypatch.setattr(pipeline, "from_disk_bytes", lambda: next(counted))
    site: Any = _Site()
    found = pipeline.measure(Part("log", read_from_disk, 1), site)
    assert (found["seconds"], found["from_disk_mb"]) == (1.0, 7.5)


def test_the_page_says_how_much_the_disk_gave(tmp_path: Path) -> None:
    measured = [one("log", 1.0), one("audit", 1.0), one("audit", 1.0, 1)]
    assert "from the disk during" not in page(document(measured), tmp_path)
    for row, from_disk_mb in zip(measured, (1.5, 12.0, 2.0), strict=True):
        row["figures"]["from_disk_mb"] = from_disk_mb
    text = page(document(measured), tmp_path)
    assert "The files that are read are locked in the page cache." in text
    assert "At most 12 MB came from the disk during a part (audit of three replicas)." in text


def test_of_a_trace_the_first_words_and_the_last_cause_are_kept() -> None:
    trace = "It went wrong\n at a\nCaused by: one\n at b\nCaused by: another\n at c"
    assert pipeline.words_of(RuntimeError(trace)) == "RuntimeError: It went wrong Caused by: another"


def test_wrong_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--messages", "0"], ["--rounds", "0"], ["--size", "31"], ["--part", "none"]):
        with pytest.raises(SystemExit):
            pipeline.parse_arguments(arguments)
    assert "at least one message" in capsys.readouterr().err
    assert pipeline.parse_arguments([]).part == pipeline.PART_NAMES
