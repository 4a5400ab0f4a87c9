"""How much a peer that is far behind may get (DLedger's Quota): so many bytes in each second."""

from dledger.core.types import LONG_AGO_MS

_SECOND_MS = 1_000


class Throttle:
    """Counts what was sent in the second under way."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._window_ms = LONG_AGO_MS
        self._used_bytes = 0

    def sample(self, size_bytes: int, now_ms: int) -> None:
        if now_ms >= self._window_ms + _SECOND_MS:
            self._window_ms, self._used_bytes = now_ms, 0
        self._used_bytes += size_bytes

    def blocked_until_ms(self, now_ms: int) -> int | None:
        """When the next second begins if this one's bytes are used up, else None."""
        until_ms = self._window_ms + _SECOND_MS
        return until_ms if self._used_bytes >= self._bytes_per_s and now_ms < until_ms else None
