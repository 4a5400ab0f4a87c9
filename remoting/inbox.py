"""Gathers the requests of one loop turn, over all connections, and hands them over together."""

import asyncio

from remoting.router import Arrived, Router


class Inbox:
    """Bounded by what the connections may read in one turn: each stops at its own bound of open requests."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._arrived: list[Arrived] = []

    def add(self, arrived: Arrived) -> None:
        """The first requests of a turn schedule the hand-over; every other connection readable now comes
        before it.
        """
        if not self._arrived:
            self._loop.call_soon(self._hand_over)
        self._arrived.append(arrived)

    def _hand_over(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._router.dispatch(arrived)
