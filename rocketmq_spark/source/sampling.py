"""How large the messages at some place of a queue are: what limits in bytes need to know."""

from collections.abc import Sequence
from typing import Final

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import PullStatus, pull_command, pull_result
from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.client.range_reader import QueueRange
from rocketmq_spark.source.records import find_records

SAMPLE_COUNT: Final = 32
SAMPLE_BYTES: Final = 64 * 1024
DEFAULT_BYTES: Final = 1024.0
"""Supposed of a queue where no message can be looked at."""


def message_bytes(cluster: Cluster, ranges: Sequence[QueueRange], group: str) -> dict[MessageQueue, float]:
    """The mean size of some records at the beginning, in the middle and at the end of each range, the largest
    of the three, by small pulls.

    Raises:
        RequestRefusedError, ClusterUnavailableError: as of a pull.
    """
    found = dict.fromkeys((wanted.queue for wanted in ranges), 0.0)
    places: dict[str, list[tuple[MessageQueue, int]]] = {}
    for wanted in ranges:
        asked_of_it = places.setdefault(wanted.queue.broker_name, [])
        asked_of_it += [(wanted.queue, offset) for offset in sampled(wanted)]
    for broker_name, asked in places.items():
        commands = [
            pull_command(queue, offset, SAMPLE_COUNT, SAMPLE_BYTES, group=group) for queue, offset in asked
        ]
        answers = cluster.invoke_leader_many(broker_name, commands)
        for (queue, offset), answer in zip(asked, answers, strict=True):
            result = pull_result(answer, queue, offset)
            if result.status is PullStatus.FOUND:
                found[queue] = max(found[queue], mean_bytes(bytes(result.data)))
    return {queue: size_bytes or DEFAULT_BYTES for queue, size_bytes in found.items()}


def sampled(wanted: QueueRange) -> list[int]:
    """Where to look into a range: at its ends and in its middle. Pure."""
    last = max(wanted.start, wanted.stop - SAMPLE_COUNT)
    return sorted({wanted.start, (wanted.start + last) // 2, last})


def mean_bytes(data: bytes) -> float:
    """The mean size of records back to back. Raises CorruptDataError."""
    return len(data) / max(1, len(find_records(data)))
