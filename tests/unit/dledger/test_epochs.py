"""dledger.core.epochs against a plain list of the terms of all entries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger.core.epochs import EpochCache
from dledger.core.types import NO_TERM, UNKNOWN_TERM, Epoch, LogState


def cache(*terms: int, begin_index: int = 0) -> EpochCache:
    """A log whose entries have these terms."""
    epochs = tuple(
        Epoch(term, begin_index + at) for at, term in enumerate(terms) if at == 0 or terms[at - 1] != term
    )
    return EpochCache(LogState(begin_index, begin_index + len(terms) - 1, epochs, -1))


def test_empty_log_of_a_new_node() -> None:
    log = cache()
    assert log.is_empty
    assert (log.begin_index, log.end_index, log.last_term) == (0, -1, NO_TERM)
    assert log.term_at(-1) == NO_TERM
    assert log.term_at(0) == UNKNOWN_TERM
    assert log.end_index_for(9) == (NO_TERM, -1)


def test_terms_and_ends_of_epochs() -> None:
    log = cache(1, 1, 3, 3, 3, 7)
    assert [log.term_at(index) for index in range(-1, 7)] == [0, 1, 1, 3, 3, 3, 7, UNKNOWN_TERM]
    assert log.end_index_for(0) == (NO_TERM, -1)
    assert log.end_index_for(1) == log.end_index_for(2) == (1, 1)
    assert log.end_index_for(3) == log.end_index_for(6) == (3, 4)
    assert log.end_index_for(7) == log.end_index_for(99) == (7, 5)


def test_last_entry_not_above_a_term() -> None:
    log = cache(1, 1, 3, 3, 3, 7)
    assert log.last_not_above(5, 6) == (4, 3)
    assert log.last_not_above(3, 6) == (3, 3)
    assert log.last_not_above(99, 99) == (5, 7)
    assert log.last_not_above(4, 2) == (1, 1)
    assert log.last_not_above(4, 0) == (-1, NO_TERM)


def test_unknown_term_before_a_log_that_begins_later() -> None:
    log = cache(2, 2, begin_index=5)
    assert log.term_at(4) == UNKNOWN_TERM
    assert log.last_not_above(6, 1) == (4, UNKNOWN_TERM)


def test_epoch_that_began_before_the_log_tells_the_term_before_it() -> None:
    log = EpochCache(LogState(5, 6, (Epoch(1, 0), Epoch(2, 3)), -1))
    assert log.prev_term == 2
    assert log.epochs == (Epoch(2, 3),)


def test_retention_keeps_the_term_before_the_begin() -> None:
    log = cache(1, 1, 3, 3)
    log.truncate_before(2)
    assert (log.term_at(1), log.term_at(0), log.epochs) == (1, UNKNOWN_TERM, (Epoch(3, 2),))
    log.truncate_before(4)
    assert log.is_empty
    assert (log.last_term, log.epochs) == (3, ())


def test_reset_and_append() -> None:
    log = cache(1, 1)
    log.reset(9, 4)
    assert (log.begin_index, log.end_index, log.last_term) == (9, 8, 4)
    log.extend(5, 11)
    assert log.epochs == (Epoch(5, 9),)


@pytest.mark.parametrize("index", [-1, 4, 9])
def test_truncation_outside_the_log_is_a_broken_invariant(index: int) -> None:
    with pytest.raises(AssertionError, match=r"the log is 0\.\.3"):
        cache(1, 1, 3, 3).truncate_from(index)


def test_falling_term_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="term 2 after term 3"):
        cache(1, 3).extend(2, 2)


def test_append_that_goes_back_is_a_broken_invariant() -> None:
    with pytest.raises(AssertionError, match="append up to 1"):
        cache(1, 3).extend(3, 1)


def test_epochs_that_do_not_rise_are_refused() -> None:
    with pytest.raises(AssertionError, match="do not rise"):
        EpochCache(LogState(0, 5, (Epoch(3, 0), Epoch(2, 4)), -1))


class EpochMachine(RuleBasedStateMachine):
    """The cache and a list of terms get the same operations."""

    def __init__(self) -> None:
        super().__init__()
        self.log = cache()
        self.begin_index = 0
        self.terms: list[int] = []
        self.prev_term = NO_TERM

    @property
    def end_index(self) -> int:
        return self.begin_index + len(self.terms) - 1

    @rule(rise=st.integers(0, 2), count=st.integers(1, 3))
    def extend(self, rise: int, count: int) -> None:
        term = max([self.prev_term, 1, *self.terms]) + rise
        self.terms += [term] * count
        self.log.extend(term, self.end_index)

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def truncate_from(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.terms) - 1))
        del self.terms[at:]
        self.log.truncate_from(self.begin_index + at)

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def truncate_before(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.terms)))
        self.prev_term = self.terms[count - 1]
        del self.terms[:count]
        self.begin_index += count
        self.log.truncate_before(self.begin_index)

    @rule(ahead=st.integers(1, 5))
    def reset(self, ahead: int) -> None:
        self.prev_term = max([self.prev_term, *self.terms])
        self.begin_index, self.terms = self.end_index + ahead, []
        self.log.reset(self.begin_index, self.prev_term)

    @rule()
    def restart(self) -> None:
        """What a store would find: the epochs, but not the term before the first of them."""
        self.log = EpochCache(LogState(self.begin_index, self.end_index, self.log.epochs, -1))
        self.prev_term = self.log.prev_term

    @invariant()
    def same_as_the_list(self) -> None:
        self.log.check_invariants()
        assert (self.log.begin_index, self.log.end_index) == (self.begin_index, self.end_index)
        for at, term in enumerate(self.terms):
            assert self.log.term_at(self.begin_index + at) == term
        assert self.log.last_term == (self.terms[-1] if self.terms else self.prev_term)

    @invariant()
    def same_last_not_above(self) -> None:
        for term in {term + more for term in self.terms for more in (-1, 0, 1)}:
            below = [at for at, other in enumerate(self.terms) if other <= term]
            index = self.begin_index + below[-1] if below else self.begin_index - 1
            assert self.log.last_not_above(self.end_index, term)[0] == index
            assert self.log.end_index_for(term)[1] == index


TestEpochMachine = EpochMachine.TestCase


@given(st.lists(st.integers(1, 4), max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_walk_over_two_logs_ends_at_the_last_common_entry(one: list[int], two: list[int]) -> None:
    """COMPARE's walk finds the same place as comparing entry by entry, in a round per term or less."""
    ours, theirs = cache(*sorted(one)), cache(*sorted(two))
    index, rounds = ours.end_index, 0
    while index >= 0 and not (index <= theirs.end_index and ours.term_at(index) == theirs.term_at(index)):
        conflict_index, conflict_term = theirs.last_not_above(index, ours.term_at(index))
        index = min(index - 1, ours.last_not_above(conflict_index, conflict_term)[0])
        rounds += 1
    same = [a == b for a, b in zip(sorted(one), sorted(two), strict=False)]
    expected = max((at for at, is_same in enumerate(same) if is_same), default=-1)
    assert index == expected
    assert rounds <= len(set(one) | set(two))
