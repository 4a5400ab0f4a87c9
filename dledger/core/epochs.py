"""The leader epoch cache: the terms of a log's entries, as a list of (term, first index).

Kafka's mechanism (KIP-101): where two logs part is found by comparing epochs, never by truncating to the high
watermark. Two logs that have the same (index, term) are equal up to it (Raft 5.3, Log Matching). A log has as
many epochs as it has had leaders, so the whole list stays in memory.

Invariants: begin_index - 1 <= end_index; terms and first indexes of the epochs rise strictly; no epoch
begins after end_index, and none ends before begin_index.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from dledger.core.types import NO_INDEX, NO_TERM, UNKNOWN_TERM, Epoch, LogState


def _term(epoch: Epoch) -> int:
    return epoch.term


def _first_index(epoch: Epoch) -> int:
    return epoch.first_index


class EpochCache:
    """Where one log begins and ends, and the term of every entry."""

    def __init__(self, log: LogState) -> None:
        self.begin_index = log.begin_index
        self.end_index = log.end_index
        self._epochs = list(log.epochs)
        self.prev_term = self._initial_prev_term()
        """The term of entry begin_index - 1; UNKNOWN_TERM when it was removed and no epoch names it."""
        self._drop_before(self.begin_index)
        self.check_invariants()

    def _initial_prev_term(self) -> int:
        if self.begin_index == 0:
            return NO_TERM
        if self._epochs and self._epochs[0].first_index < self.begin_index:
            return self._term_inside(self.begin_index - 1)
        return UNKNOWN_TERM

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return tuple(self._epochs)

    @property
    def is_empty(self) -> bool:
        return self.end_index < self.begin_index

    @property
    def last_term(self) -> int:
        """The term of the last entry, or of the place before the log when it is empty."""
        return self._epochs[-1].term if self._epochs else self.prev_term

    def term_at(self, index: int) -> int:
        """The term of an entry, or of the one before the log's begin; UNKNOWN_TERM for any other index."""
        if self.begin_index <= index <= self.end_index:
            return self._term_inside(index)
        return self.prev_term if index == self.begin_index - 1 else UNKNOWN_TERM

    def _term_inside(self, index: int) -> int:
        newest = self._epochs[-1]
        if index >= newest.first_index:
            return newest.term  # nearly every question is about the newest entries
        place = bisect_right(self._epochs, index, key=_first_index) - 1
        assert place >= 0, f"entry {index} stands before the first epoch of {self._epochs}"
        return self._epochs[place].term

    def end_index_for(self, term: int) -> tuple[int, int]:
        """(term, last index) of the newest epoch that is not above `term`: Kafka's OffsetsForLeaderEpoch.

        When all epochs are above it: term and index of the entry before the log's begin.
        """
        place = bisect_right(self._epochs, term, key=_term)
        if place == 0:
            return self.prev_term, self.begin_index - 1
        end_index = self._epochs[place].first_index - 1 if place < len(self._epochs) else self.end_index
        return self._epochs[place - 1].term, end_index

    def last_not_above(self, index: int, term: int) -> tuple[int, int]:
        """(index, term) of the last entry not after `index` whose term is not above `term`.

        Terms never fall along a log, so entries between it and `index` can't match an entry of `term`.
        """
        _, end_index = self.end_index_for(term)
        found = min(index, end_index)
        if found < self.begin_index:
            return self.begin_index - 1, self.prev_term
        return found, self._term_inside(found)

    def extend(self, term: int, last_index: int) -> None:
        """Entries up to last_index were appended, all of this term."""
        assert last_index > self.end_index, f"append up to {last_index}, the log ends at {self.end_index}"
        assert term >= self.last_term, f"append of term {term} after term {self.last_term}"
        if not self._epochs or term > self._epochs[-1].term:
            self._epochs.append(Epoch(term, self.end_index + 1))
        self.end_index = last_index

    def truncate_from(self, index: int) -> None:
        """The entries >= index are gone."""
        assert self.begin_index <= index <= self.end_index, (
            f"truncate from {index}, the log is {self.begin_index}..{self.end_index}"
        )
        while self._epochs and self._epochs[-1].first_index >= index:
            self._epochs.pop()
        self.end_index = index - 1
        if self.is_empty:
            self._epochs.clear()

    def truncate_before(self, begin_index: int) -> None:
        """The entries < begin_index are gone (retention)."""
        assert self.begin_index <= begin_index <= self.end_index + 1, (
            f"the log {self.begin_index}..{self.end_index} can't begin at {begin_index}"
        )
        self.prev_term = self.term_at(begin_index - 1)
        self.begin_index = begin_index
        self._drop_before(begin_index)

    def _drop_before(self, begin_index: int) -> None:
        while len(self._epochs) > 1 and self._epochs[1].first_index <= begin_index:
            self._epochs.pop(0)
        if self._epochs and self.is_empty:
            self._epochs.clear()

    def reset(self, begin_index: int, prev_term: int) -> None:
        """Everything is gone; the log begins at begin_index, after an entry of prev_term."""
        self.begin_index, self.end_index, self.prev_term = begin_index, begin_index - 1, prev_term
        self._epochs.clear()

    def check_invariants(self) -> None:
        assert NO_INDEX <= self.begin_index - 1 <= self.end_index, (self.begin_index, self.end_index)
        assert bool(self._epochs) != self.is_empty, (self._epochs, self.begin_index, self.end_index)
        _check_rising([epoch.term for epoch in self._epochs])
        _check_rising([epoch.first_index for epoch in self._epochs])
        if self._epochs:
            assert self._epochs[0].first_index <= self.begin_index, (self._epochs, self.begin_index)
            assert self._epochs[-1].first_index <= self.end_index, (self._epochs, self.end_index)
            assert self.prev_term <= self._epochs[0].term, (self.prev_term, self._epochs)


def _check_rising(numbers: Sequence[int]) -> None:
    assert all(one < two for one, two in pairwise(numbers)), f"{numbers} do not rise"
