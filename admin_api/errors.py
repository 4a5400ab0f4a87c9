"""Errors of services, and the parts of an answer that could not be read.

`admin_api.problems` maps the errors to HTTP statuses, the command line maps them to exit codes. The text of
each error is a sentence for people.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from admin_api.gateway import Trouble
from admin_api.schema import TroubleView


class ServiceError(Exception):
    """The base; never raised itself."""


class NotFoundError(ServiceError):
    """Every broker that had to be asked answered, and none knows the thing."""


class UnavailableError(ServiceError):
    """The name server or the brokers that would know do not answer."""


class InvalidError(ServiceError):
    """What was asked for makes no sense, however the cluster is."""


T = TypeVar("T")


class PartialFields(TypedDict):
    is_partial: bool
    problems: list[TroubleView]


def partial_fields(*troubles: Iterable[Trouble]) -> PartialFields:
    """The fields of a `Partial` schema; each trouble once."""
    seen = dict.fromkeys(trouble for each in troubles for trouble in each)
    views = [TroubleView(address=trouble.address, problem=trouble.problem) for trouble in seen]
    return {"is_partial": bool(views), "problems": views}


@dataclass(frozen=True, slots=True)
class PageWanted:
    """Which part of a sorted list: `number` from 1, of `size` items each."""

    number: int = 1
    size: int = 100

    def of(self, items: Sequence[T]) -> Sequence[T]:
        """The items of this page; none behind the last one."""
        start = (self.number - 1) * self.size
        return items[start : start + self.size]


def missing(what: str, *troubles: Iterable[Trouble]) -> NotFoundError | UnavailableError:
    """What to raise when no broker that answered knows the thing: NotFoundError if all answered."""
    silent = list(dict.fromkeys(trouble for each in troubles for trouble in each))
    if not silent:
        return NotFoundError(f"{what} does not exist.")
    reasons = "; ".join(trouble.problem for trouble in silent[:3])
    return UnavailableError(f"Whether {what} exists is unknown: {reasons}.")
