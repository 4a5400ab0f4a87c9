"""Requests about consumer offsets: 14, 15, 29, 43, 202, 208, 222, 303, 314, 317."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import Body, QueueKey, by_queue, check, read_json
from admin_api.sources.broker_admin import ConfigSource
from admin_api.sources.groups import VERSION_5
from remoting.codes import RequestCode, ResponseCode

ROWS_MAX: Final = 20_000
"""Queues of one group on one broker."""
ROWS_BYTES_MAX: Final = 4 * 1024 * 1024
CHANGE_TIMEOUT_MS: Final = 5_000
FAR_FUTURE_MS: Final = 32_503_680_000_000
"""The year 3000. See `OffsetSource.reset_queue`."""
_WHAT: Final = "progress of the group"


class OffsetRow(Body):
    """OffsetWrapper. An offset that the group does not have is 0, and so is a time that is not known."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int | None = None
    last_timestamp: int = 0


class BoundsRow(Body):
    """TopicOffset: where a queue begins and ends."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class SpanRow(Body):
    """How far behind in time a group is in one queue, in ms."""

    message_queue: QueueKey
    delay_time: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """208: a group's offsets on one broker; `tps` is messages a second over the last minute; None: untold."""

    rows: dict[QueueKey, OffsetRow]
    tps: float | None


class OffsetSource:
    """Asks one broker about offsets. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._config = ConfigSource(gateway)

    async def progress(self, address: str, group: str, topic: str | None = None) -> Progress:
        """208, of one topic or of all that the group has consumed.

        With a topic, RocketMQ 5 reports it even when the group is online without being subscribed to it; 4.9
        has no rows then.
        """
        ext = {"consumerGroup": group}
        if topic is not None:
            ext |= {"topic": topic, "topicList": topic}
        answer = await self._gateway.ask(address, RequestCode.GET_CONSUME_STATS, ext)
        value = read_json(address, answer.body, _WHAT, ROWS_BYTES_MAX)
        table = _table(address, value.get("offsetTable"), _WHAT)
        rows = {key: check(address, row, OffsetRow, _WHAT) for key, row in by_queue(address, table, _WHAT)}
        tps = value.get("consumeTps")
        return Progress(rows, float(tps) if isinstance(tps, int | float) else None)

    async def lags(self, address: str) -> dict[str, dict[str, int]]:
        """317 of a stock broker: group -> topic -> messages not consumed yet. A queue that the group never
        consumed counts as at 0, as in RocketMQ's own tools.

        Read beside the loop: with thousands of groups it is long.
        """
        code = RequestCode.GET_BROKER_CONSUME_STATS
        answer = await self._gateway.ask(address, code, {"isOrder": "false"}, timeout_ms=CHANGE_TIMEOUT_MS)
        return await asyncio.to_thread(_read_lags, address, answer.body)

    async def bounds(self, address: str, topic: str) -> dict[QueueKey, BoundsRow] | None:
        """202: the queues of the topic; None when the broker does not have it."""
        accept = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
        code = RequestCode.GET_TOPIC_STATS_INFO
        answer = await self._gateway.ask(address, code, {"topic": topic}, accept=accept)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        what = "list of queues"
        table = _table(address, read_json(address, answer.body, what).get("offsetTable"), what)
        return {key: check(address, row, BoundsRow, what) for key, row in by_queue(address, table, what)}

    async def spans(self, address: str, group: str, topic: str) -> dict[int, int]:
        """303: queue id -> ms that the next message to consume has been waiting; 0 when there is none."""
        ext = {"topic": topic, "group": group}
        answer = await self._gateway.ask(address, RequestCode.QUERY_CONSUME_TIME_SPAN, ext)
        rows = read_json(address, answer.body, _WHAT).get("consumeTimeSpanSet") or []
        checked = [check(address, row, SpanRow, _WHAT) for row in rows[:ROWS_MAX]]
        return {row.message_queue.queue_id: max(0, row.delay_time) for row in checked}

    async def committed(self, address: str, group: str, topic: str, queue_id: int) -> int | None:
        """14: None when the group has no offset here. (RocketMQ 4.9 may answer 0 then: `without_missing`.)"""
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = await self._gateway.ask(address, RequestCode.QUERY_CONSUMER_OFFSET, ext, accept=accept)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(address, answer.ext_fields)

    async def pairs(self, address: str) -> set[tuple[str, str]]:
        """43: which (topic, group) have offsets here. Read beside the loop."""
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        return await asyncio.to_thread(_read_pairs, address, answer.body)

    async def without_missing(
        self, address: str, group: str, offsets: Mapping[QueueKey, int | None]
    ) -> dict[QueueKey, int | None]:
        """A stock broker's answers to 14, with None for each 0 that it does not store: RocketMQ 4.9 answers 0
        for a missing offset while the queue's first message is there. 43 has all that it stores, read beside
        the loop; RocketMQ 5 distinguishes the two and is not asked for it.
        """
        if 0 not in offsets.values() or self._gateway.version_of(address) >= VERSION_5:
            return dict(offsets)
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        stored = await asyncio.to_thread(_read_stored, address, answer.body, group)
        return {
            key: None if offset == 0 and str(key.queue_id) not in stored.get(key.topic, {}) else offset
            for key, offset in offsets.items()
        }

    async def moves_single_queues(self, address: str) -> bool:
        """26: whether a stock broker resets one queue. One that does not would, asked for one, send the
        consumers that run back to the last message of every queue (RocketMQ 4.9).
        """
        settings = await self._config.read(address)
        return settings.values.get("useServerSideResetOffset") == "true"

    async def by_time(self, address: str, topic: str, queue_id: int, time_ms: int) -> int:
        """29: the first message stored at or after the time; the end when there is none. (RocketMQ 4.9: the
        one that is nearest to it.)
        """
        ext = {"topic": topic, "queueId": str(queue_id), "timestamp": str(time_ms), "boundaryType": "LOWER"}
        answer = await self._gateway.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        return _offset(address, answer.ext_fields)

    async def reset_queue(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> int:
        """222 of one queue, and the offset it has now: LedgerMQ and RocketMQ 5 move it, and send a consumer
        that runs there. For brokers that can (`moves_single_queues`): others reset all queues by the time.
        """
        ext = {"queueId": str(queue_id), "offset": str(offset)}
        offsets = await self._reset(address, group, topic, FAR_FUTURE_MS, ext, is_force=False)
        if queue_id not in offsets:
            raise AskError(address, f"{address} did not say where queue {queue_id} is now")
        return offsets[queue_id]

    async def reset_by_time(self, address: str, group: str, topic: str, time_ms: int) -> dict[int, int]:
        """222 of all queues, -1 for the end: queue id -> the offset it was given."""
        return await self._reset(address, group, topic, time_ms, {}, is_force=True)

    async def _reset(
        self, address: str, group: str, topic: str, time_ms: int, ext: Mapping[str, str], *, is_force: bool
    ) -> dict[int, int]:
        common = {"topic": topic, "group": group, "timestamp": str(time_ms), "isForce": str(is_force).lower()}
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        answer = await self._gateway.ask(address, code, {**common, **ext}, timeout_ms=CHANGE_TIMEOUT_MS)
        what = "answer to the reset"
        table = _table(address, read_json(address, answer.body, what).get("offsetTable"), what)
        return {key.queue_id: int(offset) for key, offset in by_queue(address, table, what)}

    async def commit(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """15: as the group's own consumer would; one that runs overwrites it soon."""
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "commitOffset": str(offset),
        }
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        await self._gateway.ask(address, code, ext, timeout_ms=CHANGE_TIMEOUT_MS)

    async def clone(self, address: str, source: str, target: str, topic: str) -> None:
        """314: the target gets the source's offsets of the topic."""
        ext = {"srcGroup": source, "destGroup": target, "topic": topic, "offline": "true"}
        await self._gateway.ask(address, RequestCode.CLONE_GROUP_OFFSET, ext, timeout_ms=CHANGE_TIMEOUT_MS)


def _table(address: str, table: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(table, dict) or len(table) > ROWS_MAX:
        raise AskError(address, f"{address}: its {what} is no table of at most {ROWS_MAX} queues")
    return table


def _offset(address: str, ext: Mapping[str, str]) -> int:
    text = ext.get("offset", "")
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
        raise AskError(address, f"{address} named no offset")
    return int(text)


def _read_stored(address: str, body: bytes, group: str) -> dict[str, Mapping[str, Any]]:
    """Topic -> queue id, as text -> offset of one group. Raises: AskError."""
    of_group, table = f"@{group}", _all_stored(address, body)
    return {key.removesuffix(of_group): row for key, row in table.items() if key.endswith(of_group)}


def _read_pairs(address: str, body: bytes) -> set[tuple[str, str]]:
    """Raises: AskError."""
    split = (key.rpartition("@") for key, row in _all_stored(address, body).items() if row)
    return {(topic, group) for topic, _, group in split}


def _all_stored(address: str, body: bytes) -> Mapping[str, Mapping[str, Any]]:
    """By `topic@group`. Raises: AskError."""
    what = "list of all offsets"
    table = read_json(address, body, what).get("offsetTable")
    if not isinstance(table, dict) or not all(isinstance(queues, dict) for queues in table.values()):
        raise AskError(address, f"{address}: its {what} is no table of tables")
    return table


def _read_lags(address: str, body: bytes) -> dict[str, dict[str, int]]:
    """Raises: AskError."""
    what = "progress of all groups"
    lags: dict[str, dict[str, int]] = {}
    for group, parts in _parts_by_group(address, read_json(address, body, what), what):
        topics = lags.setdefault(group, {})
        for part in parts:
            for key, row in by_queue(address, _table(address, part.get("offsetTable"), what), what):
                checked = check(address, row, OffsetRow, what)
                behind = max(0, checked.broker_offset - checked.consumer_offset)
                topics[key.topic] = topics.get(key.topic, 0) + behind
    return lags


def _parts_by_group(
    address: str, value: Mapping[str, Any], what: str
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The body of 317: a list of tables, each from a group to what it consumes. Raises: AskError."""
    tables = value.get("consumeStatsList")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise AskError(address, f"{address}: its {what} is no list of tables")
    for group, parts in (row for table in tables for row in table.items()):
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise AskError(address, f"{address}: its {what} has no list of tables for {group[:80]!r}")
        yield group, parts
