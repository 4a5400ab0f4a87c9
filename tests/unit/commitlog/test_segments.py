import errno
from pathlib import Path

import pytest

from commitlog.errors import CorruptLogError
from commitlog.segments import Segments
from tests.support.memory_fs import MemoryFs

ROW = Path("/row")


class CountingFs(MemoryFs):
    """Remembers what was reserved, and has only so much space."""

    def __init__(self, space_bytes: int = 1 << 30) -> None:
        super().__init__()
        self.reserved: list[tuple[int, int]] = []
        self.space_bytes = space_bytes

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        super().allocate(fd, position, size_bytes)
        if size_bytes > self.space_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.space_bytes -= size_bytes
        self.reserved.append((position, size_bytes))


def open_row(fs: MemoryFs, reserve_bytes: int = 40) -> Segments:
    row = Segments(fs, ROW, 100, reserve_bytes)
    row.load()
    return row


def test_write_across_files_makes_them_in_full_length() -> None:
    fs = CountingFs()
    row = open_row(fs)
    row.write(90, [b"x" * 5, b"y" * 130])
    assert row.starts() == [0, 100, 200]
    assert all(len(fs.content(ROW / name)) == 100 for name in fs.list(ROW))
    assert row.read(88, 140) == bytes(2) + b"x" * 5 + b"y" * 130 + bytes(3)


def test_blocks_are_reserved_in_windows_ahead_of_the_writing() -> None:
    fs = CountingFs()
    row = open_row(fs)
    for position in range(0, 100, 10):
        row.write(position, [bytes(10)])
    assert fs.reserved == [(0, 40), (40, 40), (80, 20)]
    again = open_row(fs)
    again.write(50, [b"x"])
    assert fs.reserved[3:] == [(50, 30)]


def test_small_room_is_used_up_to_its_end() -> None:
    fs = CountingFs(space_bytes=50)
    row = open_row(fs)
    row.write(0, [b"x" * 10])
    row.write(35, [b"y" * 10])
    assert fs.reserved == [(0, 40), (40, 5)]
    row.write(45, [b"z" * 5])
    assert fs.reserved[2:] == [(45, 5)]
    assert row.read(0, 50) == b"x" * 10 + bytes(25) + b"y" * 10 + b"z" * 5


def test_full_disk_is_an_error_before_anything_is_written() -> None:
    fs = CountingFs(space_bytes=50)
    row = open_row(fs)
    row.write(0, [b"x" * 10])
    with pytest.raises(OSError, match="No space left"):
        row.write(35, [b"y" * 20])
    assert row.read(35, 10) == bytes(10)


def test_sync_makes_files_and_names_durable_once() -> None:
    fs = MemoryFs()
    row = open_row(fs)
    row.write(50, [bytes(100)])
    before = fs.sync_count
    row.sync()
    row.sync()
    assert fs.sync_count - before == 2


@pytest.mark.parametrize(
    ("position", "starts"), [(0, []), (50, [0]), (100, [0]), (101, [0, 100]), (250, [0, 100, 200])]
)
def test_truncate_leaves_zeros_and_no_file_behind(position: int, starts: list[int]) -> None:
    fs = MemoryFs()
    row = open_row(fs)
    row.write(0, [b"x" * 300])
    row.truncate(position)
    assert row.starts() == starts
    if starts:
        content = row.read(0, len(starts) * 100)
        assert content == b"x" * position + bytes(len(content) - position)
    row.close_retired()
    assert fs.open_files == len(starts)
    row.write(position, [b"new"])
    assert row.read(position, 3) == b"new"


def test_read_where_no_file_is_names_it() -> None:
    row = open_row(MemoryFs())
    row.write(0, [b"x"])
    with pytest.raises(CorruptLogError, match="00000000000000000100: missing"):
        row.read(90, 20)


def test_load_ignores_other_names() -> None:
    fs = MemoryFs()
    open_row(fs).write(0, [b"x"])
    fs.close(fs.open(ROW / "notes.txt"))
    assert open_row(fs).starts() == [0]
