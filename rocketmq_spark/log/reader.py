"""The batch reader of `rocketmq-log`: plans ranges of logs, and turns each into Arrow batches.

A query's filters are used only to leave out rows that surely fail them; Spark applies all of them again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from rocketmq_spark.errors import DataLossError, OptionError
from rocketmq_spark.log.discovery import Log, NoLogError, find_logs
from rocketmq_spark.log.entries import UNKNOWN, Damage, EntryBlock, LogRange
from rocketmq_spark.log.options import parse_log_options
from rocketmq_spark.log.planning import plan_ranges
from rocketmq_spark.log.rows import RowContext, Rows, damage_batch, record_faults
from rocketmq_spark.log.walk import EntryWalk, RecordWalk, Walk
from rocketmq_spark.schemas import check_columns


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the filters of a query leave; None means all. Bounds are inclusive."""

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


@dataclass
class LogPartition(InputPartition):
    """One range of one log, for one task."""

    log: Log
    range: LogRange


def walk_of(log: Log, wanted: LogRange) -> Walk:
    """The walk that fits the log's format."""
    return EntryWalk(log, wanted) if log.kind == "dledger" else RecordWalk(log, wanted)


class RocketmqLogReader(DataSourceReader):
    """Reads what is committed, unless an option says otherwise."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError."""
        self._options = parse_log_options(options)
        check_columns(schema, self._options.view)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._wanted = Wanted()

    def partitions(self) -> list[LogPartition]:
        """Raises OptionError when a path holds no log that can be read."""
        options = self._options
        try:
            logs = [
                log
                for path in options.paths
                for log in find_logs(path, options.format, options.storage_options or {})
            ]
            planned = [
                LogPartition(log, each)
                for log in logs
                for each in plan_ranges(
                    log,
                    options.split_bytes,
                    -(-options.partitions_min // len(logs)),
                    options.include_uncommitted,
                )
                if self._wanted.may_hold(each)
            ]
        except NoLogError as error:
            raise OptionError(str(error)) from None
        for log in logs:
            log.storage.close()
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in its order. Raises DataLossError with corrupt=fail."""
        assert isinstance(partition, LogPartition), partition
        log = partition.log
        context = RowContext(
            log.name, self._options.broker_name, self._options.include_headers, self._options.decompress
        )
        try:
            for found in walk_of(log, partition.range):
                if isinstance(found, Damage):
                    yield from self._damages(context, [found])
                else:
                    yield from self._rows(context, found)
        finally:
            log.storage.close()

    def _rows(self, context: RowContext, block: EntryBlock) -> Iterator[pa.RecordBatch]:
        rows = Rows(context, block)
        faults = record_faults(rows, block)
        if faults:
            is_whole = np.ones(len(block), np.bool_)
            is_whole[list(faults)] = False
            rows = rows.choose(is_whole)
        if self._options.view == "messages" and not self._options.include_system:
            rows = rows.choose(~rows.is_system)
        damages = list(faults.values())
        for found in self._wanted.of(rows).batches(self._schema):
            if isinstance(found, Damage):
                damages.append(found)
            else:
                yield found
        yield from self._damages(context, damages)

    def _damages(self, context: RowContext, damages: list[Damage]) -> Iterator[pa.RecordBatch]:
        if not damages or self._options.corrupt == "skip":
            return
        real = [each for each in damages if each.status != "torn"]
        if self._options.corrupt == "fail":
            if real:
                raise DataLossError(_sentence(context.store, real[0]))
            return
        yield damage_batch(context, damages, self._schema)


class RocketmqLogPushdownReader(RocketmqLogReader):
    """Leaves out rows that fail the query's filters. Only for a DataFrame that is used in one query, as
    `RocketmqPushdownReader` of the format `rocketmq`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Spark applies all filters again: only rows that surely fail them are left out here."""
        self._wanted = Wanted.by(filters)
        return filters


def make_reader(options: Mapping[str, str], schema: StructType) -> RocketmqLogReader:
    """The reader that the options ask for. Raises OptionError."""
    reader = RocketmqLogPushdownReader if parse_log_options(options).push_filters else RocketmqLogReader
    return reader(options, schema)


def _sentence(store: str, damage: Damage) -> str:
    entries = ""
    if damage.first_index >= 0:
        entries = f", entries {damage.first_index} to {damage.last_index}"
    return (
        f"{store}: {damage.status} from position {damage.position} on, {damage.length} bytes{entries}: "
        f"{damage.error}. With corrupt=rows damage is returned as rows, with corrupt=skip it is left out."
    )
