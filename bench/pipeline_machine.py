"""Resources of the pipeline's benchmark: processors, and files that stay in memory."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

MEMORY_FOLDER = Path("/dev/shm")
"""A file system in memory: writes do not wait for a disk."""
VMSTAT = Path("/proc/vmstat")
_MAP_LOCKED = 0x2000
"""Of mmap in Linux; Python names it from 3.13 on."""


def tasks_of(pid: int) -> list[int]:
    """A process's threads, none when it has ended: affinity belongs to a thread, not to a process."""
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return []


@contextmanager
def only_cores(count: int) -> Iterator[None]:
    """Let this process and all that it has started, and will start, run on so many processors only.

    Raises: ValueError when there are fewer.
    """
    whole = os.sched_getaffinity(0)
    if count > len(whole):
        raise ValueError(f"{count} processors are asked for, and there are {len(whole)}")
    _let_run(set(sorted(whole)[:count]))
    try:
        yield
    finally:
        _let_run(whole)


def _let_run(cpus: set[int]) -> None:
    own = psutil.Process()
    for _ in range(2):  # a thread that was started by one not yet reached is found the second time
        for pid in (own.pid, *(child.pid for child in own.children(recursive=True))):
            for task in tasks_of(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(task, cpus)


@contextmanager
def kept_in_memory(paths: Sequence[Path]) -> Iterator[bool]:
    """Lock the files in the page cache; return whether the system allows it.

    The host of a virtual machine may evict pages of files although there is room; then the disk would be
    measured.
    """
    maps: list[mmap.mmap] = []
    try:
        yield all(_lock(path, maps) for path in paths if path.stat().st_size)
    finally:
        for one in maps:
            one.close()


def _lock(path: Path, maps: list[mmap.mmap]) -> bool:
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | _MAP_LOCKED
    with path.open("rb") as file:
        try:
            maps.append(mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ))
        except OSError:
            return False
    return True


def from_disk_bytes() -> int:
    """What the system has read from its disks since it was started."""
    words = dict(line.split() for line in VMSTAT.read_text(encoding="ascii").splitlines())
    return 1024 * int(words["pgpgin"])
