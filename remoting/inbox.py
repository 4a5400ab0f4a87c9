"""Gathers the requests of one loop turn, over all connections, and hands them over together."""

import asyncio

from remoting.command import RemotingCommand
from remoting.connection import Connection
from remoting.router import BatchItem, Router


class Inbox:
    """Bounded by what the connections may read in one turn: each stops at its own bound of open requests."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._items: list[BatchItem] = []

    def add(self, connection: Connection, request: RemotingCommand) -> None:
        """The first request of a turn schedules the hand-over; every other connection readable now comes
        before it.
        """
        if not self._items:
            self._loop.call_soon(self._hand_over)
        self._items.append((connection, request))

    def _hand_over(self) -> None:
        items, self._items = self._items, []
        self._router.dispatch(items)
