"""Filters pushed down: they may save reading, and must never lose a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from remoting.client.routes import MessageQueue
from rocketmq_spark.source.batch_reader import Constraints, constrain, left_over

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["S", "T", "U"]),
    "brokerName": st.sampled_from(["a", "b"]),
    "queueId": st.integers(0, 4),
    "queueOffset": st.integers(0, 20),
    "storeTimestamp": st.integers(0, 20_000).map(lambda us: EPOCH + timedelta(microseconds=us)),
    "tags": st.sampled_from(["A", "B", "C"]),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[column]
    if draw(st.booleans()):
        return In((column,), tuple(draw(st.lists(values | st.none(), max_size=3))))
    return draw(st.sampled_from(KINDS))((column,), draw(values))


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    row = {column: draw(values) for column, values in VALUES.items()}
    return row | {"storeTimestamp": EPOCH + timedelta(milliseconds=draw(st.integers(0, 20)))}


def passes(item: Any, row: dict[str, Any]) -> bool:
    own, value = row[item.attribute[0]], item.value
    compare = {
        EqualTo: own.__eq__,
        GreaterThan: own.__gt__,
        GreaterThanOrEqual: own.__ge__,
        LessThan: own.__lt__,
        LessThanOrEqual: own.__le__,
        In: lambda values: own in [one for one in values if one is not None],
    }
    return bool(compare[type(item)](value))


def admitted(limits: Constraints, row: dict[str, Any]) -> bool:
    time_ms = (row["storeTimestamp"] - EPOCH) // timedelta(milliseconds=1)
    return (
        limits.admits(MessageQueue(row["topic"], row["brokerName"], row["queueId"]))
        and (limits.offset_min is None or row["queueOffset"] >= limits.offset_min)
        and (limits.offset_max is None or row["queueOffset"] <= limits.offset_max)
        and (limits.time_ms_min is None or time_ms >= limits.time_ms_min)
        and (limits.time_ms_max is None or time_ms <= limits.time_ms_max)
        and (limits.tags is None or row["tags"] in limits.tags)
    )


@given(st.lists(filters(), max_size=4), rows())
def test_no_row_that_passes_is_left_out(items: list[Filter], row: dict[str, Any]) -> None:
    if all(passes(item, row) for item in items):
        assert admitted(constrain(items), row)


@given(st.lists(filters(), max_size=4), rows())
def test_what_is_not_handed_back_to_spark_is_kept_to_the_row(
    items: list[Filter], row: dict[str, Any]
) -> None:
    left = left_over(items)
    if admitted(constrain(items), row) and all(passes(item, row) for item in left):
        assert all(passes(item, row) for item in items)


def test_times_and_what_saves_nothing_are_handed_back() -> None:
    kept: list[Filter] = [
        EqualTo(("tags",), "A"),
        In(("topic",), ("S", None)),
        LessThan(("queueOffset",), 5),
        In(("queueOffset",), (5, 5)),
    ]
    back: list[Filter] = [
        GreaterThan(("storeTimestamp",), EPOCH),
        In(("queueOffset",), (5, 7)),
        LessThan(("tags",), "A"),
        IsNotNull(("tags",)),
        Not(EqualTo(("tags",), "A")),
        EqualTo(("queueId",), None),
    ]
    assert left_over([*kept, *back]) == back


def test_bounds_are_taken_together() -> None:
    limits = constrain(
        [
            GreaterThanOrEqual(("queueOffset",), 5),
            GreaterThan(("queueOffset",), 7),
            LessThan(("queueOffset",), 9),
            In(("tags",), ("A", "B")),
            EqualTo(("tags",), "B"),
            EqualTo(("storeTimestamp",), EPOCH + timedelta(seconds=3)),
        ]
    )
    assert limits == Constraints((), 8, 8, 3_000, 3_000, frozenset({"B"}))


def test_queues_are_chosen() -> None:
    limits = constrain(
        [In(("queueId",), (1, 2)), GreaterThan(("topic",), "S"), EqualTo(("brokerName",), "a")]
    )
    queues = [MessageQueue(topic, broker, n) for topic in "ST" for broker in "ab" for n in range(4)]
    assert [queue for queue in queues if limits.admits(queue)] == [
        MessageQueue("T", "a", 1),
        MessageQueue("T", "a", 2),
    ]


def test_what_saves_nothing_is_passed_over() -> None:
    items: list[Filter] = [
        IsNotNull(("tags",)),
        Not(EqualTo(("tags",), "A")),
        StringStartsWith(("topic",), "T"),
        GreaterThan(("body",), b"x"),
        GreaterThan(("tags",), "A"),
        EqualTo(("properties", "x"), "y"),
        EqualTo(("queueId",), None),
        EqualTo(("storeTimestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone
    ]
    assert constrain(items) == Constraints()
