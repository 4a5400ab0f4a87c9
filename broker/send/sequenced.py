"""Sends of writers that number their messages: LEDGERMQ_SEND_SEQUENCED (65003), LEDGERMQ_END_BATCH (65004).

The checks of a sequenced send, and the messages it turns into, are as those of a batch send
(broker/send/admission.py), but each message names its own queue, and may have its own delay.

LEDGERMQ_END_BATCH compares a batch in the log with what its writer has sent, and can end the writer. A task
knows only its own rows. Rows that an earlier attempt sent beyond them, or for partitions that no longer
exist, are seen only by the driver, which knows the complete batch once all of it is acknowledged.
"""

import asyncio
from itertools import islice
from typing import Final

from broker.config import BrokerConfig
from broker.leadership import Readiness
from broker.responses import committed_answer, invalid
from broker.send.admission import (
    BATCH_MESSAGES_MAX,
    PLAIN_SYS_FLAGS,
    Admission,
    Admitted,
    BatchBodyError,
    NeedsTopic,
    OpenTopic,
    SubMessage,
    split_batch,
    sub_messages,
)
from broker.send.sequencing import Sequencing
from broker.state.changes import EndWriter
from broker.state.state import ReplicatedState
from broker.state.writers import WRITERS_MAX
from broker.timer.admission import asks_for_time
from broker.timer.scheduling import PROPERTY_DELAY, effective_level, to_scheduled, without_timer
from commitlog.log import MessageLog
from commitlog.record import (
    PROPERTIES_BYTES_MAX,
    Message,
    MessageIllegalError,
    format_properties,
    get_property,
    parse_properties,
)
from commitlog.sequences import (
    FIRST_DIGEST,
    NO_DIGEST,
    PARTITION_MAX,
    SEQUENCE_BYTES_MAX,
    SEQUENCE_MAX,
    digest_error,
    next_digest,
    writer_error,
)
from remoting.codes import ResponseCode
from remoting.command import RemotingCommand, success_response
from remoting.connection import Connection
from remoting.errors import RequestError
from remoting.headers.send import BatchEnd, SequencedSendRequestHeader

FRAMING_BYTES_MAX: Final = 64 * 1024
"""What a send may have beyond maxMessageSize: one message of just that size fits, with its properties."""
_DELAY = PROPERTY_DELAY.encode()
_DELAY_START = _DELAY + b"\x01"


class SequencedAdmission:
    """The checks of one broker."""

    def __init__(self, config: BrokerConfig, admission: Admission, store_host: bytes) -> None:
        self._admission = admission
        self._store_host = store_host
        self._messages_max = min(config.pending_appends_max, BATCH_MESSAGES_MAX)
        self._levels = len(config.delay_levels_ms)

    def admit(
        self, header: SequencedSendRequestHeader, body: bytes, born_host: bytes
    ) -> Admitted | NeedsTopic:
        """Its messages without their numbers yet. Raises RequestError with the answer when it is refused."""
        topic = self._admission.open_topic(header)
        if isinstance(topic, NeedsTopic):
            return topic
        _check_numbers(header)
        if topic.is_retry or header.sys_flag & ~PLAIN_SYS_FLAGS:
            raise _illegal("a sequenced send is for ordinary messages to ordinary topics")
        self._admission.check_body(body, FRAMING_BYTES_MAX)
        try:
            parts = split_batch(body, self._messages_max)
            messages = [self._message(part, header, topic, born_host) for part in parts]
        except (BatchBodyError, MessageIllegalError) as error:
            raise _illegal(str(error)) from error
        if header.sequence + len(messages) - 1 > SEQUENCE_MAX:
            raise _illegal(f"the last message's number is beyond {SEQUENCE_MAX}")
        return Admitted(messages, messages[0].queue_id, "")

    @staticmethod
    def digests(header: SequencedSendRequestHeader, body: bytes) -> list[bytes]:
        """The writer's digest before an admitted send and behind each message of it, if it keeps one."""
        if header.digest is None:
            return []
        found = [header.digest.encode()]
        for message in sub_messages(body):
            found.append(next_digest(found[-1], message))
        return found

    def _message(
        self, part: SubMessage, header: SequencedSendRequestHeader, topic: OpenTopic, born_host: bytes
    ) -> Message:
        self._admission.check_body(part.body)
        properties, queue_id = self._admission.stamped(part.properties), part.queue_id
        if not 0 <= queue_id < topic.queue_nums:
            remark = f"queueId[{queue_id}] is illegal, topic {header.topic} has {topic.queue_nums} queues"
            raise RequestError(ResponseCode.INVALID_PARAMETER, remark)
        message = Message(
            header.topic,
            queue_id,
            part.body,
            properties,
            part.flag,
            header.sys_flag | topic.sys_flag,
            header.born_timestamp_ms,
            born_host,
            self._store_host,
        )
        if _DELAY_START in properties or asks_for_time(properties):
            message = self._put_aside(message)
        size_bytes = len(message.properties) + SEQUENCE_BYTES_MAX
        if size_bytes > PROPERTIES_BYTES_MAX:
            raise _illegal(f"the properties have {size_bytes} bytes; {PROPERTIES_BYTES_MAX} are possible")
        return message

    def _put_aside(self, message: Message) -> Message:
        """The message as it waits for its delay level or its time, if it does."""
        text = get_property(message.properties, _DELAY)
        level = effective_level(None if text is None else text.decode(errors="replace"), self._levels)
        named = parse_properties(message.properties)
        if level == 0:
            return self._admission.timers.waiting(message, named, SEQUENCE_BYTES_MAX) or message
        if asks_for_time(message.properties):
            message.properties = format_properties(without_timer(named))
        return to_scheduled(message, level)


def _check_numbers(header: SequencedSendRequestHeader) -> None:
    error = writer_error(header.writer_id)
    if error is None and min(header.partition, header.batch_id, header.sequence) < 0:
        error = "partition, batchId and sequence are counted from 0"
    if error is None and header.digest is not None:
        error = digest_error(header.digest)
        if header.sequence == 0 and header.digest.encode() != FIRST_DIGEST:
            error = "before a batch's first row there is nothing that has a digest"
    if error is not None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, error)


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)


ENDED_AT_ONCE = 500
"""Writers that one record ends: 1.5 ms of the event loop, on every node."""
SENTENCES_MAX = 3
"""In an answer, about what differs."""


class EndBatchProcessor:
    """One broker's."""

    def __init__(
        self,
        log: MessageLog,
        state: ReplicatedState,
        readiness: Readiness,
        sequencing: Sequencing,
    ) -> None:
        self._log = log
        self._state = state
        self._readiness = readiness
        self._sequencing = sequencing

    async def end_batch(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        end = _read_end(request.body)
        if not self._log.is_writable():
            hint = self._readiness.leader_hint()
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"only the leader knows: {hint}")
        if end.is_checked:
            found = list(islice(self._sequencing.differences(end.batch_id, end.writers), SENTENCES_MAX))
            if found:
                remark = f"batch {end.batch_id}: {'; '.join(found)}"
                raise RequestError(ResponseCode.LEDGERMQ_SEQUENCE_DIFFERS, remark)
        if end.is_over:
            await asyncio.sleep(0)  # reading thousands of writers took this turn of the loop
            await self._end_writers(request, end)
        return success_response(request)

    async def _end_writers(self, request: RemotingCommand, end: BatchEnd) -> None:
        """Raises RequestError: those of the last record are not committed."""
        over = [EndWriter(writer, tuple(written)) for writer, written in end.writers.items() if written]
        for first in range(0, len(over), ENDED_AT_ONCE):
            part = over[first : first + ENDED_AT_ONCE]
            await committed_answer(request, self._state.propose(*part))


def _read_end(body: bytes) -> BatchEnd:
    try:
        end = BatchEnd.parse(body)
    except ValueError as error:
        raise invalid(str(error)) from error
    if sum(map(len, end.writers.values())) > WRITERS_MAX:
        raise invalid(f"there are never more than {WRITERS_MAX} writers and partitions")
    for writer, written in end.writers.items():
        problem = writer_error(writer)
        for partition, (_, digest) in written.items():
            if not 0 <= partition <= PARTITION_MAX:
                problem = f"a partition is a number up to {PARTITION_MAX}"
            elif digest != NO_DIGEST:
                problem = problem or digest_error(digest.decode())
        if problem is not None:
            raise invalid(problem)
    return end
