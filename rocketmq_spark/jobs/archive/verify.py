"""Proves an archive: no gap, no overlap, rows equal to the manifest's runs; file by file in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rocketmq_spark.errors import ArchiveError
from rocketmq_spark.jobs.archive.files import FILE_COLUMNS, RunBuilder, batches_of, file_slices
from rocketmq_spark.jobs.archive.manifest import DataFile, ManifestCheck, Run, format_file, parse_file
from rocketmq_spark.jobs.archive.store import ArchiveStore, absolute
from rocketmq_spark.jobs.progress import Progress, Silent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROBLEMS_MAX: Final = 1000
"""Further problems are counted but not kept."""
FILES_A_STEP: Final = 256
"""Files that are checked between two reports of progress."""
_FIRST_OFFSETS: Final = 5


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What was found. `problem_count` may be more than the number of `problems`."""

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
    check, found = ManifestCheck(), _Problems()
    unlisted = store.data_files()
    files_there, seen = len(unlisted), 0
    with progress or Silent() as reporting:
        reporting.update(0, files_there)
        for step in _steps(store, check, found):
            unlisted.difference_update(file.name for file in step)
            found.add(_check_in_tasks(spark, store, step))
            seen += len(step)
            reporting.update(seen, max(seen, files_there), f"{found.count:,} problems")
    found.add(
        f"{name}: not in the manifest, a reader of the folder sees its rows all the same"
        for name in sorted(unlisted)
    )
    return VerifyResult(
        batches=check.batches,
        files=check.files,
        queues=check.queues,
        messages=check.messages,
        body_bytes=check.body_bytes,
        problems=tuple(found.kept),
        problem_count=found.count,
    )


class _Problems:
    """The first PROBLEMS_MAX problems, and the number of all."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.count = 0

    def add(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.count += 1
            if len(self.kept) < PROBLEMS_MAX:
                self.kept.append(problem)


def _steps(store: ArchiveStore, check: ManifestCheck, found: _Problems) -> Iterator[list[DataFile]]:
    """The files that the manifest names, some at a time, while it is checked itself."""
    step: list[DataFile] = []
    for batch in store.batches():
        found.add(check.problems(batch))
        step += batch.files
        while len(step) >= FILES_A_STEP:
            yield step[:FILES_A_STEP]
            del step[:FILES_A_STEP]
    if step:
        yield step


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
        for part in file_slices(batch.append_column("topic", names)):
            if not file.name.startswith(f"{part.folder}/"):
                raise KeyError(f"a message of {part.folder} is in it")
            if builder is None or not builder.continues_with(part):
                if builder is not None:
                    yield builder.run()
                builder = RunBuilder(part.queue, part.first_offset)
            builder.add(part)
    if builder is not None:
        yield builder.run()


def _differences(file: DataFile, found: list[Run]) -> list[str]:
    listed = {(run.queue, run.first_offset): run for run in file.runs}
    there = {(run.queue, run.first_offset): run for run in found}
    words = []
    for key in sorted(listed.keys() | there.keys()):
        listed_run, found_run = listed.get(key), there.get(key)
        if listed_run == found_run:
            continue
        where = f"{file.name}: {key[0]} from {key[1]}"
        words.append(f"{where}: the manifest says {_words(listed_run)}, the file has {_words(found_run)}")
    return words[:_FIRST_OFFSETS] or [f"{file.name}: its runs are in another order than the manifest says"]


def _words(run: Run | None) -> str:
    if run is None:
        return "no such run"
    return f"{run.messages} messages, {run.body_bytes} bytes, digest {run.digest}"
