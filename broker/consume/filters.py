"""Which messages of a queue a consumer wants: how a queue's units are matched (DefaultMessageFilter). Tag
expressions are in remoting.tag_filters, expressions over properties in broker.sql92.

A consume queue keeps only the hash of a message's tag. A wanted message must always match here.
"""

from typing import Final, Protocol

_TYPE_CHARS_MAX: Final = 40


class MessageFilter(Protocol):
    """Which messages of a queue a consumer wants."""

    @property
    def codes(self) -> frozenset[int] | None:
        """The tags codes of wanted messages; None when messages of every code may be wanted."""

    @property
    def reads_properties(self) -> bool:
        """Whether `wants` must be asked, too."""

    def matches(self, code: int) -> bool:
        """Whether a message with this tags code may be wanted."""

    def wants(self, properties: bytes) -> bool:
        """Whether a message with these properties is wanted, its tags code aside. Never raises."""

    def work_us(self, properties: bytes) -> int:
        """About how long that takes."""


class PropertyFilter:
    """A MessageFilter that cannot be decided by tags codes: it is applied to every message."""

    __slots__ = ()

    @property
    def codes(self) -> None:
        return None

    @property
    def reads_properties(self) -> bool:
        return True

    def matches(self, code: int) -> bool:
        return True

    def work_us(self, properties: bytes) -> int:
        """About how long `wants` takes for these properties, in microseconds; the same wherever it runs."""
        return 2


def property_filter_refused(expression_type: str | None) -> str:
    """Remark of the answer 1 SYSTEM_ERROR that RocketMQ gives while its property filter is off."""
    shown = str(expression_type)[:_TYPE_CHARS_MAX]
    return f"The broker does not support consumer to filter message by {shown}"
