"""Totals as they were when yesterday and today began (RocketMQ's BrokerStats), by the local calendar."""

import asyncio
from collections.abc import Callable
from datetime import date, datetime
from typing import Final

LOOK_INTERVAL_S: Final = 60.0
"""How late the turn of a day may be noticed."""


class DayTotals:
    """Looks once a minute whether a new day has begun."""

    def __init__(self, read_totals: Callable[[], tuple[int, int]], clock_ms: Callable[[], int]) -> None:
        """The totals are the messages put and got since the start."""
        self._read_totals = read_totals
        self._clock_ms = clock_ms
        self._day = self._today()
        self._timer: asyncio.TimerHandle | None = None
        self.yesterday_morning = (0, 0)
        self.today_morning = (0, 0)

    async def start(self) -> None:
        self._look()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """Take note of a new day."""
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday_morning = self.today_morning
            self.today_morning = self._read_totals()

    def _look(self) -> None:
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_INTERVAL_S, self._look)

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock_ms() / 1000).astimezone().date()
