"""What a change answers, whatever it changes."""

from pydantic import Field

from admin_api.schemas.base import Schema


class EffectView(Schema):
    """One thing that becomes different."""

    subject: str = Field(description="what changes, such as `broker-a/3`")
    before: str | None = Field(default=None, description="null: not known, or not there")
    after: str | None = Field(default=None, description="null: not known, or gone")


class OutcomeView(Schema):
    """How one part of a change went."""

    subject: str
    ok: bool
    problem: str | None = None
    code: int | None = Field(default=None, description="what a broker that would not do it answered")


class ChangeResult(Schema):
    """The preview of a change (`isDryRun`), or what became of it."""

    action: str = Field(description="the kind of change, such as `offset.reset`")
    target: str
    is_dry_run: bool
    is_destructive: bool = Field(
        description="it loses, repeats or interrupts something: needs `confirmation`"
    )
    effects: list[EffectView]
    warnings: list[str] = Field(default=[])
    confirmation: str | None = Field(
        default=None, description="given by the dry run of a destructive change; valid for 5 minutes, once"
    )
    outcomes: list[OutcomeView] = Field(default=[])
    is_partial: bool = Field(default=False, description="some parts were done, some not: see `outcomes`")
