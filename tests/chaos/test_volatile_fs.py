"""What of a file system a killed process leaves behind: looked at by the real one."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from dledger.fs import Fs, OsFs, read_file, replace_file
from tests.chaos.faulty_fs import DiskFaults, FaultyFs
from tests.chaos.volatile_fs import SECTOR_BYTES, VolatileFs


@pytest.fixture
def fs() -> VolatileFs:
    return VolatileFs(random.Random(1))


def test_unsynced_bytes_are_seen_by_the_process_only(fs: VolatileFs, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"durable!" * 2000)
    fd = fs.open(path)
    fs.pwrite(fd, [b"new ", b"bytes"], 5000)
    assert fs.pread(fd, 11, 4999) == b"!new bytesu"[:11]
    assert path.read_bytes() == b"durable!" * 2000
    fs.fdatasync(fd)
    assert path.read_bytes()[5000:5009] == b"new bytes"


def test_new_file_has_no_name_before_its_directory_is_synced(fs: VolatileFs, tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "file")
    fs.pwrite(fd, [b"content"], 0)
    fs.fsync(fd)
    assert fs.list(tmp_path) == ["file"]
    assert list(tmp_path.iterdir()) == []
    fs.fsync_directory(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"content"


def test_synced_name_of_an_unsynced_file_is_an_empty_one(fs: VolatileFs, tmp_path: Path) -> None:
    fd = fs.open(tmp_path / "file")
    fs.pwrite(fd, [b"content"], 0)
    fs.fsync_directory(tmp_path)
    assert (tmp_path / "file").read_bytes() == b""


def test_replaced_file_is_the_old_one_until_the_directory_is_synced(fs: VolatileFs, tmp_path: Path) -> None:
    path = tmp_path / "currterm"
    for content in (b"one", b"two"):
        replace_file(fs, path, content)
    assert path.read_bytes() == b"two"
    replace_file(fs, path, b"three", is_durable=False)
    assert read_file(fs, path, 100) == b"three"
    assert path.read_bytes() == b"two"
    assert [name.name for name in tmp_path.iterdir()] == ["currterm"]
    fs.fsync_directory(tmp_path)
    assert path.read_bytes() == b"three"


def test_deleted_file_is_there_until_the_directory_is_synced(fs: VolatileFs, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    fs.delete(path)
    assert fs.list(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        fs.delete(path)
    fd = fs.open(path)
    assert fs.size(fd) == 0
    assert path.read_bytes() == b"old"
    fs.fsync_directory(tmp_path)
    assert path.read_bytes() == b""


def test_cut_and_extended_file_reads_as_zero_and_is_cut_at_the_sync(fs: VolatileFs, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    fd = fs.open(path)
    fs.set_size(fd, 5000)
    fs.set_size(fd, 10_000)
    assert fs.pread(fd, 20_000, 4999) == b"x" + bytes(5000)
    assert path.read_bytes() == b"x" * 10_000
    fs.fsync(fd)
    assert path.read_bytes() == b"x" * 5000 + bytes(5000)


def test_closed_unsynced_file_is_opened_again_as_it_was(fs: VolatileFs, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    fd = fs.open(path)
    fs.pwrite(fd, [b"new"], 0)
    fs.close(fd)
    assert read_file(fs, path, 10) == b"new"
    assert path.read_bytes() == b"old"


def test_leaked_writes_are_whole_sectors_some_of_them(tmp_path: Path) -> None:
    fs = VolatileFs(random.Random(5), leak=0.5)
    path = tmp_path / "file"
    path.write_bytes(bytes(64 * SECTOR_BYTES))
    fd = fs.open(path)
    fs.pwrite(fd, [b"\xff" * (64 * SECTOR_BYTES)], 0)
    data = path.read_bytes()
    sectors = {data[start : start + SECTOR_BYTES] for start in range(0, len(data), SECTOR_BYTES)}
    assert sectors == {bytes(SECTOR_BYTES), b"\xff" * SECTOR_BYTES}


ACTIONS = ("write", "write", "size", "sync", "directory", "close", "rename", "delete")


class Twins:
    """The same steps on two file systems; what they show must be the same."""

    def __init__(self, systems: tuple[Fs, Fs], folders: tuple[Path, Path], rng: random.Random) -> None:
        self.both = tuple(zip(systems, folders, strict=True))
        self.open: dict[str, tuple[int, int]] = {}
        self._rng = rng
        self._names = [f"f{number}" for number in range(4)]

    def step(self) -> None:
        name = self._rng.choice(self._names)
        if name not in self.open:
            first, second = (fs.open(folder / name) for fs, folder in self.both)
            self.open[name] = (first, second)
        action = self._rng.choice(
            ["write", "write", "size", "sync", "close", "rename", "delete", "directory"]
        )
        if action in ("write", "size", "sync", "directory"):
            self._change(name, action)
        else:
            self._close(name, action)

    def _change(self, name: str, action: str) -> None:
        at, data = self._rng.randrange(20_000), self._rng.randbytes(self._rng.randrange(1, 9000))
        for (fs, folder), fd in zip(self.both, self.open[name], strict=True):
            match action:
                case "write":
                    fs.pwrite(fd, [data[:7], data[7:]], at)
                case "size":
                    fs.set_size(fd, at)
                case "sync":
                    fs.fdatasync(fd)
                case "directory":
                    fs.fsync_directory(folder)

    def _close(self, name: str, action: str) -> None:
        target = self._rng.choice(self._names)
        for (fs, folder), fd in zip(self.both, self.open.pop(name), strict=True):
            fs.close(fd)
            if action == "delete":
                fs.delete(folder / name)
            elif action == "rename" and target not in self.open:
                fs.rename(folder / name, folder / target)

    def look(self) -> None:
        first, second = (fs.list(folder) for fs, folder in self.both)
        assert first == second
        at, count = self._rng.randrange(20_000), self._rng.randrange(9000)
        for fds in self.open.values():
            seen = [
                (fs.size(fd), fs.pread(fd, count, at)) for (fs, _), fd in zip(self.both, fds, strict=True)
            ]
            assert seen[0] == seen[1]


@pytest.mark.parametrize("seed", range(10))
def test_running_process_sees_what_a_plain_file_system_shows(tmp_path: Path, seed: int) -> None:
    folders = (tmp_path / "plain", tmp_path / "volatile")
    for folder in folders:
        folder.mkdir()
    rng = random.Random(seed)
    volatile = VolatileFs(random.Random(seed), leak=0.3 if seed % 2 else 0.0)
    twins = Twins((OsFs(), volatile), folders, rng)
    for _ in range(300):
        twins.step()
        twins.look()
    for fds in twins.open.values():
        for (fs, _), fd in zip(twins.both, fds, strict=True):
            fs.close(fd)


def test_faults_are_those_of_the_control_file(tmp_path: Path) -> None:
    control = tmp_path / "faults"
    inner = VolatileFs(random.Random(1))
    fs = FaultyFs(inner, control)
    fd = fs.open(tmp_path / "file")
    fs.pwrite(fd, [b"one"], 0)
    DiskFaults(is_full=True, used_ratio=0.99, failing_reads=1, failing_syncs=1).write(control)
    with pytest.raises(OSError, match="space") as full:
        fs.pwrite(fd, [b"two"], 0)
    assert full.value.errno == errno.ENOSPC
    assert fs.used_ratio(tmp_path) == 0.99
    for call in (lambda: fs.pread(fd, 3, 0), lambda: fs.fdatasync(fd)):
        with pytest.raises(OSError, match="Input/output"):
            call()
    assert fs.pread(fd, 3, 0) == b"one"
    fs.fdatasync(fd)  # succeeds, and yet what the failed one held is gone
    fs.fsync_directory(tmp_path)
    assert (tmp_path / "file").read_bytes() == bytes(3)
    DiskFaults().write(control)
    fs.pwrite(fd, [b"two"], 0)
    fs.fdatasync(fd)
    assert (tmp_path / "file").read_bytes() == b"two"
