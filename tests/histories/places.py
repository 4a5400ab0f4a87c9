"""What stands where: every offset of every queue, by what acknowledgements and polls said."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from tests.histories.operations import Assign, Crash, Drain, Outcome, Place, Poll, Queue, Seek, Send
from tests.histories.words import Report, Word


class Stand:
    """What is known of one offset of a queue."""

    __slots__ = ("acknowledged_by", "read_at", "read_by", "value")

    def __init__(self, value: str) -> None:
        self.value = value
        self.acknowledged_by: int | None = None
        self.read_by: int | None = None
        self.read_at: int | None = None
        """When the first poll that gave it had ended."""


class Runs:
    """A set of offsets that come mostly in order, as ranges."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[list[int]] = []

    def add(self, offset: int) -> None:
        if self._runs and self._runs[-1][1] == offset:
            self._runs[-1][1] = offset + 1
        else:
            self._runs.append([offset, offset + 1])

    def missing(self, begin: int, end: int) -> Iterator[int]:
        """The offsets of [begin, end) that are not in the set, in order."""
        for first, behind in sorted(self._runs):
            yield from range(begin, min(first, end))
            begin = max(begin, behind)
        yield from range(begin, end)


class Places:
    """Follows sends, polls and drains; `judge` tells at the end what does not fit."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.sends: dict[str, tuple[int, Send]] = {}
        self.queues: dict[Queue, dict[int, Stand]] = {}
        self._read: dict[str, int] = {}
        self._first: dict[str, Place] = {}
        self._copies: dict[str, set[Place]] = {}
        self._conflicts: set[tuple[Place, str]] = set()
        self._reading: dict[str, dict[Queue, Runs]] = {}
        self._drains: list[tuple[int, Drain, Runs]] = []
        self._sorted: dict[Queue, list[int]] = {}

    def send(self, number: int, send: Send) -> None:
        if send.offsets and (send.queue is None or len(send.offsets) != len(send.values)):
            raise ValueError(f"send #{number} has offsets {send.offsets} for {len(send.values)} values")
        entry = (number, send)
        for value in send.values:
            if value in self.sends:
                raise ValueError(f"value {value!r} is sent by #{self.sends[value][0]} and #{number}")
            self.sends[value] = entry
        if send.queue is None or send.outcome is not Outcome.OK:
            return
        for offset, value in zip(send.offsets, send.values, strict=False):
            stand = self._place(number, send.queue, offset, value)
            stand.acknowledged_by = number

    def poll(self, number: int, poll: Poll) -> None:
        runs = self._reading.setdefault(poll.process, {}).setdefault(poll.queue, Runs())
        for offset, value in poll.messages:
            stand = self._place(number, poll.queue, offset, value)
            if stand.read_by is None:
                stand.read_by, stand.read_at = number, poll.completed
            self._read.setdefault(value, number)
            runs.add(offset)

    def begin_anew(self, operation: Assign | Seek | Crash) -> None:
        """What the process reads from now on belongs to another drain."""
        if isinstance(operation, Seek):
            self._reading.get(operation.process, {}).pop(operation.queue, None)
        else:
            self._reading.pop(operation.process, None)

    def drain(self, number: int, drain: Drain) -> None:
        runs = self._reading.get(drain.process, {}).get(drain.queue, Runs())
        self._drains.append((number, drain, runs))

    def _place(self, number: int, queue: Queue, offset: int, value: str) -> Stand:
        """The offset's stand; of two values it keeps the first, and another stand goes to no queue."""
        stands = self.queues.setdefault(queue, {})
        stand = stands.get(offset)
        place = Place(queue, offset)
        if self._first.setdefault(value, place) != place:
            self._copies.setdefault(value, {self._first[value]}).add(place)
        if stand is None:
            stand = stands[offset] = Stand(value)
        elif stand.value != value:
            if (place, value) not in self._conflicts:
                self._conflicts.add((place, value))
                text = f"offset {offset} has {stand.value!r} and {value!r}"
                numbers = (stand.acknowledged_by, stand.read_by, number)
                self._report.add(Word.INCONSISTENT_OFFSETS, queue, text, numbers)
            return Stand(value)
        return stand

    def known_between(self, queue: Queue, begin: int, end: int) -> int:
        """How many offsets of [begin, end) someone saw a value at. Only once the history is whole."""
        offsets = self._sorted.get(queue)
        if offsets is None:
            offsets = self._sorted[queue] = sorted(self.queues.get(queue, {}))
        return bisect_left(offsets, end) - bisect_left(offsets, begin)

    def places_of(self, value: str) -> Iterable[Place]:
        if value in self._copies:
            return self._copies[value]
        return (self._first[value],) if value in self._first else ()

    @property
    def drained(self) -> set[Queue]:
        return {drain.queue for _, drain, _ in self._drains}

    @property
    def values_read(self) -> int:
        return len(self._read)

    def judge(self) -> None:
        self._judge_reads()
        self._judge_copies()
        for number, drain, runs in self._drains:
            self._judge_drain(number, drain, runs)
        self._judge_acknowledged()

    def _judge_reads(self) -> None:
        for value, number in self._read.items():
            entry = self.sends.get(value)
            where = self._first[value].queue
            if entry is None:
                text = f"{value!r} at {self._first[value].offset} was sent by nobody"
                self._report.add(Word.UNKNOWN_VALUE, where, text, (number,))
            elif entry[1].outcome is Outcome.FAIL:
                text = f"the send of {value!r} failed, and it is at {self._first[value].offset}"
                self._report.add(Word.ABORTED_READ, where, text, (entry[0], number))

    def _judge_copies(self) -> None:
        for value, places in self._copies.items():
            number, send = self.sends.get(value, (None, None))
            if send is None:
                continue
            is_duplicate = send.tries is not None and len(places) > send.tries
            tries = "an unknown number of" if send.tries is None else send.tries
            text = f"{value!r} of {tries} tries is at {', '.join(map(str, sorted(places)))}"
            stands = [self.queues[place.queue][place.offset] for place in sorted(places)]
            numbers = (number, *(stand.read_by for stand in stands if stand.value == value))
            word = Word.DUPLICATE if is_duplicate else Word.REPEATED
            self._report.add(word, min(places).queue, text, numbers)

    def _judge_drain(self, number: int, drain: Drain, runs: Runs) -> None:
        """What must be in a reading of a whole queue: what was acknowledged or read before it began."""
        begin = drain.begin if self._report.rules.may_expire else 0
        stands = self.queues.get(drain.queue, {})
        for offset in runs.missing(begin, drain.end):
            stand = stands.get(offset)
            if stand is None:
                text = f"nothing is at {offset} of a queue from {begin} to {drain.end - 1}"
                self._report.add(Word.GAP, drain.queue, text, (number,))
            else:
                self._missing(number, drain, offset, stand)
        for offset, stand in stands.items():
            if offset >= drain.end:
                self._missing(number, drain, offset, stand)

    def _missing(self, number: int, drain: Drain, offset: int, stand: Stand) -> None:
        text = f"{stand.value!r} at {offset} is not in the queue, which goes to {drain.end - 1}"
        if stand.acknowledged_by is not None:
            send = self.sends[stand.value][1]
            if send.completed is not None and send.completed <= drain.invoked:
                self._report.add(Word.LOST_WRITE, drain.queue, text, (stand.acknowledged_by, number))
        elif stand.read_at is not None and stand.read_at <= drain.invoked:
            self._report.add(Word.DIRTY_READ, drain.queue, text, (stand.read_by, number))

    def _judge_acknowledged(self) -> None:
        """Acknowledged values that nobody read, as far as no drain has told of them."""
        drained, highest = self.drained, self._highest_read()
        last_drain = max((drain.invoked for _, drain, _ in self._drains), default=None)
        for value, (number, send) in self.sends.items():
            if send.outcome is not Outcome.OK or value in self._read:
                continue
            if send.queue is None or not send.offsets:
                is_asked = last_drain is not None and send.completed is not None
                is_lost = is_asked and send.completed <= last_drain  # type: ignore[operator]
                text = f"{value!r} was acknowledged and is in no queue that was read"
                self._report.add(Word.LOST_WRITE if is_lost else Word.UNSEEN, "any queue", text, (number,))
                continue
            if send.queue in drained:
                continue
            offset = send.offsets[send.values.index(value)]
            reader = highest.get(send.queue, (-1, None))
            is_lost = reader[0] > offset
            text = f"{value!r} at {offset} was read by nobody" + (f", but {reader[0]} was" if is_lost else "")
            word = Word.LOST_WRITE if is_lost else Word.UNSEEN
            self._report.add(word, send.queue, text, (number, reader[1] if is_lost else None))

    def _highest_read(self) -> dict[Queue, tuple[int, int | None]]:
        """The highest offset of each queue that was read, and by which poll."""
        highest: dict[Queue, tuple[int, int | None]] = {}
        for queue, stands in self.queues.items():
            read = (offset for offset, stand in stands.items() if stand.read_by is not None)
            offset = max(read, default=None)
            if offset is not None:
                highest[queue] = offset, stands[offset].read_by
        return highest
