"""Which client may consume which queue in order: the leader's lock table (RebalanceLockManager).

Locks live in the leader's memory only. A lock that is not renewed within 60 s is free again; clients renew
every 20 s and take theirs as lost after 30 s. Pure: times are arguments.
"""

from dataclasses import dataclass

LOCK_EXPIRY_MS = 60_000
LOCKS_MAX = 200_000

QueueKey = tuple[str, int]
"""Topic and queue id."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int


class LockTable:
    """The locks of every group. `locks_max` bounds it: beyond it a lock is not granted."""

    def __init__(self, *, expiry_ms: int = LOCK_EXPIRY_MS, locks_max: int = LOCKS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._locks_max = locks_max
        self._locks: dict[tuple[str, QueueKey], _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def lock(self, group: str, queue: QueueKey, client_id: str, now_ms: int) -> bool:
        """Take or renew the group's lock of the queue for the client; False while another client holds it."""
        lock = self._locks.get((group, queue))
        if lock is None:
            if len(self._locks) >= self._locks_max:
                self.expire(now_ms)
            if len(self._locks) >= self._locks_max:
                return False
            self._locks[group, queue] = _Lock(client_id, now_ms)
            return True
        if lock.client_id != client_id and now_ms - lock.renewed_ms <= self._expiry_ms:
            return False
        lock.client_id = client_id
        lock.renewed_ms = now_ms
        return True

    def unlock(self, group: str, queue: QueueKey, client_id: str) -> None:
        """Free the queue if the client holds it."""
        lock = self._locks.get((group, queue))
        if lock is not None and lock.client_id == client_id:
            del self._locks[group, queue]

    def holder(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """The client that holds the group's lock of the queue now."""
        lock = self._locks.get((group, queue))
        if lock is None or now_ms - lock.renewed_ms > self._expiry_ms:
            return None
        return lock.client_id

    def expire(self, now_ms: int) -> None:
        """Drop the locks that were not renewed in time."""
        self._locks = {
            key: lock for key, lock in self._locks.items() if now_ms - lock.renewed_ms <= self._expiry_ms
        }

    def clear(self) -> None:
        """Drop all: this node does not lead any more."""
        self._locks.clear()
