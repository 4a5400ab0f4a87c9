"""Tells the host what became readable, after the answers of the same turn have left."""

import asyncio
from collections.abc import Callable

from dledger.core.node import Node
from dledger.core.types import NO_INDEX


class Announcer:
    """Answers that a turn gives leave at the end of the loop's next turn: what takes its time comes after."""

    def __init__(self, node: Node, tell: Callable[[int], None]) -> None:
        """`tell` gets the node's readable_index when it rose."""
        self._node = node
        self._tell = tell
        self._told_index = NO_INDEX
        self._next: asyncio.Handle | None = None

    def look(self) -> None:
        """Have it told soon if there is anything new."""
        if self._next is None and self._node.readable_index > self._told_index:
            loop = asyncio.get_running_loop()
            self._next = loop.call_soon(self._wait, loop)

    def stop(self) -> None:
        """Tell nothing more."""
        if self._next is not None:
            self._next.cancel()

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        self._next = loop.call_soon(self._announce)

    def _announce(self) -> None:
        self._next = None
        readable = self._node.readable_index
        if readable > self._told_index:
            self._told_index = readable
            self._tell(readable)
