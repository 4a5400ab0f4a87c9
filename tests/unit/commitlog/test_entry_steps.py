"""A store whose writes are carried out as steps against one that carries them out itself."""

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.entry_store import EntryStore, Writes, open_entry_store
from dledger.fs import OsFs
from native import function
from tests.support.log_entries import SMALL, Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs

CONFIG = replace(SMALL, data_file_bytes=4096, index_file_bytes=32 * 64, reserve_bytes=2048)


def step_all(fs: MemoryFs, store: EntryStore, sync: bool = True) -> bool:
    """As `write_all`, by steps where there are any; whether there were."""
    writes = store.take_writes()
    if writes is None:
        return False
    steps = store.steps_of(writes, sync)
    for step in steps or ():
        if isinstance(step, int):
            fs.fdatasync(step)
        else:
            fd, position, buffers = step[:3]
            fs.pwrite(fd, buffers, position)
    if steps is None:
        store.write(writes, sync)
    else:
        store.steps_done(writes, sync, None)
    store.written(writes)
    return steps is not None


def open_stepping(fs: MemoryFs, monkeypatch: pytest.MonkeyPatch) -> EntryStore:
    store = open_small(fs, CONFIG)
    monkeypatch.setattr(store._files, "_has_system_files", True)
    return store


def contents(fs: MemoryFs) -> dict[str, bytes]:
    return {str(path): fs.content(path) for path in fs.paths()}


@pytest.mark.parametrize("seed", range(25))
def test_steps_leave_the_files_that_write_leaves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    stepped_fs, written_fs = MemoryFs(), MemoryFs()
    stepped, written = open_stepping(stepped_fs, monkeypatch), open_small(written_fs, CONFIG)
    steps = 0
    term = 1
    for _ in range(80):
        bodies = [bytes(rng.randrange(120)) for _ in range(rng.randrange(1, 5))]
        sync = rng.random() < 0.8
        cut_at = (
            rng.randrange(stepped.end_index + 1) if stepped.end_index > 0 and rng.random() < 0.1 else None
        )
        term += rng.random() < 0.05
        for store in (stepped, written):
            if cut_at is not None:
                store.truncate_from(cut_at)
            store.append_bodies(store.end_index + 1, term, bodies)
        steps += step_all(stepped_fs, stepped, sync)
        write_all(written, sync)
        if rng.random() < 0.05:
            for store in (stepped, written):
                store.save_checkpoint(store.end_index, store.end_index)
        assert contents(stepped_fs) == contents(written_fs)
        assert read_all(stepped) == read_all(written)
    assert steps > 30
    stepped_fs.end_process()
    assert read_all(open_small(stepped_fs, CONFIG)) == read_all(written)


@pytest.mark.parametrize("seed", range(25))
def test_what_synced_steps_wrote_survives_a_power_failure(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    fs = MemoryFs()
    store = open_stepping(fs, monkeypatch)
    expected: list[Stored] = []
    for number in range(rng.randrange(1, 60)):
        store.append_bodies(store.end_index + 1, 1, [b"%d" % number * 10])
        step_all(fs, store)
        expected.append(Stored(1, b"%d" % number * 10))
    store.append_bodies(store.end_index + 1, 1, [b"unsynced"])
    step_all(fs, store, sync=False)
    fs.end_process()
    found = read_all(open_small(fs.crash(rng), CONFIG))
    assert found[: len(expected)] == expected
    assert len(found) <= len(expected) + 1


def test_only_an_append_to_open_and_reserved_files_has_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = MemoryFs()
    store = open_stepping(fs, monkeypatch)

    def has_steps() -> bool:
        return step_all(fs, store)

    store.append_bodies(0, 1, [b"first"])
    assert not has_steps(), "the files are not there yet"
    store.append_bodies(1, 1, [b"second"])
    assert has_steps()
    store.append_bodies(2, 2, [b"new term"])
    assert not has_steps(), "the epochs changed"
    store.append_bodies(3, 2, [b"after"])
    store.truncate_from(2)
    store.append_bodies(2, 2, [b"again"])
    assert not has_steps(), "entries were dropped"
    store.append_bodies(3, 2, [bytes(1000)] * 2)
    assert not has_steps(), "behind the reserved blocks"
    store.append_bodies(5, 2, [bytes(1900)])
    assert not has_steps(), "in the next file"
    store.append_bodies(6, 2, [b"in it"])
    assert has_steps()
    monkeypatch.setattr(store._files, "_has_system_files", False)
    store.append_bodies(7, 2, [b"elsewhere"])
    assert not has_steps(), "not the system's files"


def test_steps_are_in_an_order_that_never_promises_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, index, the data's sync, and only then the mark that says so."""
    store = open_stepping(MemoryFs(), monkeypatch)
    store.append_bodies(0, 1, [b"first"])
    write_all(store)
    store.append_bodies(1, 1, [b"a", b"b"])
    writes = store.take_writes()
    assert writes is not None
    steps = store.steps_of(writes, sync=True)
    assert steps is not None
    data, index, synced, mark = steps
    assert data[2] == [writes.ops[0].data]  # type: ignore[union-attr]
    assert index[2] == [writes.ops[0].units]  # type: ignore[union-attr]
    assert synced == data[0] != index[0]
    assert mark[0] not in (data[0], index[0])


def test_after_a_failed_step_nothing_is_written_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_stepping(MemoryFs(), monkeypatch)
    store.append_bodies(0, 1, [b"first"])
    write_all(store)
    store.append_bodies(1, 1, [b"second"])
    writes = store.take_writes()
    assert writes is not None
    assert store.steps_of(writes, sync=True) is not None
    store.steps_done(writes, True, OSError("broken"))
    store.append_bodies(2, 1, [b"third"])
    writes = store.take_writes()
    assert writes is not None
    assert store.steps_of(writes, sync=True) is None
    with pytest.raises(OSError, match="earlier write failed"):
        store.write(writes, True)
    with pytest.raises(OSError, match="earlier write failed"):
        store.save_checkpoint(2, 2)


def test_only_the_systems_own_files_have_steps(tmp_path: Path) -> None:
    class Counting(OsFs):
        """Any other kind may count or break what is written through it."""

    for fs in (OsFs(), Counting()):
        store = open_entry_store(tmp_path / type(fs).__name__, CONFIG, fs=fs)
        store.append_bodies(0, 1, [b"first"])
        write_all(store)
        store.append_bodies(1, 1, [b"second"])
        writes = store.take_writes()
        assert writes is not None
        assert (store.steps_of(writes, True) is not None) == (type(fs) is OsFs)
        store.close()


def test_a_follower_writes_large_ranges_past_the_page_cache_and_a_leader_does_not(tmp_path: Path) -> None:
    sizes = {"data_file_bytes": 1 << 20, "reserve_bytes": 1 << 20, "unsynced_bytes_max": 1 << 20}
    config = replace(CONFIG, **sizes, direct_bytes_min=1000)
    leader = open_entry_store(tmp_path / "leader", config, fs=OsFs())
    follower = open_entry_store(tmp_path / "follower", config, fs=OsFs())
    is_direct = []
    for size in (10, 10, 5000, 10, 100_000):
        leader.append_bodies(leader.end_index + 1, 1, [os.urandom(size)])
        follower.append_range(leader.read_range(leader.end_index, leader.end_index, 1 << 20))
        for store in (leader, follower):
            writes = store.take_writes()
            assert writes is not None
            steps = store.steps_of(writes, sync=True)
            carry_out(store, writes, steps)
            is_direct += [None if steps is None else len(steps[0]) == 4]
    can = (descriptor := OsFs().open_direct(tmp_path / "leader" / "format")) is not None
    assert is_direct == [None, None, False, False, False, can, False, False, False, can]
    assert read_all(leader) == read_all(follower)
    leader.close()
    follower.close()
    if descriptor is not None:
        os.close(descriptor)
    files = [next((tmp_path / name / "data").iterdir()).read_bytes() for name in ("leader", "follower")]
    assert files[0] == files[1]


def carry_out(store: EntryStore, writes: Writes, steps: list[Any] | None) -> None:
    writer = function("_log", "Writer")
    if steps is None:
        store.write(writes, True)
    elif writer is None:
        pytest.skip("not compiled")
    else:
        own = writer()
        own.submit(steps)
        own.finish()
        own.close()
        store.steps_done(writes, True, None)
    store.written(writes)
