"""The network of a chaos cluster: a proxy for each ordered pair that speaks, and the shapes of its faults."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Final

from tests.chaos.link import Link, Quality

NAMESRV: Final = "namesrv"
CLIENTS: Final = "clients"


class Network:
    """Links by (source, target). Nodes are `n0`, `n1` …; beside them stand the name server and the clients.

    Each node dials every other and sends on that connection only, so the link (n0, n1) carries all that n0
    says to n1, forward, and the opposite way is the link (n1, n0).
    """

    def __init__(self, nodes: Sequence[str], rng: random.Random) -> None:
        self.nodes = tuple(nodes)
        self._rng = rng
        self.links: dict[tuple[str, str], Link] = {}

    async def add(
        self, source: str, target: str, to: tuple[str, int], *, host: str = "127.0.0.1", port: int = 0
    ) -> Link:
        """A new way, open and perfect. Port 0: one that is free."""
        link = Link(source, target, to, self._rng)
        await link.start(host, port)
        self.links[source, target] = link
        return link

    async def stop(self) -> None:
        for link in self.links.values():
            await link.stop()

    def between_nodes(self) -> list[Link]:
        return [link for link in self.links.values() if {link.source, link.target} <= set(self.nodes)]

    def of(self, node: str) -> list[Link]:
        """Every link of one node, those of its clients and to the name server too."""
        return [link for link in self.links.values() if node in (link.source, link.target)]

    def mend(self, *, is_reset: bool = False) -> None:
        """All as on the first day."""
        for link in self.links.values():
            link.mend(is_reset=is_reset)

    def split(self, groups: Iterable[Iterable[str]]) -> None:
        """Only nodes of the same group hear each other. A node in two groups is a bridge between them."""
        rooms = [set(group) for group in groups]
        for link in self.between_nodes():
            if not any({link.source, link.target} <= room for room in rooms):
                link.cut()

    def isolate(self, node: str, *, with_clients: bool = False) -> None:
        """Cut the node off from the other nodes, and if `with_clients` is set from the clients too."""
        links = self.of(node) if with_clients else self.between_nodes()
        for link in links:
            if node in (link.source, link.target):
                link.cut()

    def silence(self, source: str, target: str) -> None:
        """Nothing that `source` says reaches `target`; all connections stay, and the opposite way is open."""
        self.links[source, target].forward.cut()

    def set_quality(self, links: Iterable[Link], quality: Quality) -> None:
        for link in links:
            link.forward.quality = quality
            link.backward.quality = quality

    def majority_ring(self) -> None:
        """Each node hears its neighbours in a ring only: every node sees a majority, and no two the same one.

        With five nodes; with three a ring is the whole.
        """
        count = len(self.nodes)
        for link in self.between_nodes():
            apart = (self.nodes.index(link.source) - self.nodes.index(link.target)) % count
            if apart not in (1, count - 1):
                link.cut()
