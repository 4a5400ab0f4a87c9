"""broker.store.message_log.stored_ms: when an entry was stored, committed or not."""

from pathlib import Path

import pytest

from broker.store.message_log import stored_ms
from commitlog.entry import HEADER_BYTES, Buffer
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, open_entry_store
from commitlog.record import Message, encode_record
from tests.support.log_entries import write_all
from tests.support.memory_fs import MemoryFs


def make_store(*bodies: bytes, fs: MemoryFs | None = None, cache_bytes_max: int = 65_536) -> EntryStore:
    config = EntryStoreConfig(data_file_bytes=4096, index_file_bytes=1024, cache_bytes_max=cache_bytes_max)
    store = open_entry_store(Path("/store"), config, fs=fs or MemoryFs())
    store.append_bodies(0, 1, bodies)
    return store


def record(stored_at_ms: int) -> bytes:
    return encode_record(Message("t", 0, b"body"), 0, stored_at_ms)


def test_it_is_what_the_record_says_though_nothing_is_written_yet() -> None:
    store = make_store(record(1_000), record(2_500))
    assert [stored_ms(store, index) for index in (0, 1)] == [1_000, 2_500]


def test_what_is_not_there_or_no_record_has_no_time() -> None:
    store = make_store(record(1_000), b"something else")
    assert [stored_ms(store, index) for index in (-1, 1, 2)] == [None, None, None]


def test_a_file_that_ends_too_early_has_no_time() -> None:
    """Whoever asks for a node's state gets the rest of it."""
    fs = MemoryFs()
    store = make_store(record(1_000), fs=fs, cache_bytes_max=1)
    write_all(store)
    assert (store.cached_from, stored_ms(store, 0)) == (store.end_position, 1_000)
    (data,) = (path for path in fs.paths() if "data" in path.parts)
    fs.cut(data, HEADER_BYTES + 10)
    assert stored_ms(store, 0) is None


def test_a_large_message_is_not_read_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(encode_record(Message("t", 0, b"x" * 3_000), 0, 1_000))
    sizes: list[int] = []
    read = store.read

    def counted(position: int, size_bytes: int) -> Buffer:
        sizes.append(size_bytes)
        return read(position, size_bytes)

    monkeypatch.setattr(store, "read", counted)
    assert stored_ms(store, 0) == 1_000
    assert sizes
    assert sum(sizes) < 200
