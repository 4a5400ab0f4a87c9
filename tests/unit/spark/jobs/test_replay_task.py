"""What the tasks of a replay read, and when they hand it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.jobs.archive import files as archive_task
from rocketmq_spark.jobs.archive import files as parquet_batches
from rocketmq_spark.jobs.archive.files import (
    BATCH_BYTES,
    BATCH_ROWS_MAX,
    PartitionWriter,
    TaskPlan,
    batch_rows,
    batches_of,
)
from rocketmq_spark.jobs.archive.manifest import Batch, DataFile, Head
from rocketmq_spark.jobs.archive.store import ArchiveStore
from rocketmq_spark.jobs.replay.job import request_bytes_at
from rocketmq_spark.jobs.replay.plan import Slice, Window
from rocketmq_spark.jobs.replay.rate_limit import BURST_S, Rate
from rocketmq_spark.jobs.replay.task import ReplayTask, paced
from rocketmq_spark.sink.options import BATCH_BYTES as SINK_BYTES
from tests.support.message_rows import START, batch_of, batches_cut, row

QUEUE = ("Orders", "broker-a", 0)
START_MS = round(START.timestamp() * 1000)


@pytest.fixture
def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, DataFile]:
    """Two queues in one file of many row groups, a message a minute."""
    monkeypatch.setattr(archive_task, "ROW_GROUP_BYTES", 2_000)
    path = str(tmp_path / "archive")
    store = ArchiveStore(path)
    rows = [row("Orders", queue, offset, minutes=offset / 2) for queue in (0, 1) for offset in range(100)]
    with store.writing():
        writer = PartitionWriter(TaskPlan(path, store.token, 0), 0, 0)
        (file,) = writer.write(iter(batches_cut(rows, 10)))
        store.prepare(Batch(Head(0, "q", 0, 0, {}), (file,)))
        store.commit(0)
    with store.open(file.name) as data:
        assert pq.ParquetFile(data).metadata.num_row_groups > 5
    return path, file


def task_of(path: str, *parts: list[Slice], **changes: Any) -> ReplayTask:
    given: dict[str, Any] = {"archive": path, "read_topic": None, "window": Window(), "keep_queues": False}
    return ReplayTask(**given | changes, parts=parts, rates=[Rate()] * len(parts))


def bodies(batches: Iterator[pa.RecordBatch]) -> list[str]:
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]


def test_a_slice_is_read_in_order_and_nothing_else(archived: tuple[str, DataFile]) -> None:
    path, file = archived
    task = task_of(
        path, [Slice(*QUEUE, 37, 61, file.name)], [Slice("Orders", "broker-a", 1, 0, 0, file.name)]
    )
    assert bodies(task.rows(0)) == [f"message {offset} of queue 0" for offset in range(37, 62)]
    assert bodies(task.rows(1)) == ["message 0 of queue 1"]


def test_each_number_of_the_input_is_a_part(archived: tuple[str, DataFile]) -> None:
    path, file = archived
    task = task_of(path, *[[Slice(*QUEUE, at, at, file.name)] for at in range(3)])
    numbers = pa.RecordBatch.from_pydict({"id": [2]})
    assert bodies(task.run(iter([numbers]))) == ["message 2 of queue 0"]


def test_a_window_cuts_inside_of_a_file(archived: tuple[str, DataFile]) -> None:
    path, file = archived
    window = Window(START_MS + 5 * 60_000, START_MS + 7 * 60_000)
    task = task_of(path, [Slice(*QUEUE, 0, 99, file.name)], window=window, keep_queues=True)
    (batch,) = [batch for batch in task.rows(0) if batch.num_rows]
    assert batch.schema.names == ["keys", "tags", "properties", "body", "queueId"]
    assert batch.column("keys").to_pylist() == ["key-10", "key-11", "key-12", "key-13"]


def test_a_live_topic_is_read_by_its_own_reader() -> None:
    asked = []

    def read(one: Slice) -> Iterator[pa.RecordBatch]:
        asked.append(one)
        yield batch_of([row("Orders", 0, offset) for offset in range(one.first, one.last + 1)])

    task = task_of("", [Slice(*QUEUE, 4, 6)], archive=None, read_topic=read)
    assert bodies(task.rows(0)) == [f"message {offset} of queue 0" for offset in (4, 5, 6)]
    assert asked == [Slice(*QUEUE, 4, 6)]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.floats(1, 1_000))
def test_rows_are_handed_on_no_faster_than_their_rate(lengths: list[int], messages: float) -> None:
    """By a clock that only the task's own sleeping moves."""
    now_s = [50.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    offsets = iter(range(sum(lengths)))
    batches = [batch_of([row("Orders", 0, next(offsets)) for _ in range(length)]) for length in lengths]
    handed: list[tuple[float, int]] = []
    taken = 0
    for batch in paced(iter(batches), Rate(messages=messages), lambda: now_s[0], sleep):
        handed.append((now_s[0], taken))
        taken += batch.num_rows
    assert taken == sum(lengths)
    for at_s, before in handed:
        assert before / messages <= at_s - 50.0 + 1e-6
    if taken:
        assert now_s[0] - 50.0 >= (taken - max(1, messages * BURST_S)) / messages - 1e-6


def test_large_rows_are_read_few_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert batch_rows(1_000, 1_000 * 4 * 1024 * 1024) == BATCH_BYTES // (4 * 1024 * 1024)
    assert batch_rows(10, 10 * 1024**3) == 1
    assert batch_rows(1_000_000, 64_000_000) == BATCH_ROWS_MAX
    assert batch_rows(0, 0) == BATCH_ROWS_MAX
    monkeypatch.setattr(parquet_batches, "BATCH_BYTES", 1_000)
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [b"%099d" % at for at in range(100)]}), path, row_group_size=30)
    sizes = [batch.num_rows for batch in batches_of(pq.ParquetFile(path), ["a"])]
    assert sum(sizes) == 100
    assert max(sizes) <= 12


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (Rate(), None),
        (Rate(messages=1), 13),
        (Rate(messages=0.001), 1),
        (Rate(messages=10_000_000), SINK_BYTES),
        (Rate(messages=10_000, body_bytes=1_000), 100),
    ],
)
def test_requests_are_small_where_the_rate_is(rate: Rate, expected: int | None) -> None:
    assert request_bytes_at(rate) == expected
