"""Tables and lines as text: folded to the terminal, coloured only there."""

import io
import os
import sys

import pytest
from rich.cells import cell_len

from ledgermq.commands.cluster import counted
from ledgermq.output import Styled, write, write_fields, write_table

HEADS = (Styled("name"), Styled("lag"), Styled("body"))
KINDS = (False, True, False)


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> io.TextIOWrapper:
    """Stands for a terminal of 40 columns; pytest puts its own stdout in place after the fixtures."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((40, 24)))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return out


def said(out: io.TextIOWrapper) -> list[str]:
    raw = out.buffer
    assert isinstance(raw, io.BytesIO)
    return raw.getvalue().decode().splitlines()


def row(*cells: str) -> list[Styled]:
    return [Styled(cell) for cell in cells]


def test_a_table_is_folded_to_the_terminal_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    words = "several words that do not fit beside each other"
    letters = "x" * 60
    write_table(HEADS, [row("a", "7", words), row("b", "1,000", letters)], KINDS)
    lines = said(terminal)
    assert max(map(len, lines)) <= 40
    shown = " ".join(line[12:].strip() for line in lines[3:-1])
    assert words in shown
    assert shown.replace(" ", "").endswith(letters)
    assert [line.split()[:2] for line in lines[3:] if line[1:2] in ("a", "b")] == [["a", "7"], ["b", "1,000"]]


def test_what_has_room_is_not_folded_and_wide_characters_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    write_table(HEADS, [row("\u540d\u524d", "1", "x"), row("ab", "22", "y")], KINDS)
    blank, head, rule, wide, narrow, end = said(terminal)
    assert (blank, end) == ("", "")
    assert {cell_len(line) for line in (head, rule, wide, narrow)} == {cell_len(rule)}
    assert wide.split() == ["\u540d\u524d", "1", "x"]
    assert narrow.index("22") + 1 == head.index("lag") + 2


def test_a_terminal_has_colours_and_a_file_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    write(Styled("down", "bold red"), Styled(" n1"))
    monkeypatch.setenv("NO_COLOR", "1")
    write(Styled("down", "bold red"))
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    write(Styled("down", "bold red"))
    assert said(terminal) == ["\x1b[1;31mdown\x1b[0m n1", "down", "down"]


def test_a_stdout_that_knows_few_letters_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "latin-1", write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    write_table(HEADS, [row("\u540d", "1", "x\ud800")], KINDS)
    raw = out.buffer
    assert isinstance(raw, io.BytesIO)
    _, _, rule, only, _ = raw.getvalue().decode("latin-1").splitlines()
    assert set(rule) == {" ", "-"}
    assert only.split() == ["?", "1", "x?"]


def test_fields_fold_beside_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = at_terminal(monkeypatch)
    write_fields([("state", Styled("leader")), ("problem", Styled("word " * 12))])
    lines = said(terminal)
    assert lines[0] == "state    leader"
    assert lines[1].startswith("problem  word")
    assert all(line.startswith(" " * 9 + "word") for line in lines[2:])
    assert " ".join(lines[1:]).split().count("word") == 12


def test_one_thing_is_no_plural() -> None:
    assert [counted(count, "group") for count in (0, 1, 2, None)] == [
        *("0 groups", "1 group", "2 groups", "unknown groups"),
    ]
