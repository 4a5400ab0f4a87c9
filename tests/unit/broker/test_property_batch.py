"""Messages taken by their properties: bounds of one answer, and what is left when the log fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from broker.consume.queue_reader import READ_BYTES_MAX, QueueReader, ReadLimits, ReadResult, ReadStatus
from broker.sql92.filters import SqlFilters
from commitlog.errors import DamagedRecordError, PositionError
from commitlog.record import Message, format_properties
from tests.support.fake_log import FakeLog, as_message_log
from tests.unit.broker.consume_bench import ignore, records

FILTERS = SqlFilters()
LIMITS = ReadLimits(messages_max=10, bytes_max=2_000, examined_max=20, examined_bytes_max=1_000_000)


class CountingLog(FakeLog):
    """Remembers how much each read brought; fails from a position on."""

    def __init__(self) -> None:
        super().__init__(auto_commit=False)
        self.reads: list[int] = []
        self.fails_from = 10**18
        self.failure: Exception = PositionError("gone")

    def read_many(self, units: Sequence[tuple[int, int]]) -> bytes:
        if units and units[-1][0] >= self.fails_from:
            raise self.failure
        found = super().read_many(units)
        self.reads.append(len(found))
        return found


def log_with(*values: str, body_bytes: int = 10) -> CountingLog:
    log = CountingLog()
    body = b"x" * body_bytes
    log.put([Message("t", 0, body, format_properties({"a": value})) for value in values], ignore)
    log.commit()
    return log


def read(
    log: FakeLog, offset: int = 0, limits: ReadLimits = LIMITS, bytes_max: int | None = None
) -> ReadResult:
    wanted = FILTERS.filter_for("SQL92", "a = 1")
    return QueueReader(as_message_log(log), lambda queue, offset: limits).read(
        "t", 0, offset, wanted, 32, bytes_max
    )


def offsets(result: ReadResult) -> list[int]:
    return [record.queue_offset for record in records(result.body)]


def test_number_and_bytes_bound_what_is_taken() -> None:
    log = log_with(*["1", "2"] * 15)
    assert offsets(read(log)) == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert read(log).next_offset == 19
    large = log_with(*["1", "2"] * 15, body_bytes=700)
    assert (offsets(read(large)), read(large).next_offset) == ([0, 2], 4)
    assert offsets(read(large, bytes_max=1)) == [0]


def test_a_filter_that_passes_nothing_looks_at_so_many_and_goes_on_behind_them() -> None:
    result = read(log_with(*["2"] * 50))
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 20)
    assert read(log_with(*["2"] * 50), 40).next_offset == 50


def test_it_reads_no_more_than_so_many_bytes() -> None:
    log = log_with(*["2"] * 20, body_bytes=100_000)
    result = read(log, limits=replace(LIMITS, messages_max=5, examined_max=20))
    assert result.status is ReadStatus.NO_MATCHED_MESSAGE
    assert 1_000_000 <= sum(log.reads) <= 1_000_000 + READ_BYTES_MAX
    assert max(log.reads) <= READ_BYTES_MAX
    assert result.next_offset == sum(log.reads) // 100_000


def test_a_message_larger_than_a_read_is_read_alone() -> None:
    log = log_with("2", "1", "1", body_bytes=READ_BYTES_MAX)
    result = read(log, limits=replace(LIMITS, examined_bytes_max=10**9))
    assert (offsets(result), result.next_offset) == ([1], 2)
    assert [size > READ_BYTES_MAX for size in log.reads] == [True] * 3


def test_a_file_that_just_went_is_passed_over_and_what_was_taken_before_it_comes() -> None:
    log = log_with("2", "1", "1", body_bytes=READ_BYTES_MAX)
    log.fails_from = log.fake_queues.by_key[("t", 0)].rows[2][0]
    unbounded = replace(LIMITS, bytes_max=10**9, asked_bytes_max=10**9, examined_bytes_max=10**9)
    first = read(log, limits=unbounded)
    assert (first.status, offsets(first), first.next_offset) == (ReadStatus.FOUND, [1], 2)
    second = read(log, 2, unbounded)
    assert (second.status, second.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 3)
    log.fails_from = log.fake_queues.by_key[("t", 0)].rows[1][0]
    third = read(log, 0, unbounded)
    assert (third.status, third.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 2)


def test_a_damaged_record_is_nobodys_to_pass_over() -> None:
    log = log_with("2", "1")
    log.fails_from, log.failure = 0, DamagedRecordError("broken")
    with pytest.raises(DamagedRecordError):
        read(log)


def test_holes_of_a_queue_are_passed_over() -> None:
    log = log_with("1", "1", "1")
    rows = log.fake_queues.by_key[("t", 0)].rows
    rows[1] = (rows[1][0], 0, 0)
    result = read(log)
    assert (offsets(result), result.next_offset) == ([0, 2], 3)


def test_what_is_no_record_is_not_wanted() -> None:
    log = log_with("1", "1")
    position, size, _ = log.fake_queues.by_key[("t", 0)].rows[0]
    record = bytearray(log._records[position])
    record[84:88] = (2**31 - 1).to_bytes(4, "big")
    log._records[position] = bytes(record)
    assert offsets(read(log)) == [1]
    assert size == len(record)
