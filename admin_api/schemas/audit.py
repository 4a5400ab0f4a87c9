"""The audit log's lines, on disk and in answers."""

from enum import StrEnum

from pydantic import Field

from admin_api.schemas.base import Page, Schema
from admin_api.schemas.changes import EffectView


class AuditOutcome(StrEnum):
    """BEGUN: nobody saw its end, the process went away meanwhile. PARTIAL: done in part, `problem` has the
    rest. REFUSED: not tried. FAILED: tried, nothing done as far as is known."""

    BEGUN = "begun"
    APPLIED = "applied"
    PARTIAL = "partial"
    REFUSED = "refused"
    FAILED = "failed"


class AuditEntry(Schema):
    """One change that somebody made or tried to make."""

    id: str
    at_ms: int = Field(description="Unix time in ms at which it began")
    ended_at_ms: int | None = None
    actor: str = Field(description="the token's name; `local` where none are used")
    role: str
    remote: str = Field(description="the address it came from")
    action: str
    target: str
    outcome: AuditOutcome
    effects: list[EffectView] = Field(default=[])
    effects_total: int = Field(default=0, description="with many effects the first ones are kept")
    warnings: list[str] = Field(default=[])
    problem: str | None = None


class AuditPage(Page[AuditEntry]):
    """Changes, newest first."""

    is_kept: bool = Field(description="written to a file; false: the last ones, in memory only")
