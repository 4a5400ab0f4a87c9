"""The body of a batch send: sub-messages back to back, each one a message of its own in the log.

    i32 size | i32 magic (0) | i32 body CRC (0) | i32 flag | i32 body length | body
    i16 properties length | properties

In a sequenced send the queue's id replaces the magic.
Source: MessageDecoder.encodeMessage / decodeMessages. Pure.

Message ids for messages whose client set none: 32 hex characters, like the ones clients make
(MessageClientIDSetter).

4 bytes address, 2 bytes process, 4 bytes chance of this start, 4 bytes of the time in ms, 2 bytes counter.

Decides what becomes of one send: the broker's checks in RocketMQ's order
(AbstractSendMessageProcessor.msgCheck, SendMessageProcessor), and the messages it turns into. Reads the
tables, changes nothing.

The ordinary send, one message to a topic that is known, is checked by the short path of `admit`; every
property or topic with a rule of its own by the long one.
"""

import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker.config import BrokerConfig
from broker.state.state import ReplicatedState
from broker.state.topics import (
    HALF_TOPIC,
    PERM_READ,
    PERM_WRITE,
    TopicConfig,
    dlq_topic,
    inherited_topic,
    may_send_to,
    retry_topic,
)
from broker.timer.admission import NAME_START, TimerRules, asks_for_time
from broker.timer.scheduling import (
    ASKING_PROPERTIES,
    PROPERTY_DELAY,
    TIMER_TOPIC,
    effective_level,
    is_timed,
    to_scheduled,
    without_timer,
)
from broker.transactions.half import HALF_QUEUE_ID, PROPERTY_TRANSACTION, half_properties, is_half
from commitlog.record import (
    PROPERTIES_BYTES_MAX,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Message,
    MessageIllegalError,
    format_properties,
    parse_properties,
)
from dledger.environment import wall_clock_ms
from native import function
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RequestError
from remoting.headers.send import SendMessageRequestHeader, SendRequest, SequencedSendRequestHeader
from remoting.route import DEFAULT_TOPIC
from remoting.topic_names import RETRY_PREFIX, TOPIC_CHARS_MAX, topic_name_error
from remoting.unique_keys import UniqueKeys

_HEAD = struct.Struct(">iiiii")
_INT16 = struct.Struct(">h")
BATCH_MESSAGES_MAX = 8_000
"""Of one send: a batch is admitted and put in one piece."""
_HEAD_BYTES = _HEAD.size
SUB_MESSAGE_BYTES_MIN = _HEAD.size + _INT16.size


class BatchBodyError(ValueError):
    """The body cannot be split into sub-messages; the message names the place and the reason."""


class SubMessage(NamedTuple):
    """`queue_id` means something in a sequenced send only."""

    flag: int
    body: bytes
    properties: bytes
    queue_id: int = 0


def split_batch(data: bytes, messages_max: int) -> list[SubMessage]:
    """The sub-messages of a batch, at least one. Raises BatchBodyError."""
    messages: list[SubMessage] = []
    start, read_head, read_size = 0, _HEAD.unpack_from, _INT16.unpack_from
    last = len(data) - SUB_MESSAGE_BYTES_MIN
    while start <= last:  # ten thousand of them must not hold the loop for long: no call for each
        if len(messages) == messages_max:
            raise BatchBodyError(f"the batch holds more than {messages_max} messages")
        size, queue_id, _, flag, body_bytes = read_head(data, start)
        body_at, end = start + _HEAD_BYTES, start + size
        body_end = body_at + body_bytes
        if not body_at <= body_end <= end - _INT16.size <= last + _HEAD_BYTES:
            raise _fault(data, start)
        properties_at = body_end + _INT16.size
        if properties_at + read_size(data, body_end)[0] != end:
            raise _fault(data, start)
        messages.append(SubMessage(flag, data[body_at:body_end], data[properties_at:end], queue_id))
        start = end
    if start < len(data):
        raise _fault(data, start)
    if not messages:
        raise BatchBodyError("the batch is empty")
    return messages


def sub_messages(data: bytes) -> Iterator[memoryview]:
    """The bytes of each sub-message of a body that `split_batch` accepted."""
    view, start = memoryview(data), 0
    while start < len(data):
        end = start + _HEAD.unpack_from(data, start)[0]
        yield view[start:end]
        start = end


def _fault(data: bytes, start: int) -> BatchBodyError:
    """What is wrong with the sub-message at `start`."""
    left = len(data) - start
    if left < SUB_MESSAGE_BYTES_MIN:
        return BatchBodyError(f"{left} bytes at {start} are no sub-message")
    size, _, _, _, body_bytes = _HEAD.unpack_from(data, start)
    if not SUB_MESSAGE_BYTES_MIN <= size <= left:
        return BatchBodyError(f"the sub-message at {start} says it has {size} bytes of {left}")
    if not 0 <= body_bytes <= size - SUB_MESSAGE_BYTES_MIN:
        return BatchBodyError(f"the sub-message at {start} says its body has {body_bytes} bytes of {size}")
    (properties_bytes,) = _INT16.unpack_from(data, start + _HEAD.size + body_bytes)
    return BatchBodyError(
        f"the sub-message at {start} has {properties_bytes} bytes of properties, not to its end"
    )


def process_bytes(store_host: bytes, rng: random.Random) -> bytes:
    """What the ids of messages without one of their client begin with: address, process, chance."""
    return store_host[:4] + (os.getpid() & 0xFFFF).to_bytes(2, "big") + rng.randbytes(4)


PROPERTY_UNIQUE_KEY = "UNIQ_KEY"
PROPERTY_CLUSTER = "CLUSTER"
PROPERTY_REGION = "MSG_REGION"
PROPERTY_TRACE_ON = "TRACE_ON"
"""With the region, what a tracing consumer's client reads from each message: without it, the client drops the
trace.
"""
PROPERTY_PRIORITY = "_SYS_MSG_PRIORITY_"
PROPERTY_SHARDING_KEY = "__SHARDINGKEY"
MULTI_TAGS_FLAG = 0x2
PLAIN_SYS_FLAGS = 0x703
"""Compressed, multi tags and the compression type: the flags that a client may set on an ordinary message."""
_INNER_BATCH_FLAGS = 0xC0
_PRIORITY_DIGITS_MAX = 10
_SEPARATOR = 2
_UNIQUE_KEY_START = PROPERTY_UNIQUE_KEY + "\x01"
_DELAY_START = PROPERTY_DELAY + "\x01"
_PRIORITY_START = PROPERTY_PRIORITY + "\x01"
_TRANSACTION_START = PROPERTY_TRANSACTION + "\x01"
_CLUSTER_START = PROPERTY_CLUSTER + "\x01"
_REGION_START = PROPERTY_REGION + "\x01"
_TRACE_ON_START = PROPERTY_TRACE_ON + "\x01"

_make_plain = function("_remoting", "PlainSends")
_AnySend = SendMessageRequestHeader | SequencedSendRequestHeader


@dataclass(slots=True)
class Admitted:
    """A send to be written to the log: its messages in order, and the queue and key for its answer."""

    messages: list[Message]
    queue_id: int
    unique_key: str
    recall_handle: str = ""
    """By which a timer message can be recalled."""


@dataclass(frozen=True, slots=True)
class NeedsTopic:
    """The send must wait until this topic is created, then be admitted again."""

    config: TopicConfig


class OpenTopic(NamedTuple):
    """A topic that accepts sends, with the values that their checks need."""

    queue_nums: int
    write_queue_nums: int
    sys_flag: int
    is_retry: bool


class StampedProperties:
    """What a broker adds to the properties of every message that is sent to it; a client's own values for
    these names are replaced.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.values: Mapping[str, str] = {
            PROPERTY_CLUSTER: config.broker_cluster_name,
            PROPERTY_REGION: config.region_id,
            PROPERTY_TRACE_ON: "true" if config.trace_on else "false",
        }
        self.suffix = format_properties(self.values)
        self._starts = tuple(f"{name}\x01".encode() for name in self.values)

    def over(self, properties: bytes) -> bytes:
        """The properties with these at their end. Raises MessageIllegalError."""
        for start in self._starts:
            if start in properties:
                stamped = format_properties({**parse_properties(properties), **self.values})
                break
        else:
            separator = b"" if not properties or properties[-1] == _SEPARATOR else b"\x02"
            stamped = b"%b%b%b" % (properties, separator, self.suffix)
        if len(stamped) > PROPERTIES_BYTES_MAX:
            text = f"the properties have {len(stamped)} bytes; {PROPERTIES_BYTES_MAX} are possible"
            raise MessageIllegalError(text)
        return stamped


class Admission:
    """The checks of one broker, against its replicated state."""

    def __init__(
        self,
        config: BrokerConfig,
        state: ReplicatedState,
        store_host: bytes,
        unique_keys: UniqueKeys,
        rng: random.Random,
        may_prepare: Callable[[], bool] = lambda: True,
        *,
        timers: TimerRules | None = None,
    ) -> None:
        self._config = config
        self._state = state
        self._store_host = store_host
        self._unique_keys = unique_keys
        self._rng = rng
        self._may_prepare = may_prepare
        self.timers = timers or TimerRules(config, wall_clock_ms)
        self._levels = len(config.delay_levels_ms)
        self._open: dict[str, OpenTopic] = {}
        self._stamp: StampedProperties
        self._plain: Any = None
        self._apply_settings()
        state.on_topics_changed(self._open.clear)
        state.on_settings_changed(self._apply_settings)

    def _apply_settings(self) -> None:
        """The configuration has changed: rebuild what depends on it."""
        self._open.clear()
        self._stamp = StampedProperties(self._config)
        if _make_plain is not None:
            classes = (SendRequest, SendMessageRequestHeader, Message)
            limits = (self._config.max_message_bytes, PROPERTIES_BYTES_MAX, PLAIN_SYS_FLAGS)
            self._plain = _make_plain(*classes, self._store_host, self._stamp.suffix, *limits)

    def check_body(self, body: bytes, framing_bytes: int = 0) -> None:
        """Raises RequestError for one beyond maxMessageSize, and what it may have for its framing."""
        most = self._config.max_message_bytes + framing_bytes
        if len(body) > most:
            raise _illegal(f"the body has {len(body)} bytes; {most} are possible")

    def stamped(self, properties: bytes) -> bytes:
        """The properties of one message of several as they are stored. Raises MessageIllegalError."""
        return self._stamp.over(properties)

    def admit_plain(
        self,
        requests: list[RemotingCommand],
        first: int,
        most: int,
        born_host: bytes,
        messages: list[Message],
    ) -> tuple[int, int]:
        """Append the messages of the sends from `first` on, at most `most`, up to the first send that needs
        `admit`: to a topic not seen before, or with a rule of its own; without a compiled module every send
        does.

        Returns how many it appended, and the bytes of their bodies. All of them name their queue and their
        key.
        """
        if self._plain is None:
            return 0, 0
        admitted: tuple[int, int] = self._plain.admit(requests, first, most, self._open, born_host, messages)
        return admitted

    def open_topic(self, header: SequencedSendRequestHeader) -> OpenTopic | NeedsTopic:
        """The topic of a sequenced send. Raises RequestError when sending to it is not allowed."""
        return self._open.get(header.topic) or self._find_topic(header)

    def admit(self, header: SendMessageRequestHeader, body: bytes, born_host: bytes) -> Admitted | NeedsTopic:
        """What to do with a send. Raises RequestError with the answer when it is refused."""
        topic = self._open.get(header.topic) or self._find_topic(header)
        if isinstance(topic, NeedsTopic):
            return topic
        queue_id = header.queue_id
        if queue_id >= topic.queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{queue_id}] is illegal, topic {header.topic} has {topic.queue_nums} queues",
            )
        if queue_id < 0:
            queue_id = self._rng.randrange(topic.write_queue_nums)
        self.check_body(body)
        properties = header.properties
        key_at = properties.find(_UNIQUE_KEY_START)
        if (
            key_at < 0
            or (key_at > 0 and properties[key_at - 1] != "\x02")
            or header.is_batch
            or header.sys_flag & ~PLAIN_SYS_FLAGS
            or NAME_START in properties
            or _DELAY_START in properties
            or _TRANSACTION_START in properties
            or _CLUSTER_START in properties
            or _REGION_START in properties
            or _TRACE_ON_START in properties
            or _PRIORITY_START in properties
            or topic.is_retry
        ):
            return self._admit_ruled(header, body, born_host, queue_id, topic.sys_flag)
        if properties[-1] != "\x02":
            properties += "\x02"
        key_at += len(_UNIQUE_KEY_START)
        data = properties.encode() + self._stamp.suffix
        if len(data) > PROPERTIES_BYTES_MAX:
            raise _illegal(f"the properties have {len(data)} bytes; {PROPERTIES_BYTES_MAX} are possible")
        message = Message(
            header.topic,
            queue_id,
            body,
            data,
            header.flag,
            header.sys_flag | topic.sys_flag,
            header.born_timestamp_ms,
            born_host,
            self._store_host,
            header.reconsume_times,
        )
        return Admitted([message], queue_id, properties[key_at : properties.index("\x02", key_at)])

    def _find_topic(self, header: _AnySend) -> OpenTopic | NeedsTopic:
        name = header.topic
        error = topic_name_error(name)
        if error is not None:
            raise RequestError(ResponseCode.INVALID_PARAMETER, error)
        if not may_send_to(name):
            raise RequestError(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        if self._config.refuse_messages and not name.startswith(RETRY_PREFIX):
            remark = f"{self._config.broker_name} takes no more messages: it is to be removed"
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
        config = self._state.topics.get(name)
        if config is None:
            return NeedsTopic(self._topic_to_create(header))
        if not config.perm & (PERM_WRITE | PERM_READ) or config.write_queue_nums == 0:
            raise RequestError(ResponseCode.NO_PERMISSION, f"the topic[{name}] can't be written to")
        if config.is_ordered and not self._config.broker_permission & PERM_WRITE:
            remark = f"the broker[{self._config.broker_ip}] sending message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        multi_tags = MULTI_TAGS_FLAG if config.topic_filter_type == "MULTI_TAG" else 0
        is_retry = name.startswith(RETRY_PREFIX)
        topic = OpenTopic(config.queue_nums, config.write_queue_nums, multi_tags, is_retry)
        self._open[name] = topic
        return topic

    def _topic_to_create(self, header: _AnySend) -> TopicConfig:
        name = header.topic
        if name.startswith(RETRY_PREFIX):
            return retry_topic(name.removeprefix(RETRY_PREFIX))
        template = self._state.topics.get(header.default_topic)
        sys_flag = 1 if header.unit_mode else 0
        config = inherited_topic(name, template, header.default_topic_queue_nums, sys_flag)
        if header.default_topic == DEFAULT_TOPIC and not self._config.auto_create_topic_enable:
            config = None  # an operator may have given it a configuration of its own
        if config is None or config.write_queue_nums == 0:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first! {header.default_topic[:127]} does not allow it.",
            )
        return config

    def _admit_ruled(
        self,
        header: SendMessageRequestHeader,
        body: bytes,
        born_host: bytes,
        queue_id: int,
        topic_sys_flag: int,
    ) -> Admitted | NeedsTopic:
        properties = parse_properties(header.properties.encode())
        _refuse_unsupported(header)
        prepares = is_half(header.sys_flag, properties, header.reconsume_times)
        if prepares:
            self._check_half(header)
        message = Message(
            header.topic,
            queue_id,
            body,
            flag=header.flag,
            sys_flag=header.sys_flag & PLAIN_SYS_FLAGS | topic_sys_flag,
            born_timestamp_ms=header.born_timestamp_ms,
            born_host=born_host,
            store_host=self._store_host,
            reconsume_times=header.reconsume_times,
        )
        if header.is_batch:
            return self._admit_batch(message, properties)
        if header.topic.startswith(RETRY_PREFIX):
            dlq = self._dlq_for(header)
            if dlq is not None:
                if dlq.name not in self._state.topics:
                    return NeedsTopic(dlq)
                properties[PROPERTY_DELAY] = "-1"
                message.topic, message.queue_id = dlq.name, 0
                prepares = False
        return self._finish_ruled(message, properties, header.producer_group if prepares else None)

    def _check_half(self, header: SendMessageRequestHeader) -> None:
        if self._config.reject_transactions:
            remark = f"the broker[{self._config.broker_ip}] sending transaction message is forbidden"
            raise RequestError(ResponseCode.NO_PERMISSION, remark)
        if header.is_batch:
            raise _illegal("a batch can't be a transaction")
        if not self._may_prepare():
            raise RequestError(ResponseCode.SYSTEM_BUSY, "too many transactions are open")

    def _finish_ruled(
        self, message: Message, properties: dict[str, str], half_of: str | None = None
    ) -> Admitted:
        """`half_of`: the producer group whose transaction the message prepares."""
        if PROPERTY_PRIORITY in properties:
            self._place_by_priority(message, properties)
        properties |= self._stamp.values
        unique_key = properties.setdefault(PROPERTY_UNIQUE_KEY, "") or self._unique_keys.next()
        properties[PROPERTY_UNIQUE_KEY] = unique_key
        queue_id = message.queue_id
        level = effective_level(properties.get(PROPERTY_DELAY), self._levels)
        if level > 0:
            properties = without_timer(properties)
        if half_of is not None:
            self.timers.check(properties)
            properties = half_properties(properties, message.topic, queue_id, half_of, unique_key)
            message.topic, message.queue_id = HALF_TOPIC, HALF_QUEUE_ID
        try:
            message.properties = format_properties(properties)
            stored = message if half_of is not None else self._put_aside(message, properties, level)
        except MessageIllegalError as error:
            raise _illegal(str(error)) from error
        if len(stored.properties) > PROPERTIES_BYTES_MAX:
            raise _illegal(
                f"the properties have {len(stored.properties)} bytes; {PROPERTIES_BYTES_MAX} are possible"
            )
        handle = "" if stored.topic != TIMER_TOPIC else self.timers.handle(message.topic, stored, unique_key)
        return Admitted([stored], queue_id, unique_key, handle)

    def _place_by_priority(self, message: Message, properties: dict[str, str]) -> None:
        """Its priority names the queue. A message of another type has none (TopicMessageType)."""
        text = properties[PROPERTY_PRIORITY]
        if not (text.isascii() and text.isdigit() and len(text) < _PRIORITY_DIGITS_MAX):
            return
        names_of_others = (PROPERTY_DELAY, *ASKING_PROPERTIES, PROPERTY_SHARDING_KEY)
        is_transaction = properties.get(PROPERTY_TRANSACTION, "").lower() == "true"
        if is_transaction or any(name in properties for name in names_of_others):
            del properties[PROPERTY_PRIORITY]
            return
        topic = self._state.topics.get(message.topic)
        queues = topic.write_queue_nums if topic is not None else 1
        message.queue_id = min(int(text), queues - 1)

    def _put_aside(self, message: Message, properties: Mapping[str, str], level: int) -> Message:
        """The message as it waits for its time, if it does. Raises RequestError, MessageIllegalError."""
        if level > 0:
            return to_scheduled(message, level)
        return self.timers.waiting(message, properties) or message

    def _admit_batch(self, template: Message, properties: Mapping[str, str]) -> Admitted:
        if template.topic.startswith(RETRY_PREFIX) or len(template.topic) > TOPIC_CHARS_MAX:
            raise _illegal("batch request does not support retry group")
        if effective_level(properties.get(PROPERTY_DELAY), self._levels) > 0:
            raise _illegal("a batch can't be delayed")
        try:
            parts = split_batch(template.body, min(self._config.pending_appends_max, BATCH_MESSAGES_MAX))
        except BatchBodyError as error:
            raise _illegal(str(error)) from error
        timed = [part.properties for part in parts] if asks_for_time(template.body) else []
        if is_timed(properties) or any(is_timed(parse_properties(each)) for each in timed):
            raise _illegal("a batch can't be delayed")
        try:
            # `dataclasses.replace` takes four times as long, and a batch may have ten thousand messages.
            topic, queue_id, sys_flag = template.topic, template.queue_id, template.sys_flag
            born_ms, born_host, own_host = (
                template.born_timestamp_ms,
                template.born_host,
                template.store_host,
            )
            stamp, times = self._stamp.over, template.reconsume_times
            messages = [
                Message(
                    topic, queue_id, body, stamp(text), flag, sys_flag, born_ms, born_host, own_host, times
                )
                for flag, body, text, _ in parts
            ]
        except MessageIllegalError as error:
            raise _illegal(str(error)) from error
        return Admitted(messages, template.queue_id, properties.get(PROPERTY_UNIQUE_KEY, ""))

    def _dlq_for(self, header: SendMessageRequestHeader) -> TopicConfig | None:
        """The dead-letter topic when the message was consumed in vain often enough (handleRetryAndDLQ)."""
        group_name = header.topic.removeprefix(RETRY_PREFIX)
        group = self._state.groups.get(group_name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group_name}"
            )
        most = header.max_reconsume_times
        retries_max = group.retry_max_times if most is None else most
        return dlq_topic(group_name) if header.reconsume_times > retries_max else None


def _refuse_unsupported(header: SendMessageRequestHeader) -> None:
    if header.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        raise _illegal("a message can't be sent rolled back")
    if header.sys_flag & _INNER_BATCH_FLAGS:
        raise _illegal("inner batches are not supported")


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)
