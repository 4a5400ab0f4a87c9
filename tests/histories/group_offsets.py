"""Consumer offsets: a group's offset of a queue is a register that is written by commits and read by fetches.

A fetch may give what a commit wrote that had begun before the fetch ended, unless another commit began after
that one had ended, and was acknowledged before the fetch began. A commit may lower the offset (a reset, a
consumer that took over): the register keeps the last, not the highest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tests.histories.operations import Commit, Fetch, Outcome, Queue
from tests.histories.words import Report, Word

NONE = 0
"""What a group without an offset has: it begins at the first message. Brokers answer either."""


class Write(NamedTuple):
    """A commit that may have taken effect: `completed` None while nobody knows."""

    invoked: int
    completed: float
    number: int
    offset: int


class Register:
    """All writes of one group's offset of one queue, in an order that answers each fetch in O(log n)."""

    def __init__(self, writes: Sequence[Write]) -> None:
        self._acknowledged = sorted(
            (write for write in writes if write.completed != INFINITE), key=lambda write: write.completed
        )
        self._ends = [write.completed for write in self._acknowledged]
        self._latest: list[Write] = []
        """For each acknowledged write: which of those up to it began last."""
        for write in self._acknowledged:
            best = self._latest[-1] if self._latest else write
            self._latest.append(max(best, write, key=lambda write: write.invoked))
        self._begins: dict[int, list[int]] = {}
        self._open_until: dict[int, list[float]] = {}
        for write in sorted(writes):
            self._begins.setdefault(write.offset, []).append(write.invoked)
            until = self._open_until.setdefault(write.offset, [])
            until.append(max(write.completed, until[-1]) if until else write.completed)

    def required(self, invoked: int) -> Write | None:
        """The write that no older one can hide from a fetch that begins at `invoked`."""
        count = bisect_left(self._ends, invoked)
        return self._latest[count - 1] if count else None

    def was_written(self, offset: int, before: int) -> bool:
        return self._until(offset, before) is not None

    def is_current(self, offset: int, invoked: int, completed: int) -> bool:
        """Whether some write of `offset` can be what a fetch gets."""
        until = self._until(offset, completed)
        required = self.required(invoked)
        return until is not None and (required is None or until >= required.invoked)

    def _until(self, offset: int, before: int) -> float | None:
        """The latest end of the writes of `offset` that had begun by then."""
        count = bisect_right(self._begins.get(offset, []), before)
        return self._open_until[offset][count - 1] if count else None


INFINITE = float("inf")


class GroupOffsets:
    """Follows commits and fetches; `judge` holds them against each other at the end."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._writes: dict[tuple[str, Queue], list[Write]] = {}
        self._fetches: list[tuple[int, Fetch]] = []

    def commit(self, number: int, commit: Commit) -> None:
        if commit.outcome is Outcome.FAIL:
            return
        is_ok = commit.outcome is Outcome.OK and commit.completed is not None
        completed = float(commit.completed) if is_ok and commit.completed is not None else INFINITE
        write = Write(commit.invoked, completed, number, commit.offset)
        self._writes.setdefault((commit.group, commit.queue), []).append(write)

    def fetch(self, number: int, fetch: Fetch) -> None:
        if fetch.outcome is Outcome.OK:
            self._fetches.append((number, fetch))

    def judge(self) -> None:
        registers = {key: Register(writes) for key, writes in self._writes.items()}
        for number, fetch in self._fetches:
            register = registers.get((fetch.group, fetch.queue)) or Register([])
            self._judge(number, fetch, register)

    def _judge(self, number: int, fetch: Fetch, register: Register) -> None:
        offset = NONE if fetch.offset is None else fetch.offset
        completed = fetch.invoked if fetch.completed is None else fetch.completed
        required = register.required(fetch.invoked)
        if offset == NONE and required is None:
            return
        if register.is_current(offset, fetch.invoked, completed):
            return
        where = f"{fetch.group} {fetch.queue}"
        if offset != NONE and not register.was_written(offset, completed):
            text = f"{fetch.process} fetched {offset}, which nobody had committed"
            self._report.add(Word.UNKNOWN_OFFSET, where, text, (number,))
            return
        assert required is not None
        text = f"{fetch.process} fetched {fetch.offset} after {required.offset} had been acknowledged"
        self._report.add(Word.STALE_OFFSET, where, text, (required.number, number))
