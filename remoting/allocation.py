"""How the members of a consumer group share the queues of a topic (RocketMQ's AllocateMessageQueueAveragely
and AllocateMessageQueueAveragelyByCircle). Pure.

Each member computes the shares by itself, or the broker does it for all (QUERY_ASSIGNMENT). They agree
because all begin with the same lists in the same order: queues by topic, broker name and id, clients as Java
compares texts.
"""

from collections.abc import Iterable, Sequence
from typing import TypeVar

Q = TypeVar("Q")


def in_java_order(names: Iterable[str]) -> list[str]:
    """Sorted by UTF-16 units as by String.compareTo: beyond the basic plane code points differ from it."""
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def averagely(client_id: str, queues: Sequence[Q], clients: Sequence[str]) -> list[Q]:
    """Each client gets neighbouring queues; when the division has a remainder, the first clients get one
    queue more. A client that is not in the list gets none.
    """
    if client_id not in clients:
        return []
    at = clients.index(client_id)
    share, more = divmod(len(queues), len(clients))
    start = at * share + min(at, more)
    return list(queues[start : start + share + (at < more)])


def by_circle(client_id: str, queues: Sequence[Q], clients: Sequence[str]) -> list[Q]:
    """Every n-th queue."""
    return list(queues[clients.index(client_id) :: len(clients)]) if client_id in clients else []
