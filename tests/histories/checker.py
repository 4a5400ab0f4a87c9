"""Reads a history once and says what is wrong with it: O(n log n) time, memory for values and places only."""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.files import HistoryError
from tests.histories.group_offsets import GroupOffsets
from tests.histories.operations import (
    Assign,
    Commit,
    Crash,
    Drain,
    Fetch,
    Operation,
    Outcome,
    Poll,
    Seek,
    Send,
)
from tests.histories.order import PollOrder, judge_batches, judge_sends
from tests.histories.places import Places
from tests.histories.words import Report, Rules


class Checker:
    """Takes the operations of a history one by one; `report` ends it."""

    def __init__(self, rules: Rules | None = None) -> None:
        self._report = Report(rules or Rules())
        self._places = Places(self._report)
        self._polls = PollOrder(self._report)
        self._offsets = GroupOffsets(self._report)
        self._number = 0

    def add(self, operation: Operation) -> None:
        """Raises: HistoryError when the operation can't be one of this history."""
        number = self._number
        self._number += 1
        self._count(operation)
        try:
            self._follow(number, operation)
        except ValueError as error:
            raise HistoryError(str(error)) from error

    def _follow(self, number: int, operation: Operation) -> None:
        match operation:
            case Send():
                self._places.send(number, operation)
            case Poll():
                self._places.poll(number, operation)
                self._polls.poll(number, operation)
            case Assign() | Seek() | Crash():
                self._places.begin_anew(operation)
                self._polls.begin_anew(operation)
            case Drain():
                self._places.drain(number, operation)
            case Commit():
                self._offsets.commit(number, operation)
            case Fetch():
                self._offsets.fetch(number, operation)

    def _count(self, operation: Operation) -> None:
        kind = type(operation).__name__.lower()
        outcome = getattr(operation, "outcome", None)
        self._report.operations[f"{kind} {outcome}" if outcome else kind] += 1
        if isinstance(operation, Send) and outcome is Outcome.OK:
            self._report.operations["values acknowledged"] += len(operation.values)

    def report(self) -> Report:
        """What was found; the checker takes no more after this."""
        self._report.operations["values read"] = self._places.values_read
        self._places.judge()
        self._polls.judge(self._places)
        judge_batches(self._report, self._places)
        judge_sends(self._report, self._places)
        self._offsets.judge()
        return self._report


def check(history: Iterable[Operation], rules: Rules | None = None) -> Report:
    """Everything that can be said of a whole history."""
    checker = Checker(rules)
    for operation in history:
        checker.add(operation)
    return checker.report()
