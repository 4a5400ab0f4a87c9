"""Rows into file_slices and digests: nothing is lost, and the cut into batches does not show."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketmq_spark.jobs.archive.files import Digest, FileSlice, file_rows, file_slices, folder_of
from tests.support.message_rows import batch_of, batches_cut, row

texts = st.none() | st.text(max_size=5)
changes = st.fixed_dictionaries(
    {},
    optional={
        "keys": texts,
        "tags": texts,
        "body": st.none() | st.binary(max_size=8),
        "properties": st.none() | st.lists(st.tuples(st.text(max_size=3), texts), max_size=3),
        "flag": st.integers(-5, 5),
    },
)


def digest_of(batches: list[pa.RecordBatch]) -> str:
    digest = Digest()
    for batch in batches:
        digest.update(file_rows(batch))
    return digest.hexdigest()


def all_slices(rows: list[dict[str, Any]]) -> list[FileSlice]:
    return list(file_slices(batch_of(rows)))


@given(st.lists(changes, min_size=1, max_size=12), st.integers(1, 12))
def test_a_digest_does_not_depend_on_the_cut(fields: list[dict[str, Any]], length: int) -> None:
    rows = [row("Orders", 0, offset) | changed for offset, changed in enumerate(fields)]
    assert digest_of(batches_cut(rows, length)) == digest_of([batch_of(rows)])


@given(st.lists(changes, min_size=1, max_size=6), st.data())
def test_a_digest_depends_on_every_value(fields: list[dict[str, Any]], data: st.DataObject) -> None:
    rows = [row("Orders", 0, offset) | changed for offset, changed in enumerate(fields)]
    which = data.draw(st.integers(0, len(rows) - 1))
    other = dict(rows[which]) | data.draw(changes.filter(bool))
    if batch_of([other]) != batch_of([rows[which]]):
        assert digest_of([batch_of([*rows[:which], other, *rows[which + 1 :]])]) != digest_of(
            [batch_of(rows)]
        )


def test_a_digest_knows_bytes_that_moved_to_the_next_row() -> None:
    first = [row("Orders", 0, 0, body=b"ab"), row("Orders", 0, 1, body=b"c")]
    second = [row("Orders", 0, 0, body=b"a"), row("Orders", 0, 1, body=b"bc")]
    assert digest_of([batch_of(first)]) != digest_of([batch_of(second)])


def test_a_digest_knows_null_from_empty() -> None:
    for name, empty in (("keys", ""), ("body", b""), ("properties", [])):
        null, none = row("Orders", 0, 0) | {name: None}, row("Orders", 0, 0) | {name: empty}
        assert digest_of([batch_of([null])]) != digest_of([batch_of([none])]), name


def test_one_queue_and_hour_in_order_is_one_stretch() -> None:
    (one,) = all_slices([row("Orders", 2, offset) for offset in range(7, 27)])
    assert (one.queue, one.first_offset, one.rows.num_rows) == (("Orders", "broker-a", 2), 7, 20)
    assert one.folder == "topic=Orders/date=2026-01-31/hour=05"


@pytest.mark.parametrize(
    "second",
    [
        row("Orders", 1, 1),
        row("Returns", 0, 1),
        row("Orders", 0, 1, brokerName="broker-b"),
        row("Orders", 0, 2),
        row("Orders", 0, 0),
        row("Orders", 0, 1, minutes=60),
    ],
)
def test_another_queue_or_hour_or_a_jump_begins_a_stretch(second: dict[str, Any]) -> None:
    found = all_slices([row("Orders", 0, 0), second])
    assert [one.rows.num_rows for one in found] == [1, 1]


def test_no_rows_are_no_stretch() -> None:
    assert list(file_slices(batch_of([]))) == []


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 3)), max_size=20))
def test_stretches_are_the_rows_in_order(places: list[tuple[str, int, int]]) -> None:
    rows = [row(topic, queue, offset) for topic, queue, offset in places]
    found = all_slices(rows)
    again = [
        (one.queue.topic, one.queue.queue_id, one.first_offset + at)
        for one in found
        for at in range(one.rows.num_rows)
    ]
    assert again == places
    offsets = [offset for one in found for offset in one.rows.column("queueOffset").to_pylist()]
    assert offsets == [offset for *_, offset in places]


def test_folders_are_named_so_that_spark_reads_the_topic_back() -> None:
    assert folder_of("%RETRY%group|x-1_2", 0) == "topic=%25RETRY%25group|x-1_2/date=1970-01-01/hour=00"
