"""Whether a broker that gave no answer is worth asking again. Pure: times are given."""

PAUSE_MIN_S = 1.0
PAUSE_MAX_S = 8.0


class Breaker:
    """One address. After a silence it is left alone for a pause that doubles while the silence lasts.

    Times are seconds of one clock that never goes back.
    """

    def __init__(self) -> None:
        self._heard_at_s = float("-inf")
        self._silent_since_s: float | None = None
        self._asked_again_at_s = 0.0
        self._pause_s = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether asking would most likely only cost time."""
        return self._silent_since_s is not None

    def pause_left_s(self, now_s: float) -> float:
        """How long it is left alone yet; 0 when it may be looked at again."""
        return max(0.0, self._asked_again_at_s - now_s) if self.is_silent else 0.0

    def heard(self, now_s: float) -> None:
        """It answered, whatever it said, or refused the connection at once."""
        self._heard_at_s = now_s
        self._silent_since_s = None
        self._pause_s = 0.0

    def timed_out(self, asked_at_s: float, now_s: float) -> None:
        """A request sent at `asked_at_s` has no answer by now.

        It says nothing where something came from there meanwhile: then only that request was slow. Of several
        requests that wait together, the first to time out counts.
        """
        if self._heard_at_s >= asked_at_s:
            return
        if self._silent_since_s is not None and asked_at_s < self._silent_since_s:
            return
        self._silent_since_s = now_s
        self._pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * self._pause_s))
        self._asked_again_at_s = now_s + self._pause_s
