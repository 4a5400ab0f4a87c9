"""Messages that were stored by a clock that was ahead: what counts from a time that is still to come.

A leader whose clock is ahead gives a delayed message a time that lies too far away for the others, and for
itself once its clock is set. As with delay levels such a message is due when that is seen. What names its
time itself (TIMER_DELIVER_MS) waits for that.
"""

import logging

from broker.timer.journal import TimerJournal
from broker.timer.names import PROPERTY_DELAY_MS, PROPERTY_DELAY_SEC
from broker.timer.records import out_ms, row_of, text
from broker.timer.rows import Row
from commitlog.record import Record

CLOCK_STEP_MAX_MS = 60_000
"""How far the clocks of two leaders may lie apart."""
RECORDS_MAX = 5_000
"""Looked at, at once."""

logger = logging.getLogger(__name__)


class ClockSteps:
    """Looks at the end of the timer queue when a node begins to lead, and when its clock was set back."""

    def __init__(self, journal: TimerJournal) -> None:
        self._journal = journal
        self._last_ms: int | None = None
        self._early: dict[int, None] = {}
        self._news_from: int | None = None
        """Offset from which on records are looked at as they come: those that were under way when the clock
        was set have the time it said before.
        """

    def forget(self) -> None:
        """The node leads no more, or anew."""
        self._last_ms = None
        self._early.clear()
        self._news_from = None

    def due(self, now_ms: int, most: int) -> list[Row]:
        """Rows of what was stored at a time to come, as if they were due. Raises DamagedRecordError."""
        if self._last_ms is None or now_ms < self._last_ms - CLOCK_STEP_MAX_MS:
            self._look(now_ms)
        else:
            self._look_at_news(now_ms)
        self._last_ms = now_ms
        rows: list[Row] = []
        for offset in list(self._early):
            if len(rows) >= most:
                break
            record = self._journal.record(offset) if offset in self._journal.index.pending else None
            if record is None:
                del self._early[offset]
            else:
                rows.append(row_of(record, self._journal.roll_ms)._replace(wake_ms=out_ms(record)))
        return rows

    def _look(self, now_ms: int) -> None:
        index = self._journal.index
        found = []
        for offset in range(index.end - 1, max(index.end - RECORDS_MAX, 0) - 1, -1):
            record = self._journal.record(offset)
            if record is None or not _is_ahead(record, now_ms):
                break
            if self._waits_too_long(offset, record):
                found.append(offset)
        if found:
            logger.warning("%d timer messages were stored by a clock that was ahead", len(found))
        self._early = dict.fromkeys(reversed(found))
        self._news_from = index.end

    def _look_at_news(self, now_ms: int) -> None:
        """Until the first record comes that was stored since."""
        while self._news_from is not None and self._news_from < self._journal.index.end:
            offset = self._news_from
            record = self._journal.record(offset)
            is_since = record is not None and not _is_ahead(record, now_ms)
            self._news_from = None if is_since else offset + 1
            if record is not None and not is_since and self._waits_too_long(offset, record):
                self._early[offset] = None

    def _waits_too_long(self, offset: int, record: Record) -> bool:
        has_delay = text(record, PROPERTY_DELAY_MS) or text(record, PROPERTY_DELAY_SEC)
        return bool(has_delay) and offset in self._journal.index.pending


def _is_ahead(record: Record, now_ms: int) -> bool:
    return record.store_timestamp_ms > now_ms + CLOCK_STEP_MAX_MS
