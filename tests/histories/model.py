"""A broker that is right by construction, with clients whose answers get lost: it makes correct histories."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tests.histories.operations import (
    Commit,
    Crash,
    Drain,
    Fetch,
    Operation,
    Outcome,
    Poll,
    Queue,
    Seek,
    Send,
)

GROUP = "G"
POLL_MAX = 4


@dataclass(slots=True)
class Consumer:
    name: str
    queue: Queue
    position: int | None = None
    """None: to be fetched."""


@dataclass(slots=True)
class Under:
    """An operation under way: `effect` is what the broker does for it, as often as `lives` says at most."""

    operation: Send | Commit
    effect: Callable[[], int]
    lives: int
    results: list[int] = field(default_factory=list)


class Model:
    """Runs `steps` steps and a final reading of all queues; `history` is then what the clients saw."""

    def __init__(self, chance: random.Random, steps: int) -> None:
        self.history: list[Operation] = []
        self._chance = chance
        self._clock = 0
        self._queues = [Queue("T", number) for number in range(chance.randint(1, 3))]
        self._log: dict[Queue, list[str]] = {queue: [] for queue in self._queues}
        self._committed: dict[Queue, int] = {}
        self._sends: dict[str, Under | None] = {f"p{number}": None for number in range(3)}
        self._consumers = [Consumer(f"c{number}", queue) for number, queue in enumerate(self._queues)]
        self._commits: dict[str, Under | None] = {consumer.name: None for consumer in self._consumers}
        self._late: list[Under] = []
        self._values = 0
        for _ in range(steps):
            self._step()
        self._drain()

    def _now(self) -> int:
        """Mostly later than the last time, sometimes the same."""
        self._clock += self._chance.choice((0, 1, 1, 5))
        return self._clock

    def _step(self) -> None:
        doings = (self._send, self._send, self._send, self._poll, self._poll, self._commit, self._be_late)
        self._chance.choice(doings)()
        if self._chance.random() < 0.03:
            self._take_over()

    def _send(self) -> None:
        process = self._chance.choice(list(self._sends))
        self._sends[process] = self._advance(self._sends[process]) or self._new_send(process)

    def _new_send(self, process: str) -> Under:
        queue = self._chance.choice(self._queues)
        count = self._chance.choice((1, 1, 1, 3))
        values = tuple(f"v{self._values + number}" for number in range(count))
        self._values += count
        tries = self._chance.choice((1, 1, 2, 3))
        log = self._log[queue]

        def append() -> int:
            log.extend(values)
            return len(log) - count

        send = Send(process, self._now(), None, Outcome.INFO, values, queue, (), tries)
        return Under(send, append, tries)

    def _commit(self) -> None:
        consumer = self._chance.choice(self._consumers)
        under = self._commits[consumer.name]
        if under is None and not consumer.position:
            return
        self._commits[consumer.name] = self._advance(under) or self._new_commit(consumer)

    def _new_commit(self, consumer: Consumer) -> Under | None:
        queue, offset = consumer.queue, consumer.position
        if not offset:
            return None

        def store() -> int:
            self._committed[queue] = offset
            return offset

        commit = Commit(consumer.name, self._now(), None, Outcome.INFO, GROUP, queue, offset)
        return Under(commit, store, 1)

    def _advance(self, under: Under | None) -> Under | None:
        """The broker does it, or an answer comes or is lost: then nothing is under way any more."""
        if under is None:
            return None
        if under.lives and self._chance.random() < 0.7:
            under.lives -= 1
            under.results.append(under.effect())
            return under
        if under.results and self._chance.random() < 0.8:
            self._end(under, Outcome.OK)
        elif not under.results and self._chance.random() < 0.3:
            self._end(under, Outcome.FAIL)
        else:
            self._end(under, Outcome.INFO)
            self._late.append(under)
        return None

    def _end(self, under: Under, outcome: Outcome) -> None:
        operation = under.operation
        if isinstance(operation, Commit):
            self.history.append(replace(operation, completed=self._now(), outcome=outcome))
            return
        first = self._chance.choice(under.results) if outcome is Outcome.OK else 0
        is_ok = outcome is Outcome.OK
        offsets = tuple(range(first, first + len(operation.values))) if is_ok else ()
        queue = operation.queue if is_ok else None
        ended = replace(operation, completed=self._now(), outcome=outcome, offsets=offsets, queue=queue)
        self.history.append(ended)

    def _be_late(self) -> None:
        """What the client has given up arrives after all."""
        if self._late:
            under = self._late.pop(self._chance.randrange(len(self._late)))
            if under.lives:
                under.effect()

    def _poll(self) -> None:
        consumer = self._chance.choice(self._consumers)
        if consumer.position is None:
            self._fetch(consumer)
        elif self._chance.random() < 0.05:
            consumer.position = self._chance.randint(0, len(self._log[consumer.queue]))
            self.history.append(Seek(consumer.name, self._now(), consumer.queue, consumer.position))
        elif self._chance.random() < 0.05:
            now = self._now()
            self.history.append(
                Poll(consumer.name, now, None, Outcome.INFO, consumer.queue, consumer.position)
            )
        else:
            self._read(consumer.name, consumer.queue, consumer.position)
            consumer.position = self._position

    def _fetch(self, consumer: Consumer) -> None:
        offset = self._committed.get(consumer.queue)
        span = self._now(), self._now()
        self.history.append(Fetch(consumer.name, *span, Outcome.OK, GROUP, consumer.queue, offset))
        consumer.position = offset or 0

    def _read(self, process: str, queue: Queue, start: int) -> None:
        end = min(start + self._chance.randint(1, POLL_MAX), len(self._log[queue]))
        messages = tuple((offset, self._log[queue][offset]) for offset in range(start, end))
        self._position = start + len(messages)
        span = self._now(), self._now()
        self.history.append(Poll(process, *span, Outcome.OK, queue, start, messages, self._position))

    def _take_over(self) -> None:
        """A consumer dies, its commit under way is left to itself, and another takes its queue."""
        consumer = self._chance.choice(self._consumers)
        under = self._commits.pop(consumer.name)
        if under is not None:
            self._end(under, Outcome.INFO)
            self._late.append(under)
        self.history.append(Crash(consumer.name, self._now()))
        consumer.name = self._chance.choice((consumer.name, f"{consumer.name}'"))
        consumer.position = None
        self._commits[consumer.name] = None

    def _drain(self) -> None:
        for under in self._sends.values():
            if under is not None:
                self._end(under, Outcome.INFO)
        for queue, log in self._log.items():
            began = self._now()
            self.history.append(Seek("final", began, queue, 0))
            self._position = 0
            while self._position < len(log):
                self._read("final", queue, self._position)
            self.history.append(Drain("final", began, self._now(), queue, 0, len(log)))
