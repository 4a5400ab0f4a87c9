"""Proves an archive: no gap, no overlap, rows that are what the manifest says; file by file in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rocketmq_spark.jobs.archive_rows import FILE_COLUMNS, RunBuilder, stretches
from rocketmq_spark.jobs.archive_store import ArchiveStore, absolute
from rocketmq_spark.jobs.errors import ArchiveError
from rocketmq_spark.jobs.manifest import DataFile, Run, format_file, parse_file, problems
from rocketmq_spark.jobs.parquet_batches import batches_of
from rocketmq_spark.jobs.progress import Progress, Silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBLEMS_MAX: Final = 1000
"""More are counted and not kept."""
FILES_A_STEP: Final = 256
"""Files that are looked at between two words of progress."""
_FIRST_OFFSETS: Final = 5


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was found. `problem_count` may be more than there are `problems`."""

    batches: int
    files: int
    queues: int
    messages: int
    body_bytes: int
    problems: tuple[str, ...]
    problem_count: int

    @property
    def is_whole(self) -> bool:
        return self.problem_count == 0


def run_verify(spark: SparkSession, path: str, progress: Progress | None = None) -> VerifyResult:
    """Reads the manifest and every file that it names.

    Raises: ArchiveError when there is no archive, ManifestError when its manifest is unreadable.
    """
    store = ArchiveStore(absolute(path))
    if not store.has_manifest():
        raise ArchiveError(f"{path} holds no archive: it has no manifest.")
    batches = list(store.batches())
    files = [file for batch in batches for file in batch.files]
    found = problems(batches)
    listed = {file.name for file in files}
    found += [
        f"{name}: not in the manifest, a reader of the folder sees its rows all the same"
        for name in sorted(store.data_files() - listed)
    ]
    with progress or Silent() as told:
        told.update(0, len(files))
        for start in range(0, len(files), FILES_A_STEP):
            step = files[start : start + FILES_A_STEP]
            found += _check_in_tasks(spark, store, step)
            told.update(start + len(step), len(files), f"{len(found):,} problems")
    queues = {run.queue for file in files for run in file.runs}
    return VerifyResult(
        batches=len(batches),
        files=len(files),
        queues=len(queues),
        messages=sum(batch.messages for batch in batches),
        body_bytes=sum(batch.body_bytes for batch in batches),
        problems=tuple(found[:PROBLEMS_MAX]),
        problem_count=len(found),
    )


def _check_in_tasks(spark: SparkSession, store: ArchiveStore, files: list[DataFile]) -> list[str]:
    path = store.path

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = ArchiveStore(path)
        for batch in batches:
            lines = batch.column("line").to_pylist()
            found = [problem for line in lines for problem in check_file(reader, parse_file(line))]
            yield pa.RecordBatch.from_arrays([pa.array(found, pa.string())], names=["problem"])

    lines = [(format_file(file).decode(),) for file in files]
    tasks = min(len(lines), 4 * spark.sparkContext.defaultParallelism)
    frame = spark.createDataFrame(lines, "line string").repartition(tasks)
    return sorted(row.problem for row in frame.mapInArrow(check, "problem string").collect())


def check_file(store: ArchiveStore, file: DataFile) -> list[str]:
    """A sentence for each difference between a file and its line of the manifest."""
    try:
        with store.open(file.name) as data:
            found = list(_runs_in(pq.ParquetFile(data), file))
    except (OSError, pa.ArrowException, KeyError) as error:
        words = str(error).splitlines()[0] if str(error) else ""
        return [f"{file.name}: cannot be read: {type(error).__name__}: {words}"]
    if found == list(file.runs):
        return []
    return _differences(file, found)


def _runs_in(parquet: Any, file: DataFile) -> Iterator[Run]:
    builder: RunBuilder | None = None
    topics = {run.topic for run in file.runs}
    if len(topics) != 1:
        raise KeyError(f"rows of {len(topics)} topics in one file")
    (topic,) = topics
    for batch in batches_of(parquet, list(FILE_COLUMNS)):
        names = pa.array([topic], pa.string()).take(pa.array([0] * batch.num_rows, pa.int32()))
        for stretch in stretches(batch.append_column("topic", names)):
            if not file.name.startswith(f"{stretch.folder}/"):
                raise KeyError(f"a message of {stretch.folder} is in it")
            if builder is None or not builder.continues_with(stretch):
                if builder is not None:
                    yield builder.run()
                builder = RunBuilder(stretch.queue, stretch.first_offset)
            builder.add(stretch)
    if builder is not None:
        yield builder.run()


def _differences(file: DataFile, found: list[Run]) -> list[str]:
    told = {(run.queue, run.first_offset): run for run in file.runs}
    there = {(run.queue, run.first_offset): run for run in found}
    words = []
    for key in sorted(told.keys() | there.keys()):
        told_run, there_run = told.get(key), there.get(key)
        if told_run == there_run:
            continue
        where = f"{file.name}: {key[0]} from {key[1]}"
        words.append(f"{where}: the manifest says {_words(told_run)}, the file has {_words(there_run)}")
    return words[:_FIRST_OFFSETS] or [f"{file.name}: its runs are in another order than the manifest says"]


def _words(run: Run | None) -> str:
    if run is None:
        return "no such run"
    return f"{run.messages} messages, {run.body_bytes} bytes, digest {run.digest}"
