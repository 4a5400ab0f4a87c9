"""The last answer of every node, so that a dead one stays in the picture."""

from collections.abc import Mapping
from dataclasses import dataclass

from broker.admin.types import NodeStatusMessage


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node's last answer and when it came (Unix time in ms)."""

    status: NodeStatusMessage
    at_ms: int


class Memory:
    """Bounded: beyond `nodes_max` the node unseen for longest is forgotten."""

    def __init__(self, nodes_max: int) -> None:
        self._nodes_max = nodes_max
        self._sightings: dict[tuple[str, str], Sighting] = {}

    def remember(self, status: NodeStatusMessage, now_ms: int) -> None:
        key = (status.broker_name, status.node_id)
        self._sightings.pop(key, None)
        self._sightings[key] = Sighting(status, now_ms)
        if len(self._sightings) > self._nodes_max:
            del self._sightings[next(iter(self._sightings))]

    def broker_names(self) -> set[str]:
        return {broker_name for broker_name, _ in self._sightings}

    def sightings(self, broker_name: str) -> Mapping[str, Sighting]:
        """Node id -> last answer, of one group."""
        return {node_id: seen for (name, node_id), seen in self._sightings.items() if name == broker_name}

    def addresses(self) -> set[str]:
        """Where the remembered nodes were to be asked."""
        return {seen.status.remoting_address for seen in self._sightings.values()}
