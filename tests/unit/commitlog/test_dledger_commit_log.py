"""The replicated log over an engine in the test's hand and a real entry store in memory."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from commitlog.consume_queues import ConsumeQueueConfig
from commitlog.dispatch import DispatchBatch, DispatchRequest
from commitlog.dledger_commit_log import TERM_TOPIC, DLedgerCommitLog, put_status, store_directory
from commitlog.entry import write_physical_offset
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import open_entry_store
from commitlog.errors import DamagedQueueError, PositionError
from commitlog.indexed_log import MessageLogConfig
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message, decode_record
from dledger.core.types import ResponseCode, Role
from tests.support.fake_engine import FakeEngine, as_server
from tests.support.log_entries import write_all
from tests.support.memory_fs import MemoryFs

STORE = Path("/store")
NOW_MS = 1_700_000_000_000
CONFIG = MessageLogConfig(ConsumeQueueConfig(file_bytes=200), message_bytes_max=500)
ENTRIES = EntryStoreConfig(data_file_bytes=4096, index_file_bytes=256, cache_bytes_max=1000)


class Bench:
    """One node: engine, store and log over one file system."""

    def __init__(self, fs: MemoryFs | None = None) -> None:
        self.fs = fs = fs or MemoryFs()
        fs.make_directory(STORE)
        self.store = open_entry_store(store_directory(STORE, "n0"), ENTRIES, write_physical_offset, fs)
        self.engine = FakeEngine(self.store)
        self.fatal: list[BaseException] = []
        self.log = DLedgerCommitLog(
            as_server(self.engine),
            self.store,
            STORE,
            CONFIG,
            on_fatal=self.fatal.append,
            fs=fs,
            clock=lambda: NOW_MS,
        )
        self.done: list[PutStatus] = []
        self.heard: list[DispatchRequest] = []
        self.writable: list[bool] = []
        self.log.add_listener(self.listen)
        self.log.on_writable_change(self.writable.append)

    def listen(self, requests: DispatchBatch) -> None:
        for one in requests:
            assert decode_record(self.log.read(one.position, one.size)).physical_offset == one.position
        self.heard += requests

    def lead(self, term: int = 1) -> None:
        self.engine.lead(term)
        self.engine.commit()

    def put(self, *messages: Message) -> tuple[PutStatus, list[int]]:
        result = self.log.put(messages, self.done.append)
        assert len(result.positions) == len(result.queue_offsets)
        return result.status, result.queue_offsets


def message(topic: str = "T", queue_id: int = 0, body: bytes = b"hello", sys_flag: int = 0) -> Message:
    return Message(topic, queue_id, body, b"TAGS\x01TagA\x02", sys_flag=sys_flag)


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    assert not found.fatal


def test_log_keeps_the_contract(bench: Bench) -> None:
    log: MessageLog = bench.log
    assert (log.min_position, log.max_position, log.applied_index) == (0, 0, -1)


def test_put_before_leadership_is_refused_without_an_append(bench: Bench) -> None:
    assert bench.put(message()) == (PutStatus.SERVICE_NOT_AVAILABLE, [])
    bench.engine.lead(1)
    assert not bench.log.is_writable()
    assert bench.put(message()) == (PutStatus.SERVICE_NOT_AVAILABLE, [])
    assert bench.engine.appended == []


def test_leader_is_writable_once_its_first_entry_is_applied(bench: Bench) -> None:
    bench.engine.lead(1)
    assert bench.writable == []
    bench.engine.commit()
    assert bench.log.is_writable()
    bench.engine.follow(2)
    assert not bench.log.is_writable()
    assert bench.writable == [True, False]


def test_term_start_record_is_heard_of_but_in_no_queue(bench: Bench) -> None:
    bench.lead()
    [request] = bench.heard
    record = decode_record(bench.log.read(request.position, request.size), check_crc=True)
    assert (request.topic, request.queue_offset) == (TERM_TOPIC, 0)
    assert orjson.loads(record.body) == {"term": 1, "leader": "n0"}
    assert bench.log.queues.topics() == []


def test_put_gives_positions_and_offsets_and_answers_at_the_commit(bench: Bench) -> None:
    bench.lead()
    result = bench.log.put([message(), message(queue_id=1), message()], bench.done.append)
    assert (result.status, result.queue_offsets) == (PutStatus.PUT_OK, [0, 0, 1])
    assert result.store_timestamp_ms == NOW_MS
    assert bench.put(message()) == (PutStatus.PUT_OK, [2])
    assert bench.done == []
    assert bench.log.queues.get("T", 0) is None
    with pytest.raises(PositionError):
        bench.log.read(result.positions[0], 100)
    bench.engine.commit()
    assert bench.done == [PutStatus.PUT_OK, PutStatus.PUT_OK]
    queue = bench.log.queues.get("T", 0)
    assert queue is not None
    assert [unit[0] for unit in queue.units(0, 10)][:2] == [result.positions[0], result.positions[2]]
    for position, queue_id in zip(result.positions, (0, 1, 0), strict=True):
        data = bench.log.record_at(position)
        assert data is not None
        record = decode_record(data, check_crc=True)
        assert (record.physical_offset, record.queue_id, record.body) == (position, queue_id, b"hello")
    assert bench.log.max_position == bench.store.end_position


def test_uncommitted_records_cannot_be_read(bench: Bench) -> None:
    bench.lead()
    result = bench.log.put([message()], bench.done.append)
    write_all(bench.store)
    assert bench.log.record_at(result.positions[0]) is None
    with pytest.raises(PositionError):
        bench.log.read(result.positions[0], 105)
    with pytest.raises(DamagedQueueError):  # no queue leads there
        bench.log.read_many([(result.positions[0], 105)])
    assert [type(error) for error in bench.fatal] == [DamagedQueueError]
    bench.fatal.clear()


def test_put_the_engine_refuses_uses_no_offset(bench: Bench) -> None:
    bench.lead()
    bench.engine.append_code = ResponseCode.LEADER_PENDING_FULL
    assert bench.put(message()) == (PutStatus.OS_PAGE_CACHE_BUSY, [])
    bench.engine.append_code = ResponseCode.DISK_FULL
    assert bench.put(message()) == (PutStatus.SERVICE_NOT_AVAILABLE, [])
    bench.engine.append_code = ResponseCode.SUCCESS
    assert bench.put(message()) == (PutStatus.PUT_OK, [0])


@pytest.mark.parametrize(
    "bad",
    [
        message(body=bytes(501)),
        message(topic="x" * 256),
        message(topic="../x"),
        message(topic=""),
        message(queue_id=-1),
        Message("T", 0, b"", bytes(32_768)),
    ],
)
def test_put_with_one_illegal_message_stores_none(bench: Bench, bad: Message) -> None:
    bench.lead()
    assert bench.put(message(), bad) == (PutStatus.MESSAGE_ILLEGAL, [])
    assert bench.put(message()) == (PutStatus.PUT_OK, [0])


def test_put_of_a_record_that_no_file_can_hold_is_illegal(bench: Bench) -> None:
    bench.lead()
    assert bench.put(Message("T", 0, bytes(500), b"x" * 4000)) == (PutStatus.MESSAGE_ILLEGAL, [])
    assert bench.put(Message("T", 0, bytes(500), b"x" * 3000)) == (PutStatus.PUT_OK, [0])


def test_prepared_and_rollback_messages_have_offset_zero_and_no_unit(bench: Bench) -> None:
    bench.lead()
    flags = (0, 0x4, 0xC, 0x8)
    assert bench.put(*(message(sys_flag=flag) for flag in flags)) == (PutStatus.PUT_OK, [0, 0, 0, 1])
    bench.engine.commit()
    queue = bench.log.queues.get("T", 0)
    assert queue is not None
    assert queue.max_offset == 2


def test_next_leader_goes_on_with_the_committed_offsets(bench: Bench) -> None:
    bench.lead()
    bench.put(message(), message())
    bench.engine.commit()
    bench.put(message(), message())
    bench.engine.follow(2)
    assert bench.done == [PutStatus.PUT_OK, PutStatus.UNKNOWN_ERROR]
    bench.store.truncate_from(3)  # what the new leader of term 2 never had
    bench.lead(3)
    assert bench.put(message()) == (PutStatus.PUT_OK, [2])


def test_leader_of_a_new_term_that_nobody_told_of_takes_no_put(bench: Bench) -> None:
    bench.lead()
    bench.engine.term = 5
    assert not bench.log.is_writable()
    assert bench.put(message()) == (PutStatus.SERVICE_NOT_AVAILABLE, [])


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.SUCCESS, PutStatus.PUT_OK),
        (ResponseCode.NOT_LEADER, PutStatus.SERVICE_NOT_AVAILABLE),
        (ResponseCode.INCONSISTENT_LEADER, PutStatus.SERVICE_NOT_AVAILABLE),
        (ResponseCode.LEADER_NOT_READY, PutStatus.SERVICE_NOT_AVAILABLE),
        (ResponseCode.LEADER_TRANSFERRING, PutStatus.SERVICE_NOT_AVAILABLE),
        (ResponseCode.DISK_FULL, PutStatus.SERVICE_NOT_AVAILABLE),
        (ResponseCode.LEADER_PENDING_FULL, PutStatus.OS_PAGE_CACHE_BUSY),
        (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH),
        (ResponseCode.TERM_CHANGED, PutStatus.UNKNOWN_ERROR),
        (ResponseCode.INTERNAL_ERROR, PutStatus.UNKNOWN_ERROR),
    ],
)
def test_put_status_of_each_code(code: ResponseCode, status: PutStatus) -> None:
    assert put_status(code) is status


def test_read_many_joins_records_of_cache_and_files(bench: Bench) -> None:
    bench.lead()
    for number in range(60):
        bench.put(message(body=b"%03d" % number * 10))
        bench.engine.commit()
    queue = bench.log.queues.get("T", 0)
    assert queue is not None
    units = [(position, size) for position, size, _ in queue.units(0, 60)]
    assert units[0][0] < bench.store.cached_from <= units[-1][0]
    for part in (units, units[::7], units[50:], units[::-1], [*units[:1], (0, 0), *units[5:6]], []):
        data = bench.log.read_many(part)
        at = 0
        for position, size in part:
            if size:
                assert decode_record(data, at, check_crc=True).physical_offset == position
                at += size
        assert at == len(data)


@pytest.mark.parametrize("position", [-1, 0, 47, 49, 10_000, 2**62])
def test_record_at_a_place_that_is_none_is_none(bench: Bench, position: int) -> None:
    bench.lead()
    bench.put(message())
    bench.engine.commit()
    assert bench.log.record_at(position) is None


def test_record_at_the_bytes_of_a_record_inside_a_body_is_none(bench: Bench) -> None:
    bench.lead()
    inner = bench.log.read(bench.heard[0].position, bench.heard[0].size)
    result = bench.log.put([message(body=inner)], bench.done.append)
    bench.engine.commit()
    assert bench.log.record_at(result.positions[0] + 88) is None


async def test_restarted_node_has_its_queues_and_dispatches_the_rest(bench: Bench) -> None:
    await bench.log.start()
    bench.lead()
    bench.put(*[message(queue_id=number % 2) for number in range(10)])
    bench.engine.commit()
    await bench.log.stop()
    assert bench.writable == [True, False]
    again = Bench(bench.fs)
    assert again.log.applied_index == 10
    assert again.log.max_position == bench.store.end_position
    assert again.log.queues.next_offset("T", 1) == 5
    again.engine.commit()
    assert again.heard == []
    again.lead(2)
    assert again.put(message()) == (PutStatus.PUT_OK, [5])


async def dispatched(bench: Bench, index: int) -> None:
    async with asyncio.timeout(10):
        while bench.log.applied_index < index:
            await asyncio.sleep(0)


async def test_queues_are_built_again_after_they_were_deleted(bench: Bench) -> None:
    await bench.log.start()
    bench.lead()
    bench.put(*[message(f"topic{number % 3}", number % 2) for number in range(50)])
    bench.engine.commit()
    await dispatched(bench, 50)
    await bench.log.stop()
    root = STORE / "consumequeue"
    before = _files_under(bench.fs, root)
    assert len(before) == 6
    for path in [*before, root / ".checkpoint"]:
        bench.fs.delete(path)
    again = Bench(bench.fs)
    assert again.log.applied_index == -1
    await again.log.start()
    again.engine.commit()
    await dispatched(again, 50)
    assert [request.index for request in again.heard] == list(range(51))
    await again.log.stop()
    assert _files_under(bench.fs, root) == before


def _files_under(fs: MemoryFs, directory: Path) -> dict[Path, bytes]:
    found: dict[Path, bytes] = {}
    for name in fs.list(directory):
        path = directory / name
        if name == ".checkpoint":
            continue
        if len(name) == 20:
            found[path] = fs.content(path)
        else:
            found |= _files_under(fs, path)
    return found


async def test_replay_gives_the_listeners_the_messages_of_an_earlier_life(bench: Bench) -> None:
    await bench.log.start()
    bench.lead()
    bench.put(*[message() for _ in range(10)])
    bench.engine.commit()
    await bench.log.stop()
    again = Bench(bench.fs)
    again.log.replay_from(4)
    assert again.log.max_position == bench.store.end_position
    again.engine.commit()
    assert [request.index for request in again.heard] == list(range(4, 11))
    assert again.log.queues.next_offset("T", 0) == 10


def test_follower_whose_log_begins_anew_goes_on_behind_the_gap(bench: Bench) -> None:
    bench.engine.lead(1)
    bench.engine.commit()
    bench.put(message())
    bench.engine.commit()
    bench.store.reset(500, 9000)
    write_all(bench.store)
    bench.engine.observer.on_readable(499)
    assert bench.log.applied_index == 499
    leader = Bench()
    leader.lead()
    body = bytes(leader.store.read_range(0, 0, 1 << 20).data)[48:]
    bench.store.append_bodies(500, 2, [body])
    bench.engine.commit()
    assert [request.index for request in bench.heard] == [0, 1, 500]
    assert bench.log.min_position == 9000
    assert bench.log.record_at(9048) is not None


def test_fatal_error_of_the_engine_stops_the_log() -> None:
    bench = Bench()
    bench.lead()
    error = OSError("disk gone")
    bench.engine.observer.on_fatal(error)
    assert bench.fatal == [error]
    assert not bench.log.is_writable()
    assert bench.writable == [True, False]


def test_listener_that_raises_stops_the_node() -> None:
    bench = Bench()

    def fail(requests: DispatchBatch) -> None:
        raise RuntimeError("listener")

    bench.log.add_listener(fail)
    bench.lead()
    assert [str(error) for error in bench.fatal] == ["listener"]
    assert not bench.log.is_writable()


async def test_queue_that_cannot_be_written_at_the_end_is_said() -> None:
    bench = Bench()
    await bench.log.start()
    bench.lead()
    bench.put(message())
    bench.engine.commit()
    bench.fs.fail_after_writes = 0
    with pytest.raises(OSError, match="No space left"):
        await bench.log.stop()


def test_engine_role_without_its_first_entry_is_not_ready(bench: Bench) -> None:
    bench.engine.role = Role.LEADER
    bench.engine.observer.on_role_change(Role.LEADER, 0, "n0")
    assert not bench.log.is_writable()
    assert bench.log.status().role is Role.LEADER
