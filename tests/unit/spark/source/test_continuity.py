"""Messages that a node passes over, told from offsets that no message has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from remoting.command import RemotingCommand
from rocketmq_spark.client.buffer_pool import BufferPool
from rocketmq_spark.client.pulling import BYTES_MAX, Pulled, QueueRange, RangeReader, ReadSettings
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.options import ConnectionOptions
from rocketmq_spark.schemas import FULL_SCHEMA
from rocketmq_spark.source.reading import Gathered, RangeTask, gaps, gathered, require_continuous
from rocketmq_spark.source.rows import RowFormat
from tests.unit.spark.client.fake_broker import QUEUE, FakeBroker, FakeCluster

SCHEMA = to_arrow_schema(StructType([FULL_SCHEMA["queueOffset"]]), timezone="UTC")


class Skipping(FakeBroker):
    """Leaves a message out of every answer that is of more than one offset."""

    skipped = 7
    is_wide = False

    def record(self, offset: int) -> bytes | None:
        return None if offset == self.skipped and self.is_wide else super().record(offset)

    def answer(self, request: RemotingCommand, fault: str) -> RemotingCommand:
        self.is_wide = request.ext_fields.get("maxMsgNums") != "1"
        return super().answer(request, fault)


def rows_of(broker: FakeBroker, start: int, stop: int) -> list[int]:
    """What a task makes of the broker's answers."""
    cluster, wanted = FakeCluster(broker), QueueRange(QUEUE, start, stop)
    task = RangeTask(ConnectionOptions("fake:1"), ReadSettings(), RowFormat(SCHEMA))

    def batches() -> Iterator[pa.RecordBatch]:
        for pulled in gathered(RangeReader(cluster, wanted, task.settings).answers(), BYTES_MAX):
            yield from task._batches(cluster, wanted, pulled, BufferPool(2))

    return [offset for batch in batches() for offset in batch.column(0).to_pylist()]


def test_a_message_that_a_node_passed_over_is_an_error() -> None:
    broker = Skipping([b"%d" % number for number in range(40)], language="PYTHON")
    with pytest.raises(CorruptDataError, match="an answer left out offset 7, which has a message"):
        rows_of(broker, 0, 40)


def test_offsets_that_no_message_has_are_none() -> None:
    bodies = [None, b"1", None, *[b"x"] * 40, None, None, b"y", None]
    expected = [offset for offset, body in enumerate(bodies) if body is not None]
    assert rows_of(FakeBroker(bodies, count_max=8), 0, len(bodies)) == expected


def test_what_retention_takes_meanwhile_is_not_held_against_a_node() -> None:
    broker = FakeBroker([b"x"] * 10, min_offset=5)
    require_continuous(FakeCluster(broker), QueueRange(QUEUE, 2, 10), np.array([6, 7, 8, 9]))


@given(st.sets(st.integers(0, 40)), st.integers(0, 20), st.integers(20, 41))
def test_gaps_are_what_is_missing(offsets: set[int], start: int, stop: int) -> None:
    inside = np.array(sorted(offset for offset in offsets if start <= offset < stop), np.int64)
    found = gaps(QueueRange(QUEUE, start, stop), inside)
    missing = [offset for gap in found for offset in range(gap.start, gap.stop)]
    assert missing == [offset for offset in range(start, stop) if offset not in offsets]


@pytest.mark.parametrize("offsets", [[3, 5, 4], [3, 3], [2, 3], [9, 10]])
def test_offsets_out_of_order_or_place_are_an_error(offsets: list[int]) -> None:
    with pytest.raises(CorruptDataError, match="in an answer for offsets 3 to 9"):
        gaps(QueueRange(QUEUE, 3, 10), np.array(offsets))


def test_answers_are_gathered_as_far_as_they_follow_each_other() -> None:
    answers = [Pulled(b"a", 0, 2, True), Pulled(b"b", 2, 3, True), Pulled(b"c", 5, 6, True)]
    joined = [Gathered((b"a", b"b"), 0, 3, True), Gathered((b"c",), 5, 6, True)]
    assert list(gathered(iter(answers), 10)) == joined
    assert [one.pieces for one in gathered(iter(answers), 1)] == [(b"a",), (b"b",), (b"c",)]
    mixed = [Pulled(b"a", 0, 2, True), Pulled(b"b", 2, 3, False)]
    assert list(gathered(iter(mixed), 10)) == [Gathered((b"a", b"b"), 0, 3, False)]
