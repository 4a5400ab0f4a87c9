"""What a query's filters say about the rows it wants. Only used to leave out what surely fails them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from rocketmq_spark.log.rows import Rows
from rocketmq_spark.log.stretch import UNKNOWN, LogRange


@dataclass(frozen=True, slots=True)
class Wanted:
    """None: all. Bounds are inclusive."""

    topics: frozenset[str] | None = None
    position_min: int | None = None
    position_max: int | None = None
    index_min: int | None = None
    index_max: int | None = None

    @classmethod
    def by(cls, filters: Iterable[Filter]) -> "Wanted":
        """What all of the filters together leave."""
        topics: frozenset[str] | None = None
        bounds: dict[str, int] = {}
        for each in filters:
            column, values = _column(each), _values(each)
            if column == "topic" and isinstance(each, EqualTo | In):
                named = frozenset(str(value) for value in values)
                topics = named if topics is None else topics & named
            elif column in ("position", "index") and all(isinstance(value, int) for value in values):
                _narrow(bounds, column, each, values)
        return cls(topics, **bounds)

    def may_hold(self, wanted: LogRange) -> bool:
        """Whether a range can hold a row that passes; damage in it counts, too."""
        if self.position_min is not None and wanted.end_position <= self.position_min:
            return False
        if self.position_max is not None and wanted.first_position > self.position_max:
            return False
        last, first = wanted.last_index, wanted.first_index
        if self.index_min is not None and last != UNKNOWN and last < self.index_min:
            return False
        return self.index_max is None or first == UNKNOWN or first <= self.index_max

    def of(self, rows: Rows) -> Rows:
        """The rows of these topics."""
        if self.topics is None or not len(rows):
            return rows
        is_in = pc.is_in(rows.topics.dictionary, pa.array(sorted(self.topics), pa.string()))
        return rows.choose(np.asarray(is_in, np.bool_)[rows.topics.indices.to_numpy()])


def _column(each: Filter) -> str | None:
    attribute: tuple[str, ...] = getattr(each, "attribute", ())
    return attribute[0] if len(attribute) == 1 else None


def _values(each: Filter) -> tuple[Any, ...]:
    value = getattr(each, "value", None)
    return value if isinstance(value, tuple) else (value,)


def _narrow(bounds: dict[str, int], column: str, each: Filter, values: Sequence[int]) -> None:
    if isinstance(each, EqualTo | In | GreaterThanOrEqual | GreaterThan) and values:
        low = min(values) + isinstance(each, GreaterThan)
        bounds[f"{column}_min"] = max(bounds.get(f"{column}_min", low), low)
    if isinstance(each, EqualTo | In | LessThanOrEqual | LessThan) and values:
        high = max(values) - isinstance(each, LessThan)
        bounds[f"{column}_max"] = min(bounds.get(f"{column}_max", high), high)
