"""How a node that may have forgotten its promises regains its vote. See docs/dledger.md, section 8.

Raft assumes that a server's persistent state survives (Figure 2). This module handles its loss (Alagappan et
al., "Protocol-Aware Recovery for Consensus-Based Storage"; docs/decisions/storage.md). An impaired node asks
every member for its state. It votes again when

- its disk has all that the leader of its term had when it answered. Everything that was committed with the
  help of this node, or may still be, is in there; and
- if term and vote are lost, every other member has answered: then this node's term is not below any in
  which it may have voted or acknowledged. Before that it must not even acknowledge: it could help an old
  leader to commit what a newer one, elected with the forgotten vote, has replaced.

If all logs are empty, this node's too, nothing was ever committed: a new group, which needs no leader.
"""

from dledger.core.config import Config
from dledger.core.messages import RepairRequest, RepairResponse
from dledger.core.output import Outbox
from dledger.core.types import NEVER_DUE_MS, NO_INDEX, UNKNOWN_TERM, Impairment


class Repair:
    """Exists from the start of an impaired node until its host reports that the durable mark is removed."""

    def __init__(self, config: Config, impairment: Impairment, outbox: Outbox, now_ms: int) -> None:
        assert config.others, f"a group of one cannot heal {impairment}"
        self.impairment = impairment
        self.is_over = False
        """Healed; the host has not removed the durable mark yet."""
        self._config = config
        self._outbox = outbox
        self._end_indexes: dict[str, int] = {}
        self._target_term = UNKNOWN_TERM
        self._target_index = NO_INDEX
        self._next_ask_ms = now_ms

    @property
    def may_follow(self) -> bool:
        """Whether this node's term is known to be no lower than any it has promised something in."""
        return not self.impairment.is_vote_lost or self._has_heard_all

    @property
    def may_vote(self) -> bool:
        """Only in a group of two: no majority exists without this node, and the other one has everything that
        was ever committed, since both had to store it. So a vote for the other one is safe, whatever this
        node has forgotten.
        """
        return self._config.quorum == len(self._config.peers) and self.may_follow

    @property
    def _has_heard_all(self) -> bool:
        return len(self._end_indexes) == len(self._config.others)

    def deadline_ms(self, term: int) -> int:
        return self._next_ask_ms if self._is_asking(term) else NEVER_DUE_MS

    def ask_connected(self, peer: str, term: int) -> None:
        """The peer can be reached now."""
        if self._is_asking(term):
            self._outbox.send_now(peer, RepairRequest(term, self.impairment.repair_id))

    def ask(self, term: int, leader_id: str | None, now_ms: int) -> None:
        """Asks the members whose answer is missing, once in a heartbeat interval."""
        if not self._is_asking(term) or now_ms < self._next_ask_ms:
            return
        self._next_ask_ms = now_ms + self._config.heartbeat_interval_ms
        for peer in self._config.others:
            is_needed = self._target_term != term and leader_id in (None, peer)
            if is_needed or peer not in self._end_indexes:
                self._outbox.send_now(peer, RepairRequest(term, self.impairment.repair_id))

    def _is_asking(self, term: int) -> bool:
        return not self.is_over and (self._target_term != term or not self.may_follow)

    def on_response(self, peer: str, response: RepairResponse, term: int) -> None:
        """An answer; the node has adopted its term if that was higher. An answer with another repair_id
        belongs to an earlier impairment and does not count: the member's log may have changed since.
        """
        if response.repair_id != self.impairment.repair_id:
            return
        self._end_indexes[peer] = response.end_index
        if response.is_leader and response.term == term:
            self._target_term, self._target_index = term, response.end_index

    def is_healed(self, term: int, end_index: int, held_index: int) -> bool:
        """`held_index`: up to there this node's disk has the log of this term's leader."""
        if not self.may_follow:
            return False
        if self._target_term == term and held_index >= self._target_index:
            return True
        return self._has_heard_all and {end_index, *self._end_indexes.values()} == {NO_INDEX}
