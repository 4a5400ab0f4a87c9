"""Which answers are worth another try, and when it is made. Pure."""

from enum import Enum
from typing import Final

from remoting.codes import ResponseCode
from remoting.command import RemotingCommand

BUSY_CODES: Final = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})
NOT_LEADER_CODES: Final = frozenset(
    {
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        ResponseCode.GO_AWAY,
    }
)
UNCERTAIN_CODES: Final = frozenset({ResponseCode.SYSTEM_ERROR, ResponseCode.TOPIC_NOT_EXIST})
"""May be passing: a leader that was just elected does not know all topics for a moment."""
_REASONS_MAX: Final = 4


class Retry(Enum):
    """What another try needs."""

    NONE = "none"
    """The answer is final, be it good or bad."""
    SAME_NODE = "same node"
    """The node is busy; it may accept the request a moment later."""
    NEW_LEADER = "new leader"
    """The node is not the leader, or not yet."""
    UNCERTAIN = "uncertain"
    """One of UNCERTAIN_CODES."""


def retry_of(answer: RemotingCommand) -> Retry:
    """How a request that got this answer may succeed."""
    code = answer.code
    if code in BUSY_CODES:
        return Retry.SAME_NODE
    names_leader = code == ResponseCode.SYSTEM_ERROR and "leader" in (answer.remark or "").lower()
    if code in NOT_LEADER_CODES or names_leader:
        return Retry.NEW_LEADER
    return Retry.UNCERTAIN if code in UNCERTAIN_CODES else Retry.NONE


class RetryableError(Exception):
    """A try failed; a later one, perhaps at another node, may succeed."""


class Backoff:
    """The tries of one request: pauses that double up to a maximum, a deadline, and how the tries ended.

    Times are in seconds of the clock that the caller reads.
    """

    def __init__(
        self, deadline_s: float, now_s: float, pause_min_s: float = 0.05, pause_max_s: float = 1.0
    ) -> None:
        self._deadline_s = deadline_s
        self._started_s = now_s
        self._pause_s = pause_min_s
        self._pause_max_s = pause_max_s
        self._reasons: dict[str, int] = {}
        self.tries = 0

    def failed(self, reason: str, now_s: float) -> float | None:
        """A try failed. Returns the pause before the next, or None when the deadline would pass meanwhile."""
        self.tries += 1
        if reason in self._reasons or len(self._reasons) < _REASONS_MAX:
            self._reasons[reason] = self._reasons.get(reason, 0) + 1
        if now_s - self._started_s + self._pause_s > self._deadline_s:
            return None
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, self._pause_max_s)
        return pause_s

    def summary(self, now_s: float) -> str:
        """The number of tries, their time and how they ended, for the message of an error."""
        ends = "; ".join(f"{text} ({count} x)" for text, count in self._reasons.items())
        return f"no success in {self.tries} tries over {now_s - self._started_s:.1f} s: {ends}"
