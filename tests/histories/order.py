"""Order: of what a consumer gets, and of what was sent one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from tests.histories.operations import Assign, Crash, Outcome, Poll, Queue, Seek, Send
from tests.histories.places import Places
from tests.histories.words import Report, Word


@dataclass(frozen=True, slots=True)
class Jump:
    """A consumer went from `begin` to `end`. Whether it skipped anything shows when the history is whole."""

    word: Word
    number: int
    queue: Queue
    begin: int
    end: int
    is_between_messages: bool


@dataclass(frozen=True, slots=True)
class Position:
    """Where a consumer is in a queue; `is_earned`: it got there by reading, not by being told."""

    offset: int
    is_earned: bool


class PollOrder:
    """Follows each consumer through its queues, from one assign, seek or crash to the next."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._positions: dict[str, dict[Queue, Position]] = {}
        self._jumps: list[Jump] = []

    def begin_anew(self, operation: Assign | Seek | Crash) -> None:
        if not isinstance(operation, Seek):
            self._positions.pop(operation.process, None)
            return
        positions = self._positions.setdefault(operation.process, {})
        if operation.offset is None:
            positions.pop(operation.queue, None)
        else:
            positions[operation.queue] = Position(operation.offset, is_earned=False)

    def poll(self, number: int, poll: Poll) -> None:
        if poll.outcome is not Outcome.OK or not poll.is_ordered:
            return
        positions = self._positions.setdefault(poll.process, {})
        position = positions.get(poll.queue)
        if poll.start is not None:
            position = self._step(number, poll, position, poll.start, "asked for")
        if poll.messages:
            position = self._step(number, poll, position, poll.messages[0][0], "got")
            position = self._within(number, poll)
        if poll.next_offset is not None:
            position = self._step(number, poll, position, poll.next_offset, "was sent to")
        if position is not None:
            positions[poll.queue] = position

    def _step(self, number: int, poll: Poll, position: Position | None, offset: int, how: str) -> Position:
        """The consumer goes from its position to `offset`, which should be the same."""
        if position is None:
            return Position(offset, is_earned=False)
        if offset < position.offset and (position.is_earned or how == "got"):
            text = f"{poll.process} was at {position.offset} and {how} {offset}"
            self._report.add(Word.NONMONOTONIC_POLL, poll.queue, text, (number,))
        elif offset > position.offset and not (how == "was sent to" and self._report.rules.may_expire):
            self._jumped(Word.POLL_SKIP, number, poll.queue, position.offset, offset, position.is_earned)
        return position if offset == position.offset else Position(offset, is_earned=False)

    def _within(self, number: int, poll: Poll) -> Position:
        last = poll.messages[0][0]
        for offset, _ in poll.messages[1:]:
            if offset <= last:
                text = f"{poll.process} got {offset} after {last}"
                self._report.add(Word.INT_NONMONOTONIC_POLL, poll.queue, text, (number,))
            elif offset > last + 1:
                self._jumped(Word.INT_POLL_SKIP, number, poll.queue, last + 1, offset, is_between=True)
            last = offset
        return Position(last + 1, is_earned=True)

    def _jumped(self, word: Word, number: int, queue: Queue, begin: int, end: int, is_between: bool) -> None:
        self._jumps.append(Jump(word, number, queue, begin, end, is_between))

    def judge(self, places: Places) -> None:
        """A jump over values is a skip. A jump over nothing is a gap, unless a drain tells of those."""
        drained = places.drained
        for jump in self._jumps:
            known = places.known_between(jump.queue, jump.begin, jump.end)
            if known:
                text = f"a consumer went from {jump.begin} to {jump.end}, over {known} values"
                self._report.add(jump.word, jump.queue, text, (jump.number,))
            elif jump.is_between_messages and jump.queue not in drained:
                text = f"nobody ever saw what is from {jump.begin} to {jump.end - 1}"
                self._report.add(Word.GAP, jump.queue, text, (jump.number,))


@dataclass(frozen=True, slots=True)
class Stay:
    """When a send was under way and the lowest and highest offset of its messages in a queue."""

    number: int
    process: str
    invoked: int
    completed: int | None
    lowest: int
    acknowledged: int | None


def judge_batches(report: Report, places: Places) -> None:
    """A batch is one put: its messages stand side by side, in its order."""
    seen: set[int] = set()
    for number, send in places.sends.values():
        if number in seen or len(send.offsets) < 2 or send.queue is None:
            continue
        seen.add(number)
        for one, other in zip(send.offsets, send.offsets[1:], strict=False):
            text = f"a message of a batch is at {one}, the one after it at {other}"
            if other <= one:
                report.add(Word.INT_NONMONOTONIC_SEND, send.queue, text, (number,))
            elif other > one + 1:
                report.add(Word.INT_SEND_SKIP, send.queue, text, (number,))


def judge_sends(report: Report, places: Places) -> None:
    """What was acknowledged before another send began stands before it, whoever sent them.

    A send of unknown outcome counts, too, once its message was read: no copy can be older than the send.
    """
    for queue, stays in _stays(places).items():
        ends = sorted((stay for stay in stays if stay.acknowledged is not None), key=_completed)
        highest: Stay | None = None
        ended = 0
        for stay in sorted(stays, key=lambda stay: (stay.invoked, stay.number)):
            while ended < len(ends) and _completed(ends[ended]) < stay.invoked:
                if highest is None or _acknowledged(ends[ended]) > _acknowledged(highest):
                    highest = ends[ended]
                ended += 1
            if highest is not None and _acknowledged(highest) >= stay.lowest:
                _add_order(report, queue, highest, stay)
        _judge_ties(report, queue, stays)


def _judge_ties(report: Report, queue: Queue, stays: list[Stay]) -> None:
    """Sends of one process where the clock did not move between the end of one and the next one's begin."""
    last: dict[str, Stay] = {}
    for stay in sorted(stays, key=lambda stay: stay.number):
        before = last.get(stay.process)
        if before is not None and before.completed == stay.invoked and _acknowledged(before) >= stay.lowest:
            _add_order(report, queue, before, stay)
        if stay.acknowledged is not None:
            last[stay.process] = stay


def _add_order(report: Report, queue: Queue, before: Stay, stay: Stay) -> None:
    text = f"{before.acknowledged} was acknowledged before the send of {stay.lowest} began"
    report.add(Word.NONMONOTONIC_SEND, queue, text, (before.number, stay.number))


def _completed(stay: Stay) -> int:
    assert stay.completed is not None
    return stay.completed


def _acknowledged(stay: Stay) -> int:
    assert stay.acknowledged is not None
    return stay.acknowledged


def _stays(places: Places) -> dict[Queue, list[Stay]]:
    found: dict[Queue, list[Stay]] = {}
    seen: set[int] = set()
    for number, send in places.sends.values():
        if number not in seen:
            seen.add(number)
            for queue, stay in _stays_of(number, send, places):
                found.setdefault(queue, []).append(stay)
    return found


def _stays_of(number: int, send: Send, places: Places) -> list[tuple[Queue, Stay]]:
    lowest: dict[Queue, int] = {}
    for value in send.values:
        for place in places.places_of(value):
            lowest[place.queue] = min(place.offset, lowest.get(place.queue, place.offset))
    is_acknowledged = send.outcome is Outcome.OK and send.completed is not None and bool(send.offsets)
    return [
        (
            queue,
            Stay(
                number,
                send.process,
                send.invoked,
                send.completed,
                offset,
                max(send.offsets) if is_acknowledged and queue == send.queue else None,
            ),
        )
        for queue, offset in lowest.items()
    ]
