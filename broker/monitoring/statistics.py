"""The broker's statistics: by topic and group, under the names RocketMQ's BrokerStatsManager gives them, and
rates of counters that only grow (StoreStatsService).

A counter (StatsItem) holds sums of the last minute, hour and day, in slots of 10 s, 10 min and 1 h. It
adds to its 10-s slot only; when that slot has ended, its sums are added to the three rings. A ring's slot
that is older than its window is not counted, so an idle counter needs no timer. Times are ms of a
monotonic clock.

Puts are counted from what the log dispatches, a batch at a time: only committed messages, from any source (a
producer, a delay that has expired, a transaction), on the writable leader only. Gets are counted by answer.
Both are added up when their slot has ended, or when a figure is read. Memory is bounded by ITEMS_MAX
counters; at the bound, counters that were idle for a day are dropped; without such a counter, a new key is
counted only in the broker's totals and in the figure of keys without a counter. A restarted node begins at 0,
as RocketMQ's broker does.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.state.topics import LEDGERMQ_PREFIX, is_system_topic
from commitlog.consume_queue import UNIT, UNIT_BYTES
from commitlog.dispatch import DispatchBatch

SAMPLE_INTERVAL_S = 10.0
WINDOWS_S = (10, 60, 600)
SLOT_MS: Final = 10_000
RINGS: Final = ((6, 1), (6, 60), (24, 360))
"""Of each window: how many slots, and how many 10-s slots one of them spans."""
_FIELDS: Final = 4
"""Slot number, count, bytes, calls."""
_STARTS: Final = (0, 6 * _FIELDS, 12 * _FIELDS)
_CELLS: Final = 36 * _FIELDS
ITEMS_MAX: Final = 40_000
"""Counters at most, about 60 MB: two for each of topicsMax topics."""
GATHERED_MAX: Final = 4_096
"""Most messages whose units are kept before they are added up, 80 KiB; and most answers."""
IDLE_SLOTS: Final = 24 * 3600 * 1000 // SLOT_MS
_SIZE_BYTES: Final = (11, 10, 9)
"""Places of the size's bytes in a unit, the lowest byte first."""
TOPIC_PUT = "TOPIC_PUT"
GROUP_GET = "GROUP_GET"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SNDBCK_PUT = "SNDBCK_PUT"
GROUP_ACK = "GROUP_ACK"
GROUP_CK = "GROUP_CK"
DLQ_PUT = "DLQ_PUT"
BROKER_PUT = "BROKER_PUT"
BROKER_GET = "BROKER_GET"
BROKER_ACK = "BROKER_ACK"
USER_PUT = "BROKER_PUT_WITHOUT_SYSTEM_TOPIC"
USER_GET = "BROKER_GET_WITHOUT_SYSTEM_TOPIC"
STATS: Final = {
    "TOPIC_PUT_NUMS": (TOPIC_PUT, False),
    "TOPIC_PUT_SIZE": (TOPIC_PUT, True),
    "GROUP_GET_NUMS": (GROUP_GET, False),
    "GROUP_GET_SIZE": (GROUP_GET, True),
    "GROUP_GET_LATENCY": (GROUP_GET_LATENCY, False),
    "GROUP_ACK_NUMS": (GROUP_ACK, False),
    "GROUP_CK_NUMS": (GROUP_CK, False),
    "SNDBCK_PUT_NUMS": (SNDBCK_PUT, False),
    "DLQ_PUT_NUMS": (DLQ_PUT, False),
    "BROKER_PUT_NUMS": (BROKER_PUT, False),
    "BROKER_GET_NUMS": (BROKER_GET, False),
    "BROKER_ACK_NUMS": (BROKER_ACK, False),
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": (USER_PUT, False),
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": (USER_GET, False),
}
"""RocketMQ's names: which counter has the figure, and whether it is its bytes."""
_OF_BROKER: Final = (BROKER_PUT, BROKER_GET, BROKER_ACK, USER_PUT, USER_GET)


class RateMeter:
    """Samples counters that only grow, every 10 s."""

    def __init__(self, read_counts: Callable[[], tuple[int, ...]]) -> None:
        self._read_counts = read_counts
        length = int(max(WINDOWS_S) / SAMPLE_INTERVAL_S) + 1
        self._samples: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=length)
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._sample()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        self.add(loop.time())
        self._timer = loop.call_later(SAMPLE_INTERVAL_S, self._sample)

    def add(self, now_s: float) -> None:
        """Add a sample of now."""
        self._samples.append((now_s, self._read_counts()))

    def rates(self, counter: int, now_s: float) -> list[float]:
        """Per second over each window; a window that reaches before the first sample begins there."""
        count = self._read_counts()[counter]
        return [self._rate(counter, count, now_s, window_s) for window_s in WINDOWS_S]

    def grown(self, now_s: float, window_s: float) -> list[int]:
        """By how much each counter grew over a window, which begins at the first sample at the earliest."""
        counts = self._read_counts()
        since_s = now_s - window_s - SAMPLE_INTERVAL_S / 2
        then = next((sampled for at_s, sampled in self._samples if at_s >= since_s), counts)
        return [count - before for count, before in zip(counts, then, strict=True)]

    def _rate(self, counter: int, count: int, now_s: float, window_s: float) -> float:
        inside = [sample for sample in self._samples if sample[0] >= now_s - window_s - SAMPLE_INTERVAL_S / 2]
        if not inside or inside[0][0] >= now_s:
            return 0.0
        since_s, then = inside[0]
        return (count - then[counter]) / (now_s - since_s)


MINUTE, HOUR, DAY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Figures:
    """Sums of one window, and over how much of it they reach: a counter younger than the window has less."""

    count: int
    bytes: int
    calls: int
    span_ms: int

    def per_second(self, total: int) -> float:
        return total * 1000 / self.span_ms


class WindowCounter:
    """Counts events and bytes. About 1.4 KB."""

    __slots__ = ("_bytes", "_calls", "_cells", "_count", "_since_ms", "_slot", "total", "total_bytes")

    def __init__(self, now_ms: int) -> None:
        self._cells = array("q", bytes(8 * _CELLS))
        self._since_ms = now_ms
        self._slot = now_ms // SLOT_MS
        self._count = self._bytes = self._calls = 0
        self.total = self.total_bytes = 0
        """All that was counted, in any window or before."""

    def add(self, count: int, size_bytes: int, now_ms: int, calls: int = 1) -> None:
        """Count what so many calls brought."""
        slot = now_ms // SLOT_MS
        if slot != self._slot:
            self._put_away(slot)
        self.total += count
        self.total_bytes += size_bytes
        self._count += count
        self._bytes += size_bytes
        self._calls += calls

    @property
    def last_slot(self) -> int:
        """Number of the slot that was last added to."""
        return self._slot

    def figures(self, window: int, now_ms: int) -> Figures:
        """The sums of the window that ends now. The slot that runs counts too."""
        slot = now_ms // SLOT_MS
        if slot != self._slot:
            self._put_away(slot)
        slots, spans = RINGS[window]
        oldest = slot // spans - slots + 1
        count, size_bytes, calls = self._count, self._bytes, self._calls
        start = _STARTS[window]
        for at in range(start, start + slots * _FIELDS, _FIELDS):
            number, more, more_bytes, more_calls = self._cells[at : at + _FIELDS]
            if number >= oldest:
                count += more
                size_bytes += more_bytes
                calls += more_calls
        begin_ms = max(self._since_ms, oldest * spans * SLOT_MS)
        return Figures(count, size_bytes, calls, max(now_ms - begin_ms, SLOT_MS))

    def _put_away(self, slot: int) -> None:
        if self._calls:
            for (slots, spans), start in zip(RINGS, _STARTS, strict=True):
                number = self._slot // spans
                at = start + number % slots * _FIELDS
                if self._cells[at] != number:
                    self._cells[at : at + _FIELDS] = array("q", (number, 0, 0, 0))
                self._cells[at + 1] += self._count
                self._cells[at + 2] += self._bytes
                self._cells[at + 3] += self._calls
            self._count = self._bytes = self._calls = 0
        self._slot = slot


class BrokerStatistics:
    """All counters of one broker. Keys are RocketMQ's: the topic, topic@group, queueId@topic@group; those of
    the broker's own are under the cluster's name.
    """

    def __init__(self, cluster: str, now_ms: Callable[[], int], items_max: int = ITEMS_MAX) -> None:
        self._cluster = cluster
        self._now_ms = now_ms
        self._items_max = items_max
        self._items: dict[tuple[str, str], WindowCounter] = {}
        self._of_broker = {name: WindowCounter(now_ms()) for name in _OF_BROKER}
        self._left_out: dict[str, tuple[int, int]] = {}
        """By counter: sums for keys for which there was no room."""
        self.puts_failed = 0
        """Sends that were refused, or never committed."""
        self.last_put_ms = now_ms()
        """When the last message of a topic that is not RocketMQ's own was put, on a monotonic clock, never
        too early. Before the first one: when counting began."""
        self._looked_at_slot = -1
        self._gathered: dict[str, list[bytes]] = {}
        self._gathered_count = 0
        self._gathered_gets: dict[tuple[str, str, int], tuple[int, int, int, int]] = {}
        """By topic, group and queue: the answers, their messages, bytes and ms."""
        self._gathered_ms = now_ms()
        """When the first unit or answer was gathered."""
        self._gathered_last_ms = self._gathered_ms
        """When the last one was."""

    def __len__(self) -> int:
        """Counters by topic and group."""
        self._add_up()
        return len(self._items)

    def put(self, batch: DispatchBatch) -> None:
        """Count what the log dispatched. The units are gathered first: adding up small batches of many queues
        one by one would cost too much.
        """
        self._gather(batch.message_count)
        runs = batch.runs
        by_topic = self._gathered
        if runs is None:
            for request in batch:
                unit = UNIT.pack(request.position, request.size, 0)
                by_topic.setdefault(request.topic, []).append(unit)
        else:
            for topic, _, _, units in runs:
                packed = by_topic.get(topic)
                if packed is None:
                    by_topic[topic] = [units]
                else:
                    packed.append(units)

    def _gather(self, count: int) -> None:
        """Before so much is gathered: add up what was gathered in an earlier slot, or is too much."""
        now_ms = self._now_ms()
        if now_ms // SLOT_MS != self._gathered_ms // SLOT_MS or self._gathered_count > GATHERED_MAX:
            self._add_up()
            self._gathered_ms = now_ms
        self._gathered_last_ms = now_ms
        self._gathered_count += count

    def _add_up(self) -> None:
        if not self._gathered_count:
            return
        puts, self._gathered, self._gathered_count = self._gathered, {}, 0
        gets, self._gathered_gets = self._gathered_gets, {}
        self._add_puts(puts, self._gathered_ms)
        self._add_gets(gets, self._gathered_ms)

    def _add_puts(self, gathered: Mapping[str, Sequence[bytes]], now_ms: int) -> None:
        for topic, packed in gathered.items():
            if topic.startswith(LEDGERMQ_PREFIX):
                continue
            units = b"".join(packed)
            count, size_bytes = len(units) // UNIT_BYTES, _sizes_sum(units)
            self._add(TOPIC_PUT, topic, count, size_bytes, now_ms, len(packed))
            self._of_broker[BROKER_PUT].add(count, size_bytes, now_ms, len(packed))
            if not is_system_topic(topic):
                self._of_broker[USER_PUT].add(count, size_bytes, now_ms, len(packed))
                self.last_put_ms = self._gathered_last_ms

    def got(self, topic: str, group: str, queue_id: int, count: int, size_bytes: int, took_ms: int) -> None:
        """Count one answer to a consumer: `count` messages of `size_bytes`, prepared in `took_ms`."""
        self._gather(1)
        key = topic, group, queue_id
        calls, messages, all_bytes, all_ms = self._gathered_gets.get(key, (0, 0, 0, 0))
        self._gathered_gets[key] = calls + 1, messages + count, all_bytes + size_bytes, all_ms + took_ms

    def _add_gets(
        self, gathered: Mapping[tuple[str, str, int], tuple[int, int, int, int]], now_ms: int
    ) -> None:
        for (topic, group, queue_id), (calls, count, size_bytes, took_ms) in gathered.items():
            self._add(GROUP_GET, f"{topic}@{group}", count, size_bytes, now_ms, calls)
            self._add(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}", took_ms, 0, now_ms, calls)
            self._of_broker[BROKER_GET].add(count, size_bytes, now_ms, calls)
            if not is_system_topic(topic):
                self._of_broker[USER_GET].add(count, size_bytes, now_ms, calls)

    def sent_back(self, topic: str, group: str, is_dead: bool) -> None:
        """Count a message of the topic that is delivered to the group again, or has become a dead letter of
        the group.
        """
        now_ms = self._now_ms()
        self._add(SNDBCK_PUT, f"{topic}@{group}", 1, 0, now_ms)
        if is_dead:
            self._add(DLQ_PUT, f"{topic}@{group}", 1, 0, now_ms)

    def acked(self, topic: str, group: str, count: int) -> None:
        """So many messages of a POP group were acknowledged."""
        now_ms = self._now_ms()
        self._add(GROUP_ACK, f"{topic}@{group}", count, 0, now_ms)
        self._of_broker[BROKER_ACK].add(count, 0, now_ms)

    def tps(self, counter: str, key: str) -> float:
        """Messages a second over the last minute; 0 for an unknown key."""
        self._add_up()
        item = self._items.get((counter, key))
        if item is None:
            return 0.0
        figures = item.figures(MINUTE, self._now_ms())
        return figures.per_second(figures.count)

    def view(self, stats_name: str, key: str) -> tuple[Figures, Figures, Figures] | None:
        """Last minute, hour and day of the counter behind one of STATS; None when it never counted. Counters
        without bytes have 0 bytes; STATS selects messages or bytes.
        """
        self._add_up()
        counter, _ = STATS.get(stats_name, ("", False))
        of_broker = self._of_broker.get(counter) if key == self._cluster else None
        item = of_broker or self._items.get((counter, key))
        if item is None:
            return None
        now_ms = self._now_ms()
        return item.figures(MINUTE, now_ms), item.figures(HOUR, now_ms), item.figures(DAY, now_ms)

    def begin(self) -> None:
        """The quiet is known from now on only: this node leads now, and before its puts were counted by
        another; or what routes tell producers has changed.
        """
        self._add_up()
        self.last_put_ms = self._now_ms()

    def quiet_ms(self) -> int:
        """For how long no message was put, as far as this node knows."""
        self._add_up()
        return self._now_ms() - self.last_put_ms

    def total(self, counter: str) -> int:
        """Messages of one of the broker's own counters since the start."""
        self._add_up()
        return self._of_broker[counter].total

    def total_bytes(self, counter: str) -> int:
        """Their bytes."""
        self._add_up()
        return self._of_broker[counter].total_bytes

    def totals(self, counter: str) -> dict[str, tuple[int, int]]:
        """Messages and bytes since the start, of each key of a counter by topic or group."""
        self._add_up()
        return {
            key: (item.total, item.total_bytes)
            for (name, key), item in self._items.items()
            if name == counter
        }

    def left_out(self, counter: str) -> tuple[int, int]:
        """Messages and bytes since the start of keys that had no room at that time: `totals` lacks them."""
        self._add_up()
        return self._left_out.get(counter, (0, 0))

    def keep_topics(self, topics: Collection[str]) -> None:
        """Drop the counters of topics that are not among these."""
        self._add_up()
        for key in [key for key in self._items if _topic_of(*key) not in topics]:
            del self._items[key]

    def _add(self, counter: str, key: str, count: int, size_bytes: int, now_ms: int, calls: int = 1) -> None:
        item = self._items.get((counter, key))
        if item is None:
            if len(self._items) >= self._items_max and not self._make_room(now_ms):
                messages, others_bytes = self._left_out.get(counter, (0, 0))
                self._left_out[counter] = messages + count, others_bytes + size_bytes
                return
            item = self._items[counter, key] = WindowCounter(now_ms)
        item.add(count, size_bytes, now_ms, calls)

    def _make_room(self, now_ms: int) -> bool:
        """Drop idle counters; at most once a slot, since it scans all."""
        slot = now_ms // SLOT_MS
        if slot == self._looked_at_slot:
            return False
        self._looked_at_slot = slot
        idle = [key for key, item in self._items.items() if item.last_slot + IDLE_SLOTS < slot]
        for key in idle:
            del self._items[key]
        return len(self._items) < self._items_max


def _sizes_sum(units: bytes) -> int:
    """Sum of the records' sizes in packed units: byte by byte of the size, which costs a third of unpacking
    each unit. A size has no fourth byte: a record is below 16 MiB.
    """
    low, middle, high = (sum(units[at::UNIT_BYTES]) for at in _SIZE_BYTES)
    return low + (middle << 8) + (high << 16)


def _topic_of(counter: str, key: str) -> str:
    if counter == TOPIC_PUT:
        return key
    parts = key.split("@")
    return parts[1] if counter == GROUP_GET_LATENCY else parts[0]
