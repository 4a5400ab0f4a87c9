"""An archive as a Delta table: every batch one transaction, once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rocketmq_spark.errors import ArchiveError, SetupError
from rocketmq_spark.jobs.archive import delta_log
from rocketmq_spark.jobs.archive.delta_log import DeltaLog
from rocketmq_spark.jobs.archive.files import PartitionWriter, TaskPlan
from rocketmq_spark.jobs.archive.manifest import Batch, Head, spans_after
from rocketmq_spark.jobs.archive.store import ArchiveStore
from tests.support.message_rows import batches_cut, row


def prepared(store: ArchiveStore, sequence: int, rows: Sequence[dict[str, Any]]) -> Batch:
    writer = PartitionWriter(TaskPlan(store.path, store.token, sequence), task=0, attempt=0)
    files = tuple(writer.write(iter(batches_cut(rows, 10))))
    batch = Batch(Head(sequence, "query", sequence, 0, spans_after(store.last().spans, files)), files)
    store.prepare(batch)
    return batch


def offsets_in(store: ArchiveStore) -> list[int]:
    from deltalake import DeltaTable

    table = DeltaTable(store.root).to_pyarrow_table(columns=["topic", "hour", "queueOffset", "body"])
    assert set(table.column("topic").to_pylist()) == {"%RETRY%g"}
    return sorted(table.column("queueOffset").to_pylist())


def rows_of(first: int, count: int) -> list[dict[str, Any]]:
    return [row("%RETRY%g", 0, first + at, minutes=30 * at) for at in range(count)]


@pytest.fixture
def store(tmp_path: Path) -> ArchiveStore:
    return ArchiveStore(str(tmp_path / "archive"))


def test_batches_become_transactions(store: ArchiveStore) -> None:
    log = DeltaLog(store)
    with store.writing(log.holds):
        for sequence in range(3):
            batch = prepared(store, sequence, rows_of(4 * sequence, 4))
            log.commit(batch)
            log.commit(batch)
            store.commit(sequence)
    assert offsets_in(store) == list(range(12))
    assert DeltaLog(store).holds(batch)


def test_a_run_that_died_behind_the_transaction_has_committed(store: ArchiveStore) -> None:
    log = DeltaLog(store)
    with store.writing(log.holds):
        log.commit(prepared(store, 0, rows_of(0, 4)))
    again = ArchiveStore(store.path)
    with again.writing(DeltaLog(again).holds):
        assert again.last().sequence == 0
    assert offsets_in(again) == [0, 1, 2, 3]


def test_a_run_that_died_before_the_transaction_has_not(store: ArchiveStore) -> None:
    log = DeltaLog(store)
    with store.writing(log.holds):
        log.commit(prepared(store, 0, rows_of(0, 4)))
        store.commit(0)
        prepared(store, 1, rows_of(4, 4))
    again = ArchiveStore(store.path)
    log = DeltaLog(again)
    with again.writing(log.holds):
        assert again.last().sequence == 0
        log.commit(prepared(again, 1, rows_of(4, 2)))
        again.commit(1)
    assert offsets_in(again) == [0, 1, 2, 3, 4, 5]


def test_a_plain_archive_does_not_become_a_table_in_the_middle(store: ArchiveStore) -> None:
    with store.writing():
        prepared(store, 0, rows_of(0, 1))
        store.commit(0)
    with pytest.raises(ArchiveError, match="was begun as plain Parquet"):
        DeltaLog(store)


def test_a_missing_package_is_named(store: ArchiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"pip install 'ledgermq\[delta\]'"):
        DeltaLog(store)
