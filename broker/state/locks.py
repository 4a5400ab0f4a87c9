"""Queue locks for ordered consumption, as recorded in the log: which client of which group holds which queue.
A new leader starts from them. The time of a lock's last renewal is not in the log; the leader keeps it in
`broker.consume.queue_locks`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

QUEUE_LOCKS_MAX = 200_000
"""As many queues of groups; a client may hold 65,536, as many as a topic has."""

QueueKey = tuple[str, int]
"""Topic and queue id."""
LockKey = tuple[str, QueueKey]
"""Group and queue."""


class QueueLocks:
    """The holder of every (group, queue). Changed only by records of the log."""

    __slots__ = ("_holders", "_is_shared")

    def __init__(self) -> None:
        self._holders: dict[LockKey, str] = {}
        self._is_shared = False

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, key: LockKey) -> bool:
        return key in self._holders

    def items(self) -> Iterator[tuple[LockKey, str]]:
        """(group, queue) and the client id of its holder."""
        return iter(self._holders.items())

    def put(self, group: str, client_id: str, queues: Mapping[str, Iterable[int]]) -> None:
        """The client holds these queues now, whichever client did before."""
        own = self._own()
        for topic, queue_ids in queues.items():
            for queue_id in queue_ids:
                own[group, (topic, queue_id)] = client_id

    def drop(self, group: str, client_id: str, queues: Mapping[str, Iterable[int]]) -> None:
        """The client holds these queues no more. What another holds by now stays."""
        own = self._own()
        for topic, queue_ids in queues.items():
            for queue_id in queue_ids:
                if own.get((group, (topic, queue_id))) == client_id:
                    del own[group, (topic, queue_id)]

    def drop_topic(self, name: str) -> None:
        self._drop([key for key in self._holders if key[1][0] == name])

    def drop_group(self, name: str) -> None:
        self._drop([key for key in self._holders if key[0] == name])

    def _drop(self, keys: list[LockKey]) -> None:
        if keys:
            own = self._own()
            for key in keys:
                del own[key]

    def _own(self) -> dict[LockKey, str]:
        if self._is_shared:
            self._holders = dict(self._holders)
            self._is_shared = False
        return self._holders

    def copy(self) -> "QueueLocks":
        """A copy of the current locks. Both share the rows until one of them changes."""
        other = QueueLocks()
        other._holders = self._holders
        self._is_shared = other._is_shared = True
        return other

    def rows(self) -> Iterator[list[Any]]:
        """For a snapshot."""
        for (group, (topic, queue_id)), client_id in self._holders.items():
            yield [group, topic, queue_id, client_id]

    @classmethod
    def from_json(cls, rows: Iterable[list[Any]]) -> "QueueLocks":
        """Raises ValueError or TypeError when the rows are none of these."""
        locks = cls()
        for group, topic, queue_id, client_id in rows:
            locks._holders[str(group), (str(topic), int(queue_id))] = str(client_id)
        return locks
