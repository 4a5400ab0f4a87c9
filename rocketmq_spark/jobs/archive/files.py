"""The Parquet files of an archive: their columns, the parts of a batch that belong to one file, a digest of
their content; reading them back in batches of a bounded size; and the Spark task that writes them, which
returns a line of the manifest for each.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rocketmq_spark.jobs.archive.manifest import DataFile, QueueName, Run, format_file
from rocketmq_spark.jobs.archive.store import ArchiveStore, absolute, sync

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
FILE_COLUMNS: Final = {
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "msgId": pa.string(),
    "keys": pa.string(),
    "tags": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "body": pa.binary(),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "flag": pa.int32(),
    "sysFlag": pa.int32(),
}
"""The columns of an archive's files. Topic, date and hour are in the names of the folders."""
FILE_SCHEMA: Final = pa.schema(list(FILE_COLUMNS.items()))
SPARK_COLUMNS: Final = ("topic", *FILE_COLUMNS)
SPARK_SCHEMA: Final = (
    "brokerName string, queueId int, queueOffset bigint, physicalOffset bigint, msgId string, keys string, "
    "tags string, properties map<string,string>, body binary, bornTimestamp timestamp, "
    "storeTimestamp timestamp, bornHost string, reconsumeTimes int, flag int, sysFlag int, topic string, "
    "date date, hour int"
)
"""What Spark reads the folder with: without it, it would guess the types of the folders' names."""
_HOUR_US: Final = 3_600_000_000
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Rows of one queue and one hour of store time, their offsets without a gap. `rows` has FILE_SCHEMA."""

    queue: QueueName
    first_offset: int
    hour: int
    rows: pa.RecordBatch

    @property
    def folder(self) -> str:
        return folder_of(self.queue.topic, self.hour)


def folder_of(topic: str, hour: int) -> str:
    """Where rows of a topic and an hour (from 1970, UTC) belong. A retry topic's `%` becomes `%25`."""
    start = datetime.fromtimestamp(hour * 3600, UTC)
    return f"topic={quote(topic, safe='|_-')}/date={start:%Y-%m-%d}/hour={start:%H}"


def file_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of a file, with its types, of a batch that has them under their names."""
    columns = [batch.column(name) for name in FILE_COLUMNS]
    cast = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(columns, FILE_COLUMNS.values(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(cast, schema=FILE_SCHEMA)


def file_slices(batch: pa.RecordBatch) -> Iterator[FileSlice]:
    """The batch, split where the queue or the hour changes or an offset does not follow the one before."""
    if batch.num_rows == 0:
        return
    rows = file_rows(batch)
    offsets = rows.column("queueOffset").to_numpy()
    hours = _microseconds(rows.column("storeTimestamp")) // _HOUR_US
    changes = np.diff(offsets) != 1
    for values in (_codes(batch.column("topic")), _codes(rows.column("brokerName")), hours):
        changes |= np.diff(values) != 0
    changes |= np.diff(rows.column("queueId").to_numpy()) != 0
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(starts):
        queue = QueueName(
            batch.column("topic")[start].as_py(),
            rows.column("brokerName")[start].as_py(),
            rows.column("queueId")[start].as_py(),
        )
        yield FileSlice(queue, int(offsets[start]), int(hours[start]), rows.slice(start, end - start))


class RunBuilder:
    """Gathers file_slices that follow each other into one run."""

    def __init__(self, queue: QueueName, first_offset: int) -> None:
        self.queue = queue
        self.next_offset = first_offset
        self._first_offset = first_offset
        self._first_us: int | None = None
        self._last_us = 0
        self._body_bytes = 0
        self._digest = Digest()

    def continues_with(self, part: FileSlice) -> bool:
        return part.queue == self.queue and part.first_offset == self.next_offset

    def add(self, part: FileSlice) -> None:
        times = _microseconds(part.rows.column("storeTimestamp"))
        lowest, highest = int(times.min()), int(times.max())
        self._first_us = lowest if self._first_us is None else min(lowest, self._first_us)
        self._last_us = max(highest, self._last_us)
        self._body_bytes += pc.sum(pc.binary_length(part.rows.column("body"))).as_py() or 0
        self._digest.update(part.rows)
        self.next_offset += part.rows.num_rows

    def run(self) -> Run:
        """Raises: AssertionError before anything was added."""
        assert self._first_us is not None, f"a run of {self.queue} without a row"
        return Run(
            *self.queue,
            first_offset=self._first_offset,
            last_offset=self.next_offset - 1,
            first_store_ms=self._first_us // 1000,
            last_store_ms=self._last_us // 1000,
            body_bytes=self._body_bytes,
            digest=self._digest.hexdigest(),
        )


class Digest:
    """SHA-256 over the content of rows, column by column; how they were cut into batches does not matter."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = {}

    def update(self, rows: pa.RecordBatch) -> None:
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            self._feed(name, column)

    def hexdigest(self) -> str:
        parts = b"".join(self._parts[name].digest() for name in sorted(self._parts))
        return hashlib.sha256(parts).hexdigest()[: 2 * _DIGEST_BYTES]

    def _feed(self, name: str, column: pa.Array) -> None:
        """Hash the values in one part, and their lengths and nulls in another."""
        if pa.types.is_map(column.type):
            self._part(f"{name} lengths").update(_map_lengths(column))
            column = column.drop_null() if column.null_count else column
            ends = column.offsets
            start, end = ends[0].as_py(), ends[-1].as_py()
            self._feed(f"{name} keys", column.keys.slice(start, end - start))
            self._feed(f"{name} items", column.items.slice(start, end - start))
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            self._part(f"{name} lengths").update(_lengths(pc.binary_length(column)))
            self._part(name).update(_bytes_of(column))
        else:
            known = pc.if_else(column.is_valid(), pa.scalar(0, pa.int32()), None)
            self._part(f"{name} lengths").update(_lengths(known))
            values = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
            numbers = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
            self._part(name).update(numbers.astype("<i8").tobytes())

    def _part(self, name: str) -> Any:
        part = self._parts.get(name)
        if part is None:
            part = self._parts[name] = hashlib.sha256()
        return part


def _map_lengths(column: pa.Array) -> bytes:
    found = np.diff(column.offsets.to_numpy())
    found[column.is_null().to_numpy(zero_copy_only=False)] = -1
    return bytes(found.astype("<i4").tobytes())


def _lengths(values: pa.Array) -> bytes:
    filled = pc.fill_null(values, -1).to_numpy(zero_copy_only=False)
    return bytes(filled.astype("<i4").tobytes())


def _bytes_of(column: pa.Array) -> bytes | memoryview:
    """All values back to back; without a copy unless nulls hide bytes."""
    if column.null_count:
        column = column.drop_null()
    _, offsets, data = column.buffers()
    if data is None or len(column) == 0:
        return b""
    ends = np.frombuffer(offsets, "<i4", count=len(column) + 1, offset=column.offset * 4)
    return memoryview(data)[int(ends[0]) : int(ends[-1])]


def _microseconds(column: pa.Array) -> Any:
    return column.cast(pa.int64()).to_numpy()


def _codes(column: pa.Array) -> Any:
    return pc.dictionary_encode(column).indices.to_numpy()


BATCH_ROWS_MAX: Final = 4096
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Approximate bytes in memory at a time; at least one row."""


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
    """How many rows to read at a time from a row group of `rows` rows and `total_bytes` bytes."""
    if rows == 0 or total_bytes == 0:
        return BATCH_ROWS_MAX
    return max(1, min(BATCH_ROWS_MAX, BATCH_BYTES * rows // total_bytes))


ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""A row group is written when this many bytes of rows are collected: the memory that an open file needs."""
OPEN_FILES_MAX: Final = 4
"""A task with rows of more hours at a time closes the file that was not written for the longest time."""
RESULT_SCHEMA: Final = "line string"
_DICTIONARY_COLUMNS: Final = ["brokerName", "tags", "bornHost"]
_STATISTICS_COLUMNS: Final = ["queueId", "queueOffset", "keys", "tags", "bornTimestamp", "storeTimestamp"]

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What a task needs. `token` keeps the file names of two runs of the job different."""

    path: str
    token: str
    sequence: int


def writing_task(plan: TaskPlan) -> Callable[[Batches], Batches]:
    """A function for `DataFrame.mapInArrow` with RESULT_SCHEMA: one row for each file that was written."""

    def write(batches: Batches) -> Batches:
        from pyspark import TaskContext

        context = TaskContext.get()
        place = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
        writer = PartitionWriter(plan, *place)
        lines = [format_file(file).decode() for file in writer.write(batches)]
        yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], names=["line"])

    return write


class PartitionWriter:
    """Writes the rows of one partition, which come queue by queue in the order of their offsets.

    `attempt` is unique among all attempts of all tasks of the run.
    """

    def __init__(self, plan: TaskPlan, task: int, attempt: int) -> None:
        self._plan = plan
        self._task = task
        self._attempt = attempt
        self._store = ArchiveStore(absolute(plan.path))
        self._store.token = plan.token
        self._open: dict[str, _OpenFile] = {}
        self._count = 0

    def write(self, batches: Batches) -> Iterator[DataFile]:
        """Yield every file when it is complete."""
        try:
            for batch in batches:
                for part in file_slices(batch):
                    yield from self._make_room(part.folder)
                    self._file(part.folder).add(part)
            yield from [self._open.pop(folder).finish() for folder in list(self._open)]
        finally:
            for file in self._open.values():
                file.abandon()

    def _make_room(self, folder: str) -> list[DataFile]:
        if folder in self._open:
            self._open[folder] = self._open.pop(folder)  # ordered by the last write
            return []
        if len(self._open) < OPEN_FILES_MAX:
            return []
        oldest = next(iter(self._open))
        return [self._open.pop(oldest).finish()]

    def _file(self, folder: str) -> _OpenFile:
        file = self._open.get(folder)
        if file is None:
            staged = self._store.staged_name(self._plan.sequence, self._task, self._attempt, self._count)
            self._count += 1
            file = self._open[folder] = _OpenFile(self._store, staged, folder)
        return file


class _OpenFile:
    """One Parquet file that is being written."""

    def __init__(self, store: ArchiveStore, staged: str, folder: str) -> None:
        self._staged = staged
        self._name = f"{folder}/{staged.rpartition('/')[2]}"
        self._is_local = store.is_local
        self._out: Any = store.create(staged)
        self._writer = pq.ParquetWriter(
            self._out,
            FILE_SCHEMA,
            compression="zstd",
            compression_level=1,
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=_STATISTICS_COLUMNS,
        )
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._rows = 0
        self._runs: list[Run] = []
        self._builder: RunBuilder | None = None

    def add(self, part: FileSlice) -> None:
        if self._builder is None or not self._builder.continues_with(part):
            self._end_run()
            self._builder = RunBuilder(part.queue, part.first_offset)
        self._builder.add(part)
        self._rows += part.rows.num_rows
        self._gathered.append(part.rows)
        self._gathered_bytes += part.rows.nbytes
        if self._gathered_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> DataFile:
        """Close the file; in a local archive its bytes are then synced to the disk."""
        self._end_run()
        self._write_group()
        self._writer.close()
        file_bytes = int(self._out.tell())
        sync(self._out, self._is_local)
        self._out.close()
        return DataFile(self._name, file_bytes, self._rows, tuple(self._runs), staged=self._staged)

    def abandon(self) -> None:
        """The task failed: its partial file is removed later with the whole staging folder."""
        self._gathered = []
        self._writer.close()
        self._out.close()

    def _end_run(self) -> None:
        if self._builder is not None:
            self._runs.append(self._builder.run())
            self._builder = None

    def _write_group(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered, FILE_SCHEMA)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
            self._gathered = []
            self._gathered_bytes = 0
