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


def table_of(*runs: SequenceRun) -> WriterTable:
    table = WriterTable()
    for run in runs:
        table.take(run, -1)
    return table


def test_a_writer_is_where_its_last_record_says() -> None:
    table = table_of((b"w|0", 1, 0, 5, 0, 10), (b"w|0", 1, 5, 2, 5, 11), (b"w|1", 1, 0, 1, 7, 11))
    assert table.get(b"w|0") == Progress(1, 7)
    assert table.get(b"w|1") == Progress(1, 1)
    assert table.get(b"x|0") is None
    table.take((b"w|0", 2, 0, 1, 8, 12), 7)
    assert table.get(b"w|0") == Progress(2, 1)


def test_what_is_applied_already_changes_nothing() -> None:
    table = table_of((b"w|0", 1, 0, 5, 10, 10))
    table.take((b"x|0", 1, 0, 5, 15, 99), 19)
    assert len(table) == 1
    table.take((b"x|0", 1, 0, 5, 15, 99), 18)
    assert table.get(b"x|0") == Progress(1, 5)


def test_a_silent_writer_is_forgotten_by_the_time_of_the_log() -> None:
    table = table_of((b"w|0", 0, 0, 1, 0, 1_000), (b"x|0", 0, 0, 1, 1, 5_000))
    table.take((b"y|0", 0, 0, 1, 2, 1_000 + WEEK_MS), 1)
    assert table.get(b"w|0") is not None
    table.take((b"y|0", 0, 1, 1, 3, 1_001 + WEEK_MS), 2)
    assert table.get(b"w|0") is None
    assert table.get(b"x|0") is not None


def test_a_clock_that_was_ahead_for_a_moment_costs_nobody_his_place_later() -> None:
    """Times only rise: what is written after the clock was set back is as young as the table's time."""
    table = table_of((b"w|0", 0, 0, 1, 0, 10 * WEEK_MS), (b"x|0", 0, 0, 1, 1, 1_000))
    table.take((b"y|0", 0, 0, 1, 2, 10 * WEEK_MS + 500), 1)
    assert table.get(b"x|0") is not None


def test_a_full_table_drops_the_one_that_wrote_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "WRITERS_MAX", 2)
    table = table_of((b"a|0", 0, 0, 1, 0, 1), (b"b|0", 0, 0, 1, 1, 2), (b"a|0", 0, 1, 1, 2, 3))
    table.take((b"c|0", 0, 0, 1, 3, 4), 2)
    assert (table.get(b"a|0"), table.get(b"b|0"), len(table)) == (Progress(0, 2), None, 2)


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
        whole.take((key, batch_id, first, count, index, stored_ms), index - 1)
        singles += [(key, batch_id, first + n, 1, index + n, stored_ms) for n in range(count)]
        index += count
    other = WriterTable()
    for run in singles:
        if run[4] == snapshot_at or run[4] in cuts:
            rows: Any = json.loads(json.dumps(list(other.rows())))
            other = WriterTable.from_json(rows)
        other.take(run, run[4] - 1)
        other.take(run, run[4])  # given again after a damaged place
    patch.undo()
    assert list(other.rows()) == list(whole.rows())


def test_a_copy_does_not_move() -> None:
    table = table_of((b"a|0", 0, 0, 1, 0, 1))
    copy = table.copy()
    table.take((b"a|0", 0, 1, 1, 1, 2), 0)
    table.take((b"b|0", 0, 0, 1, 2, 2), 1)
    assert list(copy.rows()) == [["a|0", 0, 1, 1]]
