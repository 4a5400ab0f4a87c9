"""How much a trigger of a stream takes. Pure: the caller says what time it is."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from rocketmq_spark.client.queues import MessageQueue
from rocketmq_spark.source.offsets import Offsets
from rocketmq_spark.source.planning import limit_offsets, limit_weighted, ranges_between, total_between
from rocketmq_spark.source.source_options import StreamOptions

Weigh: TypeAlias = Callable[[list[MessageQueue], Offsets], Mapping[MessageQueue, float]]
"""About how many bytes a message has that stands at the offset, by queue."""


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
            queues = [wanted.queue for wanted in ranges_between(start, end)]
            end = limit_weighted(start, end, weigh(queues, start), self._options.bytes_max)
        return end

    def _is_too_little(self, start: Offsets, end: Offsets, now_ms: int) -> bool:
        least = self._options.offsets_min
        if least is None or self._last_trigger_ms is None or total_between(start, end) >= least:
            return False
        return now_ms - self._last_trigger_ms < self._options.trigger_delay_ms
