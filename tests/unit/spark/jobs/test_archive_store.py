"""An archive's folder: a batch is in it whole or not at all, wherever its writer dies."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from rocketmq_spark.errors import ArchiveError, ManifestError
from rocketmq_spark.jobs.archive import store as archive_store
from rocketmq_spark.jobs.archive.files import OPEN_FILES_MAX, PartitionWriter, TaskPlan
from rocketmq_spark.jobs.archive.manifest import Batch, DataFile, Head, problems, spans_after
from rocketmq_spark.jobs.archive.store import NO_BATCH, ArchiveStore
from rocketmq_spark.jobs.archive.verify import check_file
from tests.support.message_rows import batches_cut, row


class Killed(BaseException):
    """Stands for the end of the process."""


def write_rows(store: ArchiveStore, sequence: int, rows: Sequence[dict[str, Any]], cut: int = 7) -> Batch:
    """What a task and the driver make of the rows, not yet in the archive."""
    writer = PartitionWriter(TaskPlan(store.path, store.token, sequence), task=3, attempt=5)
    files = tuple(writer.write(iter(batches_cut(rows, cut))))
    head = Head(sequence, "query", sequence, 0, spans_after(store.last().spans, files))
    return Batch(head, files)


def add(store: ArchiveStore, sequence: int, rows: Sequence[dict[str, Any]]) -> Batch:
    batch = write_rows(store, sequence, rows)
    store.prepare(batch)
    store.commit(sequence)
    return batch


def rows_of(first: int, count: int, queue: int = 0, minutes: float = 0.0) -> list[dict[str, Any]]:
    return [row("Orders", queue, first + at, minutes=minutes) for at in range(count)]


def assert_whole(store: ArchiveStore) -> list[DataFile]:
    batches = list(store.batches())
    files = [file for batch in batches for file in batch.files]
    assert problems(batches) == []
    assert [problem for file in files for problem in check_file(store, file)] == []
    assert store.data_files() == {file.name for file in files}
    return files


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(str(tmp_path / "archive"))


def test_rows_come_back_as_they_were(store: ArchiveStore) -> None:
    rows = [row("Orders", 0, 0, keys=None, properties=None), *rows_of(1, 29), *rows_of(100, 5, queue=1)]
    with store.writing():
        add(store, 0, rows)
    (file,) = assert_whole(store)
    assert [(run.queue.queue_id, run.first_offset, run.last_offset) for run in file.runs] == [
        (0, 0, 29),
        (1, 100, 104),
    ]
    assert sum(run.body_bytes for run in file.runs) == sum(len(one["body"]) for one in rows)
    table = pq.read_table(store.full(file.name), partitioning=None)
    assert table.to_pylist() == [{name: one[name] for name in table.column_names} for one in rows]


def test_each_hour_has_its_folder_even_when_the_clock_goes_back(store: ArchiveStore) -> None:
    times = [0, 59, 61, 58, 62, 125]
    with store.writing():
        add(store, 0, [row("Orders", 0, offset, minutes=at) for offset, at in enumerate(times)])
    files = {file.name.split("/")[2]: file for file in assert_whole(store)}
    offsets = {
        hour: [(run.first_offset, run.last_offset) for run in file.runs] for hour, file in files.items()
    }
    assert offsets == {"hour=05": [(0, 1), (3, 3)], "hour=06": [(2, 2), (4, 4)], "hour=07": [(5, 5)]}


def test_a_task_keeps_few_files_open_however_many_hours_it_reads(store: ArchiveStore) -> None:
    hours = OPEN_FILES_MAX * 3
    with store.writing():
        add(store, 0, [row("Orders", 0, hour, minutes=60 * hour) for hour in range(hours)])
    assert len(assert_whole(store)) == hours


def test_a_failing_task_leaves_nothing_that_a_reader_sees(store: ArchiveStore) -> None:
    writer = PartitionWriter(TaskPlan(store.path, store.token, 0), task=0, attempt=0)

    def failing() -> Any:
        yield from batches_cut(rows_of(0, 5), 5)
        raise OSError("the source failed")

    with store.writing():
        with pytest.raises(OSError, match="the source failed"):
            list(writer.write(failing()))
        assert store.data_files() == set()
    with store.writing():
        assert not Path(store.full("_staging")).exists()


MOMENTS = (
    *("before the plan", "before a move", "after the moves", "after the commit", "before the fold"),
    *("within a move", "within the commit", "within the fold", "between the fold's removals"),
)
"""The second line's are of file systems that rename by a copy and a removal."""


@pytest.fixture(params=["local", "object store"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    """`memory://` renames as object stores do."""
    return ArchiveStore(str(tmp_path / "a") if request.param == "local" else f"memory://{uuid4().hex}")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_driver_that_dies_leaves_a_batch_whole_or_not_at_all(
    any_store: ArchiveStore, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    if moment.startswith("within") and any_store.is_local:
        pytest.skip("a local rename has no middle")
    monkeypatch.setattr(archive_store, "BATCHES_FOLDED", 2)
    with any_store.writing():
        add(any_store, 0, rows_of(0, 10))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        add_and_die(
            ArchiveStore(any_store.path), [*rows_of(10, 5), *rows_of(15, 5, minutes=60)], moment, patch
        )
    again = ArchiveStore(any_store.path)
    with again.writing():
        assert_whole(again)
        assert not again._fs.exists(again.full("_manifest/_pending.jsonl"))
        assert again.last().sequence == (1 if "fold" in moment or "commit" in moment else 0)
        if again.last().sequence == 0:
            add(again, 1, rows_of(10, 10))
        add(again, 2, rows_of(20, 1))
        add(again, 3, rows_of(21, 1))
    assert sum(file.rows for file in assert_whole(again)) == 22


def add_and_die(
    store: ArchiveStore, rows: list[dict[str, Any]], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.writing():
        batch = write_rows(store, 1, rows)
        die_at(moment, store, monkeypatch)
        store.prepare(batch)
        store.commit(1)
        raise Killed


def die(*_: Any, **__: Any) -> None:
    raise Killed


DYING_REMOVALS = {
    "within a move": ("_staging", 0),
    "within the commit": ("_pending", 0),
    "within the fold": ("_folding", 0),
    "between the fold's removals": ("_manifest/0000000", 1),
}
"""The removals that the driver does not live to see: a part of the name, and how many of them it does."""


def die_at(moment: str, store: ArchiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = store._fs
    if moment == "before the plan":
        monkeypatch.setattr(store, "_put", die)
    elif moment == "before a move":
        move = fs.mv
        moves: list[str] = []

        def move_once(old: str, new: str) -> None:
            if moves:
                die()
            moves.append(new)
            move(old, new)

        monkeypatch.setattr(fs, "mv", move_once)
    elif moment == "after the moves":
        monkeypatch.setattr(store, "commit", die)
    elif moment == "before the fold":
        monkeypatch.setattr(store, "_fold", die)
    elif moment in DYING_REMOVALS:
        part, left = DYING_REMOVALS[moment]
        removals: list[str] = []
        remove = fs.rm

        def remove_some(path: str, *rest: Any, **more: Any) -> None:
            if part in path:
                removals.append(path)
                if len(removals) > left:
                    die()
            remove(path, *rest, **more)

        monkeypatch.setattr(fs, "rm", remove_some)


def test_a_staged_file_of_another_size_is_not_taken(store: ArchiveStore) -> None:
    with store.writing():
        batch = write_rows(store, 0, rows_of(0, 10))
        with Path(store.full(batch.files[0].staged)).open("ab") as file:
            file.write(b"x")
        with pytest.raises(ArchiveError, match="its task wrote"):
            store.prepare(batch)
        assert store.data_files() == set()


def test_a_batch_that_somebody_else_has_committed_is_kept(store: ArchiveStore) -> None:
    with store.writing():
        batch = write_rows(store, 0, rows_of(0, 10))
        store.prepare(batch)
    asked: list[int] = []

    def is_committed(pending: Batch) -> bool:
        asked.append(pending.head.sequence)
        return True

    with ArchiveStore(store.path).writing(is_committed):
        pass
    assert asked == [0]
    assert sum(file.rows for file in assert_whole(store)) == 10


def test_a_note_that_outlives_its_commit_takes_nothing_back() -> None:
    """An object store renames by a copy and a removal, and the job may be killed in between."""
    store = ArchiveStore(f"memory://{uuid4().hex}")
    fs = store._fs
    with store.writing():
        store.prepare(write_rows(store, 0, rows_of(0, 10)))
        fs.cp_file(store.full("_manifest/_pending.jsonl"), store.full("_manifest/00000000.jsonl"))
    with ArchiveStore(store.path).writing():
        assert not fs.exists(store.full("_manifest/_pending.jsonl"))
    (batch,) = store.batches()
    assert store.data_files() == {file.name for file in batch.files}


def test_a_late_attempt_of_a_task_writes_into_no_committed_file(store: ArchiveStore) -> None:
    """Spark takes an executor for lost that lives on: its attempt has a file open all through the batch."""

    def while_another_is_committed() -> Any:
        first, second = batches_cut(rows_of(0, 10), 5)
        yield first
        store.prepare(write_rows(store, 0, rows_of(0, 10)))
        store.commit(0)
        yield second

    with store.writing():
        plan = TaskPlan(store.path, store.token, 0)
        (unused,) = PartitionWriter(plan, task=3, attempt=4).write(while_another_is_committed())
        assert unused.rows == 10
        store.clear_staging()
    assert sum(file.rows for file in assert_whole(store)) == 10


def test_only_one_process_writes(store: ArchiveStore) -> None:
    second = ArchiveStore(store.path)
    with store.writing(), pytest.raises(ArchiveError, match="another process is writing"), second.writing():
        pass
    with ArchiveStore(store.path).writing():
        pass


def test_many_manifest_files_are_folded_into_one(
    store: ArchiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_store, "BATCHES_FOLDED", 4)
    with store.writing():
        for sequence in range(10):
            add(store, sequence, rows_of(sequence * 3, 3))
    names = sorted(path.name for path in Path(store.full("_manifest")).glob("*.jsonl"))
    assert names == [
        "00000000-00000003.jsonl",
        "00000004-00000007.jsonl",
        "00000008.jsonl",
        "00000009.jsonl",
    ]
    assert [batch.head.sequence for batch in store.batches()] == list(range(10))
    assert_whole(store)


def test_singles_beside_their_folded_file_are_passed_over(store: ArchiveStore) -> None:
    with store.writing():
        for sequence in range(2):
            add(store, sequence, rows_of(sequence * 3, 3))
    folder = Path(store.full("_manifest"))
    both = b"".join((folder / f"{number:08d}.jsonl").read_bytes() for number in range(2))
    (folder / "00000000-00000001.jsonl").write_bytes(both)
    assert store.last().sequence == 1
    assert_whole(store)


def test_an_unreadable_manifest_is_named(store: ArchiveStore) -> None:
    with store.writing():
        add(store, 0, rows_of(0, 3))
    Path(store.full("_manifest/00000000.jsonl")).write_bytes(b"{}\n")
    with pytest.raises(ManifestError, match=r"_manifest/00000000\.jsonl: version None"):
        store.last()


def test_a_new_archive_is_empty(store: ArchiveStore) -> None:
    assert store.last() is NO_BATCH
    assert not store.has_manifest()
    assert list(store.batches()) == []


def test_an_unknown_place_is_named() -> None:
    with pytest.raises(ArchiveError, match="nosuch://bucket/x is not reachable"):
        ArchiveStore("nosuch://bucket/x")


@pytest.fixture
def archived(store: ArchiveStore) -> tuple[ArchiveStore, DataFile]:
    with store.writing():
        batch = add(store, 0, rows_of(0, 50))
    return store, batch.files[0]


def test_a_changed_row_is_found(archived: tuple[ArchiveStore, DataFile]) -> None:
    store, file = archived
    path = store.full(file.name)
    table = pq.read_table(path, partitioning=None)
    bodies = table.column("body").to_pylist()
    bodies[31] = b"message 31 of queue 1"
    at = table.column_names.index("body")
    pq.write_table(table.set_column(at, table.schema.field(at), [bodies]), path)
    (problem,) = check_file(store, file)
    assert "Orders/broker-a:0 from 0: the manifest says 50 messages" in problem


def test_a_lost_row_is_found(archived: tuple[ArchiveStore, DataFile]) -> None:
    store, file = archived
    path = store.full(file.name)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.slice(0, 49), path)
    (problem,) = check_file(store, file)
    assert "the file has 49 messages" in problem


def test_a_lost_and_a_damaged_file_are_found(archived: tuple[ArchiveStore, DataFile]) -> None:
    store, file = archived
    path = Path(store.full(file.name))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert "cannot be read" in check_file(store, file)[0]
    path.unlink()
    assert "FileNotFoundError" in check_file(store, file)[0]


def test_a_file_of_another_topic_or_hour_is_found(archived: tuple[ArchiveStore, DataFile]) -> None:
    store, file = archived
    name = file.name.replace("hour=05", "hour=06")
    Path(store.full(name)).parent.mkdir()
    Path(store.full(file.name)).rename(store.full(name))
    (problem,) = check_file(store, replace(file, name=name))
    assert "a message of topic=Orders/date=2026-01-31/hour=05 is in it" in problem


def test_the_lock_goes_with_its_process(store: ArchiveStore) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    writer = context.Process(target=hold, args=(store.path, ready))
    writer.start()
    try:
        assert ready.wait(10)
        with pytest.raises(ArchiveError), store.writing():
            pass
    finally:
        writer.kill()
        writer.join()
    with store.writing():
        pass


def hold(path: str, ready: Any) -> None:
    with ArchiveStore(path).writing():
        ready.set()
        multiprocessing.Event().wait()
