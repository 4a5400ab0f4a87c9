"""How large the messages at some place of a queue are: what limits in bytes need to know."""

from collections.abc import Mapping
from typing import Final

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import PullStatus, pull_command, pull_result
from rocketmq_spark.client.queues import MessageQueue, by_broker
from rocketmq_spark.source.records import find_records

SAMPLE_COUNT: Final = 32
SAMPLE_BYTES: Final = 64 * 1024
DEFAULT_BYTES: Final = 1024.0
"""Supposed of a queue where no message can be looked at."""


def message_bytes(
    cluster: Cluster, offsets: Mapping[MessageQueue, int], group: str
) -> dict[MessageQueue, float]:
    """The mean size of the records from each offset on, by a small pull of each queue.

    Raises:
        RequestRefusedError, ClusterUnavailableError: as of a pull.
    """
    found = {}
    for broker_name, queues in by_broker(offsets).items():
        commands = [
            pull_command(queue, offsets[queue], SAMPLE_COUNT, SAMPLE_BYTES, group=group) for queue in queues
        ]
        answers = cluster.invoke_leader_many(broker_name, commands)
        for queue, answer in zip(queues, answers, strict=True):
            result = pull_result(answer, queue, offsets[queue])
            found[queue] = mean_bytes(result.data) if result.status is PullStatus.FOUND else DEFAULT_BYTES
    return found


def mean_bytes(data: bytes) -> float:
    """The mean size of records back to back. Raises CorruptDataError."""
    return len(data) / max(1, len(find_records(data)))
