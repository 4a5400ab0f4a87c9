"""One replication group for those who want to move its leadership."""

from pydantic import Field

from admin_api.schemas.base import Partial, RequestSchema, Schema
from admin_api.schemas.cluster import GroupView


class ReplicationSettings(Schema):
    """What rules elections and pushes, as the leader has it in force; null: unknown."""

    heartbeat_interval_ms: int | None = None
    election_timeout_min_ms: int | None = None
    election_timeout_max_ms: int | None = None
    wait_ack_timeout_ms: int | None = Field(
        default=None, description="an append not committed after this time fails"
    )
    pending_appends_max: int | None = None
    throttle_bytes_per_s: int | None = Field(
        default=None, description="peerPushQuota; 0: what the producers leave free (decided by the leader)"
    )
    throttle_lag_bytes: int | None = Field(
        default=None, description="peerPushThrottlePoint: a member farther behind is throttled"
    )


class ReplicationView(Partial):
    """The group as in the cluster's view, who is in sync, who is to lead, and by which rules."""

    group: GroupView
    preferred_leader_id: str | None = Field(description="null: none, or unknown where `settings` is null")
    in_sync: list[str] | None = Field(description="as in `group`; null: unknown")
    settings: ReplicationSettings | None


class LeaderChoice(RequestSchema):
    """Who is to lead."""

    node_id: str | None = Field(
        default=None, max_length=64, description="a member such as `n2`; null: the one nearest to the leader"
    )


class PreferredLeader(RequestSchema):
    """Who is to lead whenever it can."""

    node_id: str | None = Field(max_length=64, description="a member such as `n2`; null: nobody")
