"""A table that follows the log through changes of leadership: its parts, and seeded lives of machines."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from commitlog import log_machine
from commitlog.dispatch import DispatchBatch
from commitlog.errors import DamagedRecordError, PositionError
from commitlog.log import PutStatus
from commitlog.log_machine import (
    CLOCK_STEP_MAX_MS,
    TIMER_MAX_MS,
    Changelog,
    ChangelogError,
    LeaderTimer,
    LoadedMachine,
    LogMachine,
    ignore,
    is_ahead,
    is_snapshot_due,
)
from commitlog.record import Message, Record, decode_record, format_properties, tags_code
from tests.support.fake_log import FakeLog

TOPIC = "changes"
SNAPSHOT = "s"


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_machine, "RETRY_MS", 0)


async def settle() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


class FaultyLog(FakeLog):
    """`failures` are raised by the next reads, one each."""

    def __init__(self, **values: bool) -> None:
        super().__init__(**values)
        self.failures: list[Exception] = []

    def read(self, position: int, size: int) -> bytes:
        if self.failures:
            raise self.failures.pop(0)
        return super().read(position, size)


class Everywhere(LogMachine):
    """A table of every node: how many messages there are. Notes what is called."""

    def __init__(self, log: FakeLog) -> None:
        super().__init__(log)
        self.calls: list[str] = []
        self.count = 0
        self.tick = self.timer(lambda: self.calls.append("tick"))

    def apply(self, batch: DispatchBatch) -> None:
        self.count += len(batch)

    def become_leader(self) -> None:
        self.calls.append("leader")

    def become_follower(self) -> None:
        self.calls.append("follower")


def message(topic: str, body: bytes = b"", tag: str = "") -> Message:
    return Message(topic, 0, body, format_properties({"TAGS": tag}) if tag else b"")


# -- the rules


def test_a_time_is_ahead_by_more_than_clocks_differ() -> None:
    assert not is_ahead(CLOCK_STEP_MAX_MS + 5, 5)
    assert is_ahead(CLOCK_STEP_MAX_MS + 6, 5)


def test_a_snapshot_is_due_after_as_many_changes_as_it_has_rows() -> None:
    assert [is_snapshot_due(changes, 20, 10) for changes in (9, 19, 20)] == [False, False, True]
    assert [is_snapshot_due(changes, 5, 10) for changes in (9, 10)] == [False, True]


# -- timers


async def test_a_timer_fires_once_and_the_first_setting_counts() -> None:
    fired: list[int] = []
    timer = LeaderTimer(lambda: fired.append(1))
    assert (timer.is_armed, timer.due_ms) == (False, None)
    timer.arm(0)
    timer.arm(1_000_000)
    assert timer.is_armed
    await settle()
    assert (fired, timer.is_armed) == ([1], False)


async def test_a_timer_of_the_wall_clock_is_set_to_another_time_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        delays.append(delay_s)
        return call_later(delay_s, work)

    monkeypatch.setattr(loop, "call_later", noted)
    timer = LeaderTimer(lambda: None)
    timer.arm_at(5_000, 1_000)
    timer.arm_at(5_000, 2_000)
    timer.arm_at(3_000, 2_000)
    timer.arm_at(1_000, 2_000)
    assert timer.due_ms == 1_000
    timer.arm_at(10 * TIMER_MAX_MS, 0)
    assert delays == [4, 1, 0, TIMER_MAX_MS / 1000]
    timer.cancel()
    timer.cancel()
    assert timer.due_ms is None


# -- a table of every node


async def test_a_machine_hears_of_its_role_and_of_the_topics_it_names() -> None:
    log = FakeLog(is_writable=False)
    machine = Everywhere(log)
    machine.follow_log({"a", "b"})
    await machine.start()
    log.set_writable(True)
    assert machine.is_leader
    log.put([message("a"), message("c")], ignore)
    log.put([message("c")], ignore)
    log.commit(1)
    log.commit()
    assert machine.count == 2
    machine.tick.arm(0)
    log.set_writable(False)
    assert not machine.is_leader
    await settle()
    assert machine.calls == ["leader", "follower"]


async def test_a_machine_may_follow_all_topics_for_a_while() -> None:
    machine = Everywhere(log := FakeLog())
    machine.follow_log()
    log.put([message("x")], ignore)
    await settle()
    machine.unfollow_log()
    log.put([message("x")], ignore)
    await settle()
    assert machine.count == 1


async def test_a_log_that_is_writable_from_its_start_makes_a_leader_once() -> None:
    machine = Everywhere(FakeLog())
    await machine.start()
    await machine.start()
    await machine.stop()
    assert machine.calls == ["leader", "follower"]


async def test_each_change_of_role_makes_earlier_callbacks_stale() -> None:
    machine = Everywhere(log := FakeLog(is_writable=False))
    seen = [machine.leadership]
    for is_writable in (True, False, True):
        log.set_writable(is_writable)
        seen.append(machine.leadership)
    machine.begin_again()
    seen.append(machine.leadership)
    assert all(earlier < later for earlier, later in pairwise(seen))
    assert machine.calls == ["leader", "follower", "leader", "leader"]


async def test_hooks_need_not_be_overridden() -> None:
    log = FakeLog(is_writable=False)
    machine = LogMachine(log)
    machine.follow_log()
    log.set_writable(True)
    log.put([message("x")], ignore)
    await settle()
    log.set_writable(False)
    assert not machine.is_leader


# -- a table of the leader alone


class Counts(LoadedMachine[Counter[str]]):
    """How often each key was added: {"add": key} records, and snapshots in two parts."""

    def __init__(self, log: FakeLog) -> None:
        super().__init__(log, "counts")
        self.changelog = Changelog(log, TOPIC, 0, tags_code(SNAPSHOT))
        self.ready: list[bool] = []
        self.pause: asyncio.Event | None = None
        self.refusals = 0
        self.is_held = False
        self.on_ready(self.ready.append)

    @property
    def table(self) -> Counter[str] | None:
        return self._table

    async def load(self) -> Counter[str]:
        if self.pause is not None:
            await self.pause.wait()
        table: Counter[str] = Counter()
        start = 0
        async for begin, end in self.changelog.snapshots(_place):
            parts = [json.loads(record.body) async for record in self.changelog.records(begin, end)]
            if [part.get("part") for part in parts] == [0, 1]:
                table, start = Counter(parts[0]["rows"] | parts[1]["rows"]), end
                break
        self._changes = 0
        async for record in self.changelog.records(start, self.changelog.max_offset):
            body = json.loads(record.body)
            if body == "from a later version":
                raise ChangelogError(body)
            if "add" in body:
                table[body["add"]] += 1
                self._changes += 1
        return table

    def take_over(self, table: Counter[str]) -> bool:
        self.refusals -= 1
        return super().take_over(table) if self.refusals < 0 else False

    def rows(self, table: Counter[str]) -> int:
        return len(table)

    def may_snapshot(self) -> bool:
        return super().may_snapshot() and not self.is_held

    def snapshot_messages(self, table: Counter[str]) -> list[Message]:
        rows = list(table.items())
        halves = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        return [
            message(TOPIC, json.dumps({"part": part, "rows": dict(half)}).encode(), SNAPSHOT)
            for part, half in enumerate(halves)
        ]

    def add(self, key: str) -> PutStatus:
        assert self._table is not None, "a change without a table"
        status = self._log.put([message(TOPIC, json.dumps({"add": key}).encode())], ignore).status
        if status is PutStatus.PUT_OK:
            self._table[key] += 1
            self._changes += 1
            self.snapshot_if_due()
        return status


def _place(record: Record) -> tuple[int, int] | None:
    body = json.loads(record.body)
    return (body["part"], 2) if "part" in body else None


def contents(log: FakeLog) -> Counter[str]:
    """What all records of the log say, committed or not, without the help of snapshots."""
    found = [json.loads(each.body) for each in log.messages if each.topic == TOPIC]
    return Counter(body["add"] for body in found if "add" in body)


async def make_counts(log: FakeLog) -> Counts:
    machine = Counts(log)
    await machine.start()
    await settle()
    return machine


async def test_a_table_is_loaded_before_it_is_ready_and_dropped_afterwards() -> None:
    log = FakeLog()
    machine = Counts(log)
    machine.pause = asyncio.Event()
    await machine.start()
    await machine.start()
    await settle()
    assert (machine.is_loading, machine.is_leader, machine.table, machine.ready) == (True, False, None, [])
    machine.pause.set()
    await settle()
    assert (machine.is_loading, machine.is_leader, machine.ready) == (False, True, [True])
    assert machine.add("a") is PutStatus.PUT_OK
    log.set_writable(False)
    assert (machine.table, machine.ready) == (None, [True, False])
    log.set_writable(True)
    await settle()
    assert machine.table == {"a": 1}


async def test_loading_ends_with_the_leadership() -> None:
    log = FakeLog()
    machine = Counts(log)
    machine.pause = asyncio.Event()
    await machine.start()
    await settle()
    log.set_writable(False)
    machine.pause.set()
    await settle()
    assert (machine.table, machine.is_loading, machine.ready) == (None, False, [False])
    await machine.stop()
    assert machine.ready == [False]


async def test_a_table_that_cannot_be_read_is_not_served(caplog: pytest.LogCaptureFixture) -> None:
    log = FakeLog()
    log.put([message(TOPIC, b'"from a later version"')], ignore)
    log.commit()
    machine = await make_counts(log)
    assert (machine.table, machine.is_loading, machine.is_leader, machine.ready) == (
        None,
        False,
        False,
        [False],
    )
    assert "counts: the table cannot be loaded" in caplog.text
    machine.snapshot()
    machine.snapshot_if_due()
    assert len(log.put_calls) == 1


async def test_what_the_log_refuses_at_the_start_is_tried_again() -> None:
    machine = Counts(FakeLog())
    machine.refusals = 3
    await machine.start()
    await settle()
    assert (machine.refusals, machine.ready) == (-1, [True])


async def test_damage_found_while_taking_over_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Counts(FakeLog())
    errors: list[Exception] = [DamagedRecordError("damaged")]
    monkeypatch.setattr(machine, "take_over", lambda table: not errors or _raise(errors.pop()))
    await machine.start()
    await settle()
    assert machine.ready == [True]


def _raise(error: Exception) -> bool:
    raise error


async def test_a_snapshot_is_written_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_machine, "SNAPSHOT_CHANGES_MIN", 3)
    machine = await make_counts(log := FakeLog())
    machine.snapshot()
    assert log.put_calls == []
    for key in "aab":
        machine.add(key)
    assert [len(call) for call in log.put_calls] == [1, 1, 1, 2]
    machine.snapshot()
    machine.is_held = True
    for key in "abcd":
        machine.add(key)
    assert len(log.put_calls) == 8
    machine.is_held = False
    log.next_status = PutStatus.OS_PAGE_CACHE_BUSY
    machine.snapshot()
    log.next_status = PutStatus.PUT_OK
    machine.snapshot()
    assert [len(call) for call in log.put_calls[8:]] == [2]
    await settle()
    assert (await make_counts(log.reopened())).table == {"a": 3, "b": 2, "c": 1, "d": 1}


async def test_the_abstract_hooks_must_be_overridden() -> None:
    machine: LoadedMachine[int] = LoadedMachine(FakeLog(), "nothing")
    with pytest.raises(NotImplementedError):
        await machine.load()
    with pytest.raises(NotImplementedError):
        machine.rows(1)
    with pytest.raises(NotImplementedError):
        machine.snapshot_messages(1)
    machine.snapshot_written(1)
    assert machine.take_over(1)
    assert machine.may_snapshot()


# -- changelogs


def filled(log: FakeLog, *bodies: bytes) -> Changelog:
    for body in bodies:
        log.put([message(TOPIC, body, SNAPSHOT if body.startswith(b"s") else "")], ignore)
    log.commit()
    return Changelog(log, TOPIC, 0, tags_code(SNAPSHOT))


async def bodies_of(records: AsyncIterator[Record]) -> list[bytes]:
    return [bytes(record.body) async for record in records]


async def test_an_empty_changelog_has_nothing() -> None:
    changelog = Changelog(FakeLog(), TOPIC, 0, 1)
    assert (changelog.queue, changelog.max_offset, changelog.position_at(0)) == (None, 0, -1)
    assert await bodies_of(changelog.records(0, 10)) == []
    assert list(changelog.snapshot_ends()) == []


async def test_records_are_read_in_order_and_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_machine, "READ_AT_ONCE", 2)
    changelog = filled(FakeLog(), *(b"%d" % number for number in range(5)))
    assert await bodies_of(changelog.records(1, 4)) == [b"1", b"2", b"3"]
    assert await bodies_of(changelog.records(3, 9)) == [b"3", b"4"]


async def test_what_retention_deleted_is_left_out_and_damage_is_waited_for() -> None:
    log = FaultyLog()
    changelog = filled(log, b"0", b"1", b"2", b"3")
    queue = log.fake_queues.by_key[TOPIC, 0]
    queue.drop_before(1)
    log.failures = [PositionError("deleted"), DamagedRecordError("damaged"), DamagedRecordError("damaged")]
    assert await bodies_of(changelog.records(0, 4)) == [b"2", b"3"]
    queue.rows[0] = (queue.rows[0][0], 0, 0)
    assert await bodies_of(changelog.records(1, 3)) == [b"2"]
    assert changelog.position_at(1) == queue.rows[0][0]
    assert (changelog.position_at(-1), changelog.position_at(9)) == (-1, -1)


async def test_snapshots_are_found_from_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_machine, "UNITS_AT_ONCE", 2)
    changelog = filled(FakeLog(), b"s0/2", b"s1/2", b"x", b"s0/2", b"s0/1", b"y", b"s?")
    assert list(changelog.snapshot_ends()) == [7, 5, 4, 2, 1]

    def place(record: Record) -> tuple[int, int] | None:
        text = bytes(record.body).decode()
        return None if text == "s?" else (int(text[1]), int(text[3]))

    assert [found async for found in changelog.snapshots(place)] == [(4, 5), (0, 2)]


# -- whole lives


class World:
    """A group's log as each node finds it, and the machine of the node that is looked at. What can go wrong:
    the leader changes, a node restarts, the log refuses writes, or loses those that are not committed;
    records are damaged for a while.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = FaultyLog(auto_commit=False, is_writable=False)
        self.machine = self._watched()
        self.leaderships = 0

    def _watched(self) -> Counts:
        machine = Counts(self.log)
        put = self.log.put

        def watched(*args: object) -> object:
            assert self.log.is_writable(), "a write as a follower"
            return put(*args)  # type: ignore[arg-type]

        self.log.put = watched  # type: ignore[method-assign, assignment]
        return machine

    def truth(self) -> Counter[str]:
        """What the records say that are in the log now."""
        counts: Counter[str] = Counter()
        for data in self.log._records.values():
            body = json.loads(decode_record(data).body)
            counts.update([body["add"]] if "add" in body else [])
        return counts

    def check(self) -> None:
        machine = self.machine
        assert machine.is_leader == (machine.table is not None)
        assert not (machine.is_leader and machine.is_loading)
        if not self.log.is_writable():
            assert machine.table is None, "a table on a follower"
        if machine.table is not None:
            assert machine.table == self.truth(), "the table is not what the log says"
        ready = machine.ready
        assert ready[-1:] != [True] or machine.is_leader, "not told that the table is dropped"
        assert all(not (a and b) for a, b in pairwise(ready)), f"told twice that it is ready: {ready}"

    def add(self) -> None:
        if self.machine.is_leader:
            self.machine.add(self.rng.choice("abcdefgh"))

    def commit(self) -> None:
        self.log.commit(self.rng.randrange(4))

    def refuse(self) -> None:
        statuses = [PutStatus.PUT_OK, PutStatus.OS_PAGE_CACHE_BUSY, PutStatus.SERVICE_NOT_AVAILABLE]
        self.log.next_status = self.rng.choice(statuses)

    def damage(self) -> None:
        self.log.failures = [DamagedRecordError("for a while")] * self.rng.randrange(3)

    def change_leader(self) -> None:
        """A node is writable only when all that is in its log is committed; a follower's log may be cut."""
        if self.log.is_writable():
            self.log.set_writable(False)
            if self.rng.random() < 0.5:
                self.log.fail(PutStatus.UNKNOWN_ERROR)
        else:
            self.log.commit()
            self.log.set_writable(True)
            self.leaderships += 1

    async def restart(self) -> None:
        await self.machine.stop()
        self.check()
        self.log.commit(self.rng.randrange(3))
        reopened = self.log.reopened()
        self.log = FaultyLog(auto_commit=False, is_writable=False)
        for name, value in vars(reopened).items():
            if name not in ("_listeners", "_writable_callbacks"):
                setattr(self.log, name, value)
        kept = {request.position for request in reopened._committed}
        self.log._records = {at: data for at, data in self.log._records.items() if at in kept}
        self.log._is_writable = False
        self.log.next_status = PutStatus.PUT_OK
        self._recount()
        self.machine = self._watched()
        await self.machine.start()

    def _recount(self) -> None:
        committed = self.log._committed
        offsets: Counter[tuple[str, int]] = Counter((each.topic, each.queue_id) for each in committed)
        self.log._next_offsets = dict(offsets)
        self.log._end_index = committed[-1].index if committed else -1

    async def run(self, steps: int) -> None:
        plain = [self.add] * 12 + [self.commit] * 6 + [self.refuse, self.damage, self.change_leader]
        for _ in range(steps):
            if self.rng.random() < 0.03:
                await self.restart()
            else:
                self.rng.choice(plain)()
            self.check()
            for _ in range(self.rng.randrange(8)):
                await asyncio.sleep(0)
                self.check()
        self.log.failures = []
        self.log.next_status = PutStatus.PUT_OK
        self.log.commit()
        if not self.log.is_writable():
            self.change_leader()
        await settle()
        await settle()
        self.check()
        assert self.machine.is_leader, "a leader's table is never ready"


@pytest.mark.parametrize("seed", range(25))
async def test_a_table_is_what_the_log_says_whatever_happens(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_machine, "SNAPSHOT_CHANGES_MIN", 4)
    world = World(seed)
    await world.run(400)
    assert world.leaderships > 3
