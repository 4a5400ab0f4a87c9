"""Prevents a second process from opening a store: an advisory lock on `<root>/lock`, held until the process
ends.
"""

import contextlib
from pathlib import Path

from dledger.fs import Fs, OsFs


class StoreLockedError(Exception):
    """Another process uses the store."""


class StoreLock:
    """Held from its making to `release`. Raises StoreLockedError, OSError."""

    def __init__(self, root: Path, fs: Fs | None = None) -> None:
        self._fs = fs or OsFs()
        self._fs.make_directory(root)
        try:
            self._descriptor = self._fs.lock(root / "lock")
        except BlockingIOError:
            raise StoreLockedError(f"another process uses the store {root}") from None

    def release(self) -> None:
        with contextlib.suppress(OSError):
            self._fs.close(self._descriptor)
