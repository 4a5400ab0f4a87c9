"""Single mistakes planted in a correct history, each with the word that must come of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.histories.operations import (
    Assign,
    Commit,
    Crash,
    Drain,
    Fetch,
    Operation,
    Outcome,
    Place,
    Poll,
    Queue,
    Seek,
    Send,
)
from tests.histories.words import Word

History = list[Operation]
Corruption = Callable[[History, random.Random], History | None]
"""Gives a history with the mistake in it, None when this one has no place for it."""


def polls(history: History, *, is_final: bool) -> Iterator[tuple[int, Poll]]:
    """Polls with messages: of the final reading, or of the consumers before it."""
    for number, operation in enumerate(history):
        if isinstance(operation, Poll) and operation.messages and (operation.process == "final") is is_final:
            yield number, operation


def places(history: History) -> dict[Place, str]:
    """What the final reading found."""
    found = polls(history, is_final=True)
    return {Place(poll.queue, offset): value for _, poll in found for offset, value in poll.messages}


def sends(history: History, outcome: Outcome) -> list[tuple[int, Send]]:
    return [
        (number, operation)
        for number, operation in enumerate(history)
        if isinstance(operation, Send) and operation.outcome is outcome
    ]


def acknowledged(history: History) -> dict[str, Place]:
    return {
        value: Place(send.queue, offset)
        for _, send in sends(history, Outcome.OK)
        if send.queue is not None
        for offset, value in zip(send.offsets, send.values, strict=True)
    }


def without(history: History, place: Place) -> History:
    """Nobody ever read that place."""

    def leave_out(poll: Poll) -> Poll:
        messages = (message for message in poll.messages if Place(poll.queue, message[0]) != place)
        return replace(poll, messages=tuple(messages))

    return [leave_out(operation) if isinstance(operation, Poll) else operation for operation in history]


def drained_to(history: History, queue: Queue, change: int) -> History:
    """The final reading of the queue ends elsewhere."""
    return [
        replace(operation, end=operation.end + change)
        if isinstance(operation, Drain) and operation.queue == queue
        else operation
        for operation in history
    ]


def drop_acknowledged(history: History, chance: random.Random) -> History | None:
    found = list(acknowledged(history).values())
    return without(history, chance.choice(found)) if found else None


def cut_acknowledged_tail(history: History, _chance: random.Random) -> History | None:
    stood = places(history)
    last = {queue: max(p.offset for p in stood if p.queue == queue) for queue in {p.queue for p in stood}}
    known = set(acknowledged(history).values())
    for queue, offset in last.items():
        if Place(queue, offset) in known:
            return drained_to(without_final(history, Place(queue, offset)), queue, -1)
    return None


def without_final(history: History, place: Place) -> History:
    changed = without(history, place)
    return [
        changed[number] if isinstance(operation, Poll) and operation.process == "final" else operation
        for number, operation in enumerate(history)
    ]


def swap_values(history: History, chance: random.Random) -> History | None:
    """The final reading finds two values where the other was."""
    known = [place for place in acknowledged(history).values() if place in places(history)]
    if not known:
        return None
    one = chance.choice(known)
    others = [place for place, value in places(history).items() if value != places(history)[one]]
    if not others:
        return None
    other = chance.choice(others)
    swapped = {one: places(history)[other], other: places(history)[one]}
    changed = list(history)
    for number, poll in polls(history, is_final=True):
        messages = (
            (offset, swapped.get(Place(poll.queue, offset), value)) for offset, value in poll.messages
        )
        changed[number] = replace(poll, messages=tuple(messages))
    return changed


def _with_one_more(history: History, queue: Queue, value: str) -> History:
    """The final reading finds the value behind the end of the queue."""
    changed: History = []
    for operation in history:
        if isinstance(operation, Drain) and operation.queue == queue:
            message = (operation.end, value)
            span = operation.completed, operation.completed
            changed.append(Poll("final", *span, Outcome.OK, queue, operation.end, (message,), message[0] + 1))
        changed.append(operation)
    return drained_to(changed, queue, 1)


def double_value(history: History, chance: random.Random) -> History | None:
    once = {value for _, send in sends(history, Outcome.OK) if send.tries == 1 for value in send.values}
    found = [(place, value) for place, value in places(history).items() if value in once]
    if not found:
        return None
    place, value = chance.choice(found)
    return _with_one_more(history, place.queue, value)


def add_stranger(history: History, chance: random.Random) -> History | None:
    queues = [operation.queue for operation in history if isinstance(operation, Drain)]
    return _with_one_more(history, chance.choice(queues), "stranger")


def fail_what_was_read(history: History, chance: random.Random) -> History | None:
    read = set(places(history).values())
    found = [entry for entry in sends(history, Outcome.INFO) if read & set(entry[1].values)]
    if not found:
        return None
    number, send = chance.choice(found)
    return [*history[:number], replace(send, outcome=Outcome.FAIL), *history[number + 1 :]]


def leave_a_hole(history: History, chance: random.Random) -> History | None:
    """Nobody ever saw what is at an offset."""
    known = set(acknowledged(history).values())
    holes = [place for place in places(history) if place not in known]
    return without(history, chance.choice(holes)) if holes else None


def take_back_what_was_read(history: History, _chance: random.Random) -> History | None:
    """A consumer got the last message of a queue, which no producer heard of, and then it is gone."""
    known = set(acknowledged(history).values())
    read = {
        Place(poll.queue, offset) for _, poll in polls(history, is_final=False) for offset, _ in poll.messages
    }
    for operation in history:
        if isinstance(operation, Drain):
            last = Place(operation.queue, operation.end - 1)
            if last in read and last not in known:
                return drained_to(without_final(history, last), last.queue, -1)
    return None


def skip_within_a_poll(history: History, chance: random.Random) -> History | None:
    found = [(number, poll) for number, poll in polls(history, is_final=False) if len(poll.messages) > 2]
    if not found:
        return None
    number, poll = chance.choice(found)
    changed = replace(poll, messages=(poll.messages[0], *poll.messages[2:]))
    return [*history[:number], changed, *history[number + 1 :]]


def _streaks(history: History) -> Iterator[tuple[int, int]]:
    """Two polls with messages of one consumer, one after the other, with nothing between that begins anew."""
    last: dict[str, int] = {}
    for number, operation in enumerate(history):
        if isinstance(operation, Assign | Seek | Crash):
            last.pop(operation.process, None)
        elif isinstance(operation, Poll) and operation.messages and operation.process != "final":
            if operation.process in last:
                yield last[operation.process], number
            last[operation.process] = number


def skip_a_poll(history: History, chance: random.Random) -> History | None:
    """The second of three polls in a row never happened."""
    pairs = dict(_streaks(history))
    found = [middle for middle in pairs.values() if middle in pairs]
    if not found:
        return None
    middle = chance.choice(found)
    return [*history[:middle], *history[middle + 1 :]]


def poll_again(history: History, chance: random.Random) -> History | None:
    found = list(polls(history, is_final=False))
    if not found:
        return None
    number, poll = chance.choice(found)
    return [*history[: number + 1], poll, *history[number + 1 :]]


def turn_a_poll_round(history: History, chance: random.Random) -> History | None:
    found = [(number, poll) for number, poll in polls(history, is_final=False) if len(poll.messages) > 1]
    if not found:
        return None
    number, poll = chance.choice(found)
    return [*history[:number], replace(poll, messages=poll.messages[::-1]), *history[number + 1 :]]


def exchange_sends(history: History, chance: random.Random) -> History | None:
    """Of two sends to one queue the later got the lower offset: each took place when the other did."""
    once = [(number, send) for number, send in sends(history, Outcome.OK) if send.tries == 1]
    pairs = [
        (number, other_number)
        for number, send in once
        for other_number, other in once
        if send.queue == other.queue and send.completed is not None and send.completed < other.invoked
    ]
    if not pairs:
        return None
    first, second = chance.choice(pairs)
    one, other = history[first], history[second]
    assert isinstance(one, Send)
    assert isinstance(other, Send)
    changed = list(history)
    changed[first] = replace(other, invoked=one.invoked, completed=one.completed)
    changed[second] = replace(one, invoked=other.invoked, completed=other.completed)
    return changed


def tear_a_batch(history: History, chance: random.Random) -> History | None:
    found = [(number, send) for number, send in sends(history, Outcome.OK) if len(send.offsets) > 1]
    if not found:
        return None
    number, send = chance.choice(found)
    offsets = (*send.offsets[:-1], send.offsets[-1] + 1)
    return [*history[:number], replace(send, offsets=offsets), *history[number + 1 :]]


def turn_a_batch_round(history: History, chance: random.Random) -> History | None:
    found = [(number, send) for number, send in sends(history, Outcome.OK) if len(send.offsets) > 1]
    if not found:
        return None
    number, send = chance.choice(found)
    return [*history[:number], replace(send, offsets=send.offsets[::-1]), *history[number + 1 :]]


def _fetches_after_a_commit(history: History) -> list[tuple[int, Fetch]]:
    found = []
    for number, fetch in enumerate(history):
        if isinstance(fetch, Fetch) and any(
            isinstance(commit, Commit)
            and commit.outcome is Outcome.OK
            and commit.queue == fetch.queue
            and commit.completed is not None
            and commit.completed < fetch.invoked
            for commit in history[:number]
        ):
            found.append((number, fetch))
    return found


def forget_an_offset(history: History, chance: random.Random) -> History | None:
    found = _fetches_after_a_commit(history)
    if not found:
        return None
    number, fetch = chance.choice(found)
    return [*history[:number], replace(fetch, offset=None), *history[number + 1 :]]


def invent_an_offset(history: History, chance: random.Random) -> History | None:
    found = [(number, operation) for number, operation in enumerate(history) if isinstance(operation, Fetch)]
    if not found:
        return None
    number, fetch = chance.choice(found)
    return [*history[:number], replace(fetch, offset=1_000_000), *history[number + 1 :]]


CORRUPTIONS: dict[Corruption, Word] = {
    drop_acknowledged: Word.LOST_WRITE,
    cut_acknowledged_tail: Word.LOST_WRITE,
    swap_values: Word.INCONSISTENT_OFFSETS,
    double_value: Word.DUPLICATE,
    add_stranger: Word.UNKNOWN_VALUE,
    fail_what_was_read: Word.ABORTED_READ,
    leave_a_hole: Word.GAP,
    take_back_what_was_read: Word.DIRTY_READ,
    skip_within_a_poll: Word.INT_POLL_SKIP,
    skip_a_poll: Word.POLL_SKIP,
    poll_again: Word.NONMONOTONIC_POLL,
    turn_a_poll_round: Word.INT_NONMONOTONIC_POLL,
    exchange_sends: Word.NONMONOTONIC_SEND,
    tear_a_batch: Word.INT_SEND_SKIP,
    turn_a_batch_round: Word.INT_NONMONOTONIC_SEND,
    forget_an_offset: Word.STALE_OFFSET,
    invent_an_offset: Word.UNKNOWN_OFFSET,
}
