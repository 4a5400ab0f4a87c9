"""Operations out of the reports that the drivers of the stock clients write (tests/integration).

Their sends say what was acknowledged where; most say no times, and then an operation may have been at any
time of the driver's run. Their consumers are push consumers: what is known is what the listener was called
with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.histories.operations import Operation, Outcome, Poll, Queue, Send
from tests.integration.messages import Sample

STORED = frozenset({"SEND_OK", 0})
Row = Mapping[str, Any]
Run = tuple[int, int]
"""When the driver was started, and when it had ended: Unix ms."""


def sends_of(
    report: Iterable[Row], process: str, topic: str, run: Run, *, tries: int | None = None
) -> Iterator[Send]:
    """The sends of a report. `tries` is 1 where the driver forbids its client to try again.

    A driver that writes when each send was answered (`at_ms`) does one after the other: what it was doing
    when it was killed is the number after its last one.
    """
    last: Sample | None = None
    last_ms, rows = run[0], list(report)
    has_times = any("at_ms" in row for row in rows)  # an error has none, and may be the first
    for row in rows:
        last = Sample(row.get("kind", "stream"), row["number"])
        invoked, completed = (last_ms, row.get("at_ms")) if has_times else run
        last_ms = last_ms if completed is None else completed
        is_stored = row.get("status") in STORED
        place = Queue(topic, row["queue"]) if is_stored and "queue" in row else None
        yield Send(
            process,
            invoked,
            completed,
            Outcome.OK if is_stored else Outcome.INFO,
            (last.body,),
            place,
            () if place is None else (row["offset"],),
            tries,
        )
    if has_times and last is not None:
        under_way = Sample(last.kind, last.number + 1).body
        yield Send(process, last_ms, None, Outcome.INFO, (under_way,), tries=tries)


def polls_of(
    report: Iterable[Row], process: str, topic: str, run: Run, *, is_ordered: bool = False
) -> Iterator[Poll]:
    """What a push consumer was called with, message by message; messages tried again are left out.

    `is_ordered`: an orderly listener, one consumer of its group, and no change of leader: after one, the
    client may go back to the last stored offset without a word.
    """
    for row in report:
        is_again = row.get("reconsume_times") or row.get("topic", topic) != topic
        if not is_again:
            at = row.get("at_ms", run[1])
            queue, message = Queue(topic, row["queue"]), (row["offset"], row["body"])
            yield Poll(process, run[0], at, Outcome.OK, queue, None, (message,), None, is_ordered)


def merged(*parts: Iterable[Operation]) -> list[Operation]:
    """One history of several clients': what each process did stays in its order."""
    return [operation for part in parts for operation in part]
