"""The table of sequenced writers: bounded, the same on every node, and through a snapshot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state import writers
from broker.state.writers import Progress, WriterTable
from commitlog.sequences import SequenceRun

WEEK_MS = writers.FORGET_AFTER_MS


Numbers = tuple[bytes, int, int, int, int, int]
"""A run without its digest."""
HOUR_MS = writers.STEP_MAX_MS


def run_of(run: Numbers) -> SequenceRun:
    return (*run, b"digest %d" % (run[2] + run[3]))


def table_of(*runs: Numbers) -> WriterTable:
    table = WriterTable()
    for run in runs:
        table.apply(run_of(run), -1)
    return table


def progress(batch_id: int, next_sequence: int) -> Progress:
    return Progress(batch_id, next_sequence, b"digest %d" % next_sequence)


def test_a_writer_is_where_its_last_record_says() -> None:
    table = table_of((b"w|0", 1, 0, 5, 0, 10), (b"w|0", 1, 5, 2, 5, 11), (b"w|1", 1, 0, 1, 7, 11))
    assert table.get(b"w|0") == progress(1, 7)
    assert table.get(b"w|1") == progress(1, 1)
    assert table.get(b"x|0") is None
    table.apply(run_of((b"w|0", 2, 0, 1, 8, 12)), 7)
    assert table.get(b"w|0") == progress(2, 1)


def test_what_is_applied_already_changes_nothing() -> None:
    table = table_of((b"w|0", 1, 0, 5, 10, 10))
    table.apply(run_of((b"x|0", 1, 0, 5, 15, 99)), 19)
    assert len(table) == 1
    table.apply(run_of((b"x|0", 1, 0, 5, 15, 99)), 18)
    assert table.get(b"x|0") == progress(1, 5)


def at_hours(table: WriterTable, first: int, last: int) -> None:
    """A record of another writer at each of these hours."""
    for hour in range(first, last + 1):
        table.apply(run_of((b"y|0", 0, hour, 1, 1_000 + hour, hour * HOUR_MS)), 0)


def test_a_silent_writer_is_forgotten_by_the_time_of_the_log() -> None:
    table = table_of((b"w|0", 0, 0, 1, 0, HOUR_MS), (b"x|0", 0, 0, 1, 1, 2 * HOUR_MS))
    at_hours(table, 3, 1 + 7 * 24)
    assert table.get(b"w|0") is not None
    at_hours(table, 2 + 7 * 24, 2 + 7 * 24)
    assert table.get(b"w|0") is None
    assert table.get(b"x|0") is not None


def test_a_clock_that_is_ahead_for_a_moment_costs_nobody_his_place() -> None:
    table = table_of((b"w|0", 0, 0, 1, 0, HOUR_MS))
    table.apply(run_of((b"x|0", 0, 0, 1, 1, 10 * WEEK_MS)), 0)
    table.apply(run_of((b"x|0", 0, 1, 1, 2, HOUR_MS + 1)), 1)
    at_hours(table, 2, 6 * 24)
    assert table.get(b"w|0") is not None


def test_a_writer_that_has_ended_is_known_for_a_while_and_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writers, "WRITERS_MAX", 2)
    table = table_of((b"a|0", 0, 0, 1, 0, 1), (b"b|0", 0, 0, 4, 1, 2))
    assert not table.has_room(1, 3)
    table.end([b"b|0", b"never heard of"])
    assert table.has_room(1, 3)
    assert table.get(b"b|0") == progress(0, 4)
    table.apply(run_of((b"c|0", 0, 0, 1, 5, 3)), 4)
    assert [table.get(key) is not None for key in (b"a|0", b"b|0", b"c|0")] == [True, False, True]


def test_a_writer_that_has_ended_is_soon_forgotten() -> None:
    table = table_of((b"a|0", 0, 0, 1, 0, HOUR_MS))
    table.end([b"a|0"])
    at_hours(table, 2, 2)
    assert table.get(b"a|0") is not None
    at_hours(table, 3, 3)
    assert table.get(b"a|0") is None


def test_a_snapshot_of_an_older_version_is_read() -> None:
    table = WriterTable.from_json([["w|0", 3, 7, 5 * HOUR_MS]])
    assert table.get(b"w|0") == Progress(3, 7)
    assert table.times() == (5 * HOUR_MS, 5 * HOUR_MS)


def test_a_full_table_drops_the_one_that_wrote_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WRITERS_MAX", 2)
    table = table_of((b"a|0", 0, 0, 1, 0, 1), (b"b|0", 0, 0, 1, 1, 2), (b"a|0", 0, 1, 1, 2, 3))
    table.apply(run_of((b"c|0", 0, 0, 1, 3, 4)), 2)
    assert (table.get(b"a|0"), table.get(b"b|0"), len(table)) == (progress(0, 2), None, 2)


runs = st.lists(
    st.tuples(
        st.sampled_from([b"a|0", b"b|0", b"c|1", b"d|0"]),
        st.integers(0, 2),
        st.integers(0, 3),
        st.integers(1, 4),
        st.sampled_from([1_000, 2_000, WEEK_MS, WEEK_MS + 1_500, 3 * WEEK_MS]),
    ),
    max_size=12,
)


@given(runs, st.lists(st.integers(0, 40), max_size=6), st.integers(0, 12))
def test_nodes_agree_however_they_cut_the_log_and_wherever_their_snapshots_are(
    found: list[tuple[bytes, int, int, int, int]], cuts: list[int], snapshot_at: int
) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(writers, "WRITERS_MAX", 3)
    whole, index = WriterTable(), 0
    singles: list[SequenceRun] = []
    for key, batch_id, first, count, stored_ms in found:
        whole.apply(run_of((key, batch_id, first, count, index, stored_ms)), index - 1)
        singles += [run_of((key, batch_id, first + n, 1, index + n, stored_ms)) for n in range(count)]
        index += count
    other = WriterTable()
    for run in singles:
        if run[4] == snapshot_at or run[4] in cuts:
            rows: Any = json.loads(json.dumps([list(other.rows()), other.times()]))
            other = WriterTable.from_json(*rows)
        other.apply(run, run[4] - 1)
        other.apply(run, run[4])  # given again after a damaged place
    patch.undo()
    assert (list(other.rows()), other.times()) == (list(whole.rows()), whole.times())


def test_a_copy_does_not_move() -> None:
    table = table_of((b"a|0", 0, 0, 1, 0, 1))
    copy = table.copy()
    table.apply(run_of((b"a|0", 0, 1, 1, 1, 2)), 0)
    table.apply(run_of((b"b|0", 0, 0, 1, 2, 2)), 1)
    assert list(copy.rows()) == [["a|0", 0, 1, 1, "digest 1", False]]
