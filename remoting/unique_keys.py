"""Ids of messages (the property UNIQ_KEY), as RocketMQ's MessageClientIDSetter lays them out: 10 bytes of the
process, 4 of the time since the month began, a counter of 2, as hexadecimal digits. `mqadmin
queryMsgByUniqueKey` searches from that time on.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

PROCESS_BYTES: Final = 10


class UniqueKeys:
    """Ids of one process; no two alike within 65,536 of a millisecond.

    process: PROCESS_BYTES that no other process has. now_ms: the wall clock.
    """

    def __init__(self, process: bytes, now_ms: Callable[[], int]) -> None:
        assert len(process) == PROCESS_BYTES, f"{len(process)} bytes"
        self._process = process.hex().upper()
        self._now_ms = now_ms
        self._count = 0
        self._month_ms, self._next_ms = 0, 0

    def next(self) -> str:
        now_ms = self._now_ms()
        if not self._month_ms <= now_ms < self._next_ms:
            self._month_ms, self._next_ms = _month_of(now_ms)
        self._count = self._count + 1 & 0xFFFF
        return f"{self._process}{now_ms - self._month_ms:08X}{self._count:04X}"


def _month_of(now_ms: int) -> tuple[int, int]:
    """When the month of this time began, in UTC, and when the next begins: Unix times in ms."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    following = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return round(start.timestamp() * 1000), round(following.timestamp() * 1000)
