"""Estimates of message sizes from samples of a queue, for limits in bytes."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import PullStatus, QueueRange, pull_command, pull_result
from rocketmq_spark.records.fields import find_records

SAMPLE_COUNT: Final = 32
SAMPLE_BYTES: Final = 64 * 1024
RANGES_MAX: Final = 1_000
"""Maximum of ranges sampled for one limit: ten thousand queues must not cost a gigabyte of samples.
"""
AT_ONCE: Final = 16
"""Memory bound: answers at a time, each with at least one message of any size."""
DEFAULT_BYTES: Final = 1024.0
"""Assumed for a queue of which no message can be sampled."""

Measure: TypeAlias = Callable[[bytes], float]
"""Returns the mean size that counts, for records back to back."""


def message_bytes(
    cluster: Cluster, ranges: Sequence[QueueRange], group: str, measure: Measure | None = None
) -> dict[MessageQueue, float]:
    """The mean size of some records at the beginning, in the middle and at the end of each range, the largest
    of the three, by small pulls. Of many ranges the longest are sampled, and the others
    get the mean of these. measure: `mean_bytes`, unless another one is given.

    Raises:
        RequestRefusedError, ClusterUnavailableError: as of a pull.
    """
    sampled_ranges = sorted(ranges, key=lambda wanted: (-len(wanted), wanted.queue))[:RANGES_MAX]
    found = dict.fromkeys((wanted.queue for wanted in sampled_ranges), 0.0)
    places: dict[str, list[tuple[MessageQueue, int]]] = {}
    for wanted in sampled_ranges:
        asked_of_it = places.setdefault(wanted.queue.broker_name, [])
        asked_of_it += [(wanted.queue, offset) for offset in sampled(wanted)]
    for broker_name, asked in places.items():
        for at in range(0, len(asked), AT_ONCE):
            _sample(cluster, broker_name, asked[at : at + AT_ONCE], group, found, measure or mean_bytes)
    found = {queue: size_bytes or DEFAULT_BYTES for queue, size_bytes in found.items()}
    usual = _mean_of([(len(wanted), found[wanted.queue]) for wanted in sampled_ranges])
    return {wanted.queue: found.get(wanted.queue, usual) for wanted in ranges}


def _sample(
    cluster: Cluster,
    broker_name: str,
    asked: Sequence[tuple[MessageQueue, int]],
    group: str,
    found: dict[MessageQueue, float],
    measure: Measure,
) -> None:
    commands = [
        pull_command(queue, offset, SAMPLE_COUNT, SAMPLE_BYTES, group=group) for queue, offset in asked
    ]
    answers = cluster.invoke_leader_many(broker_name, commands)
    for (queue, offset), answer in zip(asked, answers, strict=True):
        result = pull_result(answer, queue, offset)
        if result.status is PullStatus.FOUND:
            found[queue] = max(found[queue], measure(bytes(result.data)))


def _mean_of(weighed: Sequence[tuple[int, float]]) -> float:
    count = sum(messages for messages, _ in weighed)
    return sum(messages * size_bytes for messages, size_bytes in weighed) / count if count else DEFAULT_BYTES


def sampled(wanted: QueueRange) -> list[int]:
    """The offsets to sample in a range: at its ends and in its middle. Pure."""
    last = max(wanted.start, wanted.stop - SAMPLE_COUNT)
    return sorted({wanted.start, (wanted.start + last) // 2, last})


def mean_bytes(data: bytes) -> float:
    """The mean size of records back to back. Raises CorruptDataError."""
    return len(data) / max(1, len(find_records(data)))


def mean_body_bytes(data: bytes) -> float:
    """The mean size of the bodies alone, as they are stored. Raises CorruptDataError."""
    records = find_records(data)
    return int((records.body_end - records.body_at).sum()) / max(1, len(records))
