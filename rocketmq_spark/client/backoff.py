"""Waiting between the tries of a request, up to a deadline."""

import time

from remoting.client.routes import Backoff as Pauses
from rocketmq_spark.errors import ClusterUnavailableError


class Backoff:
    """The tries of one request. `what` names it in errors."""

    def __init__(self, what: str, deadline_s: float) -> None:
        self._what = what
        self._pauses = Pauses(deadline_s, time.monotonic())

    def failed(self, reason: str) -> None:
        """Note a failed try, then wait for the next.

        Raises:
            ClusterUnavailableError: the deadline would pass meanwhile; names the tries and how they ended.
        """
        now_s = time.monotonic()
        pause_s = self._pauses.failed(reason, now_s)
        if pause_s is None:
            raise ClusterUnavailableError(f"{self._what}: {self._pauses.summary(now_s)}")
        time.sleep(pause_s)
