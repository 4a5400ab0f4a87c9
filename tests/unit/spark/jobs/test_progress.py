"""What a job tells while it runs."""

from __future__ import annotations

import io

from rocketmq_spark.jobs.progress import LINE_INTERVAL_S, Bar, Lines, Silent, progress_on


def test_lines_are_far_apart_and_the_last_one_is_told() -> None:
    now_s = [100.0]
    out = io.StringIO()
    with Lines("archive", out, lambda: now_s[0]) as told:
        for done in range(1, 31):
            told.update(1_000 * done, 30_000, "2 MB")
            now_s[0] += LINE_INTERVAL_S / 10
    lines = out.getvalue().splitlines()
    assert lines[0] == "archive: 1,000 of 30,000, 2 MB"
    assert lines[-1] == "archive: 30,000 of 30,000, 2 MB"
    assert len(lines) == 4


def test_what_was_told_is_not_told_again_at_the_end() -> None:
    out = io.StringIO()
    with Lines("verify", out) as told:
        told.update(5, None)
    assert out.getvalue() == "verify: 5\n"


def test_nothing_is_said_of_nothing() -> None:
    out = io.StringIO()
    with Lines("verify", out), Silent() as silent:
        silent.update(1, 2)
    assert out.getvalue() == ""


def test_a_terminal_gets_a_bar_and_a_file_lines() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert isinstance(progress_on(io.StringIO(), "x"), Lines)
    out = Terminal()
    shown = progress_on(out, "archive")
    assert isinstance(shown, Bar)
    with shown as told:
        told.update(1, None, "3 MB")
        told.update(2, 2)
    assert "archive" in out.getvalue()
