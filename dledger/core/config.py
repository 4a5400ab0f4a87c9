"""All limits and times of one member of a group, in one frozen value."""

from collections.abc import Callable
from dataclasses import dataclass, field

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Config:
    """DLedgerConfig: who this node is, and every bound of the engine.

    Raises ValueError when the values do not fit together.
    """

    group: str
    self_id: str
    peers: tuple[str, ...]
    """The voters before the log names others, this node included unless it joins a running group."""

    heartbeat_interval_ms: int = 250
    """A leader sends something to every peer at least this often. Twice this must fit into the election
    time-out, or one lost heartbeat would start an election.
    """
    election_timeout_min_ms: int = 900
    """Also the lease: a node that heard its leader within this time refuses to vote for another. It must be
    much longer than the longest delay of a handler on the event loop: that delays heartbeats.
    """
    election_timeout_max_ms: int = 1_500
    """Also check-quorum: a leader without answers from a majority for this long steps down."""
    disconnect_election_delay_max_ms: int = 50
    """A follower whose leader's connection closed asks for votes within this time."""

    push_timeout_ms: int = 1_000
    """The oldest unacknowledged push is sent again after this time (maxPushTimeOutMs)."""
    compare_timeout_ms: int = 3_000
    """COMPARE and TRUNCATE are sent again after this time."""
    commit_interval_ms: int = 1_000
    """An idle leader sends COMMIT this often."""
    abnormal_check_interval_ms: int = 1_000
    """A follower checks this often for pushes that have waited too long for an earlier one."""

    pending_pushes_max: int = 1_000
    """Unacknowledged pushes to one peer; at the limit nothing new is pushed to it."""
    pending_push_bytes_max: int = 64 * _MIB
    """Bytes of unacknowledged pushes to one peer; at the limit nothing new is pushed to it."""
    push_bytes_max: int = 1 * _MIB
    """Bytes of one push, unless its first entry alone is larger (maxBatchPushSize)."""
    small_pushes_max: int = 1_000
    """With this many unacknowledged pushes to a peer, the next entries are collected until they have
    small_push_bytes, or an acknowledgement arrives. A value of 2 keeps a peer's disk busy with few pushes.
    """
    small_push_bytes: int = 64 * 1024
    """A push of fewer bytes counts as small."""
    pending_appends_max: int = 10_000
    """Uncommitted entries of waiting callers; beyond it a leader answers LEADER_PENDING_FULL."""
    wait_ack_timeout_ms: int = 2_500
    """An append not committed after this time is answered with WAIT_QUORUM_ACK_TIMEOUT."""
    out_of_order_pushes_max: int = 1_000
    """Pushes that a follower keeps until an earlier one arrives; beyond it PUSH_REQUEST_IS_FULL."""
    out_of_order_bytes_max: int = 64 * _MIB
    """Bytes of these pushes; beyond it PUSH_REQUEST_IS_FULL."""

    catch_up_lag_bytes: int = 16 * _MIB
    """A peer that is further behind than this, and that no quorum needs, gets only the capacity that
    producers leave free.
    """
    catch_up_bytes_per_s_min: int = 20 * _MIB
    """The least that such a peer gets, however busy the leader is: it must catch up some time."""
    throttle_bytes_per_s: int | None = None
    """A fixed quota instead (peerPushQuota), for a peer that is throttle_lag_bytes behind; None: no quota."""
    throttle_lag_bytes: int = 300 * _MIB
    """peerPushThrottlePoint."""

    preferred_leader_id: str | None = None
    """A leader that is not this one transfers leadership to it when it can."""
    preference: Callable[[], str | None] | None = field(default=None, repr=False, compare=False)
    """Called for the preferred leader at each check, where it can change while the node runs. A name that is
    no member's has no effect.
    """
    preferred_check_interval_ms: int = 1_000
    """How often a leader checks whether it can."""
    preferred_steady_ms: int = 10_000
    """It can once the preferred leader has answered this long, with no pause of election_timeout_min_ms."""
    transfer_lag_max: int = 1_000
    """Leadership is not transferred to a peer that is more entries behind than this."""
    transfer_timeout_ms: int = 1_000
    """A transfer that has not succeeded after this time is given up, and appends are accepted again."""

    promotion_lag_bytes: int = 4 * _MIB
    """A joining member that lacks no more than this of the log becomes a voter (thesis 4.2.1)."""
    departure_ms: int = 10_000
    """A leader goes on replicating to a removed member for this long, so that it learns of its removal."""

    def __post_init__(self) -> None:
        self._check_members()
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.election_timeout_min_ms > self.election_timeout_max_ms:
            raise ValueError(
                f"election_timeout_min_ms={self.election_timeout_min_ms} > "
                f"election_timeout_max_ms={self.election_timeout_max_ms}"
            )
        if self.heartbeat_interval_ms * 2 > self.election_timeout_min_ms:
            raise ValueError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} leaves less than two heartbeats in "
                f"election_timeout_min_ms={self.election_timeout_min_ms}"
            )

    def _check_members(self) -> None:
        if len(set(self.peers)) != len(self.peers):
            raise ValueError(f"a member is named twice in {self.peers}")
        if self.preferred_leader_id is not None and self.preferred_leader_id not in self.peers:
            raise ValueError(f"preferred_leader_id={self.preferred_leader_id!r} is not one of {self.peers}")

    def preferred_now(self) -> str | None:
        return self.preferred_leader_id if self.preference is None else self.preference()
