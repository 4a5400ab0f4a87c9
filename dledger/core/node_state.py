"""What a node is: its parts, what can be read of it, and what holds after every input.

`dledger.core.node` has what it does.
"""

from dledger.core.config import Config
from dledger.core.election import Ballot
from dledger.core.election_timer import ElectionTimer
from dledger.core.epochs import EpochCache
from dledger.core.events import Impaired
from dledger.core.handler import EntryHandler
from dledger.core.leadership import Leadership
from dledger.core.output import Outbox
from dledger.core.ports import LogReader, Rng
from dledger.core.repair import Repair
from dledger.core.role_history import RoleHistory
from dledger.core.status import NodeStatus, unknown_peers
from dledger.core.types import LONG_AGO_MS, NO_INDEX, UNKNOWN_TERM, HardState, Impairment, LogState, Role


class NodeState:
    """The parts of one node. Role, term, vote and commit index are its own."""

    def __init__(
        self,
        config: Config,
        hard_state: HardState,
        log: LogState,
        reader: LogReader,
        rng: Rng,
        now_ms: int,
        impairment: Impairment | None = None,
    ) -> None:
        """`impairment`: what the host found durably marked; the node does not vote until it is healed."""
        self.config = config
        self.role = Role.FOLLOWER
        self.term = hard_state.term
        self.voted_for = hard_state.voted_for
        self.leader_id: str | None = None
        self.commit_index = max(min(log.commit_index, log.end_index), log.begin_index - 1)
        self.persisted_index = log.end_index
        self._log = EpochCache(log)
        self._reader = reader
        self._outbox = Outbox()
        self._handler = EntryHandler(config, self._log, reader, self._outbox, self.commit_index)
        self._leadership: Leadership | None = None
        self._ballot: Ballot | None = None
        self._timer = ElectionTimer(config, rng, now_ms)
        self._history = RoleHistory(self._outbox)
        self._repair = Repair(config, impairment, self._outbox, now_ms) if impairment else None
        self._damage: str | None = None
        self._now_ms = now_ms
        if impairment is not None:
            self._outbox.report(Impaired(impairment.reason))
        self.check_invariants()

    # -- what can be read ----------------------------------------------------------------------------------

    @property
    def begin_index(self) -> int:
        return self._log.begin_index

    @property
    def end_index(self) -> int:
        return self._log.end_index

    @property
    def end_term(self) -> int:
        """The term of the last entry."""
        return self._log.last_term

    def term_at(self, index: int) -> int:
        """The term of an entry of the log; UNKNOWN_TERM for what is not in it."""
        return self._log.term_at(index) if self.begin_index <= index <= self.end_index else UNKNOWN_TERM

    @property
    def term_start_index(self) -> int:
        """A leader's first entry of its own, NO_INDEX before it stands in the log and for others."""
        return self._leadership.term_start_index if self._leadership else NO_INDEX

    @property
    def is_impaired(self) -> bool:
        """It may have forgotten promises, and does not campaign. Only in a group of two it gives votes."""
        return self._repair is not None

    @property
    def is_electable(self) -> bool:
        """Whether it may ask for votes, and take leadership over."""
        return self._repair is None and self._damage is None

    @property
    def has_output(self) -> bool:
        """Whether take_output has something to do, apart from what is due by time."""
        leadership = self._leadership
        return leadership is None or not (self._outbox.is_empty and leadership.is_settled)

    @property
    def readable_index(self) -> int:
        """Committed, and in this node's own files."""
        return min(self.commit_index, self.persisted_index)

    def deadline_min_ms(self, now_ms: int) -> int:
        """The deadline that was named last holds, if it comes no later than this."""
        return LONG_AGO_MS if self._leadership is None else self._leadership.deadline_min_ms(now_ms)

    @property
    def waits_for_disk(self) -> bool:
        """Whether it makes a difference now that this node's disk holds more of the log."""
        if self.commit_index > self.persisted_index or self.is_impaired:
            return True
        return self._leadership is not None and self._leadership.is_passed_by_others(self.persisted_index)

    def status(self, now_ms: int) -> NodeStatus:
        leadership = self._leadership
        return NodeStatus(
            self.role,
            self.term,
            self.leader_id,
            self.begin_index,
            self.end_index,
            self.commit_index,
            self.persisted_index,
            self.term_start_index,
            self._log.epochs,
            leadership.peer_statuses(now_ms) if leadership else unknown_peers(self.config.others),
            {self.term: leadership.watermarks(self.persisted_index)} if leadership else {},
            self._history.elections,
            self._repair.impairment.reason if self._repair else self._damage,
            self._history.elections_total,
        )

    # -- invariants ----------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """What holds after every input."""
        self._log.check_invariants()
        numbers = (self.begin_index, self.commit_index, self.persisted_index, self.end_index)
        assert self.begin_index - 1 <= self.commit_index <= self.end_index, numbers
        assert self.persisted_index <= self.end_index, numbers
        assert self.end_term <= self.term, f"last entry of term {self.end_term}, own term {self.term}"
        assert (self.role is Role.LEADER) == (self._leadership is not None), self.role
        assert (self.leader_id == self.config.self_id) == (self.role is Role.LEADER), self.leader_id
        assert self._ballot is None or self.role is Role.CANDIDATE, self.role
        assert self._repair is None or self.role is Role.FOLLOWER, (self.role, self._repair.impairment)
        if self._leadership is None:
            self._handler.check_invariants(self.commit_index)
            return
        assert self._leadership.term == self.term, (self._leadership.term, self.term)
        assert self.voted_for == self.config.self_id, (self.voted_for, self.term)
        self._leadership.check_invariants(self.commit_index)
