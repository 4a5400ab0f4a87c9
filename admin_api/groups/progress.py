"""Consumer progress queue by queue, collected from several requests to each broker.

A number that no broker reported is null, never 0.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from admin_api.gateway import Gateway, Gathered, Trouble
from admin_api.groups.overview import GroupPresence, joined, on_masters, total
from admin_api.schema import Partial, Schema
from admin_api.sources.bodies import QueueKey
from admin_api.sources.brokers import BrokerSet
from admin_api.sources.groups import Running
from admin_api.sources.offsets import BoundsRow, OffsetRow, OffsetSource
from remoting.topic_names import RETRY_PREFIX


class QueueProgress(Schema):
    """How far a group is in one queue."""

    broker_name: str
    queue_id: int
    min_offset: int | None = Field(description="its first message; null when it is unknown")
    max_offset: int = Field(description="the offset the next message gets")
    offset: int | None = Field(description="the next message to consume; null: the group has no offset here")
    lag: int | None = Field(description="messages not consumed yet; null without an offset")
    in_flight: int | None = Field(
        description="pulled and not committed, where the broker counts it (RocketMQ 5); else null"
    )
    last_consumed_at_ms: int | None = Field(description="store time of the last message consumed, Unix ms")
    delay_ms: int | None = Field(description="how long the next message has been waiting; 0 without one")
    client_id: str | None = Field(description="the consumer that has the queue; null: none, or not known")


class TopicProgressView(Schema):
    """One topic that the group consumes."""

    topic: str
    is_retry: bool
    lag: int | None = Field(
        description="of the queues where it is known; null where it is of none that is filled"
    )
    unknown_queues: int = Field(description="queues with messages that the group has no offset for")
    queues: list[QueueProgress]


class ProgressView(Partial):
    """How far a group is, queue by queue."""

    group: str
    presence: GroupPresence
    is_broadcast: bool | None
    as_of_ms: int = Field(description="Unix time in ms")
    lag: int | None
    consume_tps: float | None
    topics: list[TopicProgressView] | None = Field(description="null: no broker could say")


TOPICS_ASKED_MAX: Final = 20
"""Topics of one broker that are asked for first offsets and delays; of the others these stay unknown."""
ZEROS_ASKED_MAX: Final = 64
"""Queues of one broker with offset 0 that are asked whether that is an offset or none."""


@dataclass(frozen=True, slots=True)
class TopicRows:
    """One broker's part. `offsets` has None for a queue without one."""

    rows: Mapping[QueueKey, OffsetRow]
    offsets: Mapping[QueueKey, int | None]
    bounds: Mapping[QueueKey, BoundsRow]
    delays_ms: Mapping[QueueKey, int]
    tps: float | None


class GroupProgressReader:
    """Asks the masters of a BrokerSet; answers are keyed by broker name."""

    def __init__(self, gateway: Gateway, source: OffsetSource) -> None:
        self._gateway = gateway
        self._source = source

    async def lags(self, brokers: BrokerSet, group: str) -> Gathered[str, int | None]:
        """The group's lag on each broker; None where it has no offset at all."""
        missed: list[Trouble] = []

        async def read(address: str) -> int | None:
            progress = await self._source.progress(address, group)
            offsets = await self._offsets(brokers, address, group, progress.rows, missed)
            return topic_lag(
                [(row.broker_offset, lag_of(row, offsets[key])) for key, row in progress.rows.items()]
            )

        gathered = await self._gateway.ask_each(brokers.masters, on_masters(brokers, read))
        return Gathered(gathered.answers, joined(gathered.troubles, missed))

    async def rows(self, brokers: BrokerSet, group: str, topic: str | None) -> Gathered[str, TopicRows]:
        """Everything that is known of each queue."""
        missed: list[Trouble] = []

        async def read(address: str) -> TopicRows:
            progress = await self._source.progress(address, group, topic)
            offsets, (bounds, delays) = await asyncio.gather(
                self._offsets(brokers, address, group, progress.rows, missed),
                self._extras(address, group, progress.rows),
            )
            return TopicRows(progress.rows, offsets, bounds, delays, progress.tps)

        gathered = await self._gateway.ask_each(brokers.masters, on_masters(brokers, read))
        return Gathered(gathered.answers, joined(gathered.troubles, missed))

    async def _offsets(
        self,
        brokers: BrokerSet,
        address: str,
        group: str,
        rows: Mapping[QueueKey, OffsetRow],
        missed: list[Trouble],
    ) -> dict[QueueKey, int | None]:
        """Distinguishes an offset of 0 from none, as far as the bound goes: beyond it 0 is taken as the
        broker's answer.

        Why one is not known goes to `missed`: without that, it would be shown as none.
        """
        offsets: dict[QueueKey, int | None] = {key: row.consumer_offset for key, row in rows.items()}
        zeros = [key for key, row in rows.items() if row.consumer_offset <= 0][:ZEROS_ASKED_MAX]

        async def ask(key: QueueKey) -> int | None:
            return await self._source.committed(address, group, key.topic, key.queue_id)

        gathered = await self._gateway.ask_each(zeros, ask)
        missed.extend(gathered.troubles)
        asked = gathered.answers
        if address not in brokers.statuses:
            asked = await self._source.without_missing(address, group, asked)
        return offsets | {key: asked.get(key) for key in zeros}

    async def _extras(
        self, address: str, group: str, rows: Mapping[QueueKey, OffsetRow]
    ) -> tuple[dict[QueueKey, BoundsRow], dict[QueueKey, int]]:
        """First offsets and delays, where they are known: without them the rest is still useful."""
        topics = sorted({key.topic for key in rows})[:TOPICS_ASKED_MAX]

        async def bounds_of(topic: str) -> Mapping[QueueKey, BoundsRow]:
            return await self._source.bounds(address, topic) or {}

        async def delays_of(topic: str) -> Mapping[int, int]:
            return await self._source.spans(address, group, topic)

        bounds, delays = await asyncio.gather(
            self._gateway.ask_each(topics, bounds_of), self._gateway.ask_each(topics, delays_of)
        )
        by_topic = delays.answers
        known = {
            key: by_topic[key.topic][key.queue_id]
            for key in rows
            if key.queue_id in by_topic.get(key.topic, {})
        }
        return {key: row for table in bounds.answers.values() for key, row in table.items()}, known


def lag_of(row: OffsetRow, offset: int | None) -> int | None:
    """Messages from the offset to the queue's end. A queue without messages has none left, offset or not."""
    if row.broker_offset == 0:
        return 0
    return None if offset is None else max(0, row.broker_offset - offset)


def topic_lag(queues: Sequence[tuple[int, int | None]]) -> int | None:
    """The lag of queues of which each is (end, lag). None where every queue with messages has an unknown
    one: 0 would mean that all is consumed.
    """
    filled = [lag for end, lag in queues if end > 0]
    if any(lag is not None for lag in filled):
        return total(filled)
    return 0 if queues and not filled else None


def queue_clients(running: Mapping[str, Running]) -> dict[QueueKey, str]:
    """Which consumer has a queue, by what each reports."""
    owners: dict[QueueKey, str] = {}
    for client_id, info in running.items():
        for key, row in info.queues:
            if not row.is_dropped:
                owners[key] = client_id
    return owners


def topic_views(
    tables: Mapping[str, TopicRows], owners: Mapping[QueueKey, str], brokers: BrokerSet, group: str
) -> list[TopicProgressView]:
    """By topic, then by broker and queue."""
    topics: dict[str, list[QueueProgress]] = {}
    for broker_name in sorted(tables):
        is_ledgermq = brokers.masters.get(broker_name) in brokers.statuses
        table = tables[broker_name]
        for key in sorted(table.rows, key=lambda key: key.queue_id):
            topics.setdefault(key.topic, []).append(_queue(key, table, owners.get(key), is_ledgermq))
    return [
        TopicProgressView(
            topic=topic,
            is_retry=topic.startswith(RETRY_PREFIX + group),
            lag=topic_lag([(queue.max_offset, queue.lag) for queue in topics[topic]]),
            unknown_queues=sum(queue.lag is None for queue in topics[topic]),
            queues=topics[topic],
        )
        for topic in sorted(topics, key=lambda topic: (topic.startswith(RETRY_PREFIX), topic))
    ]


def _queue(key: QueueKey, table: TopicRows, client_id: str | None, is_ledgermq: bool) -> QueueProgress:
    row, offset, bounds = table.rows[key], table.offsets[key], table.bounds.get(key)
    lag = lag_of(row, offset)
    counts_pulls = row.pull_offset is not None and not is_ledgermq
    return QueueProgress(
        broker_name=key.broker_name,
        queue_id=key.queue_id,
        min_offset=None if bounds is None else bounds.min_offset,
        max_offset=row.broker_offset,
        offset=offset,
        lag=lag,
        in_flight=max(0, (row.pull_offset or 0) - offset) if counts_pulls and offset is not None else None,
        last_consumed_at_ms=row.last_timestamp or None,
        delay_ms=0 if lag == 0 else table.delays_ms.get(key) if offset is not None else None,
        client_id=client_id,
    )
