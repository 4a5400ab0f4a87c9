"""Models that all resources share: the base, a problem, a page, partial answers, the result of a change."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PAGE_SIZE_MAX = 1000
PAGE_MAX = 1_000_000

T = TypeVar("T")


class Schema(BaseModel):
    """camelCase on the wire; null is an unknown value.

    Validators are built with the first value: a command imports many classes and uses few.
    """

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, defer_build=True)


class RequestSchema(Schema):
    """What the body of a request is. A field that there is not is refused: left out in silence, a misspelt
    one would make another change than was meant. Built at once: the web framework does so itself, and warns
    of a model that has put it off.
    """

    model_config = ConfigDict(defer_build=False, extra="forbid")


class TroubleView(Schema):
    """A broker or name server that gave no usable answer, so that its part is missing."""

    address: str
    problem: str = Field(description="a sentence for people")


class Partial(Schema):
    """An answer put together from several brokers."""

    is_partial: bool = Field(default=False, description="a broker that had to be asked did not answer")
    problems: list[TroubleView] = Field(default=[], description="who gave none, and why")


class Page(Partial, Generic[T]):
    """One page of a sorted list."""

    items: list[T]
    page: int = Field(ge=1, description="counted from 1")
    page_size: int = Field(ge=1, le=PAGE_SIZE_MAX)
    total: int = Field(ge=0, description="items on all pages; of the brokers that answered where partial")


class Problem(BaseModel):
    """An error as RFC 9457 has it (application/problem+json)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None


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
