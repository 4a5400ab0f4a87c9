"""Reading a whole entry store back, and small stores for tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commitlog.entry import HEADER, HEADER_BYTES, entry_starts
from commitlog.entry_files import EntryStoreConfig
from commitlog.entry_store import EntryStore, open_entry_store
from dledger.fs import Fs

DIRECTORY = Path("/store/dledger-n0")

SMALL = EntryStoreConfig(
    data_file_bytes=1024,
    index_file_bytes=256,
    cache_bytes_max=600,
    chunk_bytes_max=500,
    reserve_bytes=256,
    unsynced_bytes_max=4096,
    recheck_bytes=300,
)


@dataclass(frozen=True, slots=True)
class Stored:
    """One entry, without its place."""

    term: int
    body: bytes


def read_all(store: EntryStore, bytes_max: int = 700) -> list[Stored]:
    """Every entry, by verified ranges."""
    found = []
    index = store.begin_index
    while index <= store.end_index:
        entries = store.read_range(index, store.end_index, bytes_max)
        store.verify_range(entries)
        data = bytes(entries.data)
        starts = entry_starts(data)
        assert HEADER.unpack_from(data)[4] == store.position_of(index)
        for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
            found.append(Stored(entries.term, data[start + HEADER_BYTES : end]))
        index = entries.last_index + 1
    return found


def write_all(store: EntryStore, sync: bool = True) -> None:
    """What the driver and its writer thread do."""
    writes = store.take_writes()
    if writes is not None:
        store.write(writes, sync)
        store.written(writes)


def open_small(
    fs: Fs, config: EntryStoreConfig = SMALL, on_damage: Callable[[str], None] | None = None
) -> EntryStore:
    """A store with files so small that a few entries fill them."""
    return open_entry_store(DIRECTORY, config, fs=fs, clock=lambda: 0.0, on_damage=on_damage)
