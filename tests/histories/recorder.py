"""Writes down what clients over our own remoting client do, while they do it.

`RecordingClient` sees polls, commits and fetches as they are on the wire, whoever asks. A send is told by the
producer, which alone knows that several tries are one send: `RecordedProducer` wraps the client's, and
`Recorder.send` is for those that a test writes itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from ledgermq.client import Message, Producer, SendResult
from ledgermq.messaging import decode_records
from remoting.client.aio import RemotingClient
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import ClientError, RemotingError
from remoting.headers.consume import (
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from tests.histories.operations import Commit, Fetch, Operation, Outcome, Poll, Queue, Send

COMMIT_WITH_PULL = 1
"""The bit of a pull's sysFlag that makes its `commitOffset` count."""
NOT_DONE = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.MESSAGE_ILLEGAL,
    }
)
"""Answers after which nothing is stored, then or later. SYSTEM_ERROR leaves it open: broker/responses.py."""
EMPTY_POLLS = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)
SYSTEM_TOPICS = ("%RETRY%", "%DLQ%", "rmq_sys_", "SCHEDULE_TOPIC")


class Sink(Protocol):
    """Takes operations: a `HistoryWriter`, or `MemorySink`."""

    def begin(self, operation: Send | Commit) -> int: ...

    def end(self, begun: int, operation: Send | Commit) -> None: ...

    def write(self, operation: Operation) -> None: ...


class MemorySink:
    """A history that is kept: what was begun and never ended is in `history` as it was begun."""

    def __init__(self) -> None:
        self._ended: list[Operation] = []
        self._open: dict[int, Operation] = {}
        self._begun = 0

    def begin(self, operation: Send | Commit) -> int:
        self._begun += 1
        self._open[self._begun] = operation
        return self._begun

    def end(self, begun: int, operation: Send | Commit) -> None:
        self._open.pop(begun, None)
        self._ended.append(operation)

    def write(self, operation: Operation) -> None:
        self._ended.append(operation)

    @property
    def history(self) -> list[Operation]:
        return [*self._ended, *self._open.values()]


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class Recorder:
    """One history's clock and sink, shared by all clients whose operations belong together."""

    def __init__(self, sink: Sink, now: Callable[[], int] = unix_ms) -> None:
        self.sink = sink
        self.now = now

    def send(self, process: str, values: tuple[str, ...]) -> OpenSend:
        """A send begins. Tell its tries and how it ends."""
        return OpenSend(self, process, values)

    def write(self, operation: Operation) -> None:
        self.sink.write(operation)


class OpenSend:
    """A send under way, of unknown outcome till it is said."""

    def __init__(self, recorder: Recorder, process: str, values: tuple[str, ...]) -> None:
        self._recorder = recorder
        self._send = Send(process, recorder.now(), None, Outcome.INFO, values, tries=None)
        self._begun = recorder.sink.begin(self._send)

    def acknowledged(self, queue: Queue, offsets: tuple[int, ...], tries: int | None) -> None:
        self._end(Outcome.OK, tries, queue, offsets)

    def failed(self, tries: int | None) -> None:
        """Definitely not done."""
        self._end(Outcome.FAIL, tries)

    def unknown(self, tries: int | None) -> None:
        self._end(Outcome.INFO, tries)

    def _end(
        self, outcome: Outcome, tries: int | None, queue: Queue | None = None, offsets: tuple[int, ...] = ()
    ) -> None:
        completed = self._recorder.now()
        ended = replace(
            self._send, completed=completed, outcome=outcome, queue=queue, offsets=offsets, tries=tries
        )
        self._recorder.sink.end(self._begun, ended)


class RecordedProducer:
    """The client's producer. Sends that overlap are of different processes: `name/0`, `name/1` …"""

    def __init__(self, producer: Producer, recorder: Recorder, name: str) -> None:
        self._producer = producer
        self._recorder = recorder
        self._name = name
        self._free: list[int] = []
        self._slots = 0

    async def send(self, topic: str, value: str, *, key: str | None = None) -> SendResult:
        """Raises: ClientError, when nobody knows whether the message is stored."""
        slot = self._free.pop() if self._free else self._slots
        self._slots = max(self._slots, slot + 1)
        send = self._recorder.send(f"{self._name}/{slot}", (value,))
        try:
            keys = () if key is None else (key,)
            result = await self._producer.send(Message(topic, value.encode(), keys=keys))
        except ClientError:
            send.unknown(None)
            raise
        finally:
            self._free.append(slot)
        assert result.queue_offset is not None, "only numbered sends have none"
        send.acknowledged(Queue(topic, result.queue.queue_id), (result.queue_offset,), result.tries)
        return result


class RecordingClient(RemotingClient):
    """A remoting client that writes down the polls, commits and fetches of one consumer, called `process`."""

    def __init__(self, recorder: Recorder, process: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._process = process

    async def invoke(self, address: str, command: RemotingCommand, timeout_s: float = 3.0) -> RemotingCommand:
        topic = command.ext_fields.get("topic", "")
        if topic.startswith(SYSTEM_TOPICS):
            return await super().invoke(address, command, timeout_s)
        match command.code:
            case RequestCode.PULL_MESSAGE:
                return await self._poll(address, command, timeout_s)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                return await self._commit(address, command, timeout_s)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return await self._fetch(address, command, timeout_s)
        return await super().invoke(address, command, timeout_s)

    async def _poll(self, address: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        header = PullMessageRequestHeader.parse(command.ext_fields)
        queue, invoked = Queue(header.topic, header.queue_id), self._recorder.now()
        if header.sys_flag & COMMIT_WITH_PULL and header.commit_offset > 0:
            group, offset = header.consumer_group, header.commit_offset
            commit = Commit(self._process, invoked, None, Outcome.INFO, group, queue, offset)
            self._recorder.sink.begin(commit)
        poll = Poll(self._process, invoked, None, Outcome.INFO, queue, header.queue_offset)
        try:
            answer = await super().invoke(address, command, timeout_s)
        except RemotingError:
            self._recorder.write(replace(poll, completed=self._recorder.now()))
            raise
        messages: tuple[tuple[int, str], ...] = ()
        if answer.code == ResponseCode.SUCCESS:
            records = decode_records(answer.body)
            messages = tuple((record.queue_offset, record.body.decode()) for record in records)
        is_ok = answer.code == ResponseCode.SUCCESS or answer.code in EMPTY_POLLS
        self._recorder.write(
            replace(
                poll,
                completed=self._recorder.now(),
                outcome=Outcome.OK if is_ok else Outcome.FAIL,
                messages=messages,
                next_offset=int(answer.ext_fields["nextBeginOffset"]) if is_ok else None,
            )
        )
        return answer

    async def _commit(self, address: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        header = UpdateConsumerOffsetRequestHeader.parse(command.ext_fields)
        queue, group = Queue(header.topic, header.queue_id), header.consumer_group
        commit = Commit(
            self._process, self._recorder.now(), None, Outcome.INFO, group, queue, header.commit_offset
        )
        begun = self._recorder.sink.begin(commit)
        outcome = Outcome.INFO
        try:
            answer = await super().invoke(address, command, timeout_s)
            if answer.code == ResponseCode.SUCCESS:
                outcome = Outcome.OK
            elif answer.code in NOT_DONE:
                outcome = Outcome.FAIL
            return answer
        finally:
            ended = replace(commit, completed=self._recorder.now(), outcome=outcome)
            self._recorder.sink.end(begun, ended)

    async def _fetch(self, address: str, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        header = QueryConsumerOffsetRequestHeader.parse(command.ext_fields)
        queue, group = Queue(header.topic, header.queue_id), header.consumer_group
        fetch = Fetch(self._process, self._recorder.now(), None, Outcome.INFO, group, queue)
        answer = await super().invoke(address, command, timeout_s)
        completed = self._recorder.now()
        if answer.code == ResponseCode.SUCCESS:
            offset = int(answer.ext_fields["offset"])
            self._recorder.write(replace(fetch, completed=completed, outcome=Outcome.OK, offset=offset))
        elif answer.code == ResponseCode.QUERY_NOT_FOUND:
            self._recorder.write(replace(fetch, completed=completed, outcome=Outcome.OK))
        return answer
