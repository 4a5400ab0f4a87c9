"""Consumer lag of a streaming query, from the progress that Spark reports. Pure.

For every source Spark reports `endOffset`, where the last batch ended, and `latestOffset`, where the queues
ended at the last check. The difference is the lag.
"""

import json
from collections.abc import Mapping
from typing import Any

from rocketmq_spark.source.offsets import OffsetJson, from_json, to_json


def lag_by_queue(progress: Any) -> OffsetJson:
    """How many messages of each queue wait, in the form of an offset: `{"Orders": {"broker-a:0": 12}}`.

    progress: `query.lastProgress`, or the progress that a listener gets. Other formats are skipped.
    """
    lag: OffsetJson = {}
    for source in _field(progress, "sources"):
        end, latest = _offsets(_field(source, "endOffset")), _offsets(_field(source, "latestOffset"))
        if end is None or latest is None:
            continue
        ends, latests = from_json(end), from_json(latest)
        waiting = {queue: max(0, offset - ends.get(queue, 0)) for queue, offset in latests.items()}
        for topic, queues in to_json(waiting).items():
            lag.setdefault(topic, {}).update(queues)
    return lag


def total_lag(progress: Any) -> int:
    """How many messages wait in all queues."""
    return sum(sum(queues.values()) for queues in lag_by_queue(progress).values())


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _offsets(value: Any) -> OffsetJson | None:
    """An offset of this format; None for the offsets of other sources."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, Mapping):
        return None
    try:
        return to_json(from_json(value))
    except (ValueError, TypeError, AttributeError):
        return None
