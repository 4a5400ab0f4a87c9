"""Which client may consume which queue in order: the leader's view of the locks (RebalanceLockManager).

Who holds a lock is in the replicated state; when it was last renewed only the leader knows. So a new leader
takes every lock it finds for renewed at the moment it became the leader, which is never too early: see
docs/decisions/0013-queue-locks.md. Pure: times are arguments.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from broker.state.locks import QUEUE_LOCKS_MAX, LockKey, QueueKey

LOCK_EXPIRY_MS = 60_000
"""A lock that is not renewed for so long is free (Java's `rocketmq.broker.rebalance.lockMaxLiveTime`).
Clients renew every 20 s and trust a lock for 30 s from the answer on, which they wait 1 s for.
"""


class Claim(Enum):
    """What becomes of a client's wish to hold a queue."""

    HELD = 1
    """It was the client's already; it is renewed."""
    NEW = 2
    """It is kept for the client, which may be told so when the log says it, too."""
    REFUSED = 3


@dataclass(slots=True)
class _Lock:
    client_id: str
    renewed_ms: int
    is_logged: bool


class LockTable:
    """The locks of every group. `locks_max` bounds it: beyond it a lock is not granted."""

    def __init__(self, *, expiry_ms: int = LOCK_EXPIRY_MS, locks_max: int = QUEUE_LOCKS_MAX) -> None:
        self._expiry_ms = expiry_ms
        self._locks_max = locks_max
        self._locks: dict[LockKey, _Lock] = {}

    def __len__(self) -> int:
        return len(self._locks)

    def load(self, holders: Iterable[tuple[LockKey, str]], now_ms: int) -> None:
        """Begin to lead with the locks that the log knows."""
        self._locks = {key: _Lock(client_id, now_ms, True) for key, client_id in holders}

    def claim(self, group: str, queue: QueueKey, client_id: str, now_ms: int) -> Claim:
        """Take or renew the group's lock of the queue for the client."""
        lock = self._locks.get((group, queue))
        if lock is None:
            if len(self._locks) >= self._locks_max:
                return Claim.REFUSED
            self._locks[group, queue] = _Lock(client_id, now_ms, False)
            return Claim.NEW
        is_over = now_ms - lock.renewed_ms > self._expiry_ms
        if lock.client_id != client_id and not is_over:
            return Claim.REFUSED
        is_logged = lock.is_logged and lock.client_id == client_id
        lock.client_id, lock.renewed_ms, lock.is_logged = client_id, now_ms, is_logged
        return Claim.HELD if is_logged else Claim.NEW

    def logged(self, group: str, queue: QueueKey, client_id: str) -> bool:
        """The log says now that the client holds the queue; whether it still does."""
        lock = self._locks.get((group, queue))
        if lock is None or lock.client_id != client_id:
            return False
        lock.is_logged = True
        return True

    def release(self, group: str, queue: QueueKey, client_id: str) -> bool:
        """Free the queue; whether the client held it."""
        lock = self._locks.get((group, queue))
        if lock is None or lock.client_id != client_id:
            return False
        del self._locks[group, queue]
        return True

    def holder(self, group: str, queue: QueueKey, now_ms: int) -> str | None:
        """The client that holds the group's lock of the queue now."""
        lock = self._locks.get((group, queue))
        if lock is None or now_ms - lock.renewed_ms > self._expiry_ms:
            return None
        return lock.client_id

    def expire(self, now_ms: int) -> list[tuple[LockKey, str]]:
        """Drop the locks that were not renewed in time; these, and who held them."""
        over = [
            (key, lock.client_id)
            for key, lock in self._locks.items()
            if now_ms - lock.renewed_ms > self._expiry_ms
        ]
        for key, _ in over:
            del self._locks[key]
        return over

    def clear(self) -> None:
        """Forget all: this node does not lead any more."""
        self._locks.clear()
