"""Revives messages that were not acknowledged in time (PopReviveService), on the leader only.

A message whose invisible time has ended is copied to the group's pop retry topic (reviveRetry), where the
group's next pop finds it, or after too many tries to its dead letters, and is finished in the same put.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker.config import BrokerConfig
from broker.pop.ledger import PopLedger
from broker.pop.ops import Finished, GroupQueueKey
from broker.pop.table import InFlightBatch
from broker.state.groups import SubscriptionGroupConfig
from broker.state.state import ReplicatedState, StateChangeError
from broker.state.topics import TopicConfig, dlq_topic
from broker.store.redelivery import copy_of, stored_message
from commitlog.errors import DamagedRecordError
from commitlog.log import MessageLog, PutStatus
from commitlog.log_machine import RETRY_MS
from commitlog.record import (
    PROPERTIES_BYTES_MAX,
    Message,
    MessageIllegalError,
    Record,
    format_properties,
    offset_msg_id,
    parse_properties,
)
from remoting.pop_receipts import origin_topic, pop_retry_topic
from remoting.topic_names import RETRY_PREFIX

PROPERTY_FIRST_POP_TIME = "1ST_POP_TIME"
PROPERTY_RETRY_TOPIC = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
BATCH_MESSAGES_MAX = 200
BATCH_BYTES_MAX = 1024 * 1024
DAMAGE_WAIT_MS = 500
CREATE_WAIT_MS = 2_000
WAIT_MAX_S = 3_600.0
SNAPSHOT_INTERVAL_S = 1_800.0
"""A snapshot is written at least this often, so that retention may delete the records before it."""

logger = logging.getLogger(__name__)


def target_topic(record: Record, group: SubscriptionGroupConfig, is_v2: bool) -> TopicConfig:
    """The topic of the message's copy. A message from a retry topic is copied to the same topic again."""
    if record.reconsume_times >= group.retry_max_times:
        return dlq_topic(group.name)
    if record.topic.startswith(RETRY_PREFIX):
        return TopicConfig(record.topic, 1, 1)
    return TopicConfig(pop_retry_topic(record.topic, group.name, is_v2), 1, 1)


def retry_copy(
    record: Record, topic: TopicConfig, group: str, pop_time_ms: int, store_host: bytes
) -> Message:
    """The message as its next try: same body, birth and key, one more in reconsumeTimes."""
    message = copy_of(record, topic.name, 0, store_host, _properties(record, topic, group, pop_time_ms))
    message.reconsume_times += 1
    return message


def _properties(record: Record, topic: TopicConfig, group: str, pop_time_ms: int) -> bytes:
    """The copy's properties: those of its origin are added as far as there is room."""
    properties = parse_properties(record.properties)
    if not record.reconsume_times or PROPERTY_FIRST_POP_TIME not in properties:
        properties[PROPERTY_FIRST_POP_TIME] = str(pop_time_ms)
    if not topic.name.startswith(RETRY_PREFIX):
        properties.setdefault(PROPERTY_RETRY_TOPIC, origin_topic(record.topic, group))
        origin_id = offset_msg_id(record.store_host, record.physical_offset)
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, origin_id)
    try:
        data = format_properties(properties)
    except MessageIllegalError:
        return record.properties
    return data if len(data) <= PROPERTIES_BYTES_MAX else record.properties


@dataclass(slots=True)
class _Batch:
    messages: list[Message] = field(default_factory=list)
    finished: dict[GroupQueueKey, list[int]] = field(default_factory=dict)
    missing: dict[str, TopicConfig] = field(default_factory=dict)
    """Topics to be created first."""
    held_back: dict[InFlightBatch, None] = field(default_factory=dict)
    """Batches with messages for those topics."""
    damaged: dict[InFlightBatch, None] = field(default_factory=dict)
    size: int = 0
    size_bytes: int = 0

    def has_room(self, messages_max: int) -> bool:
        return self.size < messages_max and self.size_bytes < BATCH_BYTES_MAX

    def finish(self, key: GroupQueueKey, offset: int) -> None:
        self.finished.setdefault(key, []).append(offset)
        self.size += 1

    def ops(self) -> list[Finished]:
        return [Finished(key, tuple(sorted(offsets))) for key, offsets in self.finished.items()]


class Revival:
    """The task that revives messages; it runs while the table is loaded."""

    def __init__(
        self,
        config: BrokerConfig,
        log: MessageLog,
        state: ReplicatedState,
        now_ms: Callable[[], int],
        store_host: bytes,
        ledger: PopLedger,
    ) -> None:
        self._config = config
        self._store_host = store_host
        self._log = log
        self._state = state
        self._ledger = ledger
        self._now_ms = now_ms
        self._batch_max = max(1, min(BATCH_MESSAGES_MAX, config.pending_appends_max // 2))
        self._messages_max = self._batch_max
        self._earlier = asyncio.Event()
        self._wakes_at_ms: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._due: list[InFlightBatch] = []
        ledger.on_ready(self._on_ready)

    async def start(self) -> None:
        """The task begins when the table is loaded."""

    async def stop(self) -> None:
        self._on_ready(False)

    def wake_if_earlier(self) -> None:
        """Messages were handed out, which may be due before all others: then wait no longer than for them."""
        table = self._ledger.table
        earliest = table.deadlines.earliest_ms() if table is not None else None
        if earliest is not None and (self._wakes_at_ms is None or earliest < self._wakes_at_ms):
            self._earlier.set()

    def _on_ready(self, is_ready: bool) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._due = []
        if is_ready:
            self._task = asyncio.get_running_loop().create_task(self._keep_reviving(), name="revival")

    async def _keep_reviving(self) -> None:
        snapshot_at_ms = self._now_ms() + SNAPSHOT_INTERVAL_S * 1_000
        while True:
            await self._wait()
            await self.revive_due()
            if self._now_ms() >= snapshot_at_ms:
                self._ledger.drop_lost()
                self._ledger.snapshot()
                snapshot_at_ms = self._now_ms() + SNAPSHOT_INTERVAL_S * 1_000

    async def _wait(self) -> None:
        table = self._ledger.table
        earliest = table.deadlines.earliest_ms() if table is not None else None
        now_ms = self._now_ms()
        wait_s = WAIT_MAX_S if earliest is None else min(max(earliest - now_ms, 0) / 1_000, WAIT_MAX_S)
        wait_s = min(wait_s, SNAPSHOT_INTERVAL_S)
        self._wakes_at_ms = now_ms + round(wait_s * 1_000)
        self._earlier.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._earlier.wait()
        except TimeoutError:
            pass

    async def revive_due(self) -> None:
        """Revive all messages whose invisible time has ended."""
        table = self._ledger.table
        while table is not None and self._ledger.table is table:
            self._due += table.deadlines.pop_due(self._now_ms())
            batch = self._gather()
            if not self._due:
                return
            if not self._put(batch):
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            self._postpone(batch.damaged, DAMAGE_WAIT_MS)
            if not await self._create(batch.missing):
                self._postpone(batch.held_back, CREATE_WAIT_MS)
            await asyncio.sleep(0)

    def _gather(self) -> _Batch:
        """The due messages, as many as fit in one put. Batches without in-flight messages are dropped."""
        self._due = [in_flight_batch for in_flight_batch in self._due if in_flight_batch.left]
        batch = _Batch()
        for in_flight_batch in self._due:
            for offset in in_flight_batch.still_out():
                if not batch.has_room(self._messages_max):
                    return batch
                self._add(batch, in_flight_batch, offset)
        return batch

    def _add(self, batch: _Batch, in_flight_batch: InFlightBatch, offset: int) -> None:
        key = in_flight_batch.group_queue.key
        group = self._state.groups.get(key.group)
        try:
            record = stored_message(self._log, *key[1:], offset) if group is not None else None
        except DamagedRecordError:
            batch.damaged[in_flight_batch] = None  # the scrubber fetches it from the peers: tried again later
            return
        if record is None or group is None:
            batch.finish(key, offset)
            return
        topic = target_topic(record, group, self._config.enable_retry_topic_v2)
        if topic.name not in self._state.topics:
            batch.missing[topic.name] = topic
            batch.held_back[in_flight_batch] = None
            return
        host = self._store_host
        batch.messages.append(retry_copy(record, topic, key.group, in_flight_batch.pop_time_ms, host))
        batch.size_bytes += record.size
        batch.finish(key, offset)

    async def _create(self, missing: dict[str, TopicConfig]) -> bool:
        """Whether all of them are there now."""
        try:
            for config in missing.values():
                await self._state.ensure_topic_config(config)
        except StateChangeError as error:
            logger.warning("nothing is revived to %s: %s", config.name, error)
            return False
        return True

    def _postpone(self, batches: Iterable[InFlightBatch], wait_ms: int) -> None:
        table = self._ledger.table
        later = dict.fromkeys(batches)
        if table is None or not later:
            return
        self._due = [in_flight_batch for in_flight_batch in self._due if in_flight_batch not in later]
        for in_flight_batch in later:
            if in_flight_batch.left:
                table.deadlines.add(in_flight_batch, self._now_ms() + wait_ms)

    def _put(self, batch: _Batch) -> bool:
        """Return whether to continue at once."""
        if not batch.finished:
            return True
        assert len(batch.messages) <= batch.size, f"{len(batch.messages)} copies of {batch.size} messages"
        status = self._ledger.move(batch.messages, batch.ops())
        if status is PutStatus.PUT_OK:
            self._messages_max = self._batch_max
            return True
        if status is PutStatus.OS_PAGE_CACHE_BUSY:
            self._messages_max = max(1, self._messages_max // 2)
        elif status is PutStatus.MESSAGE_ILLEGAL:
            self._narrow_down(batch)
            return True
        return False

    def _narrow_down(self, batch: _Batch) -> None:
        """One message of the batch cannot be stored: find it by itself, and pass over it."""
        if self._messages_max > 1 and len(batch.messages) > 1:
            self._messages_max = 1
            return
        for op in batch.ops():
            logger.error("the message %s of %s cannot be revived; dropped", op.offsets, op.key)
            self._ledger.record(op)
        self._ledger.flush()
