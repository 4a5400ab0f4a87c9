"""Correct histories are never flagged; one mistake in them always is, by its word; files lose nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.histories.checker import check
from tests.histories.corruptions import CORRUPTIONS, Corruption
from tests.histories.files import HistoryError, HistoryWriter, from_line, read_history, to_line
from tests.histories.model import Model
from tests.histories.operations import Outcome, Queue, Send
from tests.histories.words import ALLOWED, Word
from tests.support.long_runs import examples

SEEDS = st.integers(min_value=0, max_value=2**32)
STEPS = 300


@settings(max_examples=examples(200), deadline=None)
@given(seed=SEEDS, steps=st.integers(0, STEPS))
def test_correct_history_is_never_flagged(seed: int, steps: int) -> None:
    report = check(Model(random.Random(seed), steps).history)
    report.assert_clean()
    assert set(report.counts) <= ALLOWED


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda corruption: corruption.__name__)
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(seed=SEEDS)
def test_one_mistake_is_always_flagged(corruption: Corruption, seed: int) -> None:
    chance = random.Random(seed)
    history = corruption(Model(chance, STEPS).history, chance)
    assume(history is not None)
    assert history is not None
    report = check(history)
    assert CORRUPTIONS[corruption] in report.counts, report
    assert not report.is_clean


def test_every_fault_has_a_mistake_that_shows_it() -> None:
    assert set(CORRUPTIONS.values()) == set(Word) - ALLOWED


@given(seed=SEEDS)
@settings(max_examples=examples(30), deadline=None)
def test_operations_survive_a_file(seed: int) -> None:
    history = Model(random.Random(seed), 100).history
    assert [from_line(to_line(operation)) for operation in history] == history


def test_what_was_begun_and_never_ended_is_of_unknown_outcome(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    ended = Send("p", 1, 2, Outcome.OK, ("a",), Queue("T", 0), (0,))
    lost = Send("p", 3, None, Outcome.INFO, ("b",))
    with HistoryWriter(path) as writer:
        begun = writer.begin(Send("p", 1, None, Outcome.INFO, ("a",)))
        writer.end(begun, ended)
        writer.begin(lost)
    with path.open("ab") as file:
        file.write(to_line(ended)[:20])
    assert list(read_history(path)) == [ended, lost]


@pytest.mark.parametrize("line", [b"", b"[1]", b"{}", b'{"op":"send"}', b'{"op":"sleep"}', b"nonsense"])
def test_line_that_is_no_operation_is_refused(line: bytes) -> None:
    with pytest.raises(HistoryError, match="not an operation"):
        from_line(line)
