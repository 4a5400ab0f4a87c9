"""Reading Parquet files piece by piece, in pieces of a bounded size however large the rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

BATCH_ROWS_MAX: Final = 4096
BATCH_BYTES: Final = 16 * 1024 * 1024
"""About so much is in memory at a time, one row at least."""


def batches_of(
    parquet: Any, columns: Sequence[str], row_groups: Sequence[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of an open `ParquetFile`, or of some of its row groups, in order."""
    groups = range(parquet.metadata.num_row_groups) if row_groups is None else row_groups
    for group in groups:
        about = parquet.metadata.row_group(group)
        rows = batch_rows(about.num_rows, about.total_byte_size)
        yield from parquet.iter_batches(rows, row_groups=[group], columns=list(columns))


def batch_rows(rows: int, total_bytes: int) -> int:
    """How many rows of a group that has so many, of so many bytes, are read at a time."""
    if rows == 0 or total_bytes == 0:
        return BATCH_ROWS_MAX
    return max(1, min(BATCH_ROWS_MAX, BATCH_BYTES * rows // total_bytes))
