"""The pipeline's bench: bodies and their sums, medians and aims of made-up figures, and the page of them."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from bench import pipeline
from bench.pipeline_data import Counter, Tally, WrongResultError, bodies, write_messages
from bench.pipeline_parts import Took
from bench.pipeline_summary import AIMS, GROUPS, LIMITS, PLAIN, TITLES, failed, summarize, targets


def one(part: str, seconds: float, number: int = 0, messages: int = 1_000) -> dict[str, Any]:
    figures = Took(seconds, messages, messages * 1_000).as_json()
    return {"round": number, "part": part, "figures": figures}


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
