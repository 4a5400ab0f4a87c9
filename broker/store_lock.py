"""Keeps a second process off a store: an advisory lock on `<root>/lock`, held while the process lives."""

import contextlib
import fcntl
import os
from pathlib import Path


class StoreLockedError(Exception):
    """Another process uses the store."""


class StoreLock:
    """Held from its making to `release`. Raises StoreLockedError, OSError."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise StoreLockedError(f"another process uses the store {root}") from None

    def release(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
