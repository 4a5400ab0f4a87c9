"""Errors of services, parts of an answer that could not be read, and pydantic's errors as plain sentences.

`admin_api.problems` maps the errors to HTTP statuses, the command line maps them to exit codes. The text of
each error is a sentence for people.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar

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


Context = Mapping[str, Any]
OTHER: Final = "cannot be used"
_PLACE_MAX: Final = 100
"""Characters of a field's name: one that is not known may be of any length."""
PATTERNS: Final[Mapping[str, str]] = {
    r"^[%|a-zA-Z0-9_+-]+$": "may have the letters a to z and A to Z, digits and % | _ - + only",
    r"^[%|a-zA-Z0-9_-]+$": "may have the letters a to z and A to Z, digits and % | _ - only",
    r"^[a-zA-Z0-9_.-]+$": "may have the letters a to z and A to Z, digits and _ . - only",
    r"^[A-Za-z][A-Za-z0-9_.-]*$": "begins with a letter and may have a to z, A to Z, digits and _ . - only",
    r"^[^,=\x00-\x1f]*$": "may have no comma, no = and no control character",
    r"^[^\x00-\x1f/]+$": "may have no / and no control character",
    r"^[^\x00-\x1f]*$": "may have no control character",
}
"""Every pattern of a request. The first is RocketMQ's rule for names of topics, with the + that the newer of
its retry topics have.
"""
_NUMBER: Final = "must be a whole number"
_PLAIN: Final[Mapping[str, str]] = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "extra_forbidden": "is not known here",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "int_from_float": _NUMBER,
    "int_parsing": _NUMBER,
    "int_parsing_size": "is too large a number",
    "int_type": _NUMBER,
    "json_invalid": "is no JSON",
    "list_type": "must be a list",
    "missing": "is missing",
    "model_attributes_type": "must be an object",
    "model_type": "must be an object",
    "string_type": "must be a text",
    "string_unicode": "is no valid text: it contains half of a surrogate pair",
}
_WITH: Final[Mapping[str, Callable[[Context], str]]] = {
    "enum": lambda context: f"must be {context['expected']}",
    "greater_than": lambda context: f"must be more than {context['gt']}",
    "greater_than_equal": lambda context: f"must be {context['ge']} or more",
    "less_than": lambda context: f"must be less than {context['lt']}",
    "less_than_equal": lambda context: f"must be {context['le']} or less",
    "literal_error": lambda context: f"must be {context['expected']}",
    "string_pattern_mismatch": lambda context: PATTERNS.get(context["pattern"], OTHER),
    "string_too_long": lambda context: f"may have {context['max_length']} characters at most",
    "string_too_short": lambda context: _at_least(context["min_length"], "characters"),
    "too_long": lambda context: f"may have {context['max_length']} entries at most",
    "too_short": lambda context: _at_least(context["min_length"], "entries"),
    "value_error": lambda context: f"does not fit: {context['error']}",
}


def _at_least(count: int, what: str) -> str:
    return "must not be empty" if count == 1 else f"must have {count} {what} at least"


def words_of(error: Mapping[str, Any], fields: Sequence[str] = ()) -> str:
    """`name may have …`, of one of pydantic's errors. The value is not part of it: it may be a secret.

    `fields`: those of the body. They are named where the body has another one.
    """
    kind, where = error["type"], [str(part)[:_PLACE_MAX] for part in error["loc"]]
    made = _WITH.get(kind)
    words = made(error["ctx"]) if made is not None else _PLAIN.get(kind, OTHER)
    if len(where) > 1 and where[0] == "body":
        del where[0]  # the field is enough as its place
        if kind == "extra_forbidden" and len(where) == 1 and fields:
            words = f"{words}; there are {', '.join(fields)}"
    return f"{'.'.join(where) or 'what is asked for'} {words}"
