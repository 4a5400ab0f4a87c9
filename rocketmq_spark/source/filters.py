"""Filters of a batch query that can save reading. Pure.

Those that hold for every row which is read are not handed back to Spark: its EXPLAIN names them as pushed
down. All others Spark applies again, so that for these reading only has to leave out nothing that they let
pass.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeGuard

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rocketmq_spark.client.queues import MessageQueue

KnownFilter: TypeAlias = EqualTo | GreaterThan | GreaterThanOrEqual | In | LessThan | LessThanOrEqual
_KINDS = (EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
_QUEUE_COLUMNS: Final[dict[str, Callable[[MessageQueue], Any]]] = {
    "topic": operator.attrgetter("topic"),
    "brokerName": operator.attrgetter("broker_name"),
    "queueId": operator.attrgetter("queue_id"),
}


@dataclass(frozen=True, slots=True)
class QueueCheck:
    """A condition on a column that is the same for a whole queue. `kind` is a comparison or In."""

    column: str
    kind: type[Filter]
    value: Any

    def holds(self, queue: MessageQueue) -> bool:
        own = _QUEUE_COLUMNS[self.column](queue)
        if self.kind is In:
            return own in self.value
        return _COMPARISONS[self.kind](own, self.value)


@dataclass(frozen=True, slots=True)
class Constraints:
    """What the filters of a query demand together; None is no demand. Bounds are included.

    times are store times in milliseconds. tags: only messages with one of these.
    """

    queue_checks: tuple[QueueCheck, ...] = ()
    offset_min: int | None = None
    offset_max: int | None = None
    time_ms_min: int | None = None
    time_ms_max: int | None = None
    tags: frozenset[str] | None = None

    def admits(self, queue: MessageQueue) -> bool:
        """Whether the queue can hold a message that the filters let pass."""
        return all(check.holds(queue) for check in self.queue_checks)


def constrain(filters: Iterable[Filter]) -> Constraints:
    """What these filters, all of them to hold, demand; those that save no reading are passed over."""
    found = Constraints()
    for item in filters:
        found = _narrowed(found, item)
    return found


def left_over(filters: Iterable[Filter]) -> list[Filter]:
    """Those of the filters that a row may still fail which fits what `constrain` demands."""
    return [item for item in filters if not _is_kept_wholly(item)]


def _is_kept_wholly(item: Filter) -> bool:
    if not _is_known(item):
        return False
    (column,) = item.attribute
    if column == "queueOffset":
        return not isinstance(item, In) or len(set(item.value)) == 1
    return column in _QUEUE_COLUMNS or (column == "tags" and isinstance(item, (EqualTo, In)))


def _is_known(item: Filter) -> TypeGuard[KnownFilter]:
    return isinstance(item, _KINDS) and len(item.attribute) == 1 and item.value is not None


def _narrowed(found: Constraints, item: Filter) -> Constraints:
    if not _is_known(item):
        return found
    column, kind = item.attribute[0], type(item)
    values = tuple(one for one in item.value if one is not None) if isinstance(item, In) else (item.value,)
    if column in _QUEUE_COLUMNS:
        value = values if kind is In else item.value
        return replace(found, queue_checks=(*found.queue_checks, QueueCheck(column, kind, value)))
    if column == "tags" and kind in (EqualTo, In):
        tags = frozenset(values)
        return replace(found, tags=tags if found.tags is None else found.tags & tags)
    if column == "queueOffset":
        low, high = _range(kind, values)
        low = low + 1 if kind is GreaterThan and low is not None else low
        high = high - 1 if kind is LessThan and high is not None else high
        return replace(
            found,
            offset_min=_tighter(max, found.offset_min, low),
            offset_max=_tighter(min, found.offset_max, high),
        )
    if column == "storeTimestamp" and all(isinstance(one, datetime) and one.tzinfo for one in values):
        # What a timestamp without a zone means would depend on the session.
        low, high = _range(kind, [(one - _EPOCH) // _MILLISECOND for one in values])
        return replace(
            found,
            time_ms_min=_tighter(max, found.time_ms_min, low),
            time_ms_max=_tighter(min, found.time_ms_max, high),
        )
    return found


def _range(kind: type[Filter], values: Sequence[int]) -> tuple[int | None, int | None]:
    """The least and the greatest number that may pass, a bound itself included."""
    if not values:
        return 0, -1  # an IN without values: nothing passes
    low = None if kind in (LessThan, LessThanOrEqual) else min(values)
    high = None if kind in (GreaterThan, GreaterThanOrEqual) else max(values)
    return low, high


def _tighter(choose: Callable[[int, int], int], known: int | None, more: int | None) -> int | None:
    if known is None or more is None:
        return more if known is None else known
    return choose(known, more)
