"""Running a query: its ends, and whose words an error has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rocketmq_spark.errors import ArchiveError
from rocketmq_spark.jobs.archive.job import STARTS_MAX, WORKER_IS_LATE, run_query


class Query:
    """Ends with an error, or by itself."""

    def __init__(self, end: BaseException | None) -> None:
        self._end = end
        self.isActive = isinstance(end, KeyboardInterrupt)

    def awaitTermination(self) -> None:  # noqa: N802 - Spark's name
        if self._end is not None:
            raise self._end

    def stop(self) -> None:
        self.isActive = False


class Writer:
    """Starts one query after the other."""

    def __init__(self, ends: Sequence[BaseException | None]) -> None:
        self.queries = [Query(end) for end in ends]
        self.started: list[Query] = []
        self.triggers: list[dict[str, Any]] = []

    def trigger(self, **trigger: Any) -> Writer:
        self.triggers.append(trigger)
        return self

    def start(self) -> Query:
        self.started.append(self.queries[len(self.started)])
        return self.started[-1]


def run(writer: Writer, every_s: float | None = None, problem: Exception | None = None) -> None:
    run_query(writer, every_s, lambda: problem)  # type: ignore[arg-type]


def test_it_ends_with_what_there_is_or_goes_on() -> None:
    writer = Writer([None])
    run(writer)
    assert writer.triggers == [{"availableNow": True}]
    writer = Writer([None])
    run(writer, every_s=1.5)
    assert writer.triggers == [{"processingTime": "1500 milliseconds"}]


def test_an_interrupted_query_is_stopped() -> None:
    writer = Writer([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        run(writer)
    assert not writer.started[0].isActive


def test_the_functions_own_error_is_raised() -> None:
    writer = Writer([RuntimeError("STREAM_FAILED and a trace")])
    with pytest.raises(ArchiveError, match="own words"):
        run(writer, problem=ArchiveError("own words"))
    assert len(writer.started) == 1


def test_other_errors_end_it_at_once() -> None:
    writer = Writer([RuntimeError("no such topic"), None])
    with pytest.raises(RuntimeError, match="no such topic"):
        run(writer)
    assert len(writer.started) == 1


def test_a_worker_that_was_late_is_started_again_but_not_for_ever() -> None:
    late = RuntimeError(f"[STREAM_FAILED] {WORKER_IS_LATE}. SQLSTATE: XXKST")
    writer = Writer([late, None])
    run(writer)
    assert len(writer.started) == 2
    writer = Writer([late] * (STARTS_MAX + 1))
    with pytest.raises(RuntimeError, match=WORKER_IS_LATE):
        run(writer)
    assert len(writer.started) == STARTS_MAX
