"""Changes on their way into the log: the changes of one loop turn are joined in one record, and each
proposer's future resolves once its record is committed and applied on this node, or has failed.

Bounds: a record's body holds at most RECORD_BYTES_MAX (a larger turn makes several records), and at most
`waiting_max` proposals wait at a time; one more is answered OS_PAGE_CACHE_BUSY at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.state.changes import join_changes
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message

RECORD_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class _Proposal:
    encoded: Sequence[bytes]
    size_bytes: int
    future: asyncio.Future[PutStatus]


@dataclass(slots=True, eq=False)
class _Record:
    """A record that was put and whose proposals are not yet answered."""

    proposals: Sequence[_Proposal]
    queue_offset: int = -1
    is_committed: bool = False


class ProposalQueue:
    """Owns the proposals of this node that are not yet answered."""

    def __init__(self, log: MessageLog, make_message: Callable[[bytes], Message], waiting_max: int) -> None:
        self._log = log
        self._make_message = make_message
        self._waiting_max = waiting_max
        self._queued: list[_Proposal] = []
        self._records: deque[_Record] = deque()
        self._waiting = 0
        self._applied_offset = -1

    def add(self, encoded: Sequence[bytes]) -> asyncio.Future[PutStatus]:
        """Put these encoded changes in the log together; see the module for when the future resolves."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutStatus] = loop.create_future()
        size_bytes = sum(map(len, encoded)) + len(encoded)
        if self._waiting >= self._waiting_max:
            future.set_result(PutStatus.OS_PAGE_CACHE_BUSY)
        elif size_bytes > RECORD_BYTES_MAX:
            future.set_result(PutStatus.MESSAGE_ILLEGAL)
        else:
            if not self._queued:
                loop.call_soon(self._flush)
            self._queued.append(_Proposal(encoded, size_bytes, future))
            self._waiting += 1
        return future

    def applied(self, queue_offset: int) -> None:
        """The record with this offset in the state queue is applied to the tables."""
        self._applied_offset = queue_offset
        self._answer_finished()

    def close(self) -> None:
        """Answer all that still wait: whether their changes get into the log is not known."""
        queued, self._queued = self._queued, []
        self._answer(queued, PutStatus.SERVICE_NOT_AVAILABLE)
        while self._records:
            self._answer(self._records.popleft().proposals, PutStatus.UNKNOWN_ERROR)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        start = size_bytes = 0
        for position, proposal in enumerate(queued):
            if size_bytes + proposal.size_bytes > RECORD_BYTES_MAX:
                self._put(queued[start:position])
                start, size_bytes = position, 0
            size_bytes += proposal.size_bytes
        if queued:
            self._put(queued[start:])

    def _put(self, proposals: Sequence[_Proposal]) -> None:
        record = _Record(proposals)
        body = join_changes([change for proposal in proposals for change in proposal.encoded])
        self._records.append(record)
        result = self._log.put([self._make_message(body)], lambda status: self._done(record, status))
        if result.status is not PutStatus.PUT_OK:
            self._records.remove(record)
            self._answer(proposals, result.status)
            return
        record.queue_offset = result.queue_offsets[0]
        self._answer_finished()

    def _done(self, record: _Record, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            record.is_committed = True
            self._answer_finished()
        elif record in self._records:
            self._records.remove(record)
            self._answer(record.proposals, status)

    def _answer_finished(self) -> None:
        while self._records:
            record = self._records[0]
            if not record.is_committed or not 0 <= record.queue_offset <= self._applied_offset:
                return
            self._records.popleft()
            self._answer(record.proposals, PutStatus.PUT_OK)

    def _answer(self, proposals: Sequence[_Proposal], status: PutStatus) -> None:
        self._waiting -= len(proposals)
        for proposal in proposals:
            if not proposal.future.done():
                proposal.future.set_result(status)
