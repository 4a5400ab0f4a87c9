"""Proposals: changes that are to be written to the log. The changes of one turn of the event loop are joined
in one record. Each proposer's future resolves once its record is committed and applied on this node, or once
writing it has failed.

Bounds: a record's body holds at most RECORD_BYTES_MAX (a larger turn makes several records), and at most
`waiting_max` proposals wait at a time; one more is answered OS_PAGE_CACHE_BUSY at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from broker.state.changes import join_changes
from commitlog.dispatch import NAMES_BYTES_MAX
from commitlog.log import MessageLog, PutStatus
from commitlog.record import Message

RECORD_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class _Proposal:
    encoded: Sequence[bytes]
    size_bytes: int
    made_topics: Sequence[str]
    deleted_topics: Sequence[str]
    names_bytes: int
    """Bytes of the deleted topics' names in the record's properties."""
    future: asyncio.Future[PutStatus]


@dataclass(slots=True, eq=False)
class _Record:
    """A record that was written to the log, with its proposals that are not answered yet."""

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
        self._queued_made: set[str] = set()
        self._queued_deleted: set[str] = set()
        self._made: dict[str, int] = {}
        self._deleted: dict[str, int] = {}
        """Topics that records which were put, and not applied, make or delete: the last one's offset."""

    def is_changing(self, topic: str) -> bool:
        """Whether the topic is made, changed or deleted by what is not applied yet, answered or not."""
        return topic in self._queued_made or topic in self._made or self.is_deleting(topic)

    def is_deleting(self, topic: str) -> bool:
        """The same of its deletion."""
        return topic in self._queued_deleted or topic in self._deleted

    def forget_topics(self) -> None:
        """What was put under another leadership is applied by now, or will never be."""
        self._made.clear()
        self._deleted.clear()

    def add(
        self, encoded: Sequence[bytes], made_topics: Sequence[str] = (), deleted_topics: Sequence[str] = ()
    ) -> asyncio.Future[PutStatus]:
        """Put these encoded changes in the log together; see the module for when the future resolves. They
        make or change some topics, and delete others.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PutStatus] = loop.create_future()
        size_bytes = sum(map(len, encoded)) + len(encoded)
        names_bytes = sum(map(len, deleted_topics)) + len(deleted_topics)
        if self._waiting >= self._waiting_max:
            future.set_result(PutStatus.OS_PAGE_CACHE_BUSY)
        elif size_bytes > RECORD_BYTES_MAX or names_bytes > NAMES_BYTES_MAX:
            future.set_result(PutStatus.MESSAGE_ILLEGAL)
        else:
            if not self._queued:
                loop.call_soon(self._flush)
            self._queued.append(
                _Proposal(encoded, size_bytes, made_topics, deleted_topics, names_bytes, future)
            )
            self._waiting += 1
            self._queued_made.update(made_topics)
            self._queued_deleted.update(deleted_topics)
        return future

    def applied(self, queue_offset: int) -> None:
        """The record with this offset in the state queue is applied to the tables."""
        self._applied_offset = queue_offset
        for names in (self._made, self._deleted):
            for name in [name for name, offset in names.items() if offset <= queue_offset]:
                del names[name]
        self._answer_finished()

    def close(self) -> None:
        """Answer all that still wait: whether their changes get into the log is not known."""
        queued, self._queued = self._queued, []
        self._answer(queued, PutStatus.SERVICE_NOT_AVAILABLE)
        while self._records:
            self._answer(self._records.popleft().proposals, PutStatus.UNKNOWN_ERROR)

    def _flush(self) -> None:
        queued, self._queued = self._queued, []
        start = size_bytes = names_bytes = 0
        for position, proposal in enumerate(queued):
            size_bytes += proposal.size_bytes
            names_bytes += proposal.names_bytes
            if size_bytes > RECORD_BYTES_MAX or names_bytes > NAMES_BYTES_MAX:
                self._put(queued[start:position])
                start, size_bytes, names_bytes = position, proposal.size_bytes, proposal.names_bytes
        if queued:
            self._put(queued[start:])
        self._queued_made.clear()
        self._queued_deleted.clear()

    def _put(self, proposals: Sequence[_Proposal]) -> None:
        record = _Record(proposals)
        body = join_changes([change for proposal in proposals for change in proposal.encoded])
        self._records.append(record)
        deleted = list(dict.fromkeys(name for each in proposals for name in each.deleted_topics))
        message = self._make_message(body)
        result = self._log.put([message], lambda status: self._done(record, status), deleted)
        if result.status is not PutStatus.PUT_OK:
            self._records.remove(record)
            self._answer(proposals, result.status)
            return
        record.queue_offset = result.queue_offsets[0]
        self._deleted.update(dict.fromkeys(deleted, record.queue_offset))
        for proposal in proposals:
            self._made.update(dict.fromkeys(proposal.made_topics, record.queue_offset))
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
