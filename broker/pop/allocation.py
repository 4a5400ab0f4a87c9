"""Which queues a consumer gets when the broker assigns them (QueryAssignmentProcessor, RocketMQ's
AllocateMessageQueueAveragely and AllocateMessageQueueAveragelyByCircle). Pure.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class MessageQueue(NamedTuple):
    """In RocketMQ's order: topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


class UnknownStrategyError(ValueError):
    """The broker does not know how to share queues that way."""


def averagely(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Neighbouring queues; the first clients get one more when they do not come out even."""
    if client_id not in clients:
        return []
    at = clients.index(client_id)
    share, more = divmod(len(queues), len(clients))
    start = at * share + min(at, more)
    return list(queues[start : start + share + (at < more)])


def by_circle(client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> list[MessageQueue]:
    """Every n-th queue."""
    return list(queues[clients.index(client_id) :: len(clients)]) if client_id in clients else []


_Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
_STRATEGIES: Mapping[str, _Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


def _strategy(name: str) -> _Strategy:
    strategy = _STRATEGIES.get(name)
    if strategy is None:
        raise UnknownStrategyError(f"unsupported strategy {name[:64]!r}: {', '.join(_STRATEGIES)} are known")
    return strategy


def allocate(
    name: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    """The client's queues in pull mode; both sequences in order. Raises UnknownStrategyError."""
    return _strategy(name)(client_id, queues, clients)


def allocate_for_pop(
    name: str,
    client_id: str,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    share_queue_num: int,
) -> list[MessageQueue]:
    """The client's queues in POP mode: its own share and those of the next `share_queue_num` clients. With no
    such number, or one as great as there are others, all pop everywhere: queue id -1 of each broker.

    Raises UnknownStrategyError.
    """
    strategy = _strategy(name)
    if share_queue_num <= 0 or share_queue_num >= len(clients) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=-1) for queue in queues))
    if client_id not in clients or not queues:
        return []
    at = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    sharers = [clients[(at + step) % len(clients)] for step in range(share_queue_num + 1)]
    return [queue for client in sharers for queue in strategy(client, queues, clients)]
