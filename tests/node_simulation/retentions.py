"""Groups whose members change and that delete the begin of their log: what may be gone, and what is there.

All of it follows from the committed log. What the group has decided to delete (TrimLog) was old enough; no
node lacks anything else; every member deletes all of it, and knows what it said; and clients find whatever
came behind it.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from broker.app import Broker
from broker.feature import Core
from broker.state.changes import TrimLog, decode_changes
from commitlog.consume_queues import NOT_QUEUED
from commitlog.dispatch import STATE_TOPIC
from commitlog.record import Record
from dledger.core.membership import MemberRole
from dledger.core.node import Node
from dledger.core.types import NO_INDEX
from tests.histories.operations import Drain, Operation, Outcome, Queue, Send
from tests.node_simulation.clocks import WALL_ZERO_MS
from tests.node_simulation.invariants import Checker, node_of
from tests.node_simulation.machine import Machine
from tests.simulation.invariants import require

HOUR_MS = 3_600_000
FLUSH_US = 500_000
EVERY_HOUR = ";".join(f"{hour:02}" for hour in range(24))
FOR_EVER = {"file_reserved_hours": 100_000}
TRIM = "begin of the log deleted"
RESET = "log reset behind its end"
"""A node was so far behind that its leader had no longer what came next: it has only the leader's log."""
NEW_RESET = "log of a new member reset"
LEARNER_RESET = "either of a learner"
KINDS = (TRIM, RESET, NEW_RESET, LEARNER_RESET)


@dataclass(frozen=True, slots=True)
class RetentionOptions:
    """`kept_ms`: how old a message has to be before it is deleted. `waits`: whether the leader keeps what one
    of the members has not got yet.
    """

    kept_ms: int
    waits: bool

    def config(self) -> dict[str, object]:
        """Of each node: small files, looked at often."""
        return {
            "data_file_bytes": 16 << 10,
            "state_snapshot_interval_ms": 200,
            "clean_interval_ms": 200,
            "file_reserved_hours": self.kept_ms / HOUR_MS,
            "delete_when": EVERY_HOUR,
            "disk_max_used_percent": 75 if self.waits else 0,
        }


def draw_retention(seed: int, *, do_clocks_jump: bool) -> RetentionOptions:
    """The options of a seed; always the same ones. Only with clocks that are right an age is known."""
    rng = random.Random(f"{seed} retention")
    kept_ms = rng.choice((0, 1_000, 5_000))
    return RetentionOptions(0 if do_clocks_jump else kept_ms, rng.random() < 0.3)


def tables_of(core: Core) -> tuple[object, ...]:
    """What a node knows beside its messages."""
    state = core.state
    offsets = sorted((topic, group, sorted(row.items())) for topic, group, row in state.offsets.items())
    return dict(state.topics), dict(state.groups), offsets, dict(state.delay_offsets), state.trim_position


@dataclass(slots=True)
class Retained:
    """Follows what the group decides to delete, and where each node's log begins. Without options it does not
    look.
    """

    options: RetentionOptions | None
    checker: Checker
    skew_ppm: int
    first_index: int = 0
    """The first entry that must be there."""
    first_offsets: dict[Queue, int] = field(default_factory=dict)
    """By queue that has lost messages, the first that must be there."""
    deleted: dict[bytes, tuple[Queue, int]] = field(default_factory=dict)
    """Where all before were, by their values: what is in front of a body's padding."""
    newcomers: set[str] = field(default_factory=set)
    """Nodes that became members, or did so again: the log may not wait for them."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    _seen: int = 0
    _flushed_us: dict[str, int] = field(default_factory=dict)
    _bounds: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By node, begin and end of its log when it was last looked at."""

    def turned(self, machine: Machine) -> None:
        """After every turn of a node's loop, and behind the checker: what it calls committed is known."""
        if self.options is None or machine.process is None or machine.process.broker is None:
            return
        committed = self.checker.committed
        for entry in committed[self._seen :]:
            if b'"trimLog"' in entry.data and entry.record.topic == STATE_TOPIC:
                for change in decode_changes(bytes(entry.record.body)):
                    if isinstance(change, TrimLog):
                        self._trim(change.position, self.options.kept_ms, machine.surroundings.clock.now_us)
        self._seen = len(committed)
        self._flush_queues(machine.name, machine.process.broker, machine.surroundings.clock.now_us)
        self._check_begin(machine.name, node_of(machine.process.broker), waits=self.options.waits)

    def _trim(self, position: int, kept_ms: int, now_us: int) -> None:
        """The group has decided that its log may begin here."""
        self.counts[TRIM] += 1
        drift_ms = self.skew_ppm * now_us // 1_000_000_000
        # The leader's clock may be so much ahead. A file is as old as its first and last record, and those
        # between may be from a leader whose clock is that much ahead of a third one's.
        oldest_kept_ms = WALL_ZERO_MS + now_us // 1_000 + 3 * drift_ms - kept_ms
        committed = self.checker.committed
        while committed[self.first_index].position < position:
            record = committed[self.first_index].record
            is_old = kept_ms == 0 or record.store_timestamp_ms <= oldest_kept_ms
            require(is_old, "entry", self.first_index, "is deleted too early", record.store_timestamp_ms)
            self._delete(record)
            self.first_index += 1

    def _delete(self, record: Record) -> None:
        if record.sys_flag & NOT_QUEUED != NOT_QUEUED:
            queue = Queue(record.topic, record.queue_id)
            self.first_offsets[queue] = record.queue_offset + 1
            self.deleted[bytes(record.body).partition(b".")[0]] = queue, record.queue_offset

    def _flush_queues(self, name: str, broker: Broker, now_us: int) -> None:
        """Only what the queues' files have is deleted, and these get it each ten seconds."""
        if now_us - self._flushed_us.get(name, 0) >= FLUSH_US:
            self._flushed_us[name] = now_us
            broker.core.log._flusher.flush_soon()  # type: ignore[attr-defined]

    def _check_begin(self, name: str, node: Node, *, waits: bool) -> None:
        begin, end = self._bounds.get(name, (0, NO_INDEX))
        self._bounds[name] = node.begin_index, node.end_index
        if node.begin_index == begin:
            return
        is_decided = node.begin_index <= self.first_index
        require(is_decided, name, "begins at", node.begin_index, "and may at", self.first_index)
        if node.begin_index > end + 1:
            self.counts[NEW_RESET if end == NO_INDEX else RESET] += 1
            member = self.checker.newest.configuration.member(name)
            self.counts[LEARNER_RESET] += member is not None and member.role is MemberRole.LEARNER
            strangers = self.newcomers | self.checker.damaged | self.checker.wiped
            require(not waits or name in strangers, name, "ended at", end, "and was not waited for")

    # -- the end

    def is_settled(self, members: Iterable[Machine]) -> bool:
        """Whether all have deleted what the group decided to delete, and know the same: what is gone too."""
        if self.options is None:
            return True
        brokers = [None if machine.process is None else machine.process.broker for machine in members]
        cores = [broker.core for broker in brokers if broker is not None]
        begins = {core.log.begin_index for core in cores}
        is_one = all(tables_of(core) == tables_of(cores[0]) for core in cores)
        return len(cores) == len(brokers) and begins == {self.first_index} and is_one

    def located(self, operations: Iterable[Operation]) -> Iterator[Operation]:
        """The same, where a numbered send whose answer had no offset says where its message was before it was
        deleted.
        """
        for each in operations:
            if isinstance(each, Send) and each.outcome is Outcome.OK and not each.offsets:
                places = [self.deleted.get(value.encode()) for value in each.values]
                offsets = tuple(place[1] for place in places if place is not None and place[0] == each.queue)
                yield replace(each, offsets=offsets if len(offsets) == len(each.values) else ())
            else:
                yield each

    def check_drains(self, operations: Iterable[Operation]) -> None:
        """Every queue was read from the first message on that is not deleted."""
        for drain in operations:
            if isinstance(drain, Drain) and self.options is not None:
                first = self.first_offsets.get(drain.queue, 0)
                require(drain.begin == first, drain.queue, "begins at", drain.begin, "and should at", first)
