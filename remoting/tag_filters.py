"""Tag expressions: which tags a consumer wants, and which hashes they have (FilterAPI). Pure.

A consume queue keeps only the hash of a message's tag, so a broker may answer with a message of another tag
with the same hash; every client filters once more by the tag itself.
"""

from dataclasses import dataclass
from typing import Final

from remoting.record import tags_code

EXPRESSION_TYPE_TAG: Final = "TAG"
EXPRESSION_TYPE_SQL92: Final = "SQL92"
SUB_ALL: Final = "*"
EXPRESSION_CHARS_MAX: Final = 65_536
_SEPARATOR: Final = "||"


class FilterError(ValueError):
    """An expression from a client cannot be parsed; the message names the reason."""


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The wanted tags of one subscription. `codes` is None when every message is wanted."""

    expression: str
    tags: tuple[str, ...] = ()
    codes: frozenset[int] | None = None

    def matches(self, code: int) -> bool:
        """Whether a unit with this tags code may be wanted. A unit holds the 32-bit hash, sign-extended."""
        return self.codes is None or code in self.codes

    @property
    def reads_properties(self) -> bool:
        return False

    def wants(self, properties: bytes) -> bool:
        return True

    def work_us(self, properties: bytes) -> int:
        return 0


MATCH_ALL = TagFilter(SUB_ALL)


def parse_tag_expression(expression: str | None) -> TagFilter:
    """The filter for `TagA || TagB`; None, blank and `*` want everything.

    The hashes are always computed here: clients send codes of their own making (C++: atoi of the tag; Go:
    over UTF-8 bytes), which would filter out wanted messages. Raises FilterError when no tag is left between
    the bars.
    """
    if expression is None or not expression.strip() or expression.strip() == SUB_ALL:
        return MATCH_ALL
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise FilterError(
            f"the expression has {len(expression)} characters; {EXPRESSION_CHARS_MAX} are possible"
        )
    tags = tuple(dict.fromkeys(tag for part in expression.split(_SEPARATOR) if (tag := part.strip())))
    if not tags:
        raise FilterError("subString split error: no tag between the bars")
    if SUB_ALL in tags:
        return MATCH_ALL
    return TagFilter(expression, tags, frozenset(tags_code(tag) for tag in tags))


def is_tag_type(expression_type: str | None) -> bool:
    """Whether the expression is one of tags. C++ clients name no type, older ones send an empty one."""
    return not expression_type or expression_type == EXPRESSION_TYPE_TAG
