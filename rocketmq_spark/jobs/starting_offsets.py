"""The source's options for a query without a checkpoint that goes on where an archive ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.jobs.manifest import QueueName
from rocketmq_spark.source.offsets import EARLIEST, LATEST, Offsets, to_json
from rocketmq_spark.source.source_options import stream_options
from rocketmq_spark.source.subscribing import find_queues

_STARTING: Final = (
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingOffsets",
)


def continued(source: Mapping[str, str], ends: Mapping[QueueName, int]) -> dict[str, str]:
    """The options with startingOffsets for every subscribed queue: where the archive ends, or as asked for.

    Raises: OptionError, ClusterUnavailableError, TopicNotFoundError.
    """
    common = stream_options(source).common
    connection = common.connection
    with Cluster(connection.namesrv, connection.timeout_s, connection.deadline_s) as cluster:
        queues = find_queues(cluster, common.subscription)
    default = LATEST if common.start.of_all == LATEST else EARLIEST
    offsets: Offsets = {
        queue: ends.get(QueueName(queue.topic, queue.broker_name, queue.queue_id), default)
        for queue in queues
    }
    kept = {name: value for name, value in source.items() if name not in _STARTING}
    return kept | {"startingOffsets": orjson.dumps(to_json(offsets)).decode()}
