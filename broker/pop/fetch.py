"""Fetches messages out of queues for one pop (PopMessageProcessor.popMsgFromQueue): which queues, from where,
as many messages as the limits allow; and records that they are in flight.
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
from broker.pop.ledger import PopLedger
from broker.pop.ops import GroupQueueKey, Popped, PoppedInOrder, Sought
from broker.pop.table import GroupQueue
from broker.state.state import ReplicatedState
from commitlog.consume_queue import ConsumeQueue
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog
from commitlog.record import QUEUE_OFFSET_AT
from remoting.command import RemotingCommand
from remoting.headers.pop import PopMessageRequestHeader
from remoting.pop_receipts import msg_offset_info, order_count_info, pop_retry_topic, start_offset_info
from remoting.topic_names import RETRY_PREFIX

RETRY_FIRST_EVERY = 5
"""How often a pop reads retries first (popFromRetryProbability 20)."""
READS_MAX = 4
READS_IN_VAIN_MAX = 6
"""Of one pop over all its queues: its filter may want no message of any, and a topic has thousands."""
"""Reads of one queue for one pop: each skips messages that its filter does not match."""
ANSWER_BYTES_MAX = 256 * 1024
INIT_MODE_MIN = 0
TYPE_ATTRIBUTE = "message.type"
PRIORITY_TYPE = "PRIORITY"
FACTOR_ATTRIBUTE = "priority.factor"
_SPREAD = 37
"""Coprime to 100, so that the pops by priority are spread over a hundred."""

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
class Fetched:
    """The messages of a pop, and the parts of its answer. `rest` counts the messages left in its queues."""

    pop_time_ms: int
    count: int = 0
    size_bytes: int = 0
    rest: int = 0
    bodies: list[bytes] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    counts: list[str] = field(default_factory=list)
    is_limited: bool = False
    """Too much is in flight already."""
    is_damaged: bool = False
    has_more: bool = False
    """More messages follow those that the filter did not match."""
    reads_in_vain: int = 0
    """Whose messages the filter did not match."""
    free_in_ms: int | None = None
    """In how long messages in flight in order may be handed out again."""


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


class Fetcher:
    """Reads messages for the pops of one broker, while its table is loaded."""

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
        self._config = config
        self._clock = clock
        self._now_ms = now_ms
        self._statistics = statistics
        self._log = log
        self._topics = state
        self._ledger = ledger
        self._commits = commits
        self._resets = resets
        self._reader = QueueReader(log, transfer_limits(config, log), reads)
        self._queue_max = config.pop_in_flight_max
        self._total_max = config.pop_in_flight_total_max
        self._turn = 0

    def fetch(self, pop: Pop) -> Fetched:
        """Hand out messages to the pop: recorded in the ledger, which the caller has to flush."""
        fetched = Fetched(self._clock())
        for key in self._group_queues(pop.header):
            queue = self._log.queues.get(key.topic, key.queue_id)
            if queue is None or not queue.max_offset:
                continue
            try:
                self._fetch_from(pop, key, queue, fetched)
            except DamagedRecordError:
                fetched.is_damaged = True  # repaired from the peers; other queues may have messages
            if fetched.reads_in_vain >= READS_IN_VAIN_MAX:
                fetched.has_more = True  # the next pop begins at another queue
                break
        return fetched

    def next_offset(self, key: GroupQueueKey, queue: ConsumeQueue, init_mode: int = INIT_MODE_MIN) -> int:
        """Where the group's next pop of the queue begins. A group that is new to the queue begins at its
        first message, or at its last if it wants that and the queue has lost some already.
        """
        group_queue = self._ledger.group_queue(key)
        if group_queue is not None:
            return group_queue.next_offset
        committed = self._commits.current(*key)
        if committed is not None:
            return committed
        first = queue.min_offset
        if init_mode == INIT_MODE_MIN or first <= 0 or key.topic.startswith(RETRY_PREFIX):
            return first
        last = max(queue.max_offset - 1, 0)
        self._commits.commit(*key, last)
        return last

    def queue_keys(
        self, group: str, topic: str, queue_id: int, is_retry_first: bool
    ) -> Iterator[GroupQueueKey]:
        """The queues that a pop reads, in order."""
        own = self._own_keys(group, topic, queue_id)
        yield from self._retry_keys(group, topic) if is_retry_first else own
        yield from own if is_retry_first else self._retry_keys(group, topic)

    def _group_queues(self, header: PopMessageRequestHeader) -> Iterator[GroupQueueKey]:
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        self._turn += 1
        if header.order:
            return self._own_keys(group, topic, queue_id)
        if self._is_by_priority(group, topic):
            return self._keys_by_priority(group, topic, queue_id)
        return self.queue_keys(group, topic, queue_id, self._turn % RETRY_FIRST_EVERY == 0)

    def _is_by_priority(self, group: str, topic: str) -> bool:
        """Whether this pop of the group takes the messages by their priority: so many of a hundred do."""
        config = self._topics.topics.get(topic)
        if config is None or config.attributes.get(TYPE_ATTRIBUTE) != PRIORITY_TYPE:
            return False
        settings = self._topics.groups.get(group)
        factor = "" if settings is None else settings.attributes.get(FACTOR_ATTRIBUTE, "")
        return self._turn * _SPREAD % 100 < (int(factor) if factor.isdigit() else 100)

    def _keys_by_priority(self, group: str, topic: str, queue_id: int) -> Iterator[GroupQueueKey]:
        """A message's priority is its queue; messages that come back have none, and are the last."""
        if queue_id >= 0:
            yield GroupQueueKey(group, topic, queue_id)
        else:
            queues = range(self._topics.topics[topic].read_queue_nums)
            for each in reversed(queues) if self._config.priority_order_asc else queues:
                yield GroupQueueKey(group, topic, each)
        yield from self._retry_keys(group, topic)

    def _own_keys(self, group: str, topic: str, queue_id: int) -> Iterator[GroupQueueKey]:
        if queue_id >= 0:
            yield GroupQueueKey(group, topic, queue_id)
            return
        config = self._topics.topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        for step in range(count):
            yield GroupQueueKey(group, topic, (self._turn + step) % count)

    def _retry_keys(self, group: str, topic: str) -> Iterator[GroupQueueKey]:
        for is_v2 in (False, True):
            name = pop_retry_topic(topic, group, is_v2)
            config = self._topics.topics.get(name)
            for queue_id in range(config.read_queue_nums if config is not None else 0):
                yield GroupQueueKey(group, name, queue_id)

    def _fetch_from(self, pop: Pop, key: GroupQueueKey, queue: ConsumeQueue, fetched: Fetched) -> None:
        header = pop.header
        if self._resets:
            # The ledger moved already; a consumer that pulls the queue later must not be set back.
            self._resets.take(*key)
        group_queue = self._ledger.group_queue(key)
        start = self.next_offset(key, queue, header.init_mode)
        if header.order and group_queue is not None:
            if self._is_blocked(group_queue, header.attempt_id, fetched):
                return
            start = group_queue.order_start
        if start == queue.max_offset or (start > queue.max_offset and not self._log.shows_all_committed()):
            return
        replaced = group_queue.in_order if header.order and group_queue is not None else 0
        room = min(header.max_msg_nums - fetched.count, self._room(key, group_queue, fetched, replaced))
        if room <= 0 or fetched.size_bytes >= ANSWER_BYTES_MAX:
            fetched.rest += max(queue.max_offset - start, 0)
            return
        read = self._read(pop, key, start, room, fetched)
        fetched.rest += max(queue.max_offset - read.next_offset, 0)
        if not read.places:
            fetched.has_more = fetched.has_more or read.next_offset < queue.max_offset
            self._pass_over(key, group_queue, start, read.next_offset)
            return
        self._hand_out(pop, key, read, fetched)

    def _room(
        self, key: GroupQueueKey, group_queue: GroupQueue | None, fetched: Fetched, replaced: int
    ) -> int:
        """How many more messages the limits allow when so many in flight are replaced."""
        table = self._ledger.table
        assert table is not None, "a pop without a table"
        out = group_queue.in_flight if group_queue is not None else 0
        room = min(self._queue_max - out, self._total_max - table.in_flight) + replaced
        if room <= 0 or not self._ledger.may_add(key) or not self._ledger.may_record():
            fetched.is_limited = True
            return 0
        return room

    def _is_blocked(self, group_queue: GroupQueue, attempt_id: str | None, fetched: Fetched) -> bool:
        order = group_queue.order
        if order is None or order.is_same_attempt(attempt_id):
            return False
        now_ms = self._now_ms()
        free_in_ms = order.free_at_ms(now_ms) - now_ms
        if free_in_ms <= 0:
            return False
        known = fetched.free_in_ms
        fetched.free_in_ms = free_in_ms if known is None else min(known, free_in_ms)
        return True

    def _read(self, pop: Pop, key: GroupQueueKey, start: int, room: int, fetched: Fetched) -> _Read:
        """Raises DamagedRecordError."""
        bytes_max = ANSWER_BYTES_MAX - fetched.size_bytes
        offset = start
        for _ in range(min(READS_MAX, READS_IN_VAIN_MAX - fetched.reads_in_vain)):
            result = self._reader.read(key.topic, key.queue_id, offset, pop.filter, room, bytes_max)
            if result.status is ReadStatus.FOUND:
                return _Read(start, result.next_offset, result.body, _places(result.body))
            if result.status in _MOVED:
                offset = start = result.next_offset
            elif result.status in _PASSED:
                offset = result.next_offset
                fetched.reads_in_vain += 1
            else:
                break
        return _Read(start, offset)

    def _pass_over(
        self, key: GroupQueueKey, group_queue: GroupQueue | None, start: int, next_offset: int
    ) -> None:
        """The filter matches nothing up to here. That needs no record: the next leader finds the same. A
        queue that began behind the log's end is set back.
        """
        if group_queue is None:
            if next_offset < start:
                self._commits.commit(*key, next_offset)
            else:
                self._commits.note(*key, next_offset)
        elif group_queue.order is not None and group_queue.order.pending:
            self._ledger.record(Sought(key, next_offset))  # what was in flight in order is gone
        elif next_offset != group_queue.next_offset:
            group_queue.next_offset = next_offset
            self._ledger.touch(key)

    def _hand_out(self, pop: Pop, key: GroupQueueKey, read: _Read, fetched: Fetched) -> None:
        header, offsets = pop.header, read.offsets
        assert read.start <= offsets[0], f"{key}: {offsets[0]} was read from {read.start} on"
        assert offsets[-1] < read.next_offset, f"{key}: {offsets[-1]}, and the next is {read.next_offset}"
        times = fetched.pop_time_ms, header.invisible_time_ms
        if header.order:
            self._ledger.record(PoppedInOrder(key, offsets, read.next_offset, *times, header.attempt_id))
            fetched.counts.append(self._order_counts(key))
        else:
            self._ledger.record(Popped(key, offsets, read.next_offset, *times))
        fetched.starts.append(start_offset_info(key.topic, key.queue_id, read.start))
        fetched.offsets.append(msg_offset_info(key.topic, key.queue_id, offsets))
        fetched.bodies.append(read.body)
        fetched.count += len(offsets)
        fetched.size_bytes += len(read.body)
        assert fetched.count <= header.max_msg_nums, f"{fetched.count} messages for one pop"
        self._statistics.got(key.topic, key.group, key.queue_id, len(offsets), len(read.body), 0)

    def _order_counts(self, key: GroupQueueKey) -> str:
        group_queue = self._ledger.group_queue(key)
        assert group_queue is not None, key
        assert group_queue.order is not None, key
        counts = group_queue.order.counts
        least = min(counts.values()) if len(counts) == len(group_queue.order.offsets) else 0
        return order_count_info(key.topic, key.queue_id, counts.items(), least)


def _places(body: bytes) -> list[tuple[int, int, int]]:
    """Offset of each record, with the begin and end of its bytes in `body`."""
    places = []
    begin = 0
    while begin < len(body):
        end = begin + int.from_bytes(body[begin : begin + 4], "big")
        at = begin + QUEUE_OFFSET_AT
        places.append((int.from_bytes(body[at : at + 8], "big"), begin, end))
        begin = end
    return places
