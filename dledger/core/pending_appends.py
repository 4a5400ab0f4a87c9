"""The appends of one leadership that wait for their commit (DLedger: pendingAppendResponsesByTerm, waitAck).

Accounted by range, never by entry: only the last entry of a batch is waited for.
"""

from collections import deque
from dataclasses import dataclass

from dledger.core.output import Completion, Proposal
from dledger.core.types import NEVER_DUE_MS, ResponseCode


@dataclass(frozen=True, slots=True)
class _Waiting:
    first_index: int
    last_index: int
    deadline_ms: int

    @property
    def count(self) -> int:
        return self.last_index - self.first_index + 1

    def complete(self, code: ResponseCode) -> Completion:
        return Completion(self.first_index, self.last_index, code)


class PendingAppends:
    """Every proposal added comes out of `ack`, `expire` or `fail_all` as a Completion, once."""

    def __init__(self, entries_max: int, timeout_ms: int) -> None:
        self._entries_max = entries_max
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self.entries = 0

    def has_room(self, count: int) -> bool:
        """At the limit the leader answers LEADER_PENDING_FULL and appends nothing."""
        return self.entries + count <= self._entries_max

    def add(self, proposal: Proposal, now_ms: int) -> None:
        self._waiting.append(_Waiting(proposal.first_index, proposal.last_index, now_ms + self._timeout_ms))
        self.entries += proposal.count

    def ack(self, commit_index: int) -> list[Completion]:
        """Those whose last entry is committed."""
        done = []
        while self._waiting and self._waiting[0].last_index <= commit_index:
            done.append(self._pop().complete(ResponseCode.SUCCESS))
        return done

    def oldest_wait_ms(self, now_ms: int) -> int | None:
        """How long the first one has waited so far."""
        return now_ms - self._waiting[0].deadline_ms + self._timeout_ms if self._waiting else None

    def expire(self, now_ms: int) -> list[Completion]:
        """Those that waited too long. Their entries stay in the log and may yet be committed."""
        late = []
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            late.append(self._pop().complete(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT))
        return late

    def fail_all(self, code: ResponseCode) -> list[Completion]:
        failed = [waiting.complete(code) for waiting in self._waiting]
        self._waiting.clear()
        self.entries = 0
        return failed

    def deadline_ms(self) -> int:
        return self._waiting[0].deadline_ms if self._waiting else NEVER_DUE_MS

    def _pop(self) -> _Waiting:
        waiting = self._waiting.popleft()
        self.entries -= waiting.count
        return waiting

    def check_invariants(self, commit_index: int) -> None:
        entries = sum(waiting.count for waiting in self._waiting)
        assert entries == self.entries <= self._entries_max, (entries, self.entries, self._entries_max)
        if self._waiting:
            last_index = self._waiting[0].last_index
            assert last_index > commit_index, f"{last_index} is committed ({commit_index}) but waits"
