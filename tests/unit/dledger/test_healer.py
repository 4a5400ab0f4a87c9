"""dledger.maintenance: damaged entries come back from the peers, and only the right ones are taken."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dledger import maintenance as upkeep
from dledger import server
from dledger.core.config import Config
from dledger.core.messages import (
    AppendRequest,
    CompareRequest,
    FetchRequest,
    FetchResponse,
    Message,
    TruncateRequest,
)
from dledger.core.node import Node
from dledger.core.types import CorruptRangeError, DamagedEntryError, EntryRange, HardState, ResponseCode
from dledger.durable_state import MARK_FILE_NAME
from dledger.maintenance import DAMAGES_MAX, Repairer
from tests.support.memory_log import MemoryLog
from tests.support.polling import until
from tests.unit.dledger.test_repair import LowRng
from tests.unit.dledger.test_server import elected, make_member, running_group

NOT_THERE = ResponseCode.INDEX_OUT_OF_RANGE


@dataclass
class Bench:
    """The healer of n0, whose log has six entries of term 1; the test plays its peers."""

    store: MemoryLog
    node: Node
    healer: Repairer
    sent: list[tuple[str, Message]]
    failures: list[BaseException] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return self.node.status(0).impairment is not None

    async def asked(self) -> tuple[str, FetchRequest]:
        """The next request that leaves."""
        await until(lambda: bool(self.sent))
        peer, message = self.sent.pop(0)
        assert isinstance(message, FetchRequest)
        return peer, message

    def damage(self, *indexes: int) -> None:
        self.store.damaged |= set(indexes)
        self.healer.found(DamagedEntryError(min(indexes), max(indexes), "bad sector"))

    def whole(self, first_index: int, last_index: int) -> EntryRange:
        """The entries as a peer has them."""
        damaged, self.store.damaged = self.store.damaged, set()
        entries = self.store.read_range(first_index, last_index, 1 << 20)
        self.store.damaged = damaged
        return entries

    def answer(self, peer: str, entries: EntryRange | None, term: int = 1) -> None:
        code = NOT_THERE if entries is None else ResponseCode.SUCCESS
        self.healer.on_message(peer, FetchResponse(term, code, entries))


@asynccontextmanager
async def running(names: tuple[str, ...] = ("n0", "n1", "n2")) -> AsyncIterator[Bench]:
    store = MemoryLog()
    store.append_bodies(0, 1, [b"body %d" % number for number in range(6)])
    writes = store.take_writes()
    assert writes is not None
    store.write(writes, sync=True)
    config = Config("g", "n0", names)
    node = Node(config, HardState(1, None), store.log_state(), store, LowRng(), 0)
    sent: list[tuple[str, Message]] = []

    async def run(work: Callable[[], None]) -> None:
        work()

    failures: list[BaseException] = []
    healer = Repairer(
        config,
        node,
        store,
        send=lambda peer, message: sent.append((peer, message)),
        run_on_writer=run,
        fail=failures.append,
    )
    task = asyncio.create_task(healer.run())
    try:
        yield Bench(store, node, healer, sent, failures)
        assert failures == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_damaged_entries_are_fetched_and_put_in_place() -> None:
    async with running() as bench:
        bench.damage(2, 3)
        assert bench.is_damaged
        assert await bench.asked() == ("n1", FetchRequest(1, 2, 3))
        bench.answer("n1", bench.whole(2, 3))
        await until(lambda: not bench.is_damaged)
        assert bench.store.damaged == set()
        assert bench.healer.repaired_entries == 2


async def test_what_one_peer_lacks_another_is_asked_for() -> None:
    async with running() as bench:
        bench.damage(5)
        assert (await bench.asked())[0] == "n1"
        bench.answer("n1", None)
        assert (await bench.asked())[0] == "n2"
        bench.answer("n2", bench.whole(5, 5))
        await until(lambda: not bench.is_damaged)


async def test_rest_of_a_range_is_asked_for_again() -> None:
    async with running() as bench:
        bench.damage(1, 2, 3, 4)
        await bench.asked()
        bench.answer("n1", bench.whole(1, 2))
        assert await bench.asked() == ("n1", FetchRequest(1, 3, 4))
        bench.answer("n1", bench.whole(3, 4))
        await until(lambda: not bench.is_damaged)
        assert bench.store.damaged == set()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda good: EntryRange(good.first_index, good.last_index, 2, good.data),
        lambda good: EntryRange(good.first_index, good.last_index, good.term, bytes(good.data)[:-1] + b"?"),
        lambda good: EntryRange(good.first_index, good.last_index, good.term, bytes(good.data)[:-1]),
        lambda good: EntryRange(good.first_index, good.last_index + 1, good.term, good.data),
    ],
    ids=["other term", "other bytes", "short", "more than asked for"],
)
async def test_wrong_entries_are_not_taken(spoil: Callable[[EntryRange], EntryRange]) -> None:
    async with running() as bench:
        bench.damage(2)
        await bench.asked()
        bench.answer("n1", spoil(bench.whole(2, 2)))
        assert (await bench.asked())[0] == "n2", "the next one is asked"
        assert bench.store.damaged == {2}
        bench.answer("n2", bench.whole(2, 2))
        await until(lambda: not bench.is_damaged)


async def test_entries_that_do_not_fit_what_stands_here_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_self: MemoryLog, _entries: EntryRange) -> None:
        raise CorruptRangeError("another size")

    monkeypatch.setattr(MemoryLog, "replace_range", refuse)
    async with running() as bench:
        bench.damage(2)
        await bench.asked()
        bench.answer("n1", bench.whole(2, 2))
        assert (await bench.asked())[0] == "n2"
        assert bench.is_damaged


async def test_answers_nobody_waits_for_are_dropped() -> None:
    async with running() as bench:
        bench.answer("n1", bench.whole(2, 2))
        bench.damage(2)
        assert (await bench.asked())[0] == "n1"
        bench.answer("n2", bench.whole(2, 2))
        bench.answer("n1", bench.whole(3, 3))
        bench.answer("n1", None, term=9)
        await asyncio.sleep(0)
        assert bench.is_damaged
        bench.answer("n1", bench.whole(2, 2))
        bench.answer("n1", bench.whole(2, 2))
        await until(lambda: not bench.is_damaged)


async def test_entries_that_are_gone_need_no_repair() -> None:
    async with running() as bench:
        bench.healer.found(DamagedEntryError(40, 41, "bad sector"))
        await until(lambda: not bench.is_damaged)
        assert bench.sent == []


async def test_failed_write_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: MemoryLog, _entries: EntryRange) -> None:
        raise OSError(5, "disk")

    monkeypatch.setattr(MemoryLog, "replace_range", fail)
    async with running() as bench:
        bench.damage(2)
        await bench.asked()
        bench.answer("n1", bench.whole(2, 2))
        await until(lambda: bool(bench.failures))
        assert isinstance(bench.failures.pop(), OSError)


async def test_what_is_remembered_is_bounded() -> None:
    async with running(("n0",)) as bench:
        for index in range(2 * DAMAGES_MAX):
            bench.healer.found(DamagedEntryError(index, index, "bad sector"))
        assert len(bench.healer._damaged) == DAMAGES_MAX
        assert not bench.is_damaged, "a group of one must go on leading"


def asked_for(bench: Bench, request: FetchRequest) -> FetchResponse:
    bench.healer.on_message("n1", request)
    peer, message = bench.sent.pop(0)
    assert peer == "n1"
    assert isinstance(message, FetchResponse)
    return message


async def test_peer_gives_the_very_entries_or_none() -> None:
    async with running() as bench:
        given = asked_for(bench, FetchRequest(1, 2, 99))
        assert given == FetchResponse(1, ResponseCode.SUCCESS, bench.whole(2, 5))
        for request in (
            FetchRequest(2, 2, 3),
            FetchRequest(1, 6, 9),
            FetchRequest(1, 3, 2),
            FetchRequest(1, -1, 3),
            FetchRequest(-1, 9, 9),
        ):
            assert asked_for(bench, request) == FetchResponse(request.term, NOT_THERE, None)


def push_of(term: int, prev_term: int, first_index: int, last_index: int, *, own_from: int) -> AppendRequest:
    """Of a leader whose log has entries of term 1 up to own_from, and of this term from there on."""
    log = MemoryLog()
    log.append_bodies(0, 1, [b"body %d" % number for number in range(own_from)])
    log.append_bodies(own_from, term, [b"body %d" % number for number in range(own_from, last_index + 1)])
    return AppendRequest(term, -1, prev_term, log.read_range(first_index, last_index, 1 << 20))


async def test_pushed_entries_that_are_not_in_the_store_yet_are_not_given() -> None:
    """A push and a request for what it holds come in one turn: the node knows of it, the store does not."""
    async with running() as bench:
        bench.node.receive("n1", CompareRequest(1, -1, 5, 1), 0)
        bench.node.receive("n1", push_of(1, 1, 6, 7, own_from=6), 0)
        assert (bench.node.end_index, bench.store.end_index) == (7, 5)
        assert asked_for(bench, FetchRequest(1, 6, 7)) == FetchResponse(1, NOT_THERE, None)
        assert asked_for(bench, FetchRequest(1, 5, 7)).entries == bench.whole(5, 5)


async def test_entries_that_a_push_of_the_same_turn_replaces_are_not_given_as_its_own() -> None:
    async with running() as bench:
        bench.node.receive("n1", CompareRequest(2, -1, 3, 1), 0)
        bench.node.receive("n1", TruncateRequest(2, -1, 4, 1, bench.store.position_of(4), False, 5, 1), 0)
        bench.node.receive("n1", push_of(2, 1, 4, 5, own_from=4), 0)
        assert bench.node.term_at(4) == 2
        assert asked_for(bench, FetchRequest(2, 4, 5)) == FetchResponse(2, NOT_THERE, None)


async def test_peer_that_finds_its_own_copy_damaged_says_so_and_repairs_it() -> None:
    async with running() as bench:
        bench.store.damaged = {2}
        assert asked_for(bench, FetchRequest(1, 2, 3)) == FetchResponse(1, ResponseCode.DISK_ERROR, None)
        assert bench.is_damaged


# ---- in a group


async def test_members_repair_each_other_and_fill_up_an_empty_disk(tmp_path: Path) -> None:
    """The leader can't read what the emptied follower needs; the other follower has it."""
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        leader.server.handle_append([b"a", b"b", b"c"], lambda _code: None)
        last_index = leader.server.status().end_index
        await until(lambda: all(one.server.persisted_index == last_index for one in group.values()))
        name, victim = next((name, one) for name, one in group.items() if one is not leader)
        await victim.server.stop()
        leader.store.damaged = {last_index - 1}
        folder = tmp_path / "emptied"
        addresses = {each.id: (each.host, each.port) for each in victim.server.members.configuration.members}
        again = make_member(name, addresses, folder, MemoryLog())
        assert (folder / MARK_FILE_NAME).exists()
        await again.server.start()
        try:
            await until(lambda: again.server.persisted_index == last_index)
            await until(lambda: not (folder / MARK_FILE_NAME).exists())
            await until(lambda: again.server.status().impairment is None)
            assert again.store.entries() == leader.store.entries()
            assert leader.store.damaged == set()
            await until(lambda: leader.server.status().impairment is None)
        finally:
            await again.server.stop()


async def test_damage_that_nobody_reads_is_found_by_the_scrubber(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_INTERVAL_S", 0.005)
    monkeypatch.setattr(upkeep, "_CHECKPOINT_INTERVAL_MS", 10)
    monkeypatch.setattr(server, "ScrubLimits", lambda: upkeep.ScrubLimits(pause_ms=1))
    async with running_group(tmp_path) as group:
        leader = await elected(group)
        leader.server.handle_append([b"a", b"b", b"c"], lambda _code: None)
        last_index = leader.server.status().end_index
        await until(lambda: all(one.server.persisted_index == last_index for one in group.values()))
        for one, index in zip(group.values(), (1, 2, 3), strict=True):
            one.store.damaged = {index}
        await until(lambda: not any(one.store.damaged for one in group.values()))
