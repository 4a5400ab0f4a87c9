"""The index knows what waits, whatever of it is in memory or in runs on the disk."""

import heapq
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.timer.index import ROWS_IN_MEMORY_MAX, RUNS_MAX, TimerIndex
from broker.timer.index_store import (
    PIECE,
    Checkpoint,
    CheckpointError,
    DamagedRunError,
    PendingSet,
    RunExtent,
    RunStore,
    decode_checkpoint,
    encode_checkpoint,
)
from broker.timer.records import Row, first_at, key_of, offset_of, unpack
from dledger.fs import OsFs
from tests.support.long_runs import examples
from tests.support.memory_fs import MemoryFs

FOLDER = Path("/store/timer")
TIMES = st.integers(0, 40)
ROWS = st.builds(
    Row, st.integers(0, 1 << 61), st.integers(0, 1 << 62), st.binary(min_size=8, max_size=8), st.booleans()
)


@given(st.lists(ROWS, max_size=20))
def test_rows_compare_as_their_bytes_do(rows: list[Row]) -> None:
    packed = [row.pack() for row in rows]
    assert [unpack(data) for data in packed] == rows
    assert [offset_of(data) for data in packed] == [row.offset for row in rows]
    by_bytes = [unpack(data) for data in sorted(packed)]
    assert by_bytes == sorted(rows, key=lambda row: (row.wake_ms, row.is_message, row.offset, row.key))
    for row in rows:
        assert first_at(row.wake_ms) <= row.pack() < first_at(row.wake_ms + 1)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * PIECE)), max_size=60))
def test_a_pending_set_is_a_set(steps: list[tuple[bool, int]]) -> None:
    pending, expected = PendingSet(), set[int]()
    for is_added, offset in steps:
        if is_added:
            pending.add(offset)
            expected.add(offset)
        else:
            assert pending.remove(offset) == (offset in expected)
            expected.discard(offset)
    pending = PendingSet.restored(pending.rows())
    assert {offset for offset in range(3 * PIECE + 1) if offset in pending} == expected
    assert pending.count == len(expected)
    assert pending.held_bytes <= 128 * len(expected)


@given(st.sets(st.integers(0, 3 * PIECE), max_size=30), st.integers(0, 3 * PIECE + 1))
def test_a_pending_set_loses_what_is_before_an_offset(offsets: set[int], begin: int) -> None:
    pending = PendingSet()
    for offset in offsets:
        pending.add(offset)
    pending.drop_before(begin)
    kept = {offset for offset in offsets if offset >= begin}
    assert {offset for offset in range(3 * PIECE + 1) if offset in pending} == kept
    assert (pending.count, pending.first) == (len(kept), min(kept, default=None))


@given(st.integers(0, 200), st.binary(max_size=8))
def test_a_checkpoint_that_was_changed_anywhere_is_refused(at: int, change: bytes) -> None:
    pending = PendingSet()
    pending.add(5)
    checkpoint = Checkpoint(7, 99, 6, (RunExtent(1, 2, 3), RunExtent(4, 5, 6)), pending)
    data = encode_checkpoint(checkpoint)
    found = decode_checkpoint(data)
    assert (found.end, found.position, found.last_delivery, found.runs) == (7, 99, 6, checkpoint.runs)
    assert 5 in found.pending
    changed = data[:at] + change + data[at + len(change) :]
    if changed != data:
        with pytest.raises(CheckpointError):
            decode_checkpoint(changed)
    with pytest.raises(CheckpointError):
        decode_checkpoint(data[:at]) if at < len(data) else decode_checkpoint(data + b"x")


def test_an_empty_checkpoint_is_refused_in_words() -> None:
    """What a power failure leaves of a file that is not synced before its rename."""
    with pytest.raises(CheckpointError, match="checkpoint cannot be used: it has only 0 bytes"):
        decode_checkpoint(b"")


class IndexMachine(RuleBasedStateMachine):
    """An index beside a plain dictionary of what waits."""

    @initialize()
    def begin(self) -> None:
        self.fs = MemoryFs()
        self.waiting: dict[int, Row] = {}
        self.gone: list[Row] = []
        self.end = 0
        self.joining: Generator[None] | None = None
        self.open()

    def open(self) -> None:
        self.index = TimerIndex(RunStore(self.fs, FOLDER), rows_max=8)
        self.index.restore()
        self.joining = None

    @rule(wake_ms=TIMES, is_message=st.booleans())
    def store(self, wake_ms: int, is_message: bool) -> None:
        row = Row(wake_ms, self.end, key_of(str(wake_ms % 3)), is_message)
        self.index.add(row)
        self.waiting[self.end] = row
        self.end += 1
        self.index.move_to(self.end, 100 + self.end)

    @rule(until_ms=TIMES, most=st.integers(1, 9))
    def deliver(self, until_ms: int, most: int) -> None:
        rows = self.index.due(until_ms, most)
        ready = (row for row in self.waiting.values() if row.wake_ms <= until_ms)
        assert rows == heapq.nsmallest(most, ready, key=lambda row: row.pack())
        for row in rows:
            assert self.index.remove(row.offset)
            self.gone.append(self.waiting.pop(row.offset))

    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        if self.gone:
            row = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
            self.index.add(row)
            self.waiting[row.offset] = row

    @rule(data=st.data())
    def recall(self, data: st.DataObject) -> None:
        if self.waiting:
            offset = data.draw(st.sampled_from(sorted(self.waiting)))
            assert self.index.remove(offset)
            self.gone.append(self.waiting.pop(offset))

    @rule(low=TIMES, length=st.integers(0, 20), key=st.integers(0, 2))
    def find(self, low: int, length: int, key: int) -> None:
        wanted = key_of(str(key))
        expected = [
            row
            for row in self.waiting.values()
            if low <= row.wake_ms < low + length and row.key == wanted and row.is_message
        ]
        assert self.index.find(wanted, low, low + length) == sorted(expected, key=lambda row: row.offset)

    @rule()
    def save(self) -> None:
        self.index.save()

    @rule()
    def save_and_stop(self) -> None:
        if self.joining is not None:
            self.joining.close()
        self.index.save()
        self.index.close()
        self.open()
        assert self.index.end == self.end

    @rule(steps=st.integers(1, 3))
    def join(self, steps: int) -> None:
        if self.joining is None:
            self.joining = self.index.join_runs()
        for _ in range(steps):
            if next(self.joining, self) is self:
                self.joining = None
                break

    @invariant()
    def knows_what_waits(self) -> None:
        assert self.index.pending.count == len(self.waiting)
        first = min((row.wake_ms for row in self.waiting.values()), default=None)
        assert self.index.next_wake_ms() == first
        for wake_ms in (0, 20):
            assert self.index.count_at(wake_ms) >= sum(
                row.wake_ms == wake_ms for row in self.waiting.values()
            )


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(
    max_examples=examples(40),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def filled(directory: Path, count: int) -> TimerIndex:
    """An index that had so many rows, a second apart, and was looked after as a journal does it."""
    index = TimerIndex(RunStore(OsFs(), directory))
    for offset in range(count):
        index.add(Row((offset * 7_919 % count) * 1_000, offset, key_of("k")))
        index.move_to(offset + 1, offset)
        if index.wants_save:
            index.save()
            for _ in index.join_runs():
                pass
    return index


def test_memory_does_not_grow_with_what_waits(tmp_path: Path) -> None:
    index = filled(tmp_path, 100_000)
    assert index.pending.count == 100_000
    assert index.pending.held_bytes <= 100_000 // 8 + 128
    assert len(index._near) <= ROWS_IN_MEMORY_MAX
    assert len(index._runs) <= RUNS_MAX + 1
    assert [row.wake_ms for row in index.due(4_000, 100)] == [0, 1_000, 2_000, 3_000, 4_000]
    index.close()


def test_files_go_when_all_of_them_is_over(tmp_path: Path) -> None:
    index = filled(tmp_path, 30_000)
    for offset in range(30_000):
        index.remove(offset)
    assert index.next_wake_ms() is None
    index.save()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    index.close()


def test_a_run_that_was_cut_is_noticed(tmp_path: Path) -> None:
    index = filled(tmp_path, 9_000)
    index.save()
    for path in tmp_path.glob("run-*"):
        path.write_bytes(b"")
    with pytest.raises(DamagedRunError):
        index.due(10_000, 10)
    index.clear()
    assert index.due(10_000, 10) == []
    assert list(tmp_path.iterdir()) == []
    assert (index.end, index.life) == (0, 1)
