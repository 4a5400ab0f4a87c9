"""Tasks that fail at their first try, after a part of their rows is on its way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext

PAUSE_S = 0.3
"""What was yielded before a failure is to reach the sink, which runs in another process."""

Step = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def failing_at_first(marks: Path, rows: int, share: int = 1) -> Step:
    """For mapInArrow: the first try of one task in `share` fails after so many rows. Each failure leaves a
    mark. The session's Arrow batches must be smaller than that, and the rows above fill Spark's buffer of 64
    KiB, or none of them reaches the sink.
    """

    def step(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        batch_id = task.getLocalProperty("streaming.sql.batchId") or "0"
        fails = task.attemptNumber() == 0 and (int(batch_id) + task.partitionId()) % share == 0
        count = 0
        for batch in batches:
            if fails and count >= rows:
                time.sleep(PAUSE_S)
                (marks / f"{batch_id}-{task.partitionId()}-{os.getpid()}").touch()
                raise RuntimeError("this try was to fail")
            yield batch
            count += batch.num_rows

    return step
