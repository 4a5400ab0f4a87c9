"""The table of GET_BROKER_RUNTIME_INFO: RocketMQ's texts, as mqadmin, the Dashboard and the exporter read it.

PutLatency, PutSpread: the 99th and 99.9th percentile of recent puts, and their distribution.

DayTotals: totals as of the start of yesterday and today (RocketMQ's BrokerStats), in local time.

Figures of the process and its machine are our own; readers that do not know them ignore them. What the system
does not provide is left out. Parts of RocketMQ's broker that do not exist here have constant values: there
are no thread pools, so no request waits in one; there is no lock on a page cache.
"""

import asyncio
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

from broker.config import BrokerConfig
from broker.consume.queue_reader import ReadMetrics
from broker.monitoring.put_metrics import PutMetrics
from broker.monitoring.statistics import (
    BROKER_GET,
    BROKER_PUT,
    USER_GET,
    USER_PUT,
    BrokerStatistics,
    RateMeter,
)
from broker.state.state import ReplicatedState
from broker.timer.scheduling import SCHEDULE_TOPIC
from commitlog.entry import HEADER_BYTES
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from commitlog.record import CorruptRecordError, decode_record
from dledger.fs import disk_space
from remoting.command import OWN_VERSION
from telemetry.histogram import Histogram

WINDOW_S: Final = 10.0
UNKNOWN_MS: Final = -1.0
"""RocketMQ's word for what was not measured: nothing was put."""
MINUTE_S: Final = 60.0
RANGES: Final = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]"),
    *("[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)
"""RocketMQ's names of RANGES_MS (broker/monitoring/put_metrics.py) and what is beyond."""


class PutSpread:
    """Of the puts of the last minute, as putMessageDistributeTime has it."""

    def __init__(self, by_ms: Histogram) -> None:
        assert len(by_ms.bounds) + 1 == len(RANGES), "a name for each range"
        self.meter = RateMeter(lambda: tuple(by_ms.cumulative()))

    def text(self, now_s: float) -> str:
        """Each range and how many puts were in it."""
        grown = self.meter.grown(now_s, MINUTE_S)
        counts = [count - below for below, count in pairwise([0, *grown])]
        return " ".join(f"{name}:{count}" for name, count in zip(RANGES, counts, strict=True))


class PutLatency:
    """Of the puts of the last 10 s or so; the histogram itself counts from the start on."""

    def __init__(self, seconds: Histogram) -> None:
        self._bounds = seconds.bounds
        self.meter = RateMeter(lambda: tuple(seconds.cumulative()))

    def percentile_ms(self, share: float, now_s: float) -> float:
        """The duration (ms) that this share of the puts did not exceed, or UNKNOWN_MS."""
        seconds = percentile(self._bounds, self.meter.grown(now_s, WINDOW_S), share)
        return UNKNOWN_MS if seconds is None else seconds * 1000


def percentile(bounds: Sequence[float], cumulative: Sequence[int], share: float) -> float | None:
    """The value that this share of all values does not exceed, assuming that values are evenly spread within
    their range; None when there are no values.

    `cumulative`: how many are at most each bound, and last how many there are. For values beyond the last
    bound, the last bound is the result.
    """
    wanted = cumulative[-1] * share
    if not cumulative[-1]:
        return None
    low, below = 0.0, 0
    for bound, count in zip(bounds, cumulative, strict=False):
        if count >= wanted:
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


POLL_INTERVAL_S: Final = 60.0
"""How late the turn of a day may be noticed."""


class DayTotals:
    """Checks once a minute whether a new day has begun."""

    def __init__(self, read_totals: Callable[[], tuple[int, int]], clock_ms: Callable[[], int]) -> None:
        """The totals are the messages put and got since the start."""
        self._read_totals = read_totals
        self._clock_ms = clock_ms
        self._day = self._today()
        self._timer: asyncio.TimerHandle | None = None
        self.yesterday_morning = (0, 0)
        self.today_morning = (0, 0)

    async def start(self) -> None:
        self._on_timer()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def check_day(self) -> None:
        """Start a new day's counts if the date has changed."""
        today = self._today()
        if today != self._day:
            self._day = today
            self.yesterday_morning = self.today_morning
            self.today_morning = self._read_totals()

    def _on_timer(self) -> None:
        self.check_day()
        self._timer = asyncio.get_running_loop().call_later(POLL_INTERVAL_S, self._on_timer)

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock_ms() / 1000).astimezone().date()


_OPEN_FILES: Final = Path("/proc/self/fd")
_MEMORY: Final = Path("/proc/meminfo")
_PAGES: Final = Path("/proc/self/statm")


def process_figures(clock: Callable[[], int]) -> dict[str, str]:
    """`clockMs`: Unix time of this node; open files, connections among them, and how many there may be; bytes
    of memory that the process has, and that the machine has left.
    """
    files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures = {"clockMs": str(clock())}
    if files_max != resource.RLIM_INFINITY:
        figures["openFilesMax"] = str(files_max)
    try:
        figures["openFiles"] = str(sum(1 for _ in os.scandir(_OPEN_FILES)))
        figures["residentBytes"] = str(_resident_bytes(_PAGES.read_text(encoding="ascii")))
        figures["memoryAvailableBytes"] = str(available_bytes(_MEMORY.read_text(encoding="ascii")))
    except (OSError, ValueError):
        return figures
    return figures


def _resident_bytes(statm: str) -> int:
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def available_bytes(meminfo: str) -> int:
    """Raises: ValueError when it is missing."""
    line = next((line for line in meminfo.splitlines() if line.startswith("MemAvailable:")), "")
    amount = line.removeprefix("MemAvailable:").removesuffix("kB").strip()
    return int(amount) * 1024


PRODUCT: Final = "LedgerMQ"
SEQUENCED_SENDS: Final = "sequencedSends"
"""Among the figures: whether LEDGERMQ_SEND_SEQUENCED is understood here. No other broker has it."""
NO_THREAD_POOLS: Final = {
    key: "0"
    for pool in ("send", "pull", "litePull", "query", "ack")
    for key in (
        f"{pool}ThreadPoolQueueSize",
        f"{pool}ThreadPoolQueueCapacity",
        f"{pool}ThreadPoolQueueHeadWaitTimeMills",
    )
} | {
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "remainTransientStoreBufferNumbs": "0",
    "remainHowManyDataToFlush": "0 B",
}
NO_TIMER: Final = {
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
}


class RuntimeInfo:
    """Reads log, state and counters of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clock: Callable[[], int],
        started_at_ms: int,
        statistics: BrokerStatistics,
        puts: PutMetrics,
        reads: ReadMetrics,
        end_position: Callable[[], int | None],
        added_figures: Sequence[Callable[[], dict[str, str]]],
        now_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._started_at_ms = started_at_ms
        self._end_position = end_position
        self._clock = clock
        self._statistics = statistics
        self._puts = puts
        self._reads = reads
        self._added_figures = added_figures
        self._now_s = now_s
        self.rates = RateMeter(
            lambda: (statistics.total(BROKER_PUT), statistics.total(BROKER_GET), reads.found, reads.missed)
        )
        self.put_latency = PutLatency(puts.ack)
        self.put_spread = PutSpread(puts.by_ms)
        self.days = DayTotals(lambda: (statistics.total(USER_PUT), statistics.total(USER_GET)), clock)

    @property
    def services(self) -> tuple[RateMeter | DayTotals, ...]:
        """What has to run for the figures of a time."""
        return self.rates, self.put_latency.meter, self.put_spread.meter, self.days

    def table(self) -> dict[str, str]:
        """The whole table; figures that processors add are last."""
        table = {**NO_THREAD_POOLS, **NO_TIMER, **self._identity(), **self._traffic(), **self._store()}
        table |= self._delays()
        for read in self._added_figures:
            table |= read()
        return table

    def _identity(self) -> Mapping[str, str]:
        log, started_at_ms = self._log, self._started_at_ms
        return {
            "brokerVersionDesc": PRODUCT,
            "brokerVersion": str(OWN_VERSION),
            "brokerActive": str(log.is_writable()).lower(),
            "bootTimestamp": str(started_at_ms),
            "startAcceptSendRequestTimeStamp": str(started_at_ms),
            "runtime": _duration(self._clock() - started_at_ms),
            "topicNums": str(len(self._state.topics)),
            "totalMemKBytes": str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024),
            SEQUENCED_SENDS: "true",
            "sequencedWriters": str(len(self._state.writers)),
        }

    def _traffic(self) -> Mapping[str, str]:
        statistics = self._statistics
        now_s = self._now_s()
        put, got, found, missed = (self.rates.rates(n, now_s) for n in range(4))
        read = [hits + misses for hits, misses in zip(found, missed, strict=True)]
        transferred = _rates(got)
        self.days.check_day()
        (put_yesterday, got_yesterday), (put_today, got_today) = (
            self.days.yesterday_morning,
            self.days.today_morning,
        )
        messages_put, bytes_put = statistics.total(BROKER_PUT), statistics.total_bytes(BROKER_PUT)
        average = bytes_put / messages_put if messages_put else 0.0
        return {
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalTodayNow": str(statistics.total(USER_PUT)),
            "msgGetTotalYesterdayMorning": str(got_yesterday),
            "msgGetTotalTodayMorning": str(got_today),
            "msgGetTotalTodayNow": str(statistics.total(USER_GET)),
            "putMessageTimesTotal": str(messages_put),
            "putMessageSizeTotal": str(bytes_put),
            "putMessageAverageSize": f"{average:.2f}",
            "putMessageFailedTimes": str(statistics.puts_failed),
            "putLatency99": f"{self.put_latency.percentile_ms(0.99, now_s):.2f}",
            "putLatency999": f"{self.put_latency.percentile_ms(0.999, now_s):.2f}",
            "putMessageEntireTimeMax": str(int(self._puts.longest_s * 1_000)),
            "putMessageDistributeTime": self.put_spread.text(now_s),
            "getMessageEntireTimeMax": str(int(self._reads.longest_s * 1_000)),
            "dispatchMaxBuffer": str(self._log.dispatched_most),
            "putTps": _rates(put),
            "getFoundTps": _rates(found),
            "getMissTps": _rates(missed),
            "getTotalTps": _rates(read),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,
        }

    def _store(self) -> Mapping[str, str]:
        log = self._log
        space = disk_space(self._config.store_path_root_dir)
        ratio = f"{space.used_ratio:.4f}"
        end = self._end_position()
        return {
            "commitLogMinOffset": str(log.min_position),
            "commitLogMaxOffset": str(log.max_position),
            "dispatchBehindBytes": str(max(0, (log.max_position if end is None else end) - log.max_position)),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_size(space.total_bytes)}, Free : {_size(space.free_bytes)}.",
            "diskTotalBytes": str(space.total_bytes),
            "diskFreeBytes": str(space.free_bytes),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
        }

    def _earliest_ms(self) -> int:
        """Store time (ms) of the first message; the current time when there is none, so that the log's age is
        0.
        """
        log = self._log
        try:
            for position in (log.min_position, log.min_position + HEADER_BYTES):
                data = log.record_at(position)
                if data is not None:
                    return decode_record(data).store_timestamp_ms
        except (CorruptRecordError, DamagedRecordError):
            return self._clock()
        return self._clock()

    def _delays(self) -> Mapping[str, str]:
        """Of each level: the offset delivery is at, and the end of its queue."""
        rows = delay_progress(self._config, self._state, self._log)
        return {f"scheduleMessageOffset_{level}": f"{offset},{end}" for level, offset, end in rows}


def delay_progress(
    config: BrokerConfig, state: ReplicatedState, log: MessageLog
) -> Iterator[tuple[int, int, int]]:
    """Each delay level, the offset that its delivery is at, and the end of its queue."""
    for level in range(1, len(config.delay_levels_ms) + 1):
        queue = log.queues.get(SCHEDULE_TOPIC, level - 1)
        yield level, state.delay_offsets.get(level, 0), 0 if queue is None else queue.max_offset


def delayed_count(config: BrokerConfig, state: ReplicatedState, log: MessageLog) -> int:
    """Messages of delay levels that wait for their time."""
    return sum(max(0, end - offset) for _, offset, end in delay_progress(config, state, log))


def _rates(per_second: Sequence[float]) -> str:
    """Over the last 10 s, minute and 10 minutes."""
    return " ".join(f"{rate:.2f}" for rate in per_second)


def _duration(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(elapsed_ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: int) -> str:
    """As RocketMQ writes it: 1.0 GiB."""
    power = min((max(count, 1).bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
