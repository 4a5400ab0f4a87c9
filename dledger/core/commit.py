"""QuorumAckChecker: the commit index of a leader, and the appends that wait for it.

A watermark is the last index up to which one member's *disk* is known to hold the leader's log of this term
(Raft's matchIndex; DLedger's peerWaterMarksByTerm). Appends that wait are accounted by range, never by entry:
only the last entry of a batch decides (DLedger: pendingAppendResponsesByTerm, waitAck).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from dledger.core.output import Completion, Proposal
from dledger.core.types import NEVER_DUE_MS, ResponseCode


def quorum_index(watermarks: Iterable[int], quorum: int) -> int:
    """The highest index that at least `quorum` members hold: the quorum-th highest watermark.

    >>> quorum_index([101, 100, 90], 2)
    100
    """
    falling = sorted(watermarks, reverse=True)
    assert 1 <= quorum <= len(falling), f"quorum {quorum} of {len(falling)}"
    return falling[quorum - 1]


def committable_index(
    watermarks: Iterable[int], quorum: int, term_start_index: int, commit_index: int
) -> int:
    """The commit index after these watermarks: never lower than it was.

    Raises nothing; the watermarks must be of the leader's term. term_start_index is the leader's first entry
    of its own term.
    """
    # Raft 5.4.2, Figure 8: an entry of an earlier term can be on a majority and still be replaced by a leader
    # with a higher last term. Only entries of the leader's own term are committed by counting; the earlier
    # ones are committed with them, by Log Matching.
    index = quorum_index(watermarks, quorum)
    return index if index > commit_index and index >= term_start_index else commit_index


@dataclass(frozen=True, slots=True)
class _Waiting:
    first_index: int
    last_index: int
    count: int
    deadline_ms: int


class PendingAppends:
    """The appends of one leadership that are not committed yet, oldest first.

    Each proposal added is returned as a Completion exactly once, by `ack`, `expire` or `fail_all`.
    """

    def __init__(self, entries_max: int, timeout_ms: int) -> None:
        self._entries_max = entries_max
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self.entries = 0

    def has_room(self, count: int) -> bool:
        """Whether `count` more entries may wait. If not, the leader answers LEADER_PENDING_FULL and appends
        nothing: this bounds the leader's memory while no majority answers.
        """
        return self.entries + count <= self._entries_max

    def add(self, proposal: Proposal, now_ms: int) -> None:
        first_index, count = proposal.first_index, proposal.count
        deadline_ms = now_ms + self._timeout_ms
        self._waiting.append(_Waiting(first_index, first_index + count - 1, count, deadline_ms))
        self.entries += count

    def ack(self, commit_index: int) -> list[Completion]:
        """Completes those whose last entry is committed. The commit index covers all before it (Raft 5.3), so
        the front of the queue is enough.
        """
        done = []
        while self._waiting and self._waiting[0].last_index <= commit_index:
            done.append(self._complete_oldest(ResponseCode.SUCCESS))
        return done

    def oldest_wait_ms(self, now_ms: int) -> int | None:
        """How long the oldest one has waited so far; None when there is none."""
        return now_ms - self._waiting[0].deadline_ms + self._timeout_ms if self._waiting else None

    def expire(self, now_ms: int) -> list[Completion]:
        """Completes those that waited too long. Their entries stay in the log and may still be committed, so
        the caller knows only that the outcome is unknown. All have the same time-out: the front is due first.
        """
        late = []
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            late.append(self._complete_oldest(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT))
        return late

    def fail_all(self, code: ResponseCode) -> list[Completion]:
        """Completes all: the leader stepped down, and a new one may commit or replace their entries."""
        return [self._complete_oldest(code) for _ in range(len(self._waiting))]

    def deadline_ms(self) -> int:
        return self._waiting[0].deadline_ms if self._waiting else NEVER_DUE_MS

    def _complete_oldest(self, code: ResponseCode) -> Completion:
        oldest = self._waiting.popleft()
        self.entries -= oldest.count
        return Completion(oldest.first_index, oldest.last_index, code)

    def check_invariants(self, commit_index: int) -> None:
        entries = sum(waiting.count for waiting in self._waiting)
        assert entries == self.entries <= self._entries_max, (entries, self.entries, self._entries_max)
        if self._waiting:
            last_index = self._waiting[0].last_index
            assert last_index > commit_index, f"{last_index} is committed ({commit_index}) but waits"
