"""Requests about messages: 11, 12, 32, 33, 300, 309, 310."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from admin_api.gateway import AskError, Gateway
from admin_api.sources.bodies import Body, check, read_json
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import HeaderError
from remoting.headers.fields import parse_int
from remoting.record import CorruptRecordError, Record, decode_record, decode_records, format_properties
from remoting.route import DEFAULT_TOPIC

READER_GROUP: Final = "TOOLS_CONSUMER"
"""The group of RocketMQ's own tools; every broker has it from the start. Its offsets are never stored."""
SENDER_GROUP: Final = "ledgermq-admin"
PULL_COUNT: Final = 32
"""What a stock broker gives at most in one answer."""
READ_TIMEOUT_MS: Final = 1_500
"""An answer may be some MiB from a disk; a viewer learns of a hanging broker within 2 s."""
CHANGE_TIMEOUT_MS: Final = 5_000
CONSUME_TIMEOUT_MS: Final = 12_000
"""The broker waits 10 s for its client."""
_HAS_SUBSCRIPTION: Final = 4
_STORED: Final = {
    ResponseCode.SUCCESS: None,
    ResponseCode.FLUSH_DISK_TIMEOUT: "it is stored; the disk did not confirm it in time",
    ResponseCode.SLAVE_NOT_AVAILABLE: "it is stored on one node; no other was there to copy it",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "it is stored; no other node confirmed its copy in time",
}
_PULLED: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


@dataclass(frozen=True, slots=True)
class Pulled:
    """One answer to a pull. The next one begins at `next_offset`; the queue ends before `max_offset`."""

    records: tuple[Record, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OutMessage:
    """A message to send. `queue_id` below 0: the broker chooses. `max_reconsume_times`: for retry topics."""

    topic: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    queue_id: int = -1
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a sent message is. `warning` names what is not certain yet."""

    offset_id: str
    queue_id: int
    queue_offset: int
    warning: str | None


class DirectResult(Body):
    """ConsumeMessageDirectlyResult: what a consumer made of one message."""

    consume_result: str
    remark: str | None = None


class _Groups(Body):
    group_list: tuple[str, ...]


class MessageSource:
    """Asks one broker about messages. Everything raises AskError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def view(self, address: str, position: int, topic: str | None = None) -> Record | None:
        """33: the record at a position of the broker's log; None when none begins there."""
        ext = {"offset": str(position)} | ({} if topic is None else {"topic": topic})
        code = RequestCode.VIEW_MESSAGE_BY_ID
        accept = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
        answer = await self._gateway.ask(address, code, ext, timeout_ms=READ_TIMEOUT_MS, accept=accept)
        if answer.code == ResponseCode.SYSTEM_ERROR:
            if "can not find message" in (answer.remark or ""):
                return None
            raise AskError(address, f"{address} answered code 1: {answer.remark or 'no remark'}", answer.code)
        try:
            record = decode_record(answer.body)
        except CorruptRecordError as error:
            raise AskError(address, f"{address}: its message cannot be read: {error}") from error
        return record if record.physical_offset == position else None

    async def query(
        self, address: str, topic: str, key: str, *, begin_ms: int, end_ms: int, count_max: int, is_id: bool
    ) -> tuple[Record, ...]:
        """12: the newest messages with a key, or with a client's id. A stock broker compares hashes only."""
        ext = {
            "topic": topic,
            "key": key,
            "maxNum": str(count_max),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            "_UNIQUE_KEY_QUERY": str(is_id).lower(),
        }
        accept = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST)
        code = RequestCode.QUERY_MESSAGE
        answer = await self._gateway.ask(address, code, ext, timeout_ms=READ_TIMEOUT_MS, accept=accept)
        return _records(address, answer.body) if answer.code == ResponseCode.SUCCESS else ()

    async def pull(
        self, address: str, topic: str, queue_id: int, offset: int, count_max: int, tag: str
    ) -> Pulled:
        """11: messages from an offset on that have the tag (`*`: any); no offset of a group is touched."""
        ext = {
            "consumerGroup": READER_GROUP,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(min(count_max, PULL_COUNT)),
            "sysFlag": str(_HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "0",
            "subscription": tag,
            "expressionType": "TAG",
        }
        code = RequestCode.PULL_MESSAGE
        answer = await self._gateway.ask(address, code, ext, timeout_ms=READ_TIMEOUT_MS, accept=_PULLED)
        records = _records(address, answer.body) if answer.code == ResponseCode.SUCCESS else ()
        return Pulled(
            records,
            _number(address, answer, "nextBeginOffset"),
            _number(address, answer, "minOffset"),
            _number(address, answer, "maxOffset"),
            len(answer.body),
        )

    async def earliest_ms(self, address: str, topic: str, queue_id: int) -> int | None:
        """32: when the queue's first message was stored; None when it has none."""
        ext = {"topic": topic, "queueId": str(queue_id)}
        answer = await self._gateway.ask(address, RequestCode.GET_EARLIEST_MSG_STORETIME, ext)
        time_ms = _number(address, answer, "timestamp")
        return time_ms if time_ms > 0 else None

    async def groups_of(self, address: str, topic: str) -> list[str]:
        """300: the groups that consume the topic, or have."""
        answer = await self._gateway.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
        what = "list of groups"
        return sorted(set(check(address, read_json(address, answer.body, what), _Groups, what).group_list))

    async def send(self, address: str, message: OutMessage) -> Stored:
        """310. When no answer comes in time the message may be stored all the same; the error names this."""
        ext = {
            "a": SENDER_GROUP,
            "b": message.topic,
            "c": DEFAULT_TOPIC,
            "d": "4",
            "e": str(message.queue_id),
            "f": str(message.sys_flag),
            "g": str(message.born_ms),
            "h": str(message.flag),
            "i": format_properties(message.properties).decode(),
            "j": str(message.reconsume_times),
            "k": "false",
            "m": "false",
        }
        if message.max_reconsume_times is not None:
            ext["l"] = str(message.max_reconsume_times)
        code = RequestCode.SEND_MESSAGE_V2
        try:
            answer = await self._gateway.ask(
                address, code, ext, message.body, timeout_ms=CHANGE_TIMEOUT_MS, accept=tuple(_STORED)
            )
        except AskError as error:
            if error.code is None:
                raise AskError(address, f"{error}; the message may be stored or not") from error
            raise
        return Stored(
            answer.ext_fields.get("msgId", "")[:64],
            _number(address, answer, "queueId"),
            _number(address, answer, "queueOffset"),
            _STORED[ResponseCode(answer.code)],
        )

    async def consume_directly(
        self, address: str, broker_name: str, group: str, client_id: str, topic: str, offset_id: str
    ) -> DirectResult:
        """309: has one client of the group consume one message now. No offset changes."""
        ext = {
            "consumerGroup": group,
            "clientId": client_id,
            "msgId": offset_id,
            "brokerName": broker_name,
            "topic": topic,
        }
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        answer = await self._gateway.ask(address, code, ext, timeout_ms=CONSUME_TIMEOUT_MS)
        what = "answer of the client"
        return check(address, read_json(address, answer.body, what, 64 * 1024), DirectResult, what)


def _records(address: str, body: bytes) -> tuple[Record, ...]:
    """Raises: AskError when the bytes are no records."""
    try:
        return tuple(decode_records(body))
    except CorruptRecordError as error:
        raise AskError(address, f"{address}: a message of its cannot be read: {error}") from error


def _number(address: str, answer: RemotingCommand, name: str) -> int:
    """Raises: AskError when the answer lacks it."""
    try:
        return parse_int(name, answer.ext_fields.get(name, ""), 64)
    except HeaderError as error:
        raise AskError(address, f"{address} gave an unusable answer: {error}") from error
