"""Running a streaming query to its end, or until somebody interrupts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_query(
    writer: DataStreamWriter, every_s: float | None, problem: Callable[[], Exception | None]
) -> None:
    """Start the query and wait for its end: with what there is now, or a batch each `every_s` until Ctrl-C.

    `problem` is what the query's own Python function failed with, if it did: it is raised in place of Spark's
    account of it. When interrupted, the batch under way is given up; Spark repeats it the next time.
    """
    if every_s is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds")
    query = writer.start()
    try:
        query.awaitTermination()
    except Exception as error:
        own = problem()
        if own is not None:
            raise own from error
        raise
    finally:
        if query.isActive:
            query.stop()
