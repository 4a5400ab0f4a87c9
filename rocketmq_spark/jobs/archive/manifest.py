"""The manifest of an archive: which range of which queue is in which file, and checks of these ranges.

A *run* is an unbroken range of offsets of one queue in one file, in order. A batch is written as JSON lines:
its head, then a line for each file with its runs. Everything here is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import orjson

from rocketmq_spark.errors import ManifestError

MANIFEST_VERSION: Final = 1


class QueueName(NamedTuple):
    """A queue, in the order in which queues are sorted."""

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker_name}:{self.queue_id}"


class Span(NamedTuple):
    """Offsets from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Run:
    """Offsets `first_offset` to `last_offset` of a queue, all of them, in the order of a file.

    Store times are the smallest and largest; `digest` is over all columns of the rows in order.
    """

    topic: str
    broker_name: str
    queue_id: int
    first_offset: int
    last_offset: int
    first_store_ms: int
    last_store_ms: int
    body_bytes: int
    digest: str

    @property
    def queue(self) -> QueueName:
        return QueueName(self.topic, self.broker_name, self.queue_id)

    @property
    def messages(self) -> int:
        return self.last_offset - self.first_offset + 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file. `name` is relative to the archive; `staged` is where a task wrote it."""

    name: str
    file_bytes: int
    rows: int
    runs: tuple[Run, ...]
    staged: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """A batch without its files.

    `spans` has every queue ever archived: its first offset, and the one that comes next.
    """

    sequence: int
    query: str
    batch: int
    committed_ms: int
    spans: Mapping[QueueName, Span]

    @property
    def ends(self) -> dict[QueueName, int]:
        """The offset that comes next in each queue."""
        return {queue: span.end for queue, span in self.spans.items()}


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch of a query added."""

    head: Head
    files: tuple[DataFile, ...]

    @property
    def messages(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def body_bytes(self) -> int:
        return sum(run.body_bytes for file in self.files for run in file.runs)


def format_file(file: DataFile) -> bytes:
    """One line, without a line break."""
    fields = asdict(file)
    if not file.staged:
        del fields["staged"]
    return orjson.dumps(fields)


def parse_file(line: bytes | str) -> DataFile:
    """Raises: ManifestError."""
    return _file(_loads(line))


def format_batch(batch: Batch) -> bytes:
    """The text of a manifest file; each line ends with a line break."""
    head = batch.head
    first = {
        "manifest": MANIFEST_VERSION,
        "sequence": head.sequence,
        "query": head.query,
        "batch": head.batch,
        "committed_ms": head.committed_ms,
        "files": len(batch.files),
        "spans": [[*queue, *span] for queue, span in sorted(head.spans.items())],
    }
    lines = [orjson.dumps(first), *(format_file(file) for file in batch.files)]
    return b"".join(line + b"\n" for line in lines)


def parse_batches(data: bytes) -> list[Batch]:
    """The batches of one manifest file, in order.

    Raises: ManifestError for anything that `format_batch` does not write, a cut line included.
    """
    if data and not data.endswith(b"\n"):
        raise ManifestError("the last line of the manifest is cut")
    lines = data.splitlines()
    batches = []
    at = 0
    while at < len(lines):
        head, count = _head(_loads(lines[at]))
        files = tuple(map(parse_file, lines[at + 1 : at + 1 + count]))
        if len(files) != count:
            raise ManifestError(f"batch {head.sequence} has {len(files)} of its {count} files")
        batches.append(Batch(head, files))
        at += 1 + count
    return batches


def parse_last_head(data: bytes) -> Head:
    """The head of the last batch of a manifest file; the others, and the files, are not parsed.

    Raises: ManifestError.
    """
    if not data.endswith(b"\n"):
        raise ManifestError("the last line of the manifest is cut")
    end, count = len(data) - 1, 0
    while True:
        start = data.rfind(b"\n", 0, end) + 1
        fields = _loads(data[start:end])
        if "name" not in fields:
            break
        if not start:
            raise ManifestError("the manifest begins with a file")
        end, count = start - 1, count + 1
    head, files = _head(fields)
    if files != count:
        raise ManifestError(f"batch {head.sequence} has {count} of its {files} files")
    return head


def runs_of(files: Iterable[DataFile]) -> dict[QueueName, list[Run]]:
    """The runs of each queue, by their first offsets."""
    found: dict[QueueName, list[Run]] = {}
    for file in files:
        for run in file.runs:
            found.setdefault(run.queue, []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: (run.first_offset, run.last_offset))
    return found


def spans_after(spans: Mapping[QueueName, Span], files: Iterable[DataFile]) -> dict[QueueName, Span]:
    """The span of each queue after these files are added."""
    found = dict(spans)
    add_spans(found, files)
    return found


def add_spans(spans: dict[QueueName, Span], files: Iterable[DataFile]) -> None:
    """As `spans_after`, but changes `spans`."""
    for queue, runs in runs_of(files).items():
        start, end = spans.get(queue, (runs[0].first_offset, 0))
        spans[queue] = Span(start, max(end, runs[-1].last_offset + 1))


def breaks(files: Iterable[DataFile], ends: Mapping[QueueName, int]) -> list[str]:
    """A sentence for each gap and overlap of these files, and between them and the earlier `ends`."""
    found = []
    for queue, runs in sorted(runs_of(files).items()):
        end = ends.get(queue)
        for run in runs:
            if end is not None and run.first_offset > end:
                found.append(f"{queue}: offsets {end} to {run.first_offset - 1} are missing")
            elif end is not None and run.first_offset < end:
                twice = min(end - 1, run.last_offset)
                found.append(f"{queue}: offsets {run.first_offset} to {twice} are there twice")
            end = run.last_offset + 1 if end is None else max(end, run.last_offset + 1)
    return found


class ManifestCheck:
    """Checks a whole manifest, batch after batch by number. It keeps only the ends of queues and queries,
    so that any number of batches can be checked.
    """

    def __init__(self) -> None:
        self.batches = self.files = self.messages = self.body_bytes = 0
        self.spans: dict[QueueName, Span] = {}
        self._ends: dict[QueueName, int] = {}
        self._next = 0
        self._queries: dict[str, int] = {}
        """The last batch of each query."""

    def problems(self, batch: Batch) -> list[str]:
        """A sentence for everything that is wrong with the next batch."""
        head = batch.head
        found = self._number_problems(head)
        found += [problem for file in batch.files for problem in file_problems(file)]
        found += breaks(batch.files, self._ends)
        add_spans(self.spans, batch.files)
        if head.spans != self.spans:
            found.append(f"the spans that batch {head.sequence} names are not those of its files")
            self.spans = dict(head.spans)
        for run in (run for file in batch.files for run in file.runs):
            self._ends[run.queue] = max(self._ends.get(run.queue, 0), run.last_offset + 1)
        self.batches += 1
        self.files += len(batch.files)
        self.messages += batch.messages
        self.body_bytes += batch.body_bytes
        return found

    @property
    def queues(self) -> int:
        return len(self._ends)

    def _number_problems(self, head: Head) -> list[str]:
        found = []
        if head.sequence > self._next:
            missing = f"{self._next} to {head.sequence - 1}" if head.sequence > self._next + 1 else self._next
            found.append(f"the manifest has no batches of number {missing}")
        elif head.sequence < self._next:
            found.append(f"the manifest has more than one batch of number {head.sequence}")
        self._next = max(self._next, head.sequence + 1)
        last = self._queries.get(head.query, -1)
        if head.batch <= last:
            found.append(f"batch {head.batch} of query {head.query} comes behind its batch {last}")
        self._queries[head.query] = max(last, head.batch)
        return found


def problems(batches: Iterable[Batch]) -> list[str]:
    """A sentence for everything that is wrong with a whole manifest, whose batches come by number."""
    check = ManifestCheck()
    return [problem for batch in batches for problem in check.problems(batch)]


def file_problems(file: DataFile) -> list[str]:
    """Contradictions in a file's own line."""
    counted = sum(run.messages for run in file.runs)
    found = [] if counted == file.rows else [f"{file.name}: {file.rows} rows, but runs of {counted}"]
    return found + [
        f"{file.name}: {run.queue} from {run.first_offset} to {run.last_offset} is no range"
        for run in file.runs
        if not 0 <= run.first_offset <= run.last_offset
    ]


def _loads(line: bytes | str) -> dict[str, Any]:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ManifestError(f"a line of the manifest is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ManifestError("a line of the manifest is no object")
    return fields


def _head(fields: dict[str, Any]) -> tuple[Head, int]:
    if fields.get("manifest") != MANIFEST_VERSION:
        raise ManifestError(
            f"version {fields.get('manifest')!r} of the manifest, known is {MANIFEST_VERSION}"
        )
    try:
        spans = {QueueName(*line[:3]): Span(*map(int, line[3:])) for line in fields["spans"]}
        numbers = (int(fields["sequence"]), str(fields["query"]), int(fields["batch"]))
        return Head(*numbers, int(fields["committed_ms"]), spans), int(fields["files"])
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"the head of a batch is unreadable: {error!r}") from None


def _file(fields: dict[str, Any]) -> DataFile:
    try:
        runs = tuple(Run(**run) for run in fields.pop("runs"))
        return DataFile(**fields, runs=runs)
    except (KeyError, TypeError) as error:
        raise ManifestError(f"a file's line of the manifest is unreadable: {error!r}") from None
