"""Requests about topics: 21, 202, 300, 315; and the changes 17, 215."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import Body, by_queue, check, check_rows, read_json, table_of
from remoting.codes import RequestCode, ResponseCode
from remoting.route import DEFAULT_TOPIC

TOPICS_MAX: Final = 100_000
QUEUES_MAX: Final = 65_536
GROUPS_MAX: Final = 10_000
MASTERS_REMEMBERED_MAX: Final = 64
"""Of these the last answer is kept."""
CHANGE_TIMEOUT_MS: Final = 5_000
"""A change waits for a majority, and a follower hands it on to the leader first."""
_WHAT_TOPICS: Final = "list of topics"
_WHAT_BOUNDS: Final = "queue bounds"


class TopicConfig(Body):
    """TopicConfig of one broker; `attributes` is None where it has none (before RocketMQ 5)."""

    topic_name: str
    read_queue_nums: int = Field(default=16, ge=0, le=QUEUES_MAX)
    write_queue_nums: int = Field(default=16, ge=0, le=QUEUES_MAX)
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class QueueBounds(Body):
    """One queue: offsets from `min_offset` to before `max_offset`; a time of 0 is none."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class WindowFigures(Body):
    """`sum` over the window, `tps` a second of it."""

    sum: int
    tps: float


class Figures(Body):
    """One of RocketMQ's statistics over the last minute, hour and day."""

    stats_minute: WindowFigures
    stats_hour: WindowFigures
    stats_day: WindowFigures


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A queue of a topic on one broker."""

    queue_id: int
    bounds: QueueBounds


class TopicSource:
    """Asks one address about topics. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._read: dict[str, tuple[bytes, Mapping[str, TopicConfig]]] = {}

    async def configs(self, address: str) -> Mapping[str, TopicConfig]:
        """21: every topic of the broker by name. The same answer as before is not read again: with thousands
        of topics that takes longer than all the rest.
        """
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        known = self._read.get(address)
        if known is not None and known[0] == answer.body:
            return known[1]
        value = read_json(address, answer.body, _WHAT_TOPICS)
        table = table_of(address, value, "topicConfigTable", _WHAT_TOPICS, TOPICS_MAX)
        configs = check_rows(address, table, TopicConfig, _WHAT_TOPICS)
        if len(self._read) >= MASTERS_REMEMBERED_MAX:
            self._read.clear()
        self._read[address] = answer.body, configs
        return configs

    async def queues(self, address: str, topic: str) -> list[QueueRow]:
        """202: the bounds of the topic's queues on this broker, by id."""
        answer = await self._gateway.ask(address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
        value = read_json(address, answer.body, _WHAT_BOUNDS)
        table = table_of(address, value, "offsetTable", _WHAT_BOUNDS, QUEUES_MAX)
        rows = [
            QueueRow(key.queue_id, check(address, row, QueueBounds, _WHAT_BOUNDS))
            for key, row in by_queue(address, table, _WHAT_BOUNDS)
        ]
        return sorted(rows, key=lambda row: row.queue_id)

    async def groups(self, address: str, topic: str) -> list[str]:
        """300: the groups that consume the topic here, or have offsets in it."""
        answer = await self._gateway.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        names = read_json(address, answer.body, "list of groups").get("groupList")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise AskError(address, f"{address}: its list of groups cannot be read")
        return sorted(names[:GROUPS_MAX])

    async def figures(self, address: str, stats_name: str, stats_key: str) -> Figures | None:
        """315: one statistic; None when nothing was counted under this key, or the counter was dropped."""
        ext = {"statsName": stats_name, "statsKey": stats_key}
        accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        answer = await self._gateway.ask(address, RequestCode.VIEW_BROKER_STATS_DATA, ext, accept=accept)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return None
        return check(address, read_json(address, answer.body, "statistics"), Figures, "statistics")

    async def put(self, address: str, config: TopicConfig, attributes: str) -> None:
        """17: creates the topic or changes it; `attributes` is RocketMQ's `+key=value,-key`."""
        ext = {
            "topic": config.topic_name,
            "defaultTopic": DEFAULT_TOPIC,
            "readQueueNums": str(config.read_queue_nums),
            "writeQueueNums": str(config.write_queue_nums),
            "perm": str(config.perm),
            "topicFilterType": config.topic_filter_type,
            "topicSysFlag": str(config.topic_sys_flag),
            "order": str(config.order).lower(),
        }
        if attributes:
            ext["attributes"] = attributes
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        await self._gateway.ask(address, code, ext, timeout_ms=CHANGE_TIMEOUT_MS)

    async def delete(self, address: str, topic: str) -> None:
        """215: the broker drops its configuration and every group's offsets in it."""
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        await self._gateway.ask(address, code, {"topic": topic}, timeout_ms=CHANGE_TIMEOUT_MS)
