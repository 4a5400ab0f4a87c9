"""Planning of offsets: ranges of queues, their parts for tasks, and the limits of one trigger of a stream.
Pure: the caller passes the time.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from remoting.client.routes import MessageQueue
from rocketmq_spark.client.pulling import QueueRange
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.options import StreamOptions

SPLIT_MIN: Final = 1
"""Fewest messages of one part of a split queue."""


def ranges_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """The ranges between two offsets, sorted by queue, without empty ones.

    A queue that is only in `end` is new: this batch records its first offset, and does not read it.
    """
    ranges = (QueueRange(queue, start[queue], end[queue]) for queue in sorted(end) if queue in start)
    return [wanted for wanted in ranges if len(wanted)]


def split(ranges: Sequence[QueueRange], parts_min: int) -> list[QueueRange]:
    """Cut big ranges so that there are about `parts_min` of similar size; never join ranges.

    As Spark's Kafka source does it: ranges that are no larger than a fair share stay whole, and the rest of
    the parts go to the larger ones by their size.
    """
    if len(ranges) >= parts_min:
        return list(ranges)
    total = sum(map(len, ranges))
    small = [len(wanted) for wanted in ranges if len(wanted) * parts_min <= total]
    large_total, left = total - sum(small), parts_min - len(small)
    parts: list[QueueRange] = []
    for wanted in ranges:
        is_small = len(wanted) * parts_min <= total
        parts += cut(wanted, 1 if is_small else max(1, round(left * len(wanted) / large_total)))
    return parts


def cut(wanted: QueueRange, count: int) -> list[QueueRange]:
    """The range in `count` parts whose sizes differ by one at most; fewer when it has fewer messages."""
    size = len(wanted)
    count = max(1, min(count, size // SPLIT_MIN))
    borders = [wanted.start + size * number // count for number in range(count + 1)]
    return [QueueRange(wanted.queue, first, behind) for first, behind in pairwise(borders)]


def without_lost(parts: Sequence[QueueRange], kept: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """As many parts, each without the offsets before `kept` of its queue; a part may become empty."""
    return [
        QueueRange(part.queue, min(max(part.start, kept[part.queue]), part.stop), part.stop) for part in parts
    ]


def total_between(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> int:
    """The number of offsets between `start` and `end`."""
    return sum(map(len, ranges_between(start, end)))


def limit_offsets(start: Offsets, end: Offsets, most: int) -> Offsets:
    """End offsets so that at most `most` messages are read, and at least one if there is any.

    The limit is divided in proportion to the waiting messages of each queue. If there are more queues than
    messages, the first queue to read is chosen by what was read before, so that every queue is read in turn.
    """
    waiting = {wanted.queue: len(wanted) for wanted in ranges_between(start, end)}
    total = sum(waiting.values())
    if total <= most:
        return end
    shares = _shares(waiting, most, turn=sum(start.values()))
    return {
        queue: start[queue] + shares.get(queue, 0) if queue in waiting else offset
        for queue, offset in end.items()
    }


def limit_weighted(start: Offsets, end: Offsets, weights: Mapping[MessageQueue, float], most: int) -> Offsets:
    """As `limit_offsets`, but `most` bounds the sum of weights; `weights`: mean of a message, by queue."""
    ranges = ranges_between(start, end)
    total = sum(len(wanted) * weights[wanted.queue] for wanted in ranges)
    if total <= most:
        return end
    count = sum(map(len, ranges))
    return limit_offsets(start, end, max(1, int(count * most / total)))


def never_backwards(start: Offsets, end: Offsets) -> Offsets:
    """`end` with every queue of `start`, none before it.

    A queue whose broker is unreachable keeps its offset. A queue whose end is lower for a moment, as during
    an election, is treated as a queue without new messages.
    """
    return {queue: max(start.get(queue, 0), end.get(queue, 0)) for queue in sorted({*start, *end})}


def _shares(waiting: Mapping[MessageQueue, int], most: int, turn: int) -> dict[MessageQueue, int]:
    """`most` divided in proportion to `waiting`, at least one for each queue if possible."""
    # `most` must be less than the sum of `waiting`.
    queues = sorted(waiting)
    if most <= len(queues):
        at = turn % len(queues)
        return dict.fromkeys((queues + queues)[at : at + most], 1)
    total = sum(waiting.values()) - len(queues)
    room = most - len(queues)
    shares = {queue: 1 + (waiting[queue] - 1) * room // total for queue in queues}
    left = most - sum(shares.values())
    for queue in queues:
        more = min(left, waiting[queue] - shares[queue])
        shares[queue] += more
        left -= more
    return shares


Weigh: TypeAlias = Callable[[Sequence[QueueRange]], Mapping[MessageQueue, float]]
"""About how many bytes a message of the range has at most, by queue: from its beginning, middle and end."""
WEIGHINGS_MAX: Final = 12
"""Samples for one trigger at most; a batch that is too large is cut, at most to half, after each."""


class Admission:
    """The limits of one query, and the time of its last batch with messages."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._last_trigger_ms: int | None = None

    def admit(self, start: Offsets, end: Offsets, now_ms: int, weigh: Weigh, may_wait: bool) -> Offsets:
        """End offsets of the batch that begins at `start`, at most `end`.

        may_wait: whether minOffsetsPerTrigger may return an empty batch until maxTriggerDelay has passed; a
        query with Trigger.AvailableNow must not wait.
        """
        if may_wait and self._is_too_little(start, end, now_ms):
            return {queue: start.get(queue, offset) for queue, offset in end.items()}
        if total_between(start, end):
            self._last_trigger_ms = now_ms
        if self._options.offsets_max is not None:
            end = limit_offsets(start, end, self._options.offsets_max)
        if self._options.bytes_max is not None:
            end = self._light(start, end, self._options.bytes_max, weigh)
        return end

    def _light(self, start: Offsets, end: Offsets, bytes_max: int, weigh: Weigh) -> Offsets:
        """End offsets of about `bytes_max`: estimated by the first messages, then by samples of the range
        that follows from the estimate, because later messages of it may be larger.
        """
        firsts = [QueueRange(one.queue, one.start, one.start + 1) for one in ranges_between(start, end)]
        light = limit_weighted(start, end, weigh(firsts), bytes_max)
        weights: Mapping[MessageQueue, float] = {}
        for _ in range(WEIGHINGS_MAX):
            ranges = ranges_between(start, light)
            weights = weigh(ranges)
            total = sum(len(wanted) * weights[wanted.queue] for wanted in ranges)
            if total <= bytes_max:
                return light
            count = sum(map(len, ranges))
            if count <= 1:
                return light
            # The large samples may be behind the new end, so one step cuts at most to half.
            light = limit_offsets(start, light, max(int(count * bytes_max / total), count // 2))
        return limit_weighted(start, light, weights, bytes_max)

    def _is_too_little(self, start: Offsets, end: Offsets, now_ms: int) -> bool:
        least = self._options.offsets_min
        if least is None or self._last_trigger_ms is None or total_between(start, end) >= least:
            return False
        return now_ms - self._last_trigger_ms < self._options.trigger_delay_ms
