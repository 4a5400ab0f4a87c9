"""The messages every client test sends, and what must be seen of each of them on the other side.

The Java and Go drivers (tests/integration/java/src, tests/integration/go) build them by the same rules.
"""

from __future__ import annotations

from dataclasses import dataclass

TAGS = ("TagA", "TagB", "TagC")
WORD = "naïve ☕ 你好"
SHARDS = 5
LARGE = 2000
"""A `large` body repeats its text so often: over 4 KiB the clients send it compressed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Message number `number` of the sends of one kind (`sync`, `oneway`, `ordered` …)."""

    kind: str
    number: int

    @property
    def body(self) -> str:
        text = f"{self.kind}-{self.number}: Grüße, 世界 🚀"
        return text * LARGE if self.kind == "large" else text

    @property
    def key(self) -> str:
        return f"key-{self.kind}-{self.number}"

    @property
    def tag(self) -> str:
        return TAGS[self.number % len(TAGS)]

    @property
    def shard(self) -> str:
        return f"shard-{self.number % SHARDS}"

    @property
    def as_received(self) -> dict[str, str]:
        """The part of a consumer's report that does not depend on where the message was stored."""
        return {
            "body": self.body,
            "keys": self.key,
            "tags": self.tag,
            "number": str(self.number),
            "word": WORD,
        }


def samples(**counts: int) -> list[Sample]:
    """`samples(sync=2, oneway=1)`: the messages of a run, in the order a driver sends them."""
    return [Sample(kind, number) for kind, count in counts.items() for number in range(count)]
