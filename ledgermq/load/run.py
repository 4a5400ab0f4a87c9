"""A run of the load generator: a fixed number of sends in flight (closed loop), or a fixed rate (arrival
rate).

With an arrival rate every send has a due time, from which its latency counts. So a broker that stalls cannot
hide the stall by stopping the generator too (no coordinated omission). Latencies are counted in buckets
whose width grows with the value, as in HdrHistogram: exact to 0.1 %.
"""

import gc
import math
import selectors
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from ledgermq.load.frames import SLOTS_MAX, Pipe, Target, slot_frames
from remoting.acl import Signer
from sockets.tls import TlsCredentials

_EXACT_BITS = 10
"""Leading bits that are kept of a value: the width of a bucket is at most 1/1024 of its value."""
CURVE_SHARES = (0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 0.99999)


class Histogram:
    """Counts of values in µs. Its memory depends on the range of the values, not on their number."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._max_us = 0
        self.total = 0

    def add(self, value_us: int, count: int = 1) -> None:
        """Add `count` latencies of `value_us` (µs); negative ones count as 0."""
        value_us = max(0, value_us)
        shift = max(0, value_us.bit_length() - _EXACT_BITS)
        self._counts[value_us >> shift << shift] += count
        self._max_us = max(self._max_us, value_us)
        self.total += count

    def percentile_ms(self, share: float) -> float | None:
        """The smallest latency that at least this share of all do not exceed; None without any value."""
        return next(self._percentiles_ms((share,)), None)

    def summary_ms(self) -> dict[str, float | None]:
        """p50, p99, p99.9 and the maximum."""
        marks = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
        return {name: self.percentile_ms(share) for name, share in marks.items()}

    def curve(self) -> list[tuple[float, float]]:
        """Pairs of share and latency (ms), for a plot of the tail; the last pair is the maximum."""
        shares = [share for share in CURVE_SHARES if self.total * (1 - share) >= 1]
        return list(zip([*shares, 1.0], self._percentiles_ms((*shares, 1.0)), strict=False))

    def _percentiles_ms(self, shares: tuple[float, ...]) -> Iterator[float]:
        ordered = iter(sorted(self._counts.items()))
        seen, value = 0, 0
        for share in shares if self.total else ():
            rank = max(1, -int(-share * self.total // 1))
            while seen < rank:
                value, count = next(ordered)
                seen += count
            yield (self._max_us if rank == self.total else value) / 1000


DRAIN_LIMIT_S = 10.0
SERIES_S = 0.5
_TICK_S = 0.001
_RETRY_S = 0.01
_NO_ANSWER = "no answer"


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent. `rate` 0: closed loop. With a rate, `in_flight` is the maximum of sends in flight.
    `source`: the address that connections come from; empty: the system chooses.
    """

    in_flight: int = 64
    connections: int = 1
    rate: float = 0.0
    size: int = 1024
    seconds: float = 8.0
    warmup_s: float = 3.0
    source: str = ""

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= self.in_flight <= SLOTS_MAX:
            raise ValueError(
                f"{self.connections} connections with {self.in_flight} sends in flight: "
                f"at least one a connection, at most {SLOTS_MAX}"
            )


@dataclass(slots=True)
class LoadResult:
    """`acknowledged`: all messages, those of the warm-up too; `messages`: only those of the measured time."""

    messages: int
    acknowledged: int
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    p999_ms: float | None
    max_ms: float | None
    late: int
    generator_us_per_message: float
    errors: dict[str, int]
    curve: list[tuple[float, float]] = field(default_factory=list)
    series: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """One run against one broker. `on_progress` receives the elapsed share of the time, twice a second."""

    def __init__(
        self,
        load: Load,
        address: tuple[str, int],
        targets: Sequence[Target],
        on_progress: Callable[[float], None] | None = None,
        tls: TlsCredentials | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._load = load
        self._on_progress = on_progress
        self._selector = selectors.DefaultSelector()
        self._histogram = Histogram()
        self._errors: Counter[str] = Counter()
        self._series: Counter[int] = Counter()
        self._acknowledged = 0
        self._late = 0
        self._due_s = 0.0
        self._started_s = self._warm_s = self._end_s = 0.0
        self._parked: list[tuple[Pipe, int]] = []
        self._pipes = self._connect(address, targets, tls, signer)

    def _connect(
        self,
        address: tuple[str, int],
        targets: Sequence[Target],
        tls: TlsCredentials | None,
        signer: Signer | None,
    ) -> deque[Pipe]:
        body = b"x" * self._load.size
        share = math.ceil(self._load.in_flight / self._load.connections)
        slots = share * self._load.connections
        pipes: deque[Pipe] = deque()
        for number in range(self._load.connections):
            frames = slot_frames(targets, share, body, number * share, slots, signer)
            pipe = Pipe(address, frames, tls, self._load.source)
            pipe.watched = selectors.EVENT_READ
            self._selector.register(pipe.socket, pipe.watched, pipe)
            pipes.append(pipe)
        return pipes

    def measure(self) -> LoadResult:
        """Run to the end of the time, then wait for the answers that are still missing."""
        were_frozen = gc.get_freeze_count() > 0
        gc.collect()
        gc.freeze()
        cpu_s = time.process_time()
        self._started_s = perf_counter()
        self._warm_s = self._started_s + self._load.warmup_s
        self._end_s = self._warm_s + self._load.seconds
        self._due_s = self._started_s
        try:
            self._loop()
            self._drain()
        finally:
            if not were_frozen:
                gc.unfreeze()
            for pipe in self._pipes:
                pipe.close()
            self._selector.close()
        return self._result(time.process_time() - cpu_s)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first send; 0 before it."""
        return perf_counter() - self._started_s if self._started_s else 0.0

    @property
    def acknowledged(self) -> int:
        """Messages acknowledged so far, those of the warm-up too."""
        return self._acknowledged

    def take_latencies(self) -> Histogram:
        """Those since the last call, or since the warm-up; the result has only those after the last call.
        Another thread may call it.
        """
        taken, self._histogram = self._histogram, Histogram()
        return taken

    def end_now(self) -> None:
        """End the run early. Another thread may call it: the loop reads the end time in each iteration."""
        self._end_s = perf_counter()

    def _loop(self) -> None:
        report_s = self._started_s
        if not self._load.rate:
            for pipe in self._pipes:
                self._begin(pipe, pipe.idle, self._started_s)
                self._watch(pipe)
                pipe.idle = []
        wait_s = _TICK_S if self._load.rate else SERIES_S
        while (now_s := perf_counter()) < self._end_s and any(pipe.is_open for pipe in self._pipes):
            if self._load.rate:
                self._send_due(now_s)
            elif self._parked:
                self._send_parked(now_s)
            if self._on_progress is not None and now_s >= report_s:
                report_s = now_s + SERIES_S
                self._on_progress((now_s - self._started_s) / (self._end_s - self._started_s))
            self._turn(_RETRY_S if self._parked else min(wait_s, self._end_s - now_s))

    def _turn(self, wait_s: float) -> None:
        for key, events in self._selector.select(max(0.0, wait_s)):
            pipe: Pipe = key.data
            if events & selectors.EVENT_WRITE:
                pipe.flush()
            if events & selectors.EVENT_READ:
                self._take_answers(pipe)
            if pipe.watched != selectors.EVENT_READ or pipe.has_unsent or not pipe.is_open:
                self._watch(pipe)

    def _watch(self, pipe: Pipe) -> None:
        """Wait for the socket to be writable only while there are bytes to write."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if pipe.has_unsent else 0)
        if not pipe.is_open:
            if pipe.watched:
                self._selector.unregister(pipe.socket)
            pipe.watched = 0
        elif wanted != pipe.watched:
            self._selector.modify(pipe.socket, wanted, pipe)
            pipe.watched = wanted

    def _begin(self, pipe: Pipe, slots: Sequence[int], start_s: float) -> None:
        pipe.starts.update(dict.fromkeys(slots, start_s))
        pipe.send(slots)

    def _take_answers(self, pipe: Pipe) -> None:
        answers = pipe.receive()
        now_s = perf_counter()
        slots = answers.acknowledged
        self._count([pipe.starts[slot] for slot in slots], now_s)
        for slot, code in answers.failed:
            self._errors[f"code {code}"] += 1
            del pipe.starts[slot]
            self._parked.append((pipe, slot))
        if self._load.rate or now_s >= self._end_s:
            for slot in slots:
                del pipe.starts[slot]
            pipe.idle += slots
        elif slots:
            self._begin(pipe, slots, now_s)

    def _count(self, starts: list[float], now_s: float) -> None:
        """Answers of one read have the same end time, and often one start time: then one `add` is enough."""
        count = len(starts)
        self._acknowledged += count
        self._series[int((now_s - self._started_s) / SERIES_S)] += count
        if now_s > self._end_s or not starts:
            return
        is_one = starts.count(starts[0]) == count
        for start_s, times in ((starts[0], count),) if is_one else Counter(starts).items():
            if start_s >= self._warm_s:
                self._histogram.add(int((now_s - start_s) * 1e6), times)

    def _send_parked(self, now_s: float) -> None:
        parked, self._parked = self._parked, []
        for pipe, slot in parked:
            if pipe.is_open:
                self._begin(pipe, [slot], now_s)
                self._watch(pipe)

    def _send_due(self, now_s: float) -> None:
        """Send everything that is due, spread over the connections; without a free slot a send stays due."""
        for pipe, slot in self._parked:
            pipe.idle.append(slot)
        self._parked.clear()
        interval_s = 1 / self._load.rate
        for pipe in self._pipes:
            slots: list[int] = []
            share = math.ceil((now_s - self._due_s) * self._load.rate / len(self._pipes))
            while pipe.idle and pipe.is_open and self._due_s <= now_s and len(slots) < max(1, share):
                slots.append(slot := pipe.idle.pop())
                pipe.starts[slot] = self._due_s
                self._due_s += interval_s
            if slots:
                pipe.send(slots)
                self._watch(pipe)
        self._pipes.rotate(-1)
        self._late += self._due_s <= now_s

    def _drain(self) -> None:
        limit_s = perf_counter() + DRAIN_LIMIT_S
        while any(pipe.starts for pipe in self._pipes if pipe.is_open) and perf_counter() < limit_s:
            self._turn(SERIES_S)
        unanswered = sum(len(pipe.starts) for pipe in self._pipes)
        if unanswered:
            self._errors[_NO_ANSWER] += unanswered

    def _result(self, cpu_s: float) -> LoadResult:
        last = int((self._end_s - self._started_s) / SERIES_S)
        return LoadResult(
            messages=self._histogram.total,
            acknowledged=self._acknowledged,
            per_second=round(self._histogram.total / self._load.seconds, 1),
            **self._histogram.summary_ms(),
            late=self._late,
            generator_us_per_message=round(cpu_s * 1e6 / max(1, self._acknowledged), 2),
            errors=dict(self._errors),
            curve=self._histogram.curve(),
            series=[self._series[number] for number in range(last)],
        )
