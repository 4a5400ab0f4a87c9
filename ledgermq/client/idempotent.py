"""Numbered sends: the broker drops what it has already, so that tries across a change of leader store a
message once. LedgerMQ's own request (`remoting.headers.send`); stock brokers do not know it.

The messages of one queue are in one lane: they get successive numbers, and one request is under way. What is
sent meanwhile goes into the next request together.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ledgermq.client.errors import ClosedError, MessagingError, UncertainError, UnreadableError
from ledgermq.client.session import Session, Tries
from remoting.client.routes import MessageQueue
from remoting.client.send_requests import WriterPlace, sequenced_command
from remoting.codes import RequestCode, ResponseCode
from remoting.command import RemotingCommand
from remoting.errors import RemotingError
from remoting.headers.send import BatchEnd

MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 1024 * 1024
"""Of one request."""
GAPS_MAX: Final = 8
"""Refusals for a gap: a leader that is cut off from its group does not have the writer's last numbers."""
BATCH_ID: Final = 0
"""Writers of producers have one batch, whose numbers go on."""
_GAP: Final = ResponseCode.LEDGERMQ_SEQUENCE_GAP


@dataclass(frozen=True, slots=True)
class Stored:
    """`offset` is None where an earlier try had stored the message: the broker does not say where."""

    offset: int | None
    tries: int


@dataclass(slots=True, eq=False)
class _Waiting:
    part: bytes
    stored: "asyncio.Future[Stored]"


@dataclass(slots=True, eq=False)
class _Lane:
    """`partition` and `next`: how the numbers of its next message begin. `is_uncertain`: a send has ended
    without an answer, so that the number of the next message is unknown: it begins a new partition.
    """

    queue: MessageQueue
    partition: int
    next: int = 0
    is_uncertain: bool = False
    is_running: bool = False
    waiting: "deque[_Waiting]" = field(default_factory=deque)


class NumberedSends:
    """The lanes of one producer, as one writer of the brokers' tables."""

    def __init__(self, session: Session, group: str, timeout_s: float) -> None:
        self._session = session
        self._group = group
        self._timeout_s = timeout_s
        self._writer_id = f"client-{session.surroundings.rng.getrandbits(96):024x}"
        self._partitions = 0
        self._lanes: dict[MessageQueue, _Lane] = {}

    async def send(self, queue: MessageQueue, part: bytes) -> Stored:
        """Return once a majority has the message, once. `part`: the message in its form within a request.

        Raises: MessagingError; after UncertainError the message may be stored.
        """
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(queue, self._new_partition())
        waiting = _Waiting(part, asyncio.get_running_loop().create_future())
        lane.waiting.append(waiting)
        if not lane.is_running:
            lane.is_running = True
            self._session.spawn(self._run(lane))
        return await waiting.stored

    async def close(self) -> None:
        """Let the brokers forget the writer's numbers."""
        brokers = {lane.queue.broker_name: lane for lane in self._lanes.values() if lane.next}
        body = BatchEnd(BATCH_ID, {self._writer_id: {}}, is_checked=False, is_over=True).body()
        for broker_name, lane in brokers.items():
            command = RemotingCommand(RequestCode.LEDGERMQ_END_BATCH, body=body)
            await self._session.ask(broker_name, lane.queue.topic, command, limit_s=1.0)

    def _new_partition(self) -> int:
        self._partitions += 1
        return self._partitions - 1

    async def _run(self, lane: _Lane) -> None:
        """One request after the other while something waits."""
        batch: list[_Waiting] = []
        try:
            while batch := _next_batch(lane):
                try:
                    answer, tries = await self._deliver(lane, batch)
                    _settle(batch, answer, tries)
                except MessagingError as error:
                    lane.is_uncertain = True
                    _fail(batch, error)
        finally:
            lane.is_running = False
            _fail([*batch, *lane.waiting], ClosedError("the producer is closed"))
            lane.waiting.clear()

    async def _deliver(self, lane: _Lane, batch: list[_Waiting]) -> tuple[RemotingCommand, int]:
        """Raises MessagingError."""
        if lane.is_uncertain:
            lane.partition, lane.next, lane.is_uncertain = self._new_partition(), 0, False
        place = WriterPlace(self._writer_id, lane.partition, BATCH_ID, lane.next)
        queue, parts = lane.queue, [each.part for each in batch]
        now_s = asyncio.get_running_loop().time()
        tries = Tries(f"a numbered send to {queue.topic}", now_s + self._timeout_s, now_s)
        gaps = 0
        while True:
            try:
                address = await self._session.find_leader(queue.broker_name, queue.topic)
            except MessagingError as error:
                await tries.unroutable(error)
                continue
            born_ms = self._session.surroundings.now_ms()
            command = sequenced_command(self._group, queue.topic, queue.broker_name, place, parts, born_ms)
            try:
                limit_s = tries.left_s(self._session.request_timeout_s)
                answer = await self._session.client.invoke(address, command, limit_s)
            except RemotingError as error:
                self._session.failed(queue.broker_name, queue.topic)
                await tries.unanswered(error)
                continue
            if answer.code == ResponseCode.SUCCESS:
                lane.next += len(batch)
                return answer, tries.count
            self._session.failed(queue.broker_name, queue.topic)
            gaps += answer.code == _GAP
            await tries.refused(answer, address, may_pass=answer.code == _GAP and gaps < GAPS_MAX)


def _next_batch(lane: _Lane) -> list[_Waiting]:
    """What goes into the next request; what was cancelled does not."""
    batch: list[_Waiting] = []
    size = 0
    while lane.waiting and len(batch) < MESSAGES_MAX:
        each = lane.waiting[0]
        if batch and size + len(each.part) > BYTES_MAX:
            break
        lane.waiting.popleft()
        if not each.stored.done():
            batch.append(each)
            size += len(each.part)
    return batch


def _settle(batch: list[_Waiting], answer: RemotingCommand, tries: int) -> None:
    """Raises UnreadableError."""
    try:
        first, repeats = int(answer.ext_fields["queueOffset"]), int(answer.ext_fields.get("repeats", "0"))
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"the broker does not say where messages are: {error!r}") from error
    for number, each in enumerate(batch):
        if not each.stored.done():
            offset = first + number - repeats if number >= repeats else None
            each.stored.set_result(Stored(offset, tries))


def _fail(batch: list[_Waiting], error: MessagingError) -> None:
    for each in batch:
        if not each.stored.done():
            each.stored.set_exception(type(error)(str(error)) if isinstance(error, UncertainError) else error)
