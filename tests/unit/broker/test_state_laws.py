"""A node that takes a snapshot and applies what follows holds what one holds that applied everything: each
table, and the marks of offset resets.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.admin.feature import admin_feature
from broker.state.changes import (
    Change,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    EndWriter,
    LockQueues,
    PutGroup,
    PutSettings,
    PutTopic,
    SetDelayOffset,
    SetRequestMode,
    TrimLog,
    TrimQueues,
    decode_changes,
    encode_change,
    join_changes,
)
from broker.state.groups import POP, PULL, RequestMode, SubscriptionGroupConfig, static_groups
from broker.state.snapshot import Snapshot, decode_snapshot, encode_snapshot
from broker.state.tables import HEARD_OF_MS, PENDING_RESETS_MAX, PendingResets, StateTables
from broker.state.topics import TopicConfig, static_topics
from commitlog.sequences import SequenceRun, writer_key
from tests.support.broker_parts import BrokerParts, make_parts
from tests.support.fake_log import FakeLog
from tests.support.long_runs import examples
from tests.unit.broker.test_state import make_config

TOPICS = st.sampled_from(["t", "u", "TBW102"])
GROUPS = st.sampled_from(["g", "h"])
CLIENTS = st.sampled_from(["c1", "c2"])
NUMBERS = st.integers(0, 2)
OFFSETS = st.dictionaries(NUMBERS, st.integers(0, 3), min_size=1)
QUEUES = st.dictionaries(TOPICS, st.lists(NUMBERS, min_size=1, max_size=2), min_size=1)
WRITERS = st.sampled_from(["w1", "w2"])
OFFSET_CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(CommitOffsets, GROUPS, TOPICS, OFFSETS, st.booleans()),
    st.builds(DropOffsets, GROUPS, TOPICS),
    st.builds(DeleteTopic, TOPICS),
    st.builds(DeleteGroup, GROUPS, st.booleans()),
)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    OFFSET_CHANGES,
    st.builds(PutTopic, st.builds(TopicConfig, TOPICS, st.integers(1, 4))),
    st.builds(PutGroup, st.builds(SubscriptionGroupConfig, GROUPS, retry_max_times=NUMBERS)),
    st.builds(SetDelayOffset, st.integers(1, 3), NUMBERS),
    st.builds(TrimLog, st.integers(0, 9)),
    st.builds(TrimQueues, TOPICS, OFFSETS),
    st.builds(EndWriter, WRITERS, st.tuples(NUMBERS)),
    st.builds(PutSettings, st.dictionaries(st.sampled_from(["topicsMax", "groupsMax"]), st.just("900"))),
    st.builds(LockQueues, GROUPS, CLIENTS, QUEUES, st.booleans()),
    st.builds(SetRequestMode, st.builds(RequestMode, TOPICS, GROUPS, st.sampled_from([PULL, POP]), NUMBERS)),
)
Run = tuple[str, int, int, int]
"""A sequenced record: writer, partition, batch, first number."""
RUNS = st.tuples(WRITERS, NUMBERS, NUMBERS, NUMBERS)
STEPS = st.tuples(st.one_of(CHANGES, RUNS), st.sampled_from([0, 1, 60_000, HEARD_OF_MS, 86_400_000 * 4]))
Step = tuple[Change | Run, int]
"""What stands in the log, and how many ms after the one before it was stored."""


class Node:
    """The tables, as the log's records make them."""

    def __init__(self, snapshot: bytes | None = None) -> None:
        self.tables = StateTables(static_topics(make_config(Path())), static_groups())
        self.applied_index, self.now_ms = -1, 1_000
        if snapshot is not None:
            read = decode_snapshot(snapshot)
            self.tables.load_json(read.tables)
            self.applied_index = read.applied_index

    def apply(self, index: int, step: Step) -> None:
        told, later_ms = step
        self.now_ms += later_ms
        if isinstance(told, tuple):
            writer, partition, batch_id, first = told
            run: SequenceRun = (writer_key(writer, partition), batch_id, first, 1, index, self.now_ms, b"")
            self.tables.writers.apply(run, self.applied_index)
        else:
            [change] = decode_changes(join_changes([encode_change(told)]))
            self.tables.apply(change, self.now_ms)
        self.applied_index = index

    def snapshot(self) -> bytes:
        return encode_snapshot(Snapshot(self.applied_index, self.tables.copy().rows()))

    def holds(self) -> Mapping[str, Any]:
        """Only where the order of rows means something it is a part of what is held."""
        tables = self.tables.to_json()
        in_order = {"writers", "writersTimes", "resets", "topicsVersion", "groupsVersion"}
        return {name: rows if name in in_order else sorted(map(repr, rows)) for name, rows in tables.items()}


RESET: Change = CommitOffsets("g", "t", {0: 1}, is_reset=True)
ANOTHER: Change = CommitOffsets("h", "t", {0: 1})


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, max_size=30), st.integers(0, 30))
@example([(RESET, 1), (ANOTHER, 1)], 1)
@example([(LockQueues("g", "c1", {"t": [0]}), 1), (ANOTHER, 1)], 1)
def test_a_snapshot_and_what_follows_are_the_tables_that_the_whole_log_makes(
    steps: Sequence[Step], cut: int
) -> None:
    whole, snapshot, now_ms = Node(), Node().snapshot(), Node().now_ms
    for index, step in enumerate(steps):
        if index == cut:
            snapshot, now_ms = whole.snapshot(), whole.now_ms
        whole.apply(index, step)
    other = Node(snapshot)
    other.now_ms = now_ms
    for index in range(other.applied_index + 1, len(steps)):
        other.apply(index, steps[index])
    assert other.holds() == whole.holds()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, max_size=20), st.lists(STEPS, max_size=20))
def test_a_copy_for_a_snapshot_is_not_moved_by_what_follows(
    steps: Sequence[Step], later: Sequence[Step]
) -> None:
    node = Node()
    for index, step in enumerate(steps):
        node.apply(index, step)
    before, copy = node.holds(), node.tables.copy()
    for index, step in enumerate(later, len(steps)):
        node.apply(index, step)
    node.tables = copy
    assert node.holds() == before


def marks_of(parts: BrokerParts) -> Mapping[tuple[str, str, int], int | None]:
    """Where consumers are sent; what is over keeps nobody out."""
    keys = [(group, topic, number) for group in ("g", "h") for topic in ("t", "u") for number in range(3)]
    targets = {key: parts.consumers.resets.send(*key, 99, now_ms=0) for key in keys}
    return {key: target for key, target in targets.items() if target is not None}


async def follower(root: Path, log: FakeLog) -> BrokerParts:
    """A node that has applied all there is, from its snapshot on if it has one."""
    reopened = log.reopened()
    reopened.set_writable(False)
    parts = make_parts(root, reopened)
    parts.add(admin_feature(parts.core, parts.consumers))
    await reopened.start()
    return parts


async def check_marks(root: Path, changes: Sequence[Change], cut: int) -> None:
    log = FakeLog()
    first = make_parts(root / "a", log)
    first.add(admin_feature(first.core, first.consumers))
    for number, change in enumerate(changes):
        if number == cut:
            await first.state.stop()
        await first.state.propose(change)
    whole, other = await follower(root / "b", log), await follower(root / "a", log)
    assert marks_of(other) == marks_of(whole)
    assert list(other.state.resets.items()) == list(whole.state.resets.items())


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(OFFSET_CHANGES, min_size=1, max_size=12), st.integers(0, 11))
@example([RESET, ANOTHER], 1)
def test_a_node_that_starts_with_a_snapshot_sends_consumers_where_every_other_one_does(
    changes: Sequence[Change], cut: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(check_marks(Path(root), changes, cut))


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (DropOffsets("g", "t"), 0),
        (DeleteTopic("t"), 0),
        (DeleteGroup("g", True), 0),
        (DeleteGroup("g", False), 1),
        (CommitOffsets("g", "t", {0: 2}), 0),
        (CommitOffsets("g", "t", {0: 1}), 1),
        (ANOTHER, 1),
    ],
)
def test_a_reset_is_pending_until_the_log_says_that_it_was_heard_of(change: Change, left: int) -> None:
    tables = Node().tables
    tables.apply(RESET, 1_000)
    tables.apply(change, 1_001)
    assert len(tables.resets) == left


def test_resets_that_are_pending_are_bounded_in_time_and_number() -> None:
    resets = PendingResets()
    resets.put("g", "t", dict.fromkeys(range(3), 5), stored_ms=0)
    resets.put("h", "t", {0: 5}, stored_ms=HEARD_OF_MS - 1)
    assert len(resets) == 4
    resets.put("h", "t", {1: 5}, stored_ms=HEARD_OF_MS)
    assert [key for key, _ in resets.items()] == [("h", "t", 0), ("h", "t", 1)]
    resets.put("k", "t", dict.fromkeys(range(PENDING_RESETS_MAX - 1), 5), stored_ms=HEARD_OF_MS)
    assert len(resets) == PENDING_RESETS_MAX
    assert next(resets.items())[0] == ("h", "t", 1)
