"""How fast a disk writes one long file, in the ways in which the log is written."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

MIB = 1 << 20
BLOCK_BYTES = 4 * MIB


def disk_speeds(folder: Path | None, total_bytes: int = 2 << 30) -> dict[str, float]:
    """MB/s by the page cache with one sync at the end, and past it with one sync at the end and after each
    block of 4 MiB.
    """
    with TemporaryDirectory(prefix="bench-", dir=folder) as own, mmap.mmap(-1, BLOCK_BYTES) as block:
        block.write(os.urandom(BLOCK_BYTES))
        path = Path(own) / "file"
        return {
            "page_cache": _written(path, block, total_bytes, 0, is_synced=False),
            "direct": _written(path, block, total_bytes, os.O_DIRECT, is_synced=False),
            "direct_synced": _written(path, block, total_bytes, os.O_DIRECT, is_synced=True),
        }


def _written(path: Path, block: mmap.mmap, total_bytes: int, flag: int, *, is_synced: bool) -> float:
    path.unlink(missing_ok=True)
    began_s = time.perf_counter()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flag, 0o600)
    try:
        for place in range(0, total_bytes, BLOCK_BYTES):
            os.pwrite(fd, block, place)
            if is_synced:
                os.fdatasync(fd)
        os.fdatasync(fd)
    finally:
        os.close(fd)
    return round(total_bytes / 1e6 / (time.perf_counter() - began_s), 1)
