"""When a node wants an election, and whether it still has a leader it must be true to."""

from dledger.core.config import Config
from dledger.core.election import Ballot, retry_delay_range_ms
from dledger.core.ports import Rng


class ElectionTimer:
    """The lease ends election_timeout_min_ms after the leader's last word, or with its connection."""

    def __init__(self, config: Config, rng: Rng, now_ms: int) -> None:
        self._config = config
        self._rng = rng
        self._timeout_ms = self._draw_ms()
        self._leader_heard_ms: int | None = None
        self._lost_rounds = 0
        self._unreachable: set[str] = set()
        self.deadline_ms = now_ms + self._timeout_ms if config.others else now_ms
        """When to ask for pre-votes. A group of one does not wait."""

    def _draw_ms(self) -> int:
        return self._rng.between(self._config.election_timeout_min_ms, self._config.election_timeout_max_ms)

    def restart(self, now_ms: int) -> None:
        """A whole time-out from now on."""
        self.deadline_ms = now_ms + self._timeout_ms

    def follow(self) -> None:
        """A new leader: a new time-out, so that members do not stay in step."""
        self._timeout_ms = self._draw_ms()
        self._lost_rounds = 0

    def leader_heard(self, now_ms: int) -> None:
        self._leader_heard_ms = now_ms
        self.deadline_ms = now_ms + self._timeout_ms

    def leader_left(self, now_ms: int) -> None:
        """Its connection closed: the lease is void, and pre-votes are asked for soon."""
        self._leader_heard_ms = None
        delay_ms = self._rng.between(1, self._config.disconnect_election_delay_max_ms)
        self.deadline_ms = min(self.deadline_ms, now_ms + delay_ms)

    def end_lease(self) -> None:
        self._leader_heard_ms = None

    def has_live_leader(self, now_ms: int) -> bool:
        heard_ms = self._leader_heard_ms
        return heard_ms is not None and now_ms - heard_ms < self._config.election_timeout_min_ms

    def round_started(self, now_ms: int) -> None:
        """If not enough answers come, the next round begins after an ordinary time-out."""
        self.deadline_ms = now_ms + self._draw_ms()

    def round_won(self) -> None:
        self._lost_rounds = 0

    def is_lost(self, ballot: Ballot) -> bool:
        """No answer that could still come would make it a majority."""
        return ballot.is_lost(self._unreachable)

    def round_lost(self, now_ms: int) -> None:
        low_ms, high_ms = retry_delay_range_ms(self._config, self._lost_rounds)
        self._lost_rounds += 1
        self.deadline_ms = now_ms + self._rng.between(low_ms, high_ms)

    def peer_connected(self, peer: str) -> None:
        self._unreachable.discard(peer)

    def peer_disconnected(self, peer: str) -> None:
        self._unreachable.add(peer)
