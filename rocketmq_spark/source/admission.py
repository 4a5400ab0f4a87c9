"""How much a trigger of a stream takes. Pure: the caller says what time it is."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.client.range_reader import QueueRange
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.planning import limit_offsets, limit_weighted, ranges_between, total_between
from rocketmq_spark.source.source_options import StreamOptions

Weigh: TypeAlias = Callable[[Sequence[QueueRange]], Mapping[MessageQueue, float]]
"""About how many bytes a message of the range has at most, by queue: from its beginning, middle and end."""
WEIGHINGS_MAX: Final = 12
"""Looks at the messages for one trigger; a stretch that turns out too heavy is about halved after each."""


class Admission:
    """The limits of one query, and when it last had enough for a trigger."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._last_trigger_ms: int | None = None

    def admit(self, start: Offsets, end: Offsets, now_ms: int, weigh: Weigh, may_wait: bool) -> Offsets:
        """Where the batch that begins at `start` ends, at `end` at most.

        may_wait: whether minOffsetsPerTrigger may make it an empty batch until maxTriggerDelay is over; a
        query that ends with what is there now must not wait.
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
        """Where about `bytes_max` end: by the messages at the beginning at first, then by those of the
        stretch that they lead to, which may be heavier further on.
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
            # What is heavy may lie behind what is taken then: so no less than the half at once.
            light = limit_offsets(start, light, max(int(count * bytes_max / total), count // 2))
        return limit_weighted(start, light, weights, bytes_max)

    def _is_too_little(self, start: Offsets, end: Offsets, now_ms: int) -> bool:
        least = self._options.offsets_min
        if least is None or self._last_trigger_ms is None or total_between(start, end) >= least:
            return False
        return now_ms - self._last_trigger_ms < self._options.trigger_delay_ms
