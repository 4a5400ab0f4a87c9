import dataclasses
import random

import pytest

from commitlog.checkpoint import FORMAT_VERSION, MEMBERS_FORMAT_VERSION, unseal
from commitlog.entry import encode_entries, write_physical_offset
from commitlog.entry_store import EntryStore, StoreFailedError, open_entry_store
from commitlog.errors import CorruptLogError
from commitlog.record import Message, encode_record
from dledger.core.membership import Configuration, encode_configuration
from dledger.core.types import CorruptRangeError, DamagedEntryError, EntryRange, Epoch, LogState
from tests.support.log_entries import DIRECTORY, SMALL, Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs
from tests.unit.commitlog.test_record import VECTOR


def append(store: EntryStore, term: int, *bodies: bytes) -> list[int]:
    return store.append_bodies(store.end_index + 1, term, bodies)


def data_files(fs: MemoryFs, row: str = "data") -> dict[str, bytes]:
    directory = DIRECTORY / row
    return {name: fs.content(directory / name) for name in fs.list(directory)}


def test_new_store_is_empty() -> None:
    store = open_small(MemoryFs())
    assert store.log_state() == LogState(0, -1, (), -1)
    assert store.end_position == 0
    assert store.take_writes() is None


def test_append_is_readable_before_and_after_it_is_written() -> None:
    store = open_small(MemoryFs())
    assert append(store, 1, b"a" * 10, b"b" * 20) == [0, 58]
    assert store.end_position == 126
    before = read_all(store)
    write_all(store)
    assert read_all(store) == before == [Stored(1, b"a" * 10), Stored(1, b"b" * 20)]


def test_read_range_of_recent_entries_gives_the_very_bytes_of_the_append() -> None:
    store = open_small(MemoryFs())
    append(store, 1, b"a", b"b", b"c")
    whole = store.read_range(0, 2, 10_000)
    assert store.read_range(0, 2, 10_000).data is whole.data
    part = store.read_range(1, 1, 10_000).data
    assert isinstance(part, memoryview)
    assert part.obj is whole.data


def test_read_range_joins_small_appends_of_one_term_and_file() -> None:
    store = open_small(MemoryFs())
    for body in (b"a", b"b", b"c"):
        append(store, 1, body)
    append(store, 2, b"d")
    found = store.read_range(0, 3, 10_000)
    assert (found.first_index, found.last_index, found.term) == (0, 2, 1)
    store.verify_range(found)
    assert store.read_range(0, 3, 2 * 49).last_index == 1
    assert store.read_range(0, 3, 1).last_index == 0


def test_entry_that_does_not_fit_goes_to_the_next_file_behind_a_blank() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    positions = append(store, 1, bytes(400), bytes(500), bytes(20))
    assert positions == [0, 448, 1024]
    write_all(store)
    first, second = data_files(fs).values()
    assert first[996:1004] == bytes.fromhex("ffffffff 0000001c")
    assert first[1004:] == bytes(20)
    assert second[24:32] == (1024).to_bytes(8, "big")
    assert store.read_range(0, 2, 10_000).last_index == 1


def test_append_hook_sees_each_entry_at_its_position() -> None:
    store = open_entry_store(DIRECTORY, SMALL, write_physical_offset, MemoryFs())
    append(store, 1, bytes(952), VECTOR)
    [_, position] = append(store, 1, VECTOR, VECTOR)
    data = bytes(store.read_range(3, 3, 10_000).data)
    assert int.from_bytes(data[76:84], "big") == position + 48


def test_append_body_too_large_for_a_file_changes_nothing() -> None:
    store = open_small(MemoryFs())
    with pytest.raises(ValueError, match="968"):
        append(store, 1, b"a", bytes(969))
    assert store.end_index == -1
    append(store, 1, bytes(968))


def test_follower_files_are_byte_identical_to_the_leaders() -> None:
    rng = random.Random(7)
    leader_fs, follower_fs = MemoryFs(), MemoryFs()
    leader, follower = open_small(leader_fs), open_small(follower_fs)
    for term in range(1, 12):
        append(leader, term, *(rng.randbytes(rng.randrange(400)) for _ in range(rng.randrange(1, 9))))
        write_all(leader)
        while follower.end_index < leader.end_index:
            entries = leader.read_range(follower.end_index + 1, leader.end_index, rng.randrange(1, 900))
            follower.verify_range(entries)
            follower.append_range(entries)
        write_all(follower)
    assert len(data_files(leader_fs)) > 5
    for row in ("data", "index"):
        assert data_files(leader_fs, row) == data_files(follower_fs, row)
    assert leader.log_state() == follower.log_state()


def entry_range(first_index: int, term: int, position: int, *bodies: bytes) -> EntryRange:
    data, _, _ = encode_entries(bodies, first_index, term, position, None)
    return EntryRange(first_index, first_index + len(bodies) - 1, term, data)


@pytest.mark.parametrize(
    "entries",
    [
        entry_range(2, 2, 49, b"x"),
        entry_range(0, 2, 49, b"x"),
        entry_range(1, 2, 50, b"x"),
        entry_range(1, 2, 1024, b"x"),
        entry_range(1, 1, 49, b"x"),
        entry_range(1, 2, 49, bytes(400), bytes(500)),
        dataclasses.replace(entry_range(1, 2, 49, b"x", b"y"), last_index=1),
        EntryRange(1, 1, 2, b""),
    ],
)
def test_append_range_that_does_not_continue_the_log_is_refused(entries: EntryRange) -> None:
    store = open_small(MemoryFs())
    append(store, 2, b"a")
    with pytest.raises(CorruptRangeError):
        store.append_range(entries)
    assert store.end_index == 0
    store.append_range(entry_range(1, 2, 49, b"x"))


def test_truncate_takes_back_the_blank_too() -> None:
    store = open_small(MemoryFs())
    append(store, 1, bytes(900), bytes(200))
    store.truncate_from(1)
    assert store.end_position == 948
    assert append(store, 2, b"") == [948]


def test_truncate_drops_epochs_and_reset_all_of_them() -> None:
    store = open_small(MemoryFs())
    for term in (1, 4, 6):
        append(store, term, b"a", b"b")
    assert store.log_state().epochs == (Epoch(1, 0), Epoch(4, 2), Epoch(6, 4))
    store.truncate_from(3)
    assert store.log_state().epochs == (Epoch(1, 0), Epoch(4, 2))
    store.reset(50, 3000)
    assert store.log_state() == LogState(50, 49, (), 49)
    append(store, 7, b"x")
    assert store.position_of(50) == 3000


def test_reset_store_begins_with_a_blank_and_is_found_again() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"old")
    store.reset(50, 3000)
    append(store, 7, b"x")
    write_all(store)
    [(name, content)] = data_files(fs).items()
    assert name == f"{2048:020d}"
    assert content[:8] == bytes.fromhex("ffffffff 000003b8")
    again = open_small(fs)
    assert again.log_state() == LogState(50, 50, (Epoch(7, 50),), 49)
    assert read_all(again) == [Stored(7, b"x")]


def test_reset_store_without_entries_is_found_again() -> None:
    for position in (3000, 2048):
        fs = MemoryFs()
        store = open_small(fs)
        append(store, 1, b"old")
        write_all(store)
        store.save_checkpoint(0, 0)
        store.reset(50, position)
        write_all(store)
        again = open_small(fs)
        assert again.log_state() == LogState(50, 49, (), 49)
        assert again.end_position == position


def test_checkpoint_keeps_the_commit_index_and_promises_only_what_is_written() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"a", b"b")
    write_all(store)
    append(store, 1, b"c")
    store.save_checkpoint(2, 2)
    assert fs.content(DIRECTORY / "checkpoint").startswith(b"endIndex=1\ncommittedIndex=1\n#crc32=")
    assert open_small(fs).log_state().commit_index == 1


def test_failed_write_makes_the_store_refuse_further_writes() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"a")
    writes = store.take_writes()
    assert writes is not None
    fs.fail_after_writes = 0
    with pytest.raises(OSError, match="No space left"):
        store.write(writes, sync=True)
    fs.fail_after_writes = None
    with pytest.raises(StoreFailedError):
        store.write(writes, sync=True)
    with pytest.raises(StoreFailedError):
        store.save_checkpoint(0, 0)


def test_cache_stays_within_its_bound_once_written() -> None:
    store = open_small(MemoryFs(), dataclasses.replace(SMALL, cache_bytes_max=1500))
    append(store, 1, *([bytes(52)] * 50))
    assert store.cached_from == 0
    write_all(store)
    assert store.cached_from > store.position_of(39)
    assert len(read_all(store)) == 50


def test_what_is_not_dispatched_stays_in_the_cache_up_to_four_times_its_bound() -> None:
    store = open_small(MemoryFs(), dataclasses.replace(SMALL, cache_bytes_max=2000))
    store.cache.dispatched(-1)
    append(store, 1, *([bytes(52)] * 50))
    write_all(store)
    kept_bytes = store.end_position - store.cached_from
    assert 4000 < kept_bytes <= 4 * 2000
    store.cache.dispatched(49)
    assert store.end_position - store.cached_from <= 2000
    assert len(read_all(store)) == 50


def test_damage_found_while_reading_names_the_entries() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, *([bytes(52)] * 50))
    write_all(store)
    fs.overwrite(DIRECTORY / "data" / f"{0:020d}", 150, b"\xff")
    with pytest.raises(DamagedEntryError, match=r"entries 1\.\.1: entry 1: the body"):
        store.read_range(1, 3, 10_000)
    assert store.read_range(0, 3, 10_000).last_index == 0  # what is whole before it


def test_sync_is_made_before_more_than_the_limit_stands_unsynced() -> None:
    fs = MemoryFs()
    store = open_small(fs, dataclasses.replace(SMALL, data_file_bytes=65536, unsynced_bytes_max=1000))
    for _ in range(10):
        append(store, 1, bytes(352))
    before = fs.sync_count
    write_all(store, sync=False)
    assert fs.sync_count - before == 4 + 1  # and one for the epochs


def test_disk_full_is_asked_at_most_once_a_second() -> None:
    fs = MemoryFs()
    now = [0.0]
    store = open_entry_store(DIRECTORY, SMALL, fs=fs, clock=lambda: now[0])
    assert not store.is_disk_full()
    fs.used = 0.91
    assert not store.is_disk_full()
    now[0] = 1.0
    assert store.is_disk_full()


def test_store_of_other_file_sizes_is_refused() -> None:
    fs = MemoryFs()
    open_small(fs).close()
    with pytest.raises(CorruptLogError, match="dataFileBytes"):
        open_small(fs, dataclasses.replace(SMALL, data_file_bytes=2048))
    assert fs.open_files == 0


def test_close_leaves_no_file_open() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, *([bytes(300)] * 9))
    write_all(store)
    store.truncate_from(2)
    write_all(store)
    store.close()
    assert fs.open_files == 0


MEMBERS = encode_configuration(Configuration.of_voters(("n0", "n1", "n2")))


def format_of(fs: MemoryFs) -> object:
    fields = unseal(fs.content(DIRECTORY / "format"))
    assert fields is not None
    return fields["version"]


def configuration_body() -> bytes:
    return encode_record(Message(topic="members", queue_id=0, body=MEMBERS, store_host=bytes(8)), 0, 0)


def test_before_the_first_configuration_the_format_shuts_older_releases_out() -> None:
    fs = MemoryFs()
    store = open_small(fs)
    append(store, 1, b"a")
    write_all(store)
    assert format_of(fs) == FORMAT_VERSION
    store.append_configuration(1, 1, configuration_body())
    assert format_of(fs) == FORMAT_VERSION, "it is written with the entry, not by the event loop"
    fs.fail({"pwrite"}, folder=DIRECTORY / "data")
    with pytest.raises(OSError, match="Input"):
        write_all(store)
    assert format_of(fs) == MEMBERS_FORMAT_VERSION, "before the entry"


def test_a_follower_raises_the_format_and_keeps_it() -> None:
    leader, fs = open_small(MemoryFs()), MemoryFs()
    append(leader, 1, b"a")
    leader.append_configuration(1, 1, configuration_body())
    follower = open_small(fs)
    follower.append_range(leader.read_range(0, 0, 10_000))
    write_all(follower)
    assert format_of(fs) == FORMAT_VERSION
    follower.append_range(leader.read_range(1, 1, 10_000))
    write_all(follower)
    assert format_of(fs) == MEMBERS_FORMAT_VERSION
    follower.truncate_from(1)
    write_all(follower)
    again = open_small(fs)
    again.append_configuration(1, 2, configuration_body())
    write_all(again)
    assert format_of(fs) == MEMBERS_FORMAT_VERSION
