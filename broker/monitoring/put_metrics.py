"""Duration of each step of a put: measured for every put, logged for slow and failed ones.

A line in the log names the put's first entry, which the replication engine's own lines name too, and the
requests of the put, each as CONNECTION-OPAQUE: this broker's number of the connection, and the client's
number of the request.
"""

import logging
from collections.abc import Iterator
from itertools import islice
from time import perf_counter
from typing import Final

from broker.send.turn import Turn
from commitlog.log import PutStatus
from remoting.command import RemotingCommand
from remoting.connection import Connection
from telemetry.histogram import COUNTS, SIZES, Histogram, observe_all

LINES_PER_S_MAX: Final = 5
"""A disk that stalls makes every put slow; those that are not logged are counted in the next line."""
REQUESTS_NAMED_MAX: Final = 8
RANGES_MS: Final = (0, 9, 49, 99, 199, 499, 999, 1_999, 2_999, 3_999, 4_999, 9_999)
"""The last whole millisecond of each of StoreStatsService's ranges; longer puts are in one more range."""

logger = logging.getLogger(__name__)


class PutMetrics:
    """Of the sends that clients ask for. One call for each put, however many messages it has."""

    def __init__(self, slow_ms: int) -> None:
        """`slow_ms`: a put that lasts at least this long is logged; 0: none is."""
        self._slow_s = slow_ms / 1_000 if slow_ms else float("inf")
        self.append = Histogram()
        """Seconds from the decoded requests to their records in the log."""
        self.replicate = Histogram()
        """From there till a majority has them."""
        self.ack = Histogram()
        """Seconds from the decoded requests to the hand-over of their answers to the connections."""
        self.longest_s = 0.0
        """Duration of the slowest put, from end to end."""
        self.by_ms = Histogram(RANGES_MS)
        """The same as `ack`, in whole milliseconds and RocketMQ's ranges."""
        self.messages = Histogram(COUNTS)
        self.size_bytes = Histogram(SIZES)
        self._second = -1
        self._lines = 0
        self._unlogged = 0

    def done(self, turn: Turn, committed_s: float) -> None:
        """A put is committed, since that moment, and answered."""
        answered_s = perf_counter()
        ack_s = answered_s - turn.begun_s
        observe_all(
            (self.append, turn.laid_out_s - turn.begun_s),
            (self.replicate, committed_s - turn.laid_out_s),
            (self.ack, ack_s),
            (self.by_ms, int(ack_s * 1_000)),
            (self.messages, len(turn.messages)),
            (self.size_bytes, turn.body_bytes),
        )
        if ack_s > self.longest_s:
            self.longest_s = ack_s
        if ack_s >= self._slow_s:
            self._log(turn, "slow put", answered_s, committed_s)

    def failed(self, turn: Turn, status: PutStatus) -> None:
        """A put was laid out, but is not known to be committed."""
        now_s = perf_counter()
        self._log(turn, f"failed put ({status.name})", now_s, now_s)

    def _log(self, turn: Turn, what: str, now_s: float, committed_s: float) -> None:
        if not self._may_log(int(now_s)):
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        result = turn.result
        index, term = (-1, 0) if result is None else (result.first_index, result.term)
        named = [f"{conn.connection_id}-{asked.opaque}" for conn, asked in _first(turn)]
        steps = {
            "append_ms": _ms(turn.laid_out_s - turn.begun_s),
            "replicate_ms": _ms(committed_s - turn.laid_out_s),
            "answer_ms": _ms(now_s - committed_s),
        }
        logger.warning(
            "%s: %d messages from entry %d of term %d on: %.1f ms till laid out, %.1f ms till a majority had "
            "them, %.1f ms till answered; requests %s%s",
            *(what, len(turn.messages), index, term, *steps.values(), " ".join(named)),
            f"; {unlogged} such puts before were not logged" if unlogged else "",
            extra={
                "batch": index,
                "batch_term": term,
                "messages": len(turn.messages),
                "body_bytes": turn.body_bytes,
                "requests": named,
                "unlogged": unlogged,
                **steps,
            },
        )

    def _may_log(self, second: int) -> bool:
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines <= LINES_PER_S_MAX


def _first(turn: Turn) -> Iterator[tuple[Connection, RemotingCommand]]:
    return islice(turn.sends(), REQUESTS_NAMED_MAX)


def _ms(seconds: float) -> float:
    return round(seconds * 1_000, 3)
