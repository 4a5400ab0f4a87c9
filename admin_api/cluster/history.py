"""The last hour of throughput, put latency and replication lag, sampled by the admin process and kept in
memory.

A sample costs one request to each leader (its figures); the rest comes from the cluster view shared with
viewers. Rates are differences of two readings of a broker's counters, so the first sample of a new leader, or
of a restarted one, has no rates. Samples of a broker name that does not answer are empty; when all its
samples are empty, the name is dropped.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import Field

from admin_api.cluster.schemas import ClusterView, GroupView, NodeView
from admin_api.gateway import AskError
from admin_api.schema import Schema
from admin_api.settings import Settings
from admin_api.sources.broker_admin import Runtime
from remoting.route import MASTER_ID


class HistorySample(Schema):
    """One sample of one broker name. null: unknown; a line through it is a guess."""

    at_ms: int = Field(description="Unix time in ms")
    leader_id: str | None = None
    put_per_s: float | None = Field(
        default=None, description="messages written a second since the sample before"
    )
    get_per_s: float | None = Field(default=None, description="messages consumed a second since then")
    put_p99_ms: float | None = Field(
        default=None, description="99 of 100 writes took at most this long, as the broker measures it"
    )
    lag_entries: dict[str, int | None] = Field(default={}, description="node id -> entries behind its leader")
    lag_ms: dict[str, int | None] = Field(
        default={}, description="node id -> age of the first entry that it lacks"
    )


class GroupHistory(Schema):
    """The samples of one broker name, oldest first."""

    broker_name: str
    samples: list[HistorySample]


class HistoryView(Schema):
    """What is remembered since this process started, at most the last `keepMs`."""

    as_of_ms: int = Field(description="Unix time in ms")
    interval_ms: int
    keep_ms: int
    groups: list[GroupHistory]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A broker's counters at one time; they begin at 0 with each start of its process."""

    address: str
    boot: str | None
    at_s: float
    puts: int | None
    gets: int | None


class History:
    """Bounded rings, one for each broker name; beyond `history_groups_max` names the rest is not sampled."""

    def __init__(
        self,
        read_view: Callable[[], Awaitable[ClusterView]],
        read_runtime: Callable[[str], Awaitable[Runtime]],
        settings: Settings,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_view = read_view
        self._read_runtime = read_runtime
        self._settings = settings
        self._now_s = now_s
        self._rings: dict[str, deque[HistorySample]] = {}
        self._readings: dict[str, _Reading] = {}
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Samples every `history_interval_ms` until `close`."""
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.history_interval_ms / 1000)
            try:
                await self.sample()
            except Exception:
                logger.exception("a sample for the history failed")

    async def sample(self) -> None:
        """One sample of every broker name."""
        view = await self._read_view()
        groups = {group.broker_name: group for group in self._sampled(view.groups)}
        sampled = await asyncio.gather(*(self._sample(group, view.as_of_ms) for group in groups.values()))
        samples = dict(zip(groups, sampled, strict=True))
        for name in (self._rings.keys() | self._readings.keys()) - samples.keys():
            self._readings.pop(name, None)
            samples[name] = HistorySample(at_ms=view.as_of_ms)
        for name, sample in samples.items():
            self._keep(name, sample)

    def _keep(self, name: str, sample: HistorySample) -> None:
        """A ring begins with the first sample that has a value, and ends when no sample has one any more."""
        ring = self._rings.get(name)
        if ring is None:
            if not _says_anything(sample):
                return
            length = self._settings.history_keep_ms // self._settings.history_interval_ms
            ring = self._rings[name] = deque(maxlen=length)
        ring.append(sample)
        while ring[0].at_ms <= sample.at_ms - self._settings.history_keep_ms:
            ring.popleft()
        if not any(map(_says_anything, ring)):
            del self._rings[name]

    def view(self, since_ms: int | None = None) -> HistoryView:
        """What is remembered, or what came after `since_ms`."""
        groups = [
            GroupHistory(
                broker_name=name,
                samples=[sample for sample in ring if since_ms is None or sample.at_ms > since_ms],
            )
            for name, ring in sorted(self._rings.items())
        ]
        settings = self._settings
        return HistoryView(
            as_of_ms=time.time_ns() // 1_000_000,
            interval_ms=settings.history_interval_ms,
            keep_ms=settings.history_keep_ms,
            groups=groups,
        )

    def _sampled(self, groups: Sequence[GroupView]) -> list[GroupView]:
        known = [group for group in groups if group.broker_name in self._rings]
        others = [group for group in groups if group.broker_name not in self._rings]
        return known + others[: max(0, self._settings.history_groups_max - len(self._rings))]

    async def _sample(self, group: GroupView, at_ms: int) -> HistorySample:
        members = [node for node in group.nodes if node.id is not None and node.id != group.leader_id]
        runtime = await self._read_writer(group)
        put_per_s, get_per_s = self._rates(group.broker_name, runtime)
        return HistorySample(
            at_ms=at_ms,
            leader_id=group.leader_id,
            put_per_s=put_per_s,
            get_per_s=get_per_s,
            put_p99_ms=None if runtime is None else _put_p99_ms(runtime[1]),
            lag_entries={node.id: node.lag_entries for node in members if node.id},
            lag_ms={node.id: node.lag_ms for node in members if node.id},
        )

    async def _read_writer(self, group: GroupView) -> tuple[str, Runtime] | None:
        writer = _writer(group)
        if writer is None or writer.remoting_address is None:
            return None
        try:
            return writer.remoting_address, await self._read_runtime(writer.remoting_address)
        except AskError:
            return None

    def _rates(self, name: str, found: tuple[str, Runtime] | None) -> tuple[float | None, float | None]:
        """Messages put and got a second since the reading before; None without one to compare with."""
        before = self._readings.pop(name, None)
        if found is None:
            return None, None
        address, runtime = found
        now = self._readings[name] = _Reading(
            address,
            runtime.text("bootTimestamp"),
            self._now_s(),
            runtime.integer("msgPutTotalTodayNow"),
            runtime.integer("msgGetTotalTodayNow"),
        )
        if before is None or (before.address, before.boot) != (address, now.boot):
            return None, None
        elapsed_s = now.at_s - before.at_s
        return _rate(before.puts, now.puts, elapsed_s), _rate(before.gets, now.gets, elapsed_s)


def _says_anything(sample: HistorySample) -> bool:
    lags = (*sample.lag_entries.values(), *sample.lag_ms.values())
    values = (sample.leader_id, sample.put_per_s, sample.get_per_s, sample.put_p99_ms, *lags)
    return any(each is not None for each in values)


def _writer(group: GroupView) -> NodeView | None:
    """The leader; of a stock broker the one that is listed for writes."""
    if group.leader_id is not None:
        return next((node for node in group.nodes if node.id == group.leader_id), None)
    stock = (node for node in group.nodes if node.is_ledgermq is False)
    return next((node for node in stock if node.broker_id == MASTER_ID), None)


def _put_p99_ms(runtime: Runtime) -> float | None:
    """RocketMQ reports -1 where it has measured nothing."""
    latency_ms = runtime.rate("putLatency99")
    return None if latency_ms is None or latency_ms < 0 else latency_ms


def _rate(before: int | None, now: int | None, elapsed_s: float) -> float | None:
    if before is None or now is None or now < before or elapsed_s <= 0:
        return None
    return round((now - before) / elapsed_s, 2)
