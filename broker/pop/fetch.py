"""Takes messages out of queues for one pop (PopMessageProcessor.popMsgFromQueue): which lanes, from where, as
many as there is room for; and records that they are out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker.config import BrokerConfig
from broker.consume.clients import ClientConnection
from broker.consume.filters import MessageFilter
from broker.consume.offset_commits import OffsetCommits
from broker.consume.offset_resets import OffsetResets
from broker.consume.queue_reader import QueueReader, ReadMetrics, ReadStatus, transfer_limits
from broker.monitoring.statistics import BrokerStatistics
from broker.pop.group_queue import Lane
from broker.pop.ledger import PopLedger
from broker.pop.names import msg_offset_info, order_count_info, pop_retry_topic, start_offset_info
from broker.pop.ops import LaneKey, Popped, PoppedInOrder, Sought
from broker.state.state import ReplicatedState
from broker.state.topics import RETRY_PREFIX
from commitlog.consume_queue import ConsumeQueue
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from commitlog.record import QUEUE_OFFSET_AT
from remoting.command import RemotingCommand
from remoting.headers.pop import PopMessageRequestHeader

RETRY_FIRST_EVERY = 5
"""So often a pop looks for retries before anything else (popFromRetryProbability 20)."""
READS_MAX = 4
"""Of one queue by one pop, past messages that are not wanted."""
ANSWER_BYTES_MAX = 256 * 1024
INIT_MODE_MIN = 0

_MOVED = frozenset({ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_OVERFLOW_BADLY})
_PASSED = frozenset({ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING})


@dataclass(slots=True)
class Pop:
    """A pop that passed all checks."""

    request: RemotingCommand
    connection: ClientConnection
    header: PopMessageRequestHeader
    filter: MessageFilter


@dataclass(slots=True)
class Taken:
    """What a pop got, and the parts of its answer. `rest` counts what is left, as far as it was looked."""

    pop_time_ms: int
    count: int = 0
    size_bytes: int = 0
    rest: int = 0
    bodies: list[bytes] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    is_limited: bool = False
    """Too much is out already."""
    is_damaged: bool = False
    goes_on: bool = False
    """There is more behind what is not wanted."""
    free_in_ms: int | None = None
    """In how long what is out in order may be handed out again."""


@dataclass(slots=True)
class _Read:
    """Messages of one queue back to back, the place of each, and where the next read begins."""

    start: int
    next_offset: int
    body: bytes = b""
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Offset, and from where to where in the body."""

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(place[0] for place in self.places)


class Taker:
    """Serves the pops of one broker. Only while there is a table."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        clock: Callable[[], int],
        now_ms: Callable[[], int],
        statistics: BrokerStatistics,
        reads: ReadMetrics,
        resets: OffsetResets,
        ledger: PopLedger,
        commits: OffsetCommits,
    ) -> None:
        self._clock = clock
        self._now_ms = now_ms
        self._statistics = statistics
        self._log = log
        self._topics = state
        self._ledger = ledger
        self._commits = commits
        self._resets = resets
        self._reader = QueueReader(log, transfer_limits(config, log), reads)
        self._lane_max = config.pop_in_flight_max
        self._total_max = config.pop_in_flight_total_max
        self._turn = 0

    def take(self, pop: Pop) -> Taken:
        """Hand out what there is for the pop; recorded, but not flushed."""
        taken = Taken(self._clock())
        for key in self._lanes(pop.header):
            queue = self._log.queues.get(key.topic, key.queue_id)
            if queue is None or not queue.max_offset:
                continue
            try:
                self._take_from(pop, key, queue, taken)
            except DamagedRecordError:
                taken.is_damaged = True  # a repair is on its way
        return taken

    def next_offset(self, key: LaneKey, queue: ConsumeQueue, init_mode: int = INIT_MODE_MIN) -> int:
        """Where the group's next pop of the queue begins. A group that is new to the queue begins at its
        first message, or at its last if it wants that and the queue has lost some already.
        """
        lane = self._lane(key)
        if lane is not None:
            return lane.next_offset
        committed = self._commits.current(*key)
        if committed is not None:
            return committed
        first = queue.min_offset
        if init_mode == INIT_MODE_MIN or first <= 0 or key.topic.startswith(RETRY_PREFIX):
            return first
        last = max(queue.max_offset - 1, 0)
        self._commits.commit(*key, last)
        return last

    def lane_keys(self, group: str, topic: str, queue_id: int, is_retry_first: bool) -> Iterator[LaneKey]:
        """The lanes that a pop looks at, in order."""
        own = self._own_keys(group, topic, queue_id)
        yield from self._retry_keys(group, topic) if is_retry_first else own
        yield from own if is_retry_first else self._retry_keys(group, topic)

    def _lanes(self, header: PopMessageRequestHeader) -> Iterator[LaneKey]:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        self._turn += 1
        if header.order:
            return self._own_keys(group, topic, queue_id)
        return self.lane_keys(group, topic, queue_id, self._turn % RETRY_FIRST_EVERY == 0)

    def _own_keys(self, group: str, topic: str, queue_id: int) -> Iterator[LaneKey]:
        if queue_id >= 0:
            yield LaneKey(group, topic, queue_id)
            return
        config = self._topics.topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        for step in range(count):
            yield LaneKey(group, topic, (self._turn + step) % count)

    def _retry_keys(self, group: str, topic: str) -> Iterator[LaneKey]:
        for is_v2 in (False, True):
            name = pop_retry_topic(topic, group, is_v2)
            config = self._topics.topics.get(name)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                yield LaneKey(group, name, queue_id)

    def _lane(self, key: LaneKey) -> Lane | None:
        table = self._ledger.table
        return table.lanes.get(key) if table is not None else None

    def _take_from(self, pop: Pop, key: LaneKey, queue: ConsumeQueue, taken: Taken) -> None:
        header = pop.header
        if self._resets:
            self._resets.take(*key)  # the ledger knows; whoever pulls the queue one day is not to be moved
        lane = self._lane(key)
        start = self.next_offset(key, queue, header.init_mode)
        if header.order and lane is not None:
            if self._is_blocked(lane, header.attempt_id, taken):
                return
            start = lane.order_start
        if start == queue.max_offset or (start > queue.max_offset and not self._log.shows_all_committed()):
            return
        replaced = lane.in_order if header.order and lane is not None else 0
        room = min(header.max_msg_nums - taken.count, self._room(key, lane, taken, replaced))
        if room <= 0 or taken.size_bytes >= ANSWER_BYTES_MAX:
            taken.rest += max(queue.max_offset - start, 0)
            return
        read = self._read(pop, key, start, room, ANSWER_BYTES_MAX - taken.size_bytes)
        taken.rest += max(queue.max_offset - read.next_offset, 0)
        if not read.places:
            taken.goes_on = taken.goes_on or read.next_offset < queue.max_offset
            self._pass_over(key, lane, start, read.next_offset)
            return
        self._hand_out(pop, key, read, taken)

    def _room(self, key: LaneKey, lane: Lane | None, taken: Taken, replaced: int) -> int:
        """For how many messages there is room when so many that are out make place for them."""
        table = self._ledger.table
        assert table is not None, "a pop without a table"
        out = lane.in_flight if lane is not None else 0
        room = min(self._lane_max - out, self._total_max - table.in_flight) + replaced
        if room <= 0 or not self._ledger.has_room_for(key) or not self._ledger.has_room():
            taken.is_limited = True
            return 0
        return room

    def _is_blocked(self, lane: Lane, attempt_id: str | None, taken: Taken) -> bool:
        order = lane.order
        if order is None or order.is_same_attempt(attempt_id):
            return False
        now_ms = self._now_ms()
        free_in_ms = order.free_at_ms(now_ms) - now_ms
        if free_in_ms <= 0:
            return False
        known = taken.free_in_ms
        taken.free_in_ms = free_in_ms if known is None else min(known, free_in_ms)
        return True

    def _read(self, pop: Pop, key: LaneKey, start: int, room: int, bytes_max: int) -> _Read:
        """Raises DamagedRecordError."""
        offset = start
        for _ in range(READS_MAX):
            result = self._reader.read(key.topic, key.queue_id, offset, pop.filter, room, bytes_max)
            if result.status is ReadStatus.FOUND:
                return _Read(start, result.next_offset, result.body, _places(result.body))
            if result.status in _MOVED:
                offset = start = result.next_offset
            elif result.status in _PASSED:
                offset = result.next_offset
            else:
                break
        return _Read(start, offset)

    def _pass_over(self, key: LaneKey, lane: Lane | None, start: int, next_offset: int) -> None:
        """Nothing up to here is wanted. Nobody need know: the next leader will find so too. One that began
        behind the queue's end goes back.
        """
        if lane is None:
            if next_offset < start:
                self._commits.commit(*key, next_offset)
            else:
                self._commits.note(*key, next_offset)
        elif lane.order is not None and lane.order.pending:
            self._ledger.record(Sought(key, next_offset))  # what was out in order is gone
        elif next_offset != lane.next_offset:
            lane.next_offset = next_offset
            self._ledger.touch(key)

    def _hand_out(self, pop: Pop, key: LaneKey, read: _Read, taken: Taken) -> None:
        header, offsets = pop.header, read.offsets
        times = taken.pop_time_ms, header.invisible_time_ms
        if header.order:
            self._ledger.record(PoppedInOrder(key, offsets, read.next_offset, *times, header.attempt_id))
            taken.counts.append(self._order_counts(key))
        else:
            self._ledger.record(Popped(key, offsets, read.next_offset, *times))
        taken.starts.append(start_offset_info(key.topic, key.queue_id, read.start))
        taken.offsets.append(msg_offset_info(key.topic, key.queue_id, offsets))
        taken.bodies.append(read.body)
        taken.count += len(offsets)
        taken.size_bytes += len(read.body)
        self._statistics.got(key.topic, key.group, key.queue_id, len(offsets), len(read.body), 0)

    def _order_counts(self, key: LaneKey) -> str:
        lane = self._lane(key)
        assert lane is not None, key
        assert lane.order is not None, key
        counts = lane.order.counts
        least = min(counts.values()) if len(counts) == len(lane.order.offsets) else 0
        return order_count_info(key.topic, key.queue_id, counts.items(), least)


def _places(body: bytes) -> list[tuple[int, int, int]]:
    """Offset of each record, and from where to where it lies."""
    places = []
    begin = 0
    while begin < len(body):
        end = begin + int.from_bytes(body[begin : begin + 4], "big")
        at = begin + QUEUE_OFFSET_AT
        places.append((int.from_bytes(body[at : at + 8], "big"), begin, end))
        begin = end
    return places
