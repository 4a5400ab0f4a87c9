"""The last hour as the admin process sampled it."""

from pydantic import Field

from admin_api.schemas.base import Schema


class HistorySample(Schema):
    """One look at one broker name. null: nobody could say; a line through it is a guess."""

    at_ms: int = Field(description="Unix time in ms")
    leader_id: str | None = None
    put_per_s: float | None = Field(
        default=None, description="messages written a second since the sample before"
    )
    get_per_s: float | None = Field(default=None, description="messages consumed a second since then")
    put_p99_ms: float | None = Field(
        default=None, description="99 of 100 writes took at most this long, as the broker measures it"
    )
    lag_entries: dict[str, int | None] = Field(default={}, description="node id -> entries behind its leader")
    lag_ms: dict[str, int | None] = Field(
        default={}, description="node id -> age of the first entry that it lacks"
    )


class GroupHistory(Schema):
    """The samples of one broker name, oldest first."""

    broker_name: str
    samples: list[HistorySample]


class HistoryView(Schema):
    """What is remembered since this process started, at most the last `keepMs`."""

    as_of_ms: int = Field(description="Unix time in ms")
    interval_ms: int
    keep_ms: int
    groups: list[GroupHistory]
