"""What `/api/v1/doctor` found."""

from enum import StrEnum

from pydantic import Field

from admin_api.schemas.base import Partial, Schema

SAMPLE_MS_MAX = 10_000


class Severity(StrEnum):
    """ERROR: something does not work, or the next failure stops it. WARNING: it will, if nothing is done.
    INFO: worth knowing.
    """

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Finding(Schema):
    """One thing that is wrong, in words."""

    severity: Severity
    code: str = Field(description="which check found it, such as `node-down`; the same for ever")
    subject: str = Field(description="what it is about: a group, node, address, consumer group")
    sentence: str = Field(description="what is wrong")
    remedy: str = Field(description="what to do about it")


class DoctorReport(Partial):
    """Everything found, the worst first. `isPartial`: something could not be looked at."""

    as_of_ms: int = Field(description="Unix time in ms")
    is_well: bool = Field(description="no finding is an error")
    findings: list[Finding]
    looked_at: dict[str, int | None] = Field(
        description="how many nodes, groups and so on there were to look at; null: nobody could say"
    )
