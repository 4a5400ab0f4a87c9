"""A hole in a queue is looked at again where a running broker may just have been writing it."""

from __future__ import annotations

from rocketmq_spark.jobs.audit.judgement import judge, unsettled_ranges
from rocketmq_spark.jobs.audit.model import QueueUnits, RangeResult
from rocketmq_spark.log.entries import UNKNOWN, LogRange

KEY = ("T", 1)


def result(
    place: int, *, first_absent: int = UNKNOWN, absent: int = 0, superseded: int = 0, replica: str = "n2"
) -> RangeResult:
    """The range of the offsets place*10 to place*10 + 9."""
    last_present = place * 10 + 9 if not absent else (first_absent - 1 if first_absent % 10 else UNKNOWN)
    units = QueueUnits(replica, KEY, 10 - absent, absent, first_absent, last_present, superseded)
    return RangeResult(LogRange(place, place * 1000, place * 1000 + 1000, place), queue_units=[units])


def test_a_queue_that_goes_on_behind_what_it_lacked_is_looked_at_again() -> None:
    results = [result(0), result(1, first_absent=13, absent=7), result(2)]
    assert unsettled_ranges(results) == [1]
    assert [each.kind for each in judge((), results).problems] == ["queue"]
    results[1] = result(1)
    assert unsettled_ranges(results) == []
    assert judge((), results).problems == []


def test_a_queue_that_only_ends_early_needs_no_second_look() -> None:
    results = [result(0), result(1, first_absent=13, absent=7), result(2, first_absent=20, absent=10)]
    assert unsettled_ranges(results) == []
    assert judge((), results).problems == []


def test_another_replica_or_a_later_topic_of_that_name_is_no_hole() -> None:
    assert unsettled_ranges([result(0, first_absent=3, absent=7, replica="n1"), result(1)]) == []
    assert unsettled_ranges([result(0, first_absent=3, absent=7), result(1, superseded=1)]) == []
