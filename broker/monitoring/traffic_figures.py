"""Metrics of traffic: messages by topic and group, requests by code, and the duration of each step.

Prometheus keeps a series for each name it ever saw, so at most so many are shown: those with the most
messages lately. The messages of all other names are counted under one name. That counter never decreases,
because Prometheus reads a decrease as a restart: a name that becomes shown is not subtracted from it.
"""

import asyncio
import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from broker.config import BrokerConfig
from broker.monitoring.lags import ConsumerLags
from broker.monitoring.put_metrics import PutMetrics
from broker.monitoring.statistics import GROUP_GET, TOPIC_PUT, BrokerStatistics
from broker.store.message_log import LogMetrics
from commitlog.log import MessageLog
from remoting.codes import RequestCode, ResponseCode
from remoting.router import RequestCounts
from remoting.topic_names import DLQ_PREFIX
from telemetry.families import Row, counter, counters, gauges, histogram

HALF_LIFE_S: Final = 300.0
"""After so long a message counts half in the choice of names."""
STAY: Final = 2.0
"""A new name must have this many times the recent messages of the least of the shown names; else the shown
set would change at each update.
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """Messages and bytes since the start, of the names shown, and of the others together."""

    names: Mapping[str, tuple[int, int]]
    other: tuple[int, int]


class TopTotals:
    """Of counters that only grow; one that decreased was restarted."""

    def __init__(self, names_max: int) -> None:
        self._names_max = names_max
        self._seen: dict[str, tuple[int, int, float]] = {}
        """By name: messages and bytes at the last update, and its recent messages (decaying)."""
        self._shown: frozenset[str] = frozenset()
        self._other = (0, 0)
        self._updated_s = 0.0

    def update(self, totals: Mapping[str, tuple[int, int]], now_s: float) -> Shown:
        """The names to show now. Needs about 1 ms for 2,000 names."""
        fade = 0.5 ** (max(now_s - self._updated_s, 0.0) / HALF_LIFE_S)
        self._updated_s = now_s
        before, seen = self._seen, {}
        for name, (count, size_bytes) in totals.items():
            old_count, _, lately = before.get(name, (0, 0, 0.0))
            grown = count - old_count if count >= old_count else count
            seen[name] = (count, size_bytes, lately * fade + grown)
        self._seen = seen
        self._shown = self._choose()
        self._add_others(before)
        return Shown({name: totals[name] for name in sorted(self._shown)}, self._other)

    def _choose(self) -> frozenset[str]:
        seen, shown = self._seen, self._shown
        if len(seen) <= self._names_max:
            return frozenset(seen)

        def weight(name: str) -> tuple[float, str]:
            return seen[name][2] * (STAY if name in shown else 1.0), name

        return frozenset(heapq.nlargest(self._names_max, seen, key=weight))

    def _add_others(self, before: Mapping[str, tuple[int, int, float]]) -> None:
        if len(self._shown) == len(self._seen):
            return
        messages, size_bytes = self._other
        for name, (count, count_bytes, _) in self._seen.items():
            if name in self._shown:
                continue
            old_count, old_bytes, _ = before.get(name, (0, 0, 0.0))
            is_new = count < old_count
            messages += count if is_new else count - old_count
            size_bytes += count_bytes if is_new else count_bytes - old_bytes
        assert messages >= self._other[0], f"a counter goes back from {self._other[0]} to {messages}"
        self._other = messages, size_bytes


NONE_SHOWN = Shown({}, (0, 0))
OTHER = "(other)"
"""Stands for all names that are not shown. No topic or group can have this name."""


class TrafficFigures:
    """Reads the broker's statistics. Puts are counted on the node that accepted them, so a cluster's puts are
    the sum over its nodes, also after a change of leader.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        counts: RequestCounts,
        statistics: BrokerStatistics,
        puts: PutMetrics,
        log_metrics: LogMetrics,
        lags: ConsumerLags,
    ) -> None:
        self._log = log
        self._counts = counts
        self._statistics = statistics
        self._puts = puts
        self._log_metrics = log_metrics
        self._lags = lags
        names_max = config.metrics_topics_max
        self._top_puts, self._top_gets, self._top_dead = (TopTotals(names_max) for _ in range(3))
        self._shown = (NONE_SHOWN, NONE_SHOWN, NONE_SHOWN)

    async def refresh(self) -> None:
        """Bring what `collect` gives up to date: with 20,000 topics 10 ms for each of the steps, between
        which the loop does what else there is.
        """
        statistics, now_s = self._statistics, time.monotonic()
        totals = statistics.totals(TOPIC_PUT)
        dead = {
            name.removeprefix(DLQ_PREFIX): total
            for name, total in totals.items()
            if name.startswith(DLQ_PREFIX)
        }
        await asyncio.sleep(0)
        puts = _with_others(self._top_puts.update(totals, now_s), statistics.left_out(TOPIC_PUT))
        deads = self._top_dead.update(dead, now_s)
        await asyncio.sleep(0)
        given = statistics.totals(GROUP_GET)
        await asyncio.sleep(0)
        gets = _with_others(self._top_gets.update(given, now_s), statistics.left_out(GROUP_GET))
        self._shown = puts, gets, deads

    def collect(self) -> Iterator[Metric]:
        yield from self._messages()
        yield from self._consumers()
        yield from self._steps()
        yield from self._requests()

    def _messages(self) -> Iterator[Metric]:
        (puts, gets, dead), failed = self._shown, self._statistics.puts_failed
        topic, pair = ("topic",), ("topic", "group")
        yield counters("put_messages", "Messages committed here, by topic.", topic, rows(puts, 0, topic))
        yield counters("put_bytes", "Bytes of their records.", topic, rows(puts, 1, topic))
        yield counters("get_messages", "Messages given to consumers.", pair, rows(gets, 0, pair))
        yield counters("get_bytes", "Bytes given to consumers.", pair, rows(gets, 1, pair))
        group = ("group",)
        dead_rows = rows(dead, 0, group)
        yield counters("dlq_messages", "Messages that became dead letters.", group, dead_rows)
        yield counter("puts_failed", "Sends that were refused or not committed.", failed)

    def _consumers(self) -> Iterator[Metric]:
        if not self._log.is_writable():
            self._lags.reset()  # the leadership may have ended since they were read
        rows: list[Row] = [(pair, lag) for pair, lag in self._lags.shown.items()]
        rows.append(((OTHER, OTHER), self._lags.other))
        text = "Lag of a group, at most 10 s old; only of the node that takes messages."
        yield gauges("consumer_lag_messages", text, ("topic", "group"), rows)

    def _steps(self) -> Iterator[Metric]:
        puts, log_metrics = self._puts, self._log_metrics
        writes = log_metrics.writes
        yield histogram("append_seconds", "Decoded sends, till they are laid out in the log.", puts.append)
        yield histogram("replicate_seconds", "From there, till a majority has them.", puts.replicate)
        yield histogram("ack_seconds", "Decoded sends, till they are answered.", puts.ack)
        yield histogram("fsync_seconds", "One write to the log's files, with its sync.", writes.seconds)
        yield histogram("dispatch_seconds", "Committed entries, into the queues.", log_metrics.dispatch)
        yield histogram("put_batch_messages", "Messages of one put.", puts.messages)
        yield histogram("put_batch_bytes", "Bytes of their bodies.", puts.size_bytes)
        yield histogram("write_batch_entries", "Entries of one write.", writes.entries)
        yield histogram("write_batch_bytes", "Bytes of one write.", writes.size_bytes)

    def _requests(self) -> Iterator[Metric]:
        counts = self._counts
        by_code: list[Row] = [((_request(code),), count) for code, count in sorted(counts.requests.items())]
        yield counters("requests", "Requests, by name of their code.", ("request",), by_code)
        refused: list[Row] = [
            ((_request(code), _answer(answer)), count)
            for (code, answer), count in sorted(counts.refused.items())
        ]
        yield counters("request_errors", "Requests that were refused.", ("request", "code"), refused)


def _with_others(shown: Shown, left_out: tuple[int, int]) -> Shown:
    messages, size_bytes = shown.other
    return Shown(shown.names, (messages + left_out[0], size_bytes + left_out[1]))


def rows(shown: Shown, part: int, labels: Sequence[str]) -> list[Row]:
    """The names are values of the labels, joined by @; part 0: messages, 1: bytes."""
    rows: list[Row] = [
        (name.split("@", len(labels) - 1) if len(labels) > 1 else [name], total[part])
        for name, total in shown.names.items()
    ]
    if any(shown.other):
        rows.append(([OTHER] * len(labels), shown.other[part]))
    return rows


def _request(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return "unknown"


def _answer(code: int) -> str:
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)
