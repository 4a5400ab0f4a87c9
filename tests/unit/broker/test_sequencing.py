"""Sequenced sends against a model: whatever is repeated, lost, refused or led by another node, the log holds
every number once and in order, and what was acknowledged is in it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.send import sequencing
from broker.send.sequencing import Flight, SequenceRefusedError, Sequencing, Verdict
from broker.state.writers import WriterTable
from commitlog.dispatch import DispatchBatch, DispatchRequest
from commitlog.log import PutStatus
from commitlog.sequences import FIRST_DIGEST, NO_DIGEST, SequenceRun, next_digest
from remoting.codes import ResponseCode
from tests.support.fake_log import FakeLog
from tests.support.long_runs import examples

KEYS = (b"q|0", b"q|1")
ROWS = 12
"""In each batch of each writer."""
MS = 1_000

Entry = tuple[bytes, int, int]


def digests_of(batch_id: int, first: int, count: int) -> list[bytes]:
    """Before the row of this number and behind each of so many: what a row holds follows from its number."""
    found = [FIRST_DIGEST]
    for number in range(first + count):
        found.append(next_digest(found[-1], b"%d %d" % (batch_id, number)))
    return found[first:]


@dataclass(slots=True)
class Put:
    flight: Flight
    end_index: int
    acknowledges: tuple[Entry, ...]


@dataclass
class Leader:
    """One leadership: `entries` are in its log, the first `committed` of them committed and `applied` shown
    in the table.
    """

    entries: list[Entry]
    table: WriterTable = field(default_factory=WriterTable)
    committed: int = 0
    applied: int = 0
    puts: deque[Put] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.log = FakeLog()
        self.sequencing = Sequencing(self.log, lambda: self.table, lambda: MS)

    def apply(self, until: int, cuts: list[int]) -> None:
        """As the dispatching does, in stretches that end at `cuts`."""
        for end in sorted({cut for cut in cuts if self.applied < cut < until} | {until}):
            runs: list[SequenceRun] = [
                (key, batch_id, number, 1, index, MS, digests_of(batch_id, number, 1)[1])
                for index, (key, batch_id, number) in enumerate(self.entries)
                if self.applied <= index < end
            ]
            for run in runs:
                self.table.apply(run, self.applied - 1)
            self.applied = end
            if runs:
                request = DispatchRequest(end - 1, "T", 0, 0, 0, 0, 0, MS, 0)
                for listener in list(self.log._listeners):
                    listener(DispatchBatch.of([request], runs))


def admit(sequencing: Sequencing, key: bytes, batch_id: int, first: int, count: int) -> Verdict | int:
    """The verdict, or the code of the refusal."""
    try:
        return sequencing.admit(key, batch_id, first, count, digests_of(batch_id, first, count))
    except SequenceRefusedError as error:
        return error.code


class ExactlyOnce(RuleBasedStateMachine):
    """Clients send any ranges of their rows; the log, the leader and the network do what they may do."""

    @initialize()
    def begin(self) -> None:
        self.leader = Leader([])
        self.batch = dict.fromkeys(KEYS, 0)
        self.acknowledged: set[Entry] = set()

    @rule(
        key=st.sampled_from(KEYS),
        first=st.integers(0, ROWS - 1),
        count=st.integers(1, 5),
        older=st.sampled_from([0, 0, 0, 0, 1]),
        is_refused=st.sampled_from([False, False, False, True]),
    )
    def send(self, key: bytes, first: int, count: int, older: int, is_refused: bool) -> None:
        batch_id = self.batch[key] - older
        if batch_id < 0:
            return
        self.send_range(key, batch_id, first, min(count, ROWS - first), is_refused)

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, ROWS), repeats=st.integers(0, 3))
    def send_next(self, key: bytes, count: int, repeats: int) -> None:
        """What a client does most of the time: what the log does not have yet, some of it again."""
        first = max(self.reached(key) - repeats, 0)
        if first < ROWS:
            self.send_range(key, self.batch[key], first, min(count, ROWS - first), False)

    def reached(self, key: bytes) -> int:
        numbers = [
            number for found, batch, number in self.leader.entries if (found, batch) == (key, self.batch[key])
        ]
        return len(numbers)

    def send_range(self, key: bytes, batch_id: int, first: int, count: int, is_refused: bool) -> None:
        leader = self.leader
        before = list(leader.entries)
        entries = tuple((key, batch_id, number) for number in range(first, first + count))
        newest = max((batch for found, batch, _ in before if found == key), default=-1)
        at = sum((key, batch_id) == entry[:2] for entry in before)
        verdict = admit(leader.sequencing, key, batch_id, first, count)
        if isinstance(verdict, int):
            is_over = batch_id < newest
            assert verdict == (
                ResponseCode.LEDGERMQ_SEQUENCE_OVER if is_over else ResponseCode.LEDGERMQ_SEQUENCE_GAP
            )
            assert is_over or first > at, "what could be taken was refused"
            return
        if verdict.flight is not None:
            assert verdict.repeats == at - first
            if is_refused:
                told = leader.sequencing.take_back([verdict.flight])
                assert told == []
                return
            leader.entries += entries[verdict.repeats :]
            leader.puts.append(Put(verdict.flight, len(leader.entries), entries))
        elif verdict.original is not None:
            verdict.original.waiting.append(lambda status: self.acknowledge(entries, status))
        else:
            self.acknowledge(entries, verdict.status)

    def acknowledge(self, entries: tuple[Entry, ...], status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            assert set(entries) <= set(self.leader.entries[: self.leader.committed])
            self.acknowledged.update(entries)

    @rule(count=st.integers(1, 20), is_applied_first=st.booleans())
    def commit(self, count: int, is_applied_first: bool) -> None:
        leader = self.leader
        leader.committed = min(leader.committed + count, len(leader.entries))
        if is_applied_first:
            leader.apply(leader.committed, [])
        while leader.puts and leader.puts[0].end_index <= leader.committed:
            self.finish(PutStatus.PUT_OK)

    @rule(count=st.integers(1, 20))
    def apply(self, count: int) -> None:
        self.leader.apply(min(self.leader.applied + count, self.leader.committed), [])

    @precondition(lambda self: self.leader.puts)
    @rule()
    def time_out(self) -> None:
        self.finish(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)

    def finish(self, status: PutStatus) -> None:
        put = self.leader.puts.popleft()
        self.leader.sequencing.finish(put.flight, status)
        self.acknowledge(put.acknowledges, status)

    @rule(kept=st.integers(0, 20), cuts=st.lists(st.integers(1, 200), max_size=4), has_snapshot=st.booleans())
    def fail_over(self, kept: int, cuts: list[int], has_snapshot: bool) -> None:
        """Another node leads, or the same again: some of what was not committed is in its log."""
        old = self.leader
        while old.puts:
            self.finish(PutStatus.UNKNOWN_ERROR)
        old.log.set_writable(False)
        new = Leader(old.entries[: old.committed + kept])
        if has_snapshot:
            new.table = WriterTable.from_json(list(old.table.rows()))
            new.applied = old.applied
        new.committed = len(new.entries)
        new.apply(new.committed, cuts)
        self.leader = new

    @rule(key=st.sampled_from(KEYS))
    def next_batch(self, key: bytes) -> None:
        """A query goes on when all of the batch is acknowledged."""
        if all((key, self.batch[key], number) in self.acknowledged for number in range(ROWS)):
            self.batch[key] += 1

    @invariant()
    def every_number_is_there_once_and_in_order(self) -> None:
        for key in KEYS:
            own = [entry[1:] for entry in self.leader.entries if entry[0] == key]
            full = [(batch, number) for batch in range(self.batch[key] + 1) for number in range(ROWS)]
            assert own == full[: len(own)]

    @invariant()
    def what_was_acknowledged_is_committed(self) -> None:
        assert self.acknowledged <= set(self.leader.entries[: self.leader.committed])

    def teardown(self) -> None:
        """Whatever happened, a client that sends in order gets everything in."""
        leader = self.leader
        leader.committed = len(leader.entries)
        while leader.puts:
            self.finish(PutStatus.PUT_OK)
        leader.apply(leader.committed, [])
        assert not leader.sequencing._tips
        for key in KEYS:
            self.send_range(key, self.batch[key], 0, ROWS, False)
        leader.committed = len(leader.entries)
        while leader.puts:
            self.finish(PutStatus.PUT_OK)
        assert all(
            (key, self.batch[key], number) in self.acknowledged for key in KEYS for number in range(ROWS)
        )
        self.every_number_is_there_once_and_in_order()


TestExactlyOnce = ExactlyOnce.TestCase
TestExactlyOnce.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_appends_that_the_log_refused_are_forgotten_with_what_waited_for_them() -> None:
    leader = Leader([])
    told: list[PutStatus] = []
    first = leader.sequencing.admit(b"q|0", 3, 0, 4)
    second = leader.sequencing.admit(b"q|0", 4, 0, 2)
    third = leader.sequencing.admit(b"q|0", 4, 1, 4)
    assert first.flight is not None
    assert second.flight is not None
    assert third.flight is not None
    assert third.repeats == 1
    repeat = leader.sequencing.admit(b"q|0", 4, 0, 2)
    assert repeat.original is second.flight
    repeat.original.waiting.append(told.append)
    for waiting in leader.sequencing.take_back([second.flight, third.flight]):
        waiting(PutStatus.OS_PAGE_CACHE_BUSY)
    assert told == [PutStatus.OS_PAGE_CACHE_BUSY]
    again = leader.sequencing.admit(b"q|0", 3, 4, 1)
    assert again.flight is not None
    assert again.flight.first == 4


def test_what_was_not_acknowledged_in_time_is_neither_repeated_nor_acknowledged() -> None:
    leader = Leader([])
    flight = leader.sequencing.admit(b"q|0", 0, 0, 4).flight
    assert flight is not None
    leader.sequencing.finish(flight, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH)
    for _ in range(2):
        repeat = leader.sequencing.admit(b"q|0", 0, 0, 4)
        assert repeat.flight is None
        assert repeat.status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    leader.entries += [(b"q|0", 0, number) for number in range(4)]
    leader.committed = 4
    leader.apply(4, [])
    assert leader.sequencing.admit(b"q|0", 0, 0, 4).status is PutStatus.PUT_OK


@pytest.mark.parametrize("batch_id", [0, 7])
def test_an_unknown_writer_must_begin_at_0(batch_id: int) -> None:
    leader = Leader([])
    with pytest.raises(SequenceRefusedError) as caught:
        leader.sequencing.admit(b"q|0", batch_id, 1, 1)
    assert caught.value.code == ResponseCode.LEDGERMQ_SEQUENCE_GAP
    assert caught.value.ext_fields == {}


def test_a_batch_that_is_over_is_refused_with_the_one_the_writer_is_at() -> None:
    leader = Leader([])
    leader.table.apply((b"q|0", 7, 0, 5, 0, MS, NO_DIGEST), -1)
    with pytest.raises(SequenceRefusedError) as caught:
        leader.sequencing.admit(b"q|0", 6, 0, 1)
    assert caught.value.code == ResponseCode.LEDGERMQ_SEQUENCE_OVER
    assert caught.value.ext_fields == {"batchId": "7", "expectedSequence": "5"}


def test_a_full_table_takes_no_writer_that_would_drive_out_a_busy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.state.writers.WRITERS_MAX", 2)
    monkeypatch.setattr("broker.state.writers.KEEP_MS", 10)
    leader = Leader([])
    leader.table.apply((b"a|0", 0, 0, 1, 0, MS - 11, NO_DIGEST), -1)
    leader.table.apply((b"b|0", 0, 0, 1, 1, MS - 5, NO_DIGEST), 0)
    assert leader.sequencing.admit(b"c|0", 0, 0, 1).flight is not None
    with pytest.raises(SequenceRefusedError) as caught:
        leader.sequencing.admit(b"d|0", 0, 0, 1)
    assert caught.value.code == ResponseCode.LEDGERMQ_WRITERS_FULL
    assert leader.sequencing.admit(b"b|0", 0, 1, 1).flight is not None


def test_tips_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencing, "TIPS_MAX", 1)
    leader = Leader([])
    leader.sequencing.admit(b"a|0", 0, 0, 1)
    with pytest.raises(SequenceRefusedError) as caught:
        leader.sequencing.admit(b"b|0", 0, 0, 1)
    assert caught.value.code == ResponseCode.SYSTEM_BUSY


ROW_DIGESTS = digests_of(3, 0, 6)
OTHERS = [FIRST_DIGEST, *(next_digest(digest, b"other") for digest in ROW_DIGESTS[:-1])]
"""Of six rows, and of as many others."""


def differing(leader: Leader, first: int, digests: list[bytes]) -> bool:
    count = len(digests) - 1
    try:
        leader.sequencing.admit(b"q|0", 3, first, count, digests)
    except SequenceRefusedError as error:
        expected = {"batchId": "3", "expectedSequence": "4"}
        return (error.code, error.ext_fields) == (ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS, expected)
    return False


@pytest.mark.parametrize("is_applied", [False, True])
def test_other_rows_under_the_same_numbers_are_no_repeat(is_applied: bool) -> None:
    leader = Leader([])
    flight = leader.sequencing.admit(b"q|0", 3, 0, 4, ROW_DIGESTS[:5]).flight
    assert flight is not None
    if is_applied:
        leader.sequencing.finish(flight, PutStatus.PUT_OK)
        leader.entries += [(b"q|0", 3, number) for number in range(4)]
        leader.committed = 4
        leader.apply(4, [])
        assert not leader.sequencing._tips
    assert differing(leader, 0, OTHERS[:5])
    assert differing(leader, 2, OTHERS[2:7])
    assert differing(leader, 4, OTHERS[4:7])
    assert not differing(leader, 0, ROW_DIGESTS[:5])
    assert not differing(leader, 0, OTHERS[:3]), "is known only where the rows meet the log's end"
    assert not differing(leader, 2, ROW_DIGESTS[2:7])


def test_what_was_taken_back_is_not_counted_in_the_digest() -> None:
    leader = Leader([])
    first = leader.sequencing.admit(b"q|0", 3, 0, 4, ROW_DIGESTS[:5]).flight
    assert first is not None
    second = leader.sequencing.admit(b"q|0", 3, 4, 2, ROW_DIGESTS[4:7]).flight
    assert second is not None
    leader.sequencing.take_back([second])
    assert leader.sequencing.admit(b"q|0", 3, 4, 1, ROW_DIGESTS[4:6]).flight is not None


def test_a_writer_without_digests_is_known_by_its_numbers() -> None:
    leader = Leader([])
    leader.sequencing.admit(b"q|0", 3, 0, 2)
    assert leader.sequencing.admit(b"q|0", 3, 1, 2, OTHERS[1:4]).repeats == 1
    assert leader.sequencing.admit(b"q|0", 3, 2, 2).repeats == 1


def test_the_end_of_a_batch_names_every_partition_that_has_other_rows() -> None:
    leader = Leader([])
    sequencing = leader.sequencing
    for partition in range(4):
        leader.table.apply((b"q|%d" % partition, 3, 0, 4, partition, MS, ROW_DIGESTS[4]), partition - 1)
    sequencing.admit(b"q|1", 3, 4, 2, ROW_DIGESTS[4:7])
    leader.table.apply((b"q|9", 2, 0, 1, 4, MS, ROW_DIGESTS[1]), 3)
    right = {0: (4, ROW_DIGESTS[4]), 1: (6, ROW_DIGESTS[6]), 2: (4, ROW_DIGESTS[4]), 3: (4, ROW_DIGESTS[4])}
    assert list(sequencing.differences(3, {"q": right, "another": {}})) == []
    assert list(sequencing.differences(3, {"q": right | {0: (4, NO_DIGEST)}})) == []
    wrong = {0: (4, OTHERS[4]), 1: (4, ROW_DIGESTS[4]), 2: (4, ROW_DIGESTS[4]), 5: (1, OTHERS[1])}
    assert list(sequencing.differences(3, {"q": wrong})) == [
        "the rows of partition 0 are not those in the log",
        "partition 1 has 4 rows, and 6 are in the log",
        "partition 3 has 0 rows, and 4 are in the log",
        "partition 5 has 1 rows, and 0 are in the log",
    ]
