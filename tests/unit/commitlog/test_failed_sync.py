"""A sync that fails stops the process; the next one must not believe what only the page cache holds."""

import errno
import random

import pytest

from tests.support.log_entries import DIRECTORY, Stored, open_small, read_all, write_all
from tests.support.memory_fs import MemoryFs


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_sync_left_in_the_page_cache_is_written_again(seed: int) -> None:
    """Otherwise it is acknowledged as persisted after the restart, and a power failure takes it."""
    fs = MemoryFs()
    store = open_small(fs)
    store.append_bodies(0, 1, [b"a" * 100, b"b" * 100])
    write_all(store)
    store.append_bodies(2, 1, [b"c" * 100, b"d" * 100])
    fs.fail({"fdatasync"}, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        write_all(store)
    fs.end_process()
    found = read_all(open_small(fs))  # all four: nothing tells what the page cache has from what the disk has
    fs.end_process()
    assert read_all(open_small(fs.crash(random.Random(seed)))) == found


def test_index_whose_sync_failed_is_written_again() -> None:
    """The next start after the power failure looks only at the index of the last data files."""
    fs = MemoryFs()
    store = open_small(fs)
    store.append_bodies(0, 1, [b"a" * 100] * 4)
    write_all(store)
    fs.fail({"fdatasync"}, errno.EIO, folder=DIRECTORY / "index")
    with pytest.raises(OSError, match="Input/output error"):
        store.save_checkpoint(store.end_index, store.end_index)
    fs.end_process()
    again = open_small(fs)
    for first_index in range(4, 40, 4):
        again.append_bodies(first_index, 1, [b"b" * 100] * 4)
        write_all(again)
    again.save_checkpoint(again.end_index, again.end_index)
    fs.end_process()
    after = open_small(fs.crash(random.Random(1)))
    assert read_all(after) == [Stored(1, b"a" * 100)] * 4 + [Stored(1, b"b" * 100)] * 36
