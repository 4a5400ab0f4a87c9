"""Short words for histories in tests: a clock that moves by one, one topic, and operations that follow."""

from __future__ import annotations

from collections.abc import Sequence

from tests.histories.checker import check
from tests.histories.operations import (
    Assign,
    Commit,
    Crash,
    Drain,
    Fetch,
    Operation,
    Outcome,
    Poll,
    Queue,
    Seek,
    Send,
)
from tests.histories.words import Report, Rules, Word

QUEUE = Queue("T", 0)


class Story:
    """A history that is told one operation after another. A `time` is given where operations overlap."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._clock = 0

    def _span(self, time: tuple[int, int] | None) -> tuple[int, int]:
        if time is None:
            time = self._clock + 1, self._clock + 2
        self._clock = max(self._clock, *time)
        return time

    def send(
        self,
        value: str,
        offset: int | None,
        *,
        process: str = "p",
        queue: Queue = QUEUE,
        outcome: Outcome = Outcome.OK,
        tries: int | None = 1,
        time: tuple[int, int] | None = None,
    ) -> Story:
        offsets = () if offset is None else (offset,)
        place = None if offset is None else queue
        invoked, completed = self._span(time)
        self.operations.append(Send(process, invoked, completed, outcome, (value,), place, offsets, tries))
        return self

    def lost_send(self, value: str, *, tries: int | None = 1) -> Story:
        """A send whose answer never came."""
        return self.send(value, None, outcome=Outcome.INFO, tries=tries)

    def batch(self, values: Sequence[str], offsets: Sequence[int]) -> Story:
        span = self._span(None)
        self.operations.append(Send("p", *span, Outcome.OK, tuple(values), QUEUE, tuple(offsets)))
        return self

    def poll(
        self,
        messages: Sequence[tuple[int, str]],
        *,
        start: int | None = None,
        next_offset: int | None = None,
        process: str = "c",
        queue: Queue = QUEUE,
        time: tuple[int, int] | None = None,
        is_ordered: bool = True,
    ) -> Story:
        self.operations.append(
            Poll(
                process,
                *self._span(time),
                Outcome.OK,
                queue,
                start,
                tuple(messages),
                next_offset,
                is_ordered,
            )
        )
        return self

    def seek(self, offset: int | None = None, *, process: str = "c", queue: Queue = QUEUE) -> Story:
        self.operations.append(Seek(process, self._span(None)[1], queue, offset))
        return self

    def assign(self, *queues: Queue, process: str = "c") -> Story:
        self.operations.append(Assign(process, self._span(None)[1], queues))
        return self

    def crash(self, process: str = "c") -> Story:
        self.operations.append(Crash(process, self._span(None)[1]))
        return self

    def commit(
        self,
        offset: int,
        *,
        process: str = "c",
        outcome: Outcome = Outcome.OK,
        time: tuple[int, int] | None = None,
    ) -> Story:
        span = self._span(time)
        self.operations.append(Commit(process, *span, outcome, "G", QUEUE, offset))
        return self

    def fetch(self, offset: int | None, *, process: str = "c", time: tuple[int, int] | None = None) -> Story:
        self.operations.append(Fetch(process, *self._span(time), Outcome.OK, "G", QUEUE, offset))
        return self

    def drain(
        self, values: Sequence[str | None], *, begin: int = 0, queue: Queue = QUEUE, process: str = "final"
    ) -> Story:
        """A reading of the whole queue at the end; None stands for an offset that is left out."""
        began, _ = self._span(None)
        self.seek(begin, process=process, queue=queue)
        messages = [(offset, value) for offset, value in enumerate(values, begin) if value is not None]
        for message in messages:
            self.poll([message], process=process, queue=queue)
        end = begin + len(values)
        self.operations.append(Drain(process, began, self._span(None)[1], queue, begin, end))
        return self

    def check(self, **rules: bool) -> Report:
        return check(self.operations, Rules(**rules))

    def words(self, **rules: bool) -> set[Word]:
        """The words of the faults."""
        report = self.check(**rules)
        return {word for word in report.counts if report.rules.is_fault(word)}
