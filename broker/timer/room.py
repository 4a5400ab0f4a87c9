"""Whether one more timer message may wait: timerPendingMax in all, timerCongestNumEachSlot of one time."""

from broker.config import BrokerConfig
from broker.timer.index import TimerIndex

NO_LIMIT = (1 << 31) - 1
COUNTED_TIMES_MAX = 4_096


class TimerRoom:
    """Asked for each message that is taken. What is on its way into the log is not counted in all, and of a
    time from when it was first asked for.
    """

    def __init__(self, config: BrokerConfig, index: TimerIndex) -> None:
        self._index = index
        self._pending_max = config.timer_pending_max
        self._congest_max = config.timer_congest_num_each_slot
        self._counts: dict[int, int] = {}

    def may_time(self, out_ms: int) -> bool:
        if self._index.pending.count >= self._pending_max:
            return False
        if self._congest_max >= NO_LIMIT:
            return True
        count = self._counts.get(out_ms)
        if count is None:
            if len(self._counts) >= COUNTED_TIMES_MAX:
                self._counts.clear()
            count = self._index.count_at(out_ms)
        is_free = count < self._congest_max
        self._counts[out_ms] = count + is_free
        return is_free
