"""Recalls of waiting messages: the pending requests, and the messages that each of them names
(RecallMessageProcessor).

A recall is answered with success only after the record that ends the waiting message is committed; the
message is then never delivered.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.timer.delay_levels import PROPERTY_REAL_TOPIC
from broker.timer.journal import TimerJournal
from broker.timer.records import key_of, text
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Record

WAITING_MAX = 1_000
"""Recalls that wait for the deliveries before them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recall:
    """`named`: topic+UNIQ_KEY of a message that was due at `out_ms`, and is in the log before `end_position`.
    `answer` is called once: with the status of the put, or with None when no such message is waiting.
    """

    named: str
    out_ms: int
    end_position: int
    answer: Callable[[PutStatus | None], None]


class Recalls:
    """The recalls of one broker that are not answered yet."""

    def __init__(self, log: MessageLog, journal: TimerJournal, clock: Callable[[], int]) -> None:
        self._log = log
        self._journal = journal
        self._clock = clock
        self._waiting: deque[Recall] = deque()
        self._callbacks: list[Callable[[], None]] = []

    def on_asked(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def ask(self, recall: Recall) -> bool:
        """Whether there is room for it."""
        if len(self._waiting) >= WAITING_MAX:
            return False
        self._waiting.append(recall)
        self._log.add_listener(self._on_dispatch)
        self._notify()
        return True

    def _on_dispatch(self, batch: DispatchBatch) -> None:
        """The index may have reached the message that a recall is about."""
        if self._waiting:
            self._notify()
        else:
            self._log.remove_listener(self._on_dispatch)

    def _notify(self) -> None:
        for callback in self._callbacks:
            callback()

    def _is_known(self, recall: Recall) -> bool:
        """Whether the index includes every message acknowledged before the recall. A leader with a slow disk
        can read committed entries later than its followers.
        """
        return self._log.max_position >= recall.end_position and not self._journal.behind

    def take(self, most: int) -> Iterator[tuple[Recall, list[int]]]:
        """At most so many with what they are about; answers those that are about nothing."""
        while self._waiting and most and self._is_known(self._waiting[0]):
            recall = self._waiting.popleft()
            try:
                targets = self._all_targets(recall)
            except DamagedRecordError as error:
                logger.warning("a recall is refused: %s", error)
                recall.answer(PutStatus.OS_PAGE_CACHE_BUSY)
                continue
            if targets:
                most -= 1
                yield recall, targets
            else:
                recall.answer(None)

    def answer(self, recalls: Sequence[Recall], status: PutStatus) -> None:
        for recall in recalls:
            recall.answer(status)

    def refuse_all(self, status: PutStatus) -> None:
        waiting, self._waiting = self._waiting, deque()
        self.answer(list(waiting), status)

    def targets(self, named: str, key: bytes, from_ms: int, until_ms: int) -> list[int]:
        """Offsets of the messages of these times that the text names. Raises DamagedRecordError."""
        found = []
        for row in self._journal.index.find(key, from_ms, until_ms):
            record = self._journal.record(row.offset)
            if record is not None and named == _name(record):
                found.append(row.offset)
        return found

    def _all_targets(self, recall: Recall) -> list[int]:
        """One for a far-away time waits at another one, at which it is rolled."""
        key, out_ms = key_of(recall.named), recall.out_ms
        found = self.targets(recall.named, key, out_ms, out_ms + 1)
        now_ms = self._clock()
        if not found and out_ms >= now_ms:
            found = self.targets(recall.named, key, 0, min(out_ms, now_ms + self._journal.roll_ms) + 1)
        return found


def _name(record: Record) -> str:
    return f"{text(record, PROPERTY_REAL_TOPIC)}+{text(record, 'UNIQ_KEY')}"
