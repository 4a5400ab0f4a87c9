"""The source's startingOffsets for a query that goes on where an archive ends."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from rocketmq_spark.jobs.manifest import QueueName


def offsets_json(offsets: Mapping[QueueName, int]) -> str:
    """Offsets by topic and `broker:queue`, as the source takes and tells them."""
    found: dict[str, dict[str, int]] = {}
    for queue, offset in sorted(offsets.items()):
        found.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offset
    return orjson.dumps(found).decode()
