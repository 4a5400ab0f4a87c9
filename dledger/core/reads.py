"""ReadIndex: a leader confirms that it still leads, so that a host may answer from its own state without
missing what was acknowledged before it was asked (thesis 6.4, linearizable reads without the log).

A leader that was cut off may not know that another node leads and has acknowledged more. So it notes its
commit index, asks the voters, and counts those that answer in its own term. The leader of a later term was
elected by a majority, whose members were in that later term from their vote on; they share a member with the
majority that answered. That member answered in this term after the read began, so it voted later still: when
the read began, no later leader had acknowledged anything. What leaders of earlier terms acknowledged is in
this leader's log (Raft 5.4.3), and below its commit index once an entry of its own term is committed.

An answer proves this only if it was given after the read began. The network may deliver late, repeat and
reorder, and an answer to a heartbeat does not say to which one, so no count of heartbeats is a proof. Here
each round has a number that comes back: the question is a TRUNCATE from an index that no log reaches
(FIRST_ROUND and up), meant for a log that ends where none does. A follower drops nothing and repeats the
index in its answer, also one of a release that knows nothing of rounds. A node that lost its vote answers no
leader before its term is certain (`dledger.core.repair`), so its answer is as good as any.

Reads that arrive before a round's questions leave share the round.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from dledger.core.config import Config
from dledger.core.messages import TruncateRequest
from dledger.core.output import Outbox, ReadDone
from dledger.core.types import LONG_AGO_MS, NEVER_DUE_MS, NO_INDEX, NO_TERM, ResponseCode

FIRST_ROUND: Final = 1 << 61
"""No log reaches this index, and it is below the highest number that members accept of each other."""
_NO_END: Final = (NO_INDEX, NO_TERM)


def is_round(truncate_index: int) -> bool:
    """Whether a TRUNCATE, or its answer, is about a round of reads."""
    return truncate_index >= FIRST_ROUND


@dataclass(slots=True)
class _Round:
    """Reads that are confirmed together. commit_index: of the newest, for which the others may wait."""

    number: int
    commit_index: int
    deadline_ms: int


class ReadIndex:
    """The reads of one leadership. Each id that `add` returned is in exactly one ReadDone."""

    def __init__(
        self, term: int, config: Config, outbox: Outbox, is_quorum: Callable[[Collection[str]], bool]
    ) -> None:
        """`is_quorum`: whether these peers, with this node, are a majority of the voters."""
        self._term = term
        self._timeout_ms = config.wait_ack_timeout_ms
        self._repeat_ms = config.heartbeat_interval_ms
        self._outbox = outbox
        self._is_quorum = is_quorum
        self._waiting: deque[_Round] = deque()
        self._asked = FIRST_ROUND - 1
        """The last round whose questions left."""
        self._asked_ms = LONG_AGO_MS
        self._answered: dict[str, int] = {}
        """Peer -> the last round that it answered, which confirms the rounds before it, too."""

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def add(self, commit_index: int, now_ms: int) -> int:
        """A read begins. Returns the number of its round, of which it may not be the first."""
        if self._waiting and self._waiting[-1].number > self._asked:
            newest = self._waiting[-1]
            newest.commit_index = max(newest.commit_index, commit_index)
            return newest.number
        # A round that is under way does not do: its answers may have been given before this read began.
        self._waiting.append(_Round(self._asked + 1, commit_index, now_ms + self._timeout_ms))
        return self._waiting[-1].number

    def pump(self, now_ms: int, commit_index: int, term_start_index: int, peers: Iterable[str]) -> None:
        """Asks the peers about the newest round, and ends the rounds that are confirmed."""
        if not self._waiting:
            return
        newest = self._waiting[-1].number
        if newest > self._asked or now_ms - self._asked_ms >= self._repeat_ms:
            self._asked, self._asked_ms = newest, now_ms
            for peer in peers:
                self._outbox.send_now(peer, self._question(newest, commit_index))
        # Before an entry of its own term is committed, a leader's commit index may be lower than what the
        # leader before it has acknowledged (thesis 6.4, step 1).
        if commit_index < term_start_index:
            return
        while self._waiting and self._is_confirmed(self._waiting[0].number):
            done = self._waiting.popleft()
            read_index = max(done.commit_index, term_start_index)
            self._outbox.reads.append(ReadDone(done.number, read_index, ResponseCode.SUCCESS))

    def _question(self, number: int, commit_index: int) -> TruncateRequest:
        end_index, end_term = _NO_END
        return TruncateRequest(self._term, commit_index, number, NO_TERM, 0, False, end_index, end_term)

    def _is_confirmed(self, number: int) -> bool:
        return self._is_quorum([peer for peer, answered in self._answered.items() if answered >= number])

    def on_answer(self, peer: str, number: int) -> None:
        """The peer answered a question in this term."""
        # More than was asked is the number of a faulty peer. An answer that comes late is of an older round.
        if number <= self._asked:
            self._answered[peer] = max(number, self._answered.get(peer, NO_INDEX))

    def tick(self, now_ms: int) -> None:
        """Reads that no majority confirmed in time fail; a later one may still be confirmed."""
        while self._waiting and self._waiting[0].deadline_ms <= now_ms:
            self._fail_oldest(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)

    def fail_all(self, code: ResponseCode) -> None:
        """The leader stepped down."""
        while self._waiting:
            self._fail_oldest(code)

    def _fail_oldest(self, code: ResponseCode) -> None:
        self._outbox.reads.append(ReadDone(self._waiting.popleft().number, NO_INDEX, code))

    def deadline_ms(self) -> int:
        if not self._waiting:
            return NEVER_DUE_MS
        is_new = self._waiting[-1].number > self._asked
        repeat_ms = LONG_AGO_MS if is_new else self._asked_ms + self._repeat_ms
        return min(self._waiting[0].deadline_ms, repeat_ms)

    def check_invariants(self) -> None:
        numbers = [each.number for each in self._waiting]
        assert numbers == sorted(set(numbers)), numbers
        assert not numbers or numbers[-1] <= self._asked + 1, (numbers, self._asked)
        assert all(answered <= self._asked for answered in self._answered.values()), self._answered
