"""What is printed for people."""

import pytest

from ledgermq.errors import UserError
from ledgermq.options import parse_moment_ms
from ledgermq.output import Column, duration, moment, number, printable, show_table, size


def test_tables_say_unknown_and_keep_control_characters_from_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    columns = (
        Column("name", "name"),
        number("lag", "lag"),
        Column("ok", "ok"),
        Column("tag", "tag", nothing="-"),
    )
    rows = [{"name": "a\x1b[2Jb[red]", "lag": None, "ok": True, "tag": None}]
    show_table(rows, columns, "a title longer than the table itself, whatever it says")
    title, _, head, _, row, _ = capsys.readouterr().out.splitlines()
    assert title == "a title longer than the table itself, whatever it says"
    assert head.split() == ["name", "lag", "ok", "tag"]
    assert row.split() == ["a\\x1b[2Jb[red]", "unknown", "yes", "-"]
    show_table([], columns, "none here")
    assert capsys.readouterr().out.split() == ["none", "here", "none"]


def test_numbers_in_words() -> None:
    assert [duration(ms) for ms in (None, 20, 1500, 119_000, 600_000, 7_200_000, 200_000_000)] == [
        *(None, "20 ms", "2 s", "119 s", "10 min", "2 h", "2 d"),
    ]
    assert [size(count) for count in (None, 7, 1536, 5 * 2**30)] == [None, "7 B", "1.5 KiB", "5.0 GiB"]
    assert moment(None) is None
    assert moment(0) is None
    assert moment(10**18) == f"{10**18} ms"
    assert printable("ä\tb\nc") == "ä\\tb\nc"


def test_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_000_000_000)
    assert parse_moment_ms("--from", "30m") == 1_700_000_000_000 - 1_800_000
    assert parse_moment_ms("--from", "1700000000000") == 1_700_000_000_000
    assert parse_moment_ms("--from", "2023-11-14 22:13:20+00:00") == 1_700_000_000_000
    with pytest.raises(UserError, match="--from 'soon' is no time"):
        parse_moment_ms("--from", "soon")
