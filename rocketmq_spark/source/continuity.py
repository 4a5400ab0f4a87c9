"""Whether a node passed over a message: its answers are held against the offsets that they are of.

A node that numbers messages without a gap and says exactly what it keeps (LedgerMQ) may still have offsets
that no message has, in a log that Java's DLedger wrote. So a gap in an answer is asked for once more: a
message that comes then was left out.
"""

import numpy as np

from rocketmq_spark.client.cluster import Cluster
from rocketmq_spark.client.pulling import COUNT_MAX, DEFAULT_GROUP, PullStatus, pull
from rocketmq_spark.client.range_reader import QueueRange
from rocketmq_spark.errors import CorruptDataError
from rocketmq_spark.source.records import Ints


def require_continuous(
    cluster: Cluster, wanted: QueueRange, offsets: Ints, group: str = DEFAULT_GROUP
) -> None:
    """Every offset of the range is in `offsets`, in order, or no message has it.

    Raises:
        CorruptDataError: naming the queue and the offset that is missing, or not in its place.
    """
    for gap in gaps(wanted, offsets):
        _require_empty(cluster, gap, group)


def gaps(wanted: QueueRange, offsets: Ints) -> list[QueueRange]:
    """The stretches of the range that are not in `offsets`. Pure. Raises CorruptDataError."""
    borders = np.concatenate(([wanted.start - 1], offsets, [wanted.stop]))
    steps = np.diff(borders)
    if bool((steps < 1).any()):
        at = int(np.argmax(steps < 1))
        raise CorruptDataError(
            f"{wanted.queue}: offset {borders[at + 1]} follows {borders[at]} in an answer for {wanted}"
        )
    places: list[int] = np.flatnonzero(steps > 1).tolist()
    return [QueueRange(wanted.queue, int(borders[at]) + 1, int(borders[at + 1])) for at in places]


def _require_empty(cluster: Cluster, gap: QueueRange, group: str) -> None:
    queue, at = gap.queue, gap.start
    while at < gap.stop:
        result = pull(cluster, queue, at, min(gap.stop - at, COUNT_MAX), group=group)
        first = result.first_offset
        if first is not None and first < gap.stop:
            raise CorruptDataError(f"{queue}: an answer passed over offset {first}, which has a message")
        if result.status is not PullStatus.NO_MATCH or result.next_offset <= at:
            return  # retention has come so far meanwhile
        at = result.next_offset
