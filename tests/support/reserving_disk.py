"""A file system with blocks kept back for root, as every ext4 has them: neither used nor free."""

from __future__ import annotations

import os

import pytest

BLOCK = 4096


def reserve_blocks(monkeypatch: pytest.MonkeyPatch, used: int, free: int, total: int) -> None:
    """Whatever asks for the space of a disk finds so many blocks; what is left of `total` is root's."""
    kept_back = total - used - free
    numbers = (BLOCK, BLOCK, total, free + kept_back, free, 1_000, 500, 500, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(numbers))
