"""Requests about consumer groups (200, 201, 203, 207, 307, 65005), consume modes (401, 402; RocketMQ 5) and
producers (204, 328).
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson
from pydantic import ConfigDict, Field, ValidationError

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import Body, QueueKey, by_queue, check, check_rows, read_json, table_of
from broker.admin.types import ProgressMessage
from remoting.codes import RequestCode, ResponseCode

_V4_0_0_SNAPSHOT: Final = 212
"""From here on each release is a snapshot and the release itself, patch 0 to 9, minor 0 to 9."""
VERSION_5: Final = _V4_0_0_SNAPSHOT + 2 * 100
"""5.0.0-SNAPSHOT"""
_HIGHEST: Final = _V4_0_0_SNAPSHOT + 2 * 200 - 1


def version_name(ordinal: int) -> str | None:
    """`4.9.8` for 409, `5.1.0-SNAPSHOT` for 432; None of versions before 4.0 and of what is no version."""
    if not _V4_0_0_SNAPSHOT <= ordinal <= _HIGHEST:
        return None
    release, is_final = divmod(ordinal - _V4_0_0_SNAPSHOT, 2)
    major, rest = divmod(release, 100)
    minor, patch = divmod(rest, 10)
    return f"{4 + major}.{minor}.{patch}{'' if is_final else '-SNAPSHOT'}"


GROUPS_MAX: Final = 100_000
CHANGE_TIMEOUT_MS: Final = 5_000
"""A change waits for a majority, and a follower hands it on to the leader first."""
RUNNING_TIMEOUT_MS: Final = 3_000
"""The broker waits 10 s for its client; the page does not."""
STACK_CHARS_MAX: Final = 1_000_000
_WHAT_GROUPS: Final = "list of groups"
_WHAT_RUNNING: Final = "answer for the client"


class GroupConfig(Body):
    """SubscriptionGroupConfig. What is not known here is kept, so that an edit loses none of it."""

    model_config = ConfigDict(extra="allow", frozen=True)

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    notify_consumer_ids_changed_enable: bool = True
    consume_timeout_minute: int = 15

    def to_json(self) -> bytes:
        """As a request has it. The attributes there would be changes of those that the group has."""
        return orjson.dumps(self.model_dump(by_alias=True, exclude={"attributes"}))


class ClientRow(Body):
    """One connected client of a group."""

    client_id: str
    client_addr: str | None = None
    language: str | None = None
    version: int = -1


class SubscriptionRow(Body):
    """What a group wants of one topic."""

    topic: str
    sub_string: str = "*"
    expression_type: str | None = None


class Connections(Body):
    """Who of a group is connected to one broker, and how it consumes."""

    connection_set: tuple[ClientRow, ...] = ()
    subscription_table: dict[str, SubscriptionRow] = Field(default={})
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


class ProcessQueue(Body):
    """What a client has of one queue. Offsets are -1 or 0 where it has nothing."""

    commit_offset: int | None = None
    cached_msg_min_offset: int | None = None
    cached_msg_max_offset: int | None = None
    cached_msg_count: int | None = None
    cached_msg_size_mib: int | None = Field(default=None, alias="cachedMsgSizeInMiB")
    locked: bool | None = None
    is_dropped: bool | None = Field(default=None, alias="droped")
    last_pull_timestamp: int | None = None
    last_consume_timestamp: int | None = None
    wait_ack_count: int | None = None
    last_pop_timestamp: int | None = None


class TopicRates(Body):
    """What a client measured of one topic over the last minute; times in ms, rates per second."""

    pull_ms: float | None = Field(default=None, alias="pullRT")
    pull_tps: float | None = Field(default=None, alias="pullTPS")
    consume_ms: float | None = Field(default=None, alias="consumeRT")
    consume_ok_tps: float | None = Field(default=None, alias="consumeOKTPS")
    consume_failed_tps: float | None = Field(default=None, alias="consumeFailedTPS")
    consume_failed_msgs: int | None = None


class Running(Body):
    """ConsumerRunningInfo: what one client says of itself."""

    properties: dict[str, str] = Field(default={})
    subscription_set: tuple[SubscriptionRow, ...] = ()
    queues: tuple[tuple[QueueKey, ProcessQueue], ...] = ()
    pop_queues: tuple[tuple[QueueKey, ProcessQueue], ...] = ()
    status_table: dict[str, TopicRates] = Field(default={})
    jstack: str | None = None


class GroupSource:
    """Asks one broker about groups. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def configs(self, address: str) -> dict[str, GroupConfig]:
        """201: every group by name."""
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        value = read_json(address, answer.body, _WHAT_GROUPS)
        table = table_of(address, value, "subscriptionGroupTable", _WHAT_GROUPS, GROUPS_MAX)
        return check_rows(address, table, GroupConfig, _WHAT_GROUPS)

    async def progress(self, address: str) -> ProgressMessage | None:
        """65005: lag and members of every group; None of a broker that is no LedgerMQ."""
        try:
            answer = await self._gateway.ask(address, RequestCode.LEDGERMQ_GROUP_PROGRESS)
        except AskError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        try:
            return ProgressMessage.from_json(answer.body)
        except ValidationError as error:
            first = error.errors()[0]
            raise AskError(address, f"{address}: its progress cannot be read: {first['msg']}") from error

    async def connections(self, address: str, group: str) -> Connections | None:
        """203: None when no client of the group is connected to this broker."""
        ext = {"consumerGroup": group}
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        accept = (ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE)
        answer = await self._gateway.ask(address, code, ext, accept=accept)
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None
        return check(
            address, read_json(address, answer.body, "list of clients"), Connections, "list of clients"
        )

    async def running(self, address: str, group: str, client_id: str, *, with_stack: bool) -> Running:
        """307: the client's own answer, which the broker passes on."""
        ext = {"consumerGroup": group, "clientId": client_id, "jstackEnable": str(with_stack).lower()}
        answer = await self._gateway.ask(
            address, RequestCode.GET_CONSUMER_RUNNING_INFO, ext, timeout_ms=RUNNING_TIMEOUT_MS
        )
        value = read_json(address, answer.body, _WHAT_RUNNING)
        value["queues"] = _queue_rows(address, value.get("mqTable"))
        value["popQueues"] = _queue_rows(address, value.get("mqPopTable"))
        running = check(address, value, Running, _WHAT_RUNNING)
        if running.jstack is not None and len(running.jstack) > STACK_CHARS_MAX:
            return running.model_copy(update={"jstack": running.jstack[:STACK_CHARS_MAX]})
        return running

    async def put(self, address: str, config: GroupConfig) -> None:
        """200: creates the group or changes it."""
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._gateway.ask(address, code, body=config.to_json(), timeout_ms=CHANGE_TIMEOUT_MS)

    async def delete(self, address: str, group: str, *, with_offsets: bool) -> None:
        """207. Without its offsets, a group that is made again goes on where this one was."""
        wanted = str(with_offsets).lower()
        # RocketMQ 5 knows the first word, 4.9 the other one.
        ext = {"groupName": group, "cleanOffset": wanted, "removeOffset": wanted}
        await self._gateway.ask(
            address, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext, timeout_ms=CHANGE_TIMEOUT_MS
        )


def _queue_rows(address: str, table: Any) -> list[tuple[QueueKey, Any]]:
    return list(by_queue(address, table, _WHAT_RUNNING)) if isinstance(table, Mapping) else []


_WHAT_MODES: Final = "consume modes"


class ModeRow(Body):
    """SetMessageRequestModeRequestBody: `mode` is PULL or POP; `pop_share_queue_num` is how many consumers
    share the queues of one, 0 and below: all do.
    """

    topic: str
    consumer_group: str
    mode: str
    pop_share_queue_num: int = 0


class ConsumeModeSource:
    """Asks one broker. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def of_group(self, address: str, group: str) -> dict[str, ModeRow] | None:
        """402: topic -> what was set; None of a broker that knows no modes (RocketMQ 4)."""
        accept = (ResponseCode.SUCCESS, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, accept=accept)
        if answer.code != ResponseCode.SUCCESS:
            return None
        topics = read_json(address, answer.body, _WHAT_MODES).get("messageRequestModeMap")
        if not isinstance(topics, dict):
            raise AskError(address, f"{address}: its {_WHAT_MODES} cannot be read")
        found = {topic: _row(groups, group) for topic, groups in topics.items()}
        return {
            topic: check(address, row, ModeRow, _WHAT_MODES)
            for topic, row in found.items()
            if row is not None
        }

    async def put(self, address: str, mode: ModeRow) -> None:
        """401"""
        body = orjson.dumps(mode.model_dump(by_alias=True))
        code = RequestCode.SET_MESSAGE_REQUEST_MODE
        await self._gateway.ask(address, code, body=body, timeout_ms=CHANGE_TIMEOUT_MS)


def _row(groups: Any, group: str) -> Any:
    return groups.get(group) if isinstance(groups, dict) else None


PRODUCERS_MAX: Final = 100_000
_WHAT_PRODUCERS: Final = "list of producers"


class ProducerRow(Body):
    """One client of a producer group as a broker knows it."""

    client_id: str
    remote_i_p: str | None = None
    client_addr: str | None = None
    language: str | None = None
    version: int = -1
    last_update_timestamp: int | None = None

    @property
    def address(self) -> str | None:
        """Stock brokers write Java's `/10.0.0.9:5000`."""
        address = self.remote_i_p or self.client_addr
        return address and address.removeprefix("/")


class ProducerSource:
    """Asks one broker. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def all(self, address: str) -> Mapping[str, tuple[ProducerRow, ...]]:
        """328: the clients of every producer group."""
        answer = await self._gateway.ask(address, RequestCode.GET_ALL_PRODUCER_INFO)
        table = table_of(
            address, read_json(address, answer.body, _WHAT_PRODUCERS), "data", _WHAT_PRODUCERS, PRODUCERS_MAX
        )
        if not all(isinstance(rows, list) for rows in table.values()):
            raise AskError(address, f"{address}: its {_WHAT_PRODUCERS} is no table of lists")
        if sum(map(len, table.values())) > PRODUCERS_MAX:
            raise AskError(address, f"{address}: its {_WHAT_PRODUCERS} has more than {PRODUCERS_MAX} clients")
        return {
            group: tuple(check(address, row, ProducerRow, _WHAT_PRODUCERS) for row in rows)
            for group, rows in table.items()
        }

    async def of_group(self, address: str, group: str) -> tuple[ProducerRow, ...]:
        """204: the clients of one group; empty when none is connected."""
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        answer = await self._gateway.ask(address, code, {"producerGroup": group}, accept=accept)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return ()
        rows = read_json(address, answer.body, _WHAT_PRODUCERS).get("connectionSet") or []
        if not isinstance(rows, list) or len(rows) > PRODUCERS_MAX:
            raise AskError(
                address, f"{address}: its {_WHAT_PRODUCERS} is no list of at most {PRODUCERS_MAX} clients"
            )
        return tuple(check(address, row, ProducerRow, _WHAT_PRODUCERS) for row in rows)
