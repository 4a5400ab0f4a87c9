"""Amounts, times and errors in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.errors import DataLossError, JobError, OptionError, sentence_of
from rocketmq_spark.jobs.words import bytes_words, parse_bytes, parse_moment_ms, parse_seconds


@pytest.mark.parametrize(
    ("text", "amount"),
    [("512", 512), ("64KB", 64_000), ("64KiB", 65_536), ("1.5GB", 1_500_000_000), ("2 m", 2_000_000)],
)
def test_amounts(text: str, amount: int) -> None:
    assert parse_bytes("--rate-bytes", text) == amount


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("15m", 900), ("2h", 7200), ("5", 5), ("0.5", 0.5)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_seconds("--every", text) == seconds


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1769835600000", 1769835600000),
        ("2026-01-31T05:00", 1769835600000),
        ("2026-01-31T06:00+01:00", 1769835600000),
        ("2026-01-31", 1769817600000),
    ],
)
def test_moments_are_utc_without_a_zone(text: str, ms: int) -> None:
    assert parse_moment_ms("--from", text) == ms


@pytest.mark.parametrize("text", ["", "much", "-1", "1XB", "1e3"])
def test_what_is_no_amount_is_named(text: str) -> None:
    with pytest.raises(OptionError, match="--rate-bytes is "):
        parse_bytes("--rate-bytes", text)


def test_what_is_no_time_is_named() -> None:
    with pytest.raises(OptionError, match="--every is 'soon'"):
        parse_seconds("--every", "soon")
    with pytest.raises(OptionError, match="--from is 'yesterday', must be a moment such as"):
        parse_moment_ms("--from", "yesterday")


@given(st.integers(0, 10**15))
def test_an_amount_in_words_is_short(amount: int) -> None:
    assert len(bytes_words(amount)) <= 12


def test_an_error_of_the_pipeline_is_found_in_sparks_trace() -> None:
    trace = (
        "[STREAM_FAILED] Query terminated\n  File worker.py, line 3\n"
        "rocketmq_spark.errors.ClusterUnavailableError: first\n"
        "rocketmq_spark.errors.DataLossError: offsets 3 to 9 of T/b:0 are lost\n\n\tat org.apache.spark"
    )
    assert sentence_of(RuntimeError(trace)) == "offsets 3 to 9 of T/b:0 are lost"
    nested = "rocketmq_spark.errors.ArchiveError: it does not begin there\n at x"
    assert sentence_of(RuntimeError(nested)) == "it does not begin there"


def test_other_errors_are_their_first_line() -> None:
    assert sentence_of(RuntimeError("path exists\n at a\n at b")) == "path exists"
    assert sentence_of(ValueError()) == "ValueError"
    assert sentence_of(DataLossError("gone")) == "gone"
    assert sentence_of(JobError("no")) == "no"
