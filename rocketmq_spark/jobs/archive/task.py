"""What a Spark task of the archive does: rows into Parquet files, and a line of the manifest for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rocketmq_spark.jobs.archive.manifest import DataFile, Run, format_file
from rocketmq_spark.jobs.archive.rows import FILE_SCHEMA, FileSlice, RunBuilder, file_slices
from rocketmq_spark.jobs.archive.store import ArchiveStore, absolute, sync

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""A row group is written when so many bytes of rows are collected: the memory that an open file needs."""
OPEN_FILES_MAX: Final = 4
"""A task that reads more hours than that at once closes the file it has not written to for the longest."""
RESULT_SCHEMA: Final = "line string"
_DICTIONARY_COLUMNS: Final = ["brokerName", "tags", "bornHost"]
_STATISTICS_COLUMNS: Final = ["queueId", "queueOffset", "keys", "tags", "bornTimestamp", "storeTimestamp"]

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What a task has to know. `token` keeps the files of one run of the job from another's."""

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
        """Every file once it is whole."""
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
            self._open[folder] = self._open.pop(folder)  # the last one is the one last written to
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
    """One Parquet file while rows come in."""

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
        """Close the file; its bytes are on the disk of a local archive."""
        self._end_run()
        self._write_group()
        self._writer.close()
        file_bytes = int(self._out.tell())
        sync(self._out, self._is_local)
        self._out.close()
        return DataFile(self._name, file_bytes, self._rows, tuple(self._runs), staged=self._staged)

    def abandon(self) -> None:
        """The task failed: what is left of the file is dropped with the whole staging folder."""
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
