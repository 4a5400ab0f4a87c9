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

Who "every other member" is, the node may have forgotten as well. So each answer brings the newest
configuration in the log of the one who answers, and the voters of the newest of all these
have to answer. That is enough: an election in a newer configuration was won with the help of a voter of the
one before, which had that newer configuration in its log and says so. A leader may say that this node is a
learner: then nothing that it has forgotten was a vote which that leader's majorities rely on, and it may
follow at once (docs/decisions/replicated_state.md).
"""

from dledger.core.config import Config
from dledger.core.membership import ConfigurationEntry, ConfigurationLog
from dledger.core.messages import RepairRequest, RepairResponse
from dledger.core.output import Outbox
from dledger.core.types import NEVER_DUE_MS, NO_INDEX, UNKNOWN_TERM, Impairment


class Repair:
    """Exists from the start of an impaired node until its host reports that the durable mark is removed."""

    def __init__(
        self, config: Config, members: ConfigurationLog, impairment: Impairment, outbox: Outbox, now_ms: int
    ) -> None:
        self.impairment = impairment
        self.is_over = False
        """Healed; the host has not removed the durable mark yet."""
        self._config = config
        self._members = members
        self._outbox = outbox
        self._next_ask_ms = now_ms
        self.forget_answers()

    def forget_answers(self) -> None:
        """The members are those of another generation: a node of the same id there has other promises."""
        self._noticed: ConfigurationEntry | None = None
        self._learner_term = UNKNOWN_TERM
        self._heard_leader: str | None = None
        self._end_indexes: dict[str, int] = {}
        self._target_term = UNKNOWN_TERM
        self._target_index = NO_INDEX

    @property
    def newest(self) -> ConfigurationEntry:
        """The newest configuration that this node knows of."""
        own, noticed = self._members.latest, self._noticed
        if noticed is None or (noticed.term, noticed.index) <= (own.term, own.index):
            return own
        return noticed

    @property
    def _needed(self) -> tuple[str, ...]:
        """Who can answer for what this node may have promised."""
        self_id = self._config.self_id
        return tuple(voter for voter in self.newest.configuration.voters if voter != self_id)

    def may_follow(self, term: int) -> bool:
        """Whether this node's term is known to be no lower than any it has promised something in, or its
        promises do not count in this term.
        """
        return not self.impairment.is_vote_lost or self._learner_term == term or self._has_heard_all

    def may_vote(self, term: int) -> bool:
        """Only in a group of two: no majority exists without this node, and the other one has everything that
        was ever committed, since both had to store it. So a vote for the other one is safe, whatever this
        node has forgotten.
        """
        configuration = self.newest.configuration
        is_needed = configuration.quorum == len(configuration.voters)
        return is_needed and configuration.is_voter(self._config.self_id) and self.may_follow(term)

    @property
    def _has_heard_all(self) -> bool:
        # None are needed by a log that ends where this node was the only voter: others know who they are.
        return bool(self._needed) and all(voter in self._end_indexes for voter in self._needed)

    def deadline_ms(self, term: int, leader_id: str | None) -> int:
        return self._next_ask_ms if self._is_asking(term, leader_id) else NEVER_DUE_MS

    def ask_connected(self, peer: str, term: int, leader_id: str | None) -> None:
        """The peer can be reached now."""
        if self._is_asking(term, leader_id):
            self._outbox.send_now(peer, RepairRequest(term, self.impairment.repair_id))

    def ask(self, term: int, leader_id: str | None, now_ms: int) -> None:
        """Asks the members whose answer is missing, once in a heartbeat interval."""
        if not self._is_asking(term, leader_id) or now_ms < self._next_ask_ms:
            return
        self._next_ask_ms = now_ms + self._config.heartbeat_interval_ms
        heard = () if self._heard_leader is None else (self._heard_leader,)
        for peer in dict.fromkeys((*self._members.others, *self._needed, *heard)):
            is_needed = leader_id is None or (self._target_term != term and leader_id == peer)
            if is_needed or peer not in self._end_indexes:
                self._outbox.send_now(peer, RepairRequest(term, self.impairment.repair_id))

    def hear_leader(self, leader: str) -> None:
        """It sends entries that this node must not take yet. All members that this node knows of may have
        left the group, so it is asked, too.
        """
        self._heard_leader = leader

    def _is_asking(self, term: int, leader_id: str | None) -> bool:
        """Also without a leader: the members may have changed, so that this node has to vote."""
        is_open = self._target_term != term or leader_id is None or not self.may_follow(term)
        return is_open and not self.is_over

    def on_response(self, peer: str, response: RepairResponse, term: int) -> None:
        """An answer; the node has adopted its term if that was higher. An answer with another repair_id
        belongs to an earlier impairment and does not count: the member's log may have changed since.
        """
        if response.repair_id != self.impairment.repair_id:
            return
        self._end_indexes[peer] = response.end_index
        if response.configuration is not None:
            self._notice(response.configuration, response.is_leader and response.term == term, term)
        if response.is_leader and response.term == term:
            self._target_term, self._target_index = term, response.end_index

    def _notice(self, entry: ConfigurationEntry, is_of_leader: bool, term: int) -> None:
        newest = self.newest
        if (entry.term, entry.index) > (newest.term, newest.index):
            self._noticed = entry
        member = entry.configuration.member(self._config.self_id)
        if is_of_leader and member is not None and not member.is_voter:
            self._learner_term = term

    def is_healed(self, term: int, end_index: int, held_index: int) -> bool:
        """`held_index`: up to there this node's disk has the log of this term's leader."""
        if not self.may_follow(term):
            return False
        if self._target_term == term and held_index >= self._target_index:
            return True
        ends = {end_index, *(self._end_indexes[voter] for voter in self._needed if self._has_heard_all)}
        return self._has_heard_all and ends == {NO_INDEX}
