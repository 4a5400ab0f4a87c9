"""Sends test messages, and sends a stored message again: to its topic, or directly to one consumer. A copy
keeps the message's own properties; those of its first delivery are dropped.
"""

import base64
import binascii
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import Field, field_validator

from admin_api.changes import Action, ChangeRefusedError, Effect, Outcome, Preview
from admin_api.errors import InvalidError, NotFoundError, UnavailableError
from admin_api.gateway import AskError
from admin_api.messages.service import Found, Messages
from admin_api.messages.views import id_of
from admin_api.schema import RequestSchema
from admin_api.sources.messages import OutMessage
from remoting.record import MessageIllegalError, Record, format_properties, get_property, parse_properties
from remoting.topic_names import DLQ_PREFIX, RETRY_PREFIX

RESENT_FROM: Final = "LEDGERMQ_RESENT_FROM"
"""Property of a copy: the offset message id of what it was made from. By it a resend is known later."""
RETRIES_MAX: Final = 16
"""RocketMQ's own; sent with a copy to a retry topic, so that it is no dead letter again at once."""
PROPERTIES_BYTES_MAX: Final = 32_000
"""A record holds 32,767 bytes, and the broker adds some."""

_OF_ONE_TRY: Final = frozenset(
    {
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "TRAN_MSG",
        "PGROUP",
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_DEL_UNIQKEY",
        "POP_CK",
        "1ST_POP_TIME",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "ORIGIN_MESSAGE_ID",
        "RETRY_TOPIC",
        "CLUSTER",
        "MSG_REGION",
        "TRACE_ON",
        "LEDGERMQ_SEQ",
        "LEDGERMQ_SUM",
    }
)
RESERVED: Final = _OF_ONE_TRY | {"KEYS", "TAGS", "WAIT", "UNIQ_KEY", "EXTEND_UNIQ_INFO", RESENT_FROM}
"""Properties that mean something to brokers and clients: no message's own."""
_BODY_BITS: Final = 0x703
"""Of sysFlag: how the body is compressed, and several tags. The rest is the broker's."""


def original_topic(record: Record) -> str:
    """Where a message of a retry or dead-letter topic was sent first; of another, its topic."""
    for name in (b"RETRY_TOPIC", b"DLQ_ORIGIN_TOPIC"):
        value = get_property(record.properties, name)
        if value is not None:
            return value.decode(errors="replace")
    return record.topic


def original_id(record: Record) -> str | None:
    """The offset message id of the first one, where its retries have kept it."""
    for name in (b"ORIGIN_MESSAGE_ID", b"DLQ_ORIGIN_MESSAGE_ID"):
        value = get_property(record.properties, name)
        if value is not None:
            return value.decode(errors="replace")
    return None


def unique_key_of(record: Record) -> str:
    """Its client's id; of a message without one, its own id, so that its copy can be found."""
    value = get_property(record.properties, b"UNIQ_KEY")
    return id_of(record) if value is None else value.decode(errors="replace")


def copy_of(record: Record, topic: str, now_ms: int) -> OutMessage:
    """A new message of the topic with the same body, keys, tags, client's id and properties of its own."""
    properties = {
        name: value for name, value in parse_properties(record.properties).items() if name not in _OF_ONE_TRY
    }
    properties |= {"UNIQ_KEY": unique_key_of(record), RESENT_FROM: id_of(record), "WAIT": "true"}
    is_retry = topic.startswith(RETRY_PREFIX)
    if is_retry:
        # The consumer gives it to its listener as a message of this topic.
        properties["RETRY_TOPIC"] = original_topic(record)
        properties["ORIGIN_MESSAGE_ID"] = original_id(record) or id_of(record)
    return OutMessage(
        topic=topic,
        body=record.body,
        properties=properties,
        flag=record.flag,
        sys_flag=record.sys_flag & _BODY_BITS,
        born_ms=now_ms,
        max_reconsume_times=RETRIES_MAX if is_retry else None,
    )


def is_copy_of(record: Record, source_id: str) -> bool:
    return get_property(record.properties, RESENT_FROM.encode()) == source_id.encode()


SEND_BYTES_MAX: int = 4 * 1024 * 1024
TEXT_CHARS_MAX: int = 32_767
PROPERTIES_MAX: int = 256


class NewMessage(RequestSchema):
    """A test message. Its body is `text` or `base64`."""

    text: str | None = Field(default=None, max_length=SEND_BYTES_MAX)
    base64: str | None = Field(default=None, max_length=SEND_BYTES_MAX * 4 // 3 + 4)
    keys: list[str] = Field(default=[], max_length=64)
    tags: str | None = Field(default=None, max_length=TEXT_CHARS_MAX)
    properties: dict[str, str] = Field(default={}, max_length=PROPERTIES_MAX)
    delay_level: int | None = Field(default=None, ge=1, le=1000)
    broker_name: str | None = Field(default=None, max_length=255)
    queue_id: int | None = Field(default=None, ge=0, le=65_535)

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, keys: list[str]) -> list[str]:
        if any(not key or len(key.split()) != 1 or len(key) > TEXT_CHARS_MAX for key in keys):
            raise ValueError("a key is one word: spaces divide them")
        return keys


class ResendTarget(StrEnum):
    """TOPIC: for all its groups, as a new message. CONSUMER: one client of one group, now; offsets stay."""

    TOPIC = "topic"
    CONSUMER = "consumer"


class ResendOrder(RequestSchema):
    """Where to resend a message. `consumer` needs the group; without `clientId` any member will do."""

    target: ResendTarget = ResendTarget.TOPIC
    consumer_group: str | None = Field(default=None, max_length=255)
    client_id: str | None = Field(default=None, max_length=1024)


_CONSUMED: Final = frozenset({"CR_SUCCESS", "CR_COMMIT"})


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


def time_text(time_ms: int) -> str:
    """`2026-01-31T12:00:00.000Z`."""
    try:
        at = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class SendMessage:
    """One new message. Nothing is lost by it, so it needs no confirmation."""

    action = Action.MESSAGE_SEND

    def __init__(
        self, messages: Messages, topic: str, order: NewMessage, now_ms: Callable[[], int] = unix_ms
    ) -> None:
        self.target = topic
        self._messages = messages
        self._order = order
        self._now_ms = now_ms
        self._body = _body_of(order)
        self._properties = _properties_of(order)
        self._broker_name = ""

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError, InvalidError."""
        place = await self._messages.places.writer_of(self.target, self._order.broker_name)
        queue_id = self._order.queue_id
        if queue_id is not None and queue_id >= place.writable_queues:
            raise InvalidError(f"{self.target} has {place.writable_queues} queues on {place.broker_name}.")
        self._broker_name = place.broker_name
        subject = f"{place.broker_name}/{'any' if queue_id is None else queue_id}"
        return Preview(self.action, self.target, (Effect(subject, None, f"{len(self._body)} bytes more"),))

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        """Raises: AskError."""
        message = OutMessage(
            topic=self.target,
            body=self._body,
            properties=self._properties,
            queue_id=-1 if self._order.queue_id is None else self._order.queue_id,
            born_ms=self._now_ms(),
        )
        return [await send(self._messages, self._broker_name, message, self.target)]


class ResendMessage:
    """One message again as a new one of its topic; of a retry or dead-letter topic, of the original one."""

    action = Action.MESSAGE_RESEND

    def __init__(self, messages: Messages, found: Found, now_ms: Callable[[], int] = unix_ms) -> None:
        self.target = id_of(found.record)
        self._messages = messages
        self._record = found.record
        self._now_ms = now_ms
        self._broker_name = ""
        is_retried = found.record.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        self._topic = original_topic(found.record) if is_retried else found.record.topic

    async def preview(self) -> Preview:
        """Raises: NotFoundError, UnavailableError."""
        place = await self._messages.places.writer_of(self._topic)
        self._broker_name = place.broker_name
        warnings = ["Every group that consumes the topic gets the message once more."]
        try:
            resent_ms = await resent_at_ms(self._messages, self._record, self._topic)
        except UnavailableError as error:
            warnings.append(f"Whether it was resent already is not known. {error}")
        else:
            if resent_ms is not None:
                warnings.append(f"It was resent already, at {time_text(resent_ms)}.")
        effect = Effect(self.target, None, f"once more in {self._topic}")
        return Preview(self.action, self.target, (effect,), tuple(warnings), is_destructive=True)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        """Raises: AskError."""
        message = copy_of(self._record, self._topic, self._now_ms())
        return [await send(self._messages, self._broker_name, message, self.target)]


class ConsumeMessage:
    """One message to one client of a group, which consumes it at once and reports the result."""

    action = Action.MESSAGE_RESEND

    def __init__(self, messages: Messages, found: Found, group: str, client_id: str | None) -> None:
        self.target = id_of(found.record)
        self._messages = messages
        self._found = found
        self._group = group
        self._wanted = client_id
        self._client_id = ""
        self._address = ""

    async def preview(self) -> Preview:
        """Raises: UnavailableError, ChangeRefusedError when no such client is there."""
        name = self._found.broker_name or ""
        try:
            address = (await self._messages.directory.masters()).get(name)
            if address is None:
                raise UnavailableError(f"{name or 'Its broker'} has no master that knows its consumers.")
            members = await self._messages.groups.connections(address, self._group)
        except AskError as error:
            raise UnavailableError(str(error)) from error
        clients = sorted(row.client_id for row in members.connection_set) if members is not None else []
        chosen = self._wanted if self._wanted in clients else None
        if self._wanted is None and clients:
            chosen = clients[0]
        if chosen is None:
            who = f"the client {self._wanted}" if self._wanted else "any member"
            raise ChangeRefusedError(f"The group {self._group} has not {who} at {name} now.")
        self._client_id, self._address = chosen, address
        warning = "It is consumed once more, beside the group's offsets."
        effect = Effect(f"{self._group} at {chosen}", None, "consumes it now")
        return Preview(self.action, self.target, (effect,), (warning,), is_destructive=True)

    async def carry_out(self, preview: Preview) -> Sequence[Outcome]:
        """Raises: AskError."""
        result = await self._messages.source.consume_directly(
            self._address,
            self._found.broker_name or "",
            self._group,
            self._client_id,
            self._found.record.topic,
            self.target,
        )
        is_consumed = result.consume_result in _CONSUMED
        problem = None if is_consumed else f"the client answered {result.consume_result}: {result.remark}"
        return [Outcome(f"{self._group} at {self._client_id}", ok=is_consumed, problem=problem)]


async def resend_change(
    messages: Messages, message_id: str, topic: str | None, order: ResendOrder
) -> ResendMessage | ConsumeMessage:
    """Raises: NotFoundError, UnavailableError, InvalidError."""
    if order.target is ResendTarget.CONSUMER and not order.consumer_group:
        raise InvalidError("To resend to a consumer, name its group: consumerGroup.")
    found = await messages.find(message_id, topic)
    if order.target is ResendTarget.CONSUMER:
        return ConsumeMessage(messages, found, order.consumer_group or "", order.client_id)
    return ResendMessage(messages, found)


async def send(messages: Messages, broker_name: str, message: OutMessage, subject: str) -> Outcome:
    """Sends to the broker's master of now; the outcome names what was made. Raises: AskError."""
    address = (await messages.directory.masters()).get(broker_name)
    if address is None:
        raise AskError(broker_name, f"{broker_name} accepts no messages now")
    stored = await messages.source.send(address, message)
    made = f"{subject}: {stored.offset_id} at {broker_name}/{stored.queue_id}, offset {stored.queue_offset}"
    return Outcome(made, ok=True, problem=stored.warning)


async def resent_at_ms(messages: Messages, record: Record, topic: str) -> int | None:
    """When a copy of this very message was stored in the topic by this service; None: none is known.

    Raises: UnavailableError.
    """
    try:
        found = await messages.find_all(unique_key_of(record), topic)
    except NotFoundError:
        return None
    source = id_of(record)
    return max((copy.store_timestamp_ms for copy in found if is_copy_of(copy, source)), default=None)


def _body_of(order: NewMessage) -> bytes:
    """Raises: InvalidError."""
    if (order.text is None) == (order.base64 is None):
        raise InvalidError("The body is either text or base64.")
    try:
        body = (
            order.text.encode()
            if order.text is not None
            else base64.b64decode(order.base64 or "", validate=True)
        )
    except (binascii.Error, UnicodeEncodeError, ValueError) as error:
        raise InvalidError(f"The body cannot be read: {error}.") from error
    if not 0 < len(body) <= SEND_BYTES_MAX:
        raise InvalidError(f"The body has {len(body)} bytes; 1 to {SEND_BYTES_MAX} are possible.")
    return body


def _properties_of(order: NewMessage) -> dict[str, str]:
    """Raises: InvalidError."""
    reserved = sorted(RESERVED & order.properties.keys())
    if reserved:
        raise InvalidError(f"The property {reserved[0]} is none of a message's own.")
    properties = {**order.properties, "UNIQ_KEY": secrets.token_hex(16).upper(), "WAIT": "true"}
    if order.keys:
        properties["KEYS"] = " ".join(order.keys)
    if order.tags:
        properties["TAGS"] = order.tags
    if order.delay_level:
        properties["DELAY"] = str(order.delay_level)
    try:
        size = len(format_properties(properties))
    except (MessageIllegalError, UnicodeEncodeError) as error:
        raise InvalidError(f"The properties cannot be sent: {error}.") from error
    if size > PROPERTIES_BYTES_MAX:
        raise InvalidError(f"The properties have {size} bytes; {PROPERTIES_BYTES_MAX} are possible.")
    return properties
